module prismfs/integration/oracle

go 1.26.0

require (
	github.com/syndtr/goleveldb v1.0.0
	prismfs v0.0.0
)

require (
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/golang/snappy v0.0.0-20180518054509-2e65f85255db // indirect
	github.com/klauspost/compress v1.20.4 // indirect
	golang.org/x/sys v0.50.0 // indirect
)

replace prismfs => ../..
