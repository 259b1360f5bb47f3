// Package uring is the disk: the files of a store, read and written through
// io_uring where the kernel offers it and through pread/pwrite where it does
// not.
//
// # Terms
//
//   - Disk: one directory tree of the host, held by a descriptor, so that a
//     mount over the tree's path does not redirect us into ourselves.
//   - Ring: one io_uring instance; Reactor: the ring of a Disk with its table
//     of reads in flight and the thread that reaps completions.
//   - Lane: where work runs (package lanes). Completions go to the CPU pool;
//     whatever would block goes to the BlockingIO lane.
package uring
