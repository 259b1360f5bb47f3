// Command bench compares prismfs with ext4 and with go-fuse's loopback example,
// all three on one ext4 in a loop device on a real disk.
//
//	make bench                                 every row, 3 rounds, into BENCH.md
//	make bench ROWS='create|stat' ROUNDS=1     some rows
//	make bench CONTENDERS=ext4,prismfs,devfuse,writeback,loopback
//	make profile WORKLOAD=create4k-1           the row with a CPU profile of the daemon
//
// It is a module of its own, so that prismfs does not depend on its rivals.
//
// How a figure comes about:
//
//   - One row is measured for each contender in turn before the next row, in an
//     order that rotates from round to round: what else happens on the machine
//     meets all of them. Only the contender that is measured is mounted.
//   - Ratios are medians of the ratios of the rounds, not ratios of medians.
//   - The clients are system threads of this process, not of a daemon, and
//     garbage collection is off while they run.
//   - Cold rows: the contender and the ext4 below are unmounted, caches are
//     dropped, both are mounted again, and nothing is read before the row. The
//     loop device reads its image directly, so the image is not cached either.
//     Other rows run in the mount in which their files were made or looked at.
//   - A row starts when everything before it is on disk and the daemon is idle.
//   - File contents are random and nowhere the same.
//   - Flushes are those that the loop device was asked for.
//
// Files:
//
//	main.go        flags, rounds, cleaning up
//	image.go       the loop device and its ext4
//	contender.go   mounting, unmounting, asking daemons
//	measure.go     one row for one contender
//	rows.go        the rows
//	clients.go     threads and system calls
//	process.go     CPU time and memory of a daemon, flushes of a device
//	report.go      the tables
//	profile.go     make profile
package main
