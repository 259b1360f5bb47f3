module prismfs/integration/oracle

go 1.26.0

require github.com/syndtr/goleveldb v1.0.0

require (
	github.com/golang/snappy v0.0.0-20180518054509-2e65f85255db // indirect
	golang.org/x/sys v0.50.0 // indirect
)

replace prismfs => ../..
