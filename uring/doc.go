// Package uring is the disk: the files of a store, read and written through
// io_uring where the kernel offers it and through pread/pwrite where it does
// not. It is the only home of unsafe and of ring system calls.
//
// # Terms
//
//   - Disk: one directory tree of the host, held by a descriptor, so that a
//     mount over the tree's path does not redirect us into ourselves.
//   - Ring: one io_uring instance, usable by itself (FUSE over io_uring).
//   - Reactor: the ring of a Disk with its table of reads in flight and the
//     goroutine that reaps completions.
//   - Lane: where work runs (package lanes). Done of a read goes to the CPU
//     pool; whatever would block goes to the BlockingIO lane.
//
// # Routes
//
//	ReadAt        pread on the caller's thread
//	ReadAtNoWait  preadv2(RWF_NOWAIT): page cache or ErrWouldBlock
//	WriteAt ...   the plain system call on the caller's thread
//	ReadAsync ----+-- no ring, or one of the first two ----> BlockingIO lane --+
//	              |                                              ^             |
//	              +-- caller fills an entry and enters           | refused     v
//	                         |                                   |         CPU pool:
//	                   table, kernel ---> poller ---> reaper ----+-------> Done
//
// A disk without a ring behaves the same; Mode tells. Writes and syncs stay
// plain calls: a group leader with pwrite and fdatasync on a preallocated file
// is faster than the same linked on a ring.
//
// # Why these routes
//
// BenchmarkRead -cpu 8, thousand random 4 KiB reads a second at depth 1 / 8 / 64,
// 2 cores shared with other work (+-30 %), Linux 6.18, ext4 on virtio, Go 1.26.
// "ring" is ReadAsync of a disk with a ring, "lane" without, "pread" as many
// goroutines in ReadAt; busy is cold beside a CPU-bound goroutine per core.
//
//	       ring             lane             pread            nowait
//	warm   400 / 520 / 580  490 / 490 / 630  700 / 810 / 950  840 / 1000 / 720
//	cold    22 /  69 /  93   16 /  56 /  47   25 /  59 /  65
//	busy    21 /  40 /  65   14 /  35 /  44   20 /  70 /  89
//
// What follows from it:
//
//   - Warm data is read by ReadAtNoWait, and what must wait for the disk with
//     nobody's thread to spare by ReadAsync.
//   - The poller against a goroutine blocked in io_uring_enter, cold, -cpu 2:
//     24 / 83 / 110 against 16 / 69 / 109.
//   - The first two reads on the lane against all on the ring, busy: 21 / 40 / 65
//     against 8 / 14 / 47; cold the same.
//   - With GOMAXPROCS at the number of cores, CPU-bound goroutines let the poller
//     run every 10 ms only; the program raises it (8 on 2 cores).
//
// # Ownership and locks
//
// A Read and its buffer are the disk's from ReadAsync until Done is queued. A
// buffer in the ring is kept alive by the reactor's table. Descriptors are
// counted: Close of a file does not wait, the last user closes the number.
// Lock order: reactor.reaping, reactor.mu, the lanes' own locks.
package uring
