module prismfs/integration/bench

go 1.26.0

tool github.com/hanwen/go-fuse/v2/example/loopback

require golang.org/x/sys v0.50.0

require github.com/hanwen/go-fuse/v2 v2.12.1 // indirect
