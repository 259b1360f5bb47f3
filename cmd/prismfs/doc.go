// Command prismfs makes, mounts and looks after prismfs stores.
//
// One binary is everything: the command people type, the daemon behind a
// mount, and the helpers that mount(8), umount(8), mkfs(8) and fsck(8) look for
// (chosen by the name it is called by).
//
//	prismfs mount STORE MNT
//	  |  checks the command line and both directories
//	  |  starts itself again, detached (setsid), with a pipe
//	  v
//	daemon: log file -> lock and open STORE -> STORE/control.sock -> mount(2)
//	  |  writes "ready" or one line of error to the pipe
//	  v
//	first process: looks at MNT from outside, then exits 0
//
// The daemon ends when MNT is unmounted or on SIGTERM/SIGINT: it commits,
// closes the store, tells everybody who waits on the control socket how that
// went, and exits. `prismfs umount` is such a waiter.
//
// Files:
//
//	main.go           names and commands, how failures become exit codes
//	exit_codes.go     the stable numbers
//	args.go           command lines
//	mount_options.go  -o
//	mountinfo.go      what the kernel says is mounted
//	mkfs.go mount.go umount.go remount.go fsck.go live.go help.go  the commands
//	daemon.go         the process behind a mount
//	control.go        the control socket, both ends
//	profile.go        what the daemon spends its time on, for developers
//	first_open.go     the first open of a mount, by another process
//	backend*.go       what knows the store and the FUSE server
//
// Invariants:
//
//	C1  The daemon never touches its own mount: a Go thread stuck there stops
//	    the collector and with it the answer that it waits for.
//	C2  "ready" is reported only after the kernel has been answered, and exit 0
//	    of mount only after another process has read the root directory.
//	C3  A failure is one line on stderr, `prismfs: what: why: what to do`.
package main
