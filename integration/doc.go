// Package integration holds the tests that use prismfs as people do: the real
// program as a process of its own, real mounts, ordinary tools.
//
//	harness_test.go      building, mounting, killing, checking, cleaning up
//	commands_test.go     the commands, mount(8) and signals
//	crash_test.go        kill -9 under load; witness_test.go is its judge
//	errors_test.go       what must be refused, and how
//	layers_test.go       the order of the packages
//	posix_test.go        system calls; posix_file_test.go, posix_dir_test.go
//	programs_test.go     git, go, sqlite
//	readme_test.go       the commands of README.md
//	scale_test.go        large files and directories
//	source_tree_test.go  a source tree and the tools that copy and compare
//
// No test of this package opens a store or serves a mount in its own process:
// a thread that waits for a mount of its own process stops the collector.
//
// Environment:
//
//	PRISMFS_BIN         the program to test (default: built from this tree)
//	PRISMFS_TESTDIR     where stores and mounts are made (default /var/tmp)
//	PRISMFS_MOUNT_OPTS  mount options added to every mount
//	PRISMFS_LONG        1: the long forms
//	PRISMFS_SEED        seed of the random tests (default: the time)
//	PRISMFS_KEEP        a directory to copy the store of a failed test to
//	CI                  set: a machine that cannot mount fails instead of skipping
package integration
