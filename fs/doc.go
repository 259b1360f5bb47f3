// Package fs is the FUSE front end: it mounts the file system, carries the
// kernel's requests to handlers and the replies back, and is the only place
// that speaks errno to FUSE and knows what the kernel caches.
//
// # Map
//
//	mount.go              options, mount(2) or fusermount3, Server, unmount
//	init.go               the INIT handshake: capabilities and limits
//	bdi.go                mountinfo, read-ahead and writeback limits
//	wire.go               Request: the bytes of a request and its reply, checked
//	dispatch.go           Dispatcher: inline, parked, or answered later
//	ops_*.go              the operations, a file for each kind
//	errno.go              errors of the store as errno, in one place
//	first_open.go         the file whose opening tells the kernel not to ask
//	transport.go          Handler and Transport
//	transport_devfuse.go  read(2) and write(2) on /dev/fuse
//	transport_uring.go    FUSE over io_uring, one ring per possible CPU
//	notify.go             invalidations sent to the kernel
//	cached_pages.go       what the kernel may hold, for O_DIRECT writes
//	caller.go             what /proc tells of who asks
//
// # A request's way
//
//	kernel --> reader or queue thread --> Handler.Handle --> Reply, inline
//	                                          |
//	                                          +--> parked with a lane's job --> Reply, later
//
// Handle runs on the transport's thread, so it never blocks. What memory can
// answer is answered there, which is several times cheaper than a hop to
// another goroutine. Everything else leaves the thread with its request, whose
// buffers stay with it until Reply.
//
// Whoever comes second, Handle returning or the answer being given, hands the
// request back to the transport; one atomic word per request decides. Over
// io_uring a late reply travels by the queue's own list and an eventfd to the
// queue's thread, because only that thread may touch its ring.
//
// Over io_uring a CPU's requests go to that CPU's queue and nowhere else, so a
// thread held up holds up every process of its CPU, and a queue whose entries
// are all parked stalls it: entries are some ten to a queue and more, by budget.
// Queue threads keep a P of the Go scheduler for a moment while they wait in
// the kernel, so GOMAXPROCS should be well above the number of CPUs; pools are
// sized by CPUs all the same.
//
// # Ends
//
// Serve ends when the kernel says that the file system is unmounted or the
// connection aborted, and then waits until parked requests are answered, into
// the void. A daemon must never use its own mount: a thread of it that waits
// for its own answer can't be stopped, and the garbage collector waits for the
// thread. That holds for stat of the mount point too, hence mountinfo.
package fs
