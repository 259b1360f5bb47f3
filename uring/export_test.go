package uring

import "golang.org/x/sys/unix"

// OpenDirect opens a file past the page cache, for cold reads.
func OpenDirect(d Disk, name string) (File, error) {
	return d.(*disk).open("open", name, unix.O_RDONLY|unix.O_DIRECT)
}
