package fs

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"prismfs/lanes"
	"prismfs/metadata"
	"prismfs/uring"
)

// HandlerOptions are the choices of the front end that the kernel can see.
type HandlerOptions struct {
	// ReadOnly refuses every change with EROFS, whatever the mount says.
	ReadOnly bool
	// Writeback says that the kernel's writeback cache is on: it then owns the
	// times of files that it writes back.
	Writeback bool
	// How long the kernel may believe a name, attributes, or the absence of a
	// name. Nothing else writes to the store, so 0 means a day; negative means
	// not at all.
	EntryTimeout, AttrTimeout, NegativeTimeout time.Duration
	// NoOpen refuses OPEN and OPENDIR, after which the kernel opens files by
	// itself. It needs the kernel not to have been promised ATOMIC_O_TRUNC,
	// which would then lose truncations.
	NoOpen bool
	// DropCache has each OPEN forget what the kernel has cached of the file, so
	// that the reads of its caller are seen: the price of strictatime.
	DropCache bool
	// NoXattr refuses all extended attributes, which spares a request for each
	// freshly written file.
	NoXattr bool
	// ACL hands system.posix_acl_* on to the store, and applies the umask, which
	// the kernel then leaves to us.
	ACL bool
	// Logf is told of every error that is the store's fault. May be nil.
	Logf func(format string, args ...any)
}

// Dispatcher is the Handler that serves a metadata.FS.
//
// Every operation is one method. It runs first on the transport's thread and
// may not block there; when the store answers ErrWouldBlock, which it does
// before any effect, the request is parked: it goes to the BlockingIO lane,
// where the same method runs again and may block. Reads of cold data and waits
// for durability hold no lane: they are answered from their completions.
//
//   - Bounds: the dispatcher owns no queue. A parked request is a request of
//     the transport that is not answered yet, and the transport's pool of them
//     is what bounds their number.
//   - Order: requests are answered in any order. What the kernel has not seen
//     answered has no order among itself.
//   - Aliasing: Out may be the memory of Data, so that every method is done
//     with Data before it writes to Out, and writes to Out only once it knows
//     that it need not be run again.
//   - Lanes: holds no lock of its own.
type Dispatcher struct {
	st       metadata.FS
	o        HandlerOptions
	blocking *lanes.Blocking
	cpu      *lanes.Pool
	kernel   Notifier // nil: none to notify
	cached   cachedPages

	entryValid, attrValid, negativeValid validity

	requests              [opSlots]atomic.Uint64 // slot 0: opcodes unknown here
	parked, async, errors atomic.Uint64
	logGate               logGate
	changes               changeQueue
	opened                atomic.Bool // an OPEN has come: the kernel knows that they are refused
}

// NewHandler makes the handler for a store.
func NewHandler(st metadata.FS, o HandlerOptions) *Dispatcher {
	d := &Dispatcher{
		st: st, o: o,
		blocking:      st.Lanes().BlockingIO,
		cpu:           st.Lanes().CPU,
		entryValid:    validityOf(o.EntryTimeout),
		attrValid:     validityOf(o.AttrTimeout),
		negativeValid: validityOf(o.NegativeTimeout),
	}
	d.logGate.now = time.Now
	d.changes.limit = max(1, d.blocking.Workers()-1)
	return d
}

// Notifier is the part of a Server that tells the kernel of changes that it does
// not expect.
type Notifier interface {
	InvalInode(ino uint64, off, n int64) error
}

// SetNotifier says who tells the kernel of changes that it does not
// expect. Call it, if at all, before Serve.
func (d *Dispatcher) SetNotifier(n Notifier) { d.kernel = n }

// attrChanged makes the kernel ask for attributes again that a request other
// than SETATTR has changed behind its back.
func (c *call) attrChanged(ino metadata.Ino) {
	if c.d.kernel == nil {
		return
	}
	if err := c.d.kernel.InvalInode(uint64(ino), -1, 0); err != nil {
		c.log(err)
	}
}

// opSlots is one more than the highest opcode in use.
const opSlots = 64

// operation is how one opcode is served.
type operation struct {
	run func(*Dispatcher, *call, metadata.Wait) (n int, err error)
	// change marks what a read-only mount refuses.
	change bool
}

// operations is indexed by opcode. What is missing is answered ENOSYS, and
// each of these is meant so:
//
//   - FLUSH, ACCESS: nothing to do at close; the kernel checks permissions
//   - GETLK, SETLK, SETLKW: the kernel keeps the locks of a local file system
//   - BMAP, POLL: no block device; always ready
//   - SETUPMAPPING, REMOVEMAPPING: virtiofs only
//   - INIT: answered while mounting, before there is a handler
var operations = [opSlots]operation{
	OpLookup:      {run: (*Dispatcher).opLookup},
	OpForget:      {run: (*Dispatcher).opForget},
	OpGetattr:     {run: (*Dispatcher).opGetattr},
	OpSetattr:     {run: (*Dispatcher).opSetattr, change: true},
	OpReadlink:    {run: (*Dispatcher).opReadlink},
	OpSymlink:     {run: (*Dispatcher).opSymlink, change: true},
	OpMknod:       {run: (*Dispatcher).opMknod, change: true},
	OpMkdir:       {run: (*Dispatcher).opMkdir, change: true},
	OpUnlink:      {run: (*Dispatcher).opUnlink, change: true},
	OpRmdir:       {run: (*Dispatcher).opRmdir, change: true},
	OpRename:      {run: (*Dispatcher).opRename, change: true},
	OpLink:        {run: (*Dispatcher).opLink, change: true},
	OpOpen:        {run: (*Dispatcher).opOpen},
	OpRead:        {run: (*Dispatcher).opRead},
	OpWrite:       {run: (*Dispatcher).opWrite, change: true},
	OpStatfs:      {run: (*Dispatcher).opStatfs},
	OpRelease:     {run: (*Dispatcher).opNothing},
	OpFsync:       {run: (*Dispatcher).opSync},
	OpSetxattr:    {run: (*Dispatcher).opSetxattr, change: true},
	OpGetxattr:    {run: (*Dispatcher).opGetxattr},
	OpListxattr:   {run: (*Dispatcher).opListxattr},
	OpRemovexattr: {run: (*Dispatcher).opRemovexattr, change: true},
	OpOpendir:     {run: (*Dispatcher).opOpendir},
	OpReaddir:     {run: (*Dispatcher).opReaddir},
	OpReleasedir:  {run: (*Dispatcher).opNothing},
	OpFsyncdir:    {run: (*Dispatcher).opSync},
	OpCreate:      {run: (*Dispatcher).opCreate, change: true},
	OpInterrupt:   {run: (*Dispatcher).opNoReply},
	OpDestroy:     {run: (*Dispatcher).opNothing},
	OpIoctl:       {run: (*Dispatcher).opIoctl},
	OpNotifyReply: {run: (*Dispatcher).opNoReply},
	OpBatchForget: {run: (*Dispatcher).opBatchForget},
	OpFallocate:   {run: (*Dispatcher).opFallocate, change: true},
	OpReaddirplus: {run: (*Dispatcher).opReaddirplus},
	OpRename2:     {run: (*Dispatcher).opRename2, change: true},
	OpLseek:       {run: (*Dispatcher).opLseek},
	OpSyncfs:      {run: (*Dispatcher).opSync},
	OpTmpfile:     {run: (*Dispatcher).opTmpfile, change: true},
	OpStatx:       {run: (*Dispatcher).opStatx},

	OpCopyFileRange:   {run: (*Dispatcher).opCopyFileRange, change: true},
	OpCopyFileRange64: {run: (*Dispatcher).opCopyFileRange, change: true},
}

// call is the dispatcher's memory for one Request of a transport: made for the
// first operation that the Request carries and kept for all later ones, so that
// an operation allocates nothing.
//
//   - Ownership: belongs to the request, and with it passes on at the answer.
type call struct {
	d *Dispatcher
	r *Request

	next *call // in the changeQueue

	attr   metadata.Attr
	set    metadata.SetAttr
	mk     metadata.MakeReq
	statfs metadata.Statfs
	dir    dirWriter

	// an asynchronous read
	plan     metadata.ReadPlan
	pieces   []pieceRead
	pending  atomic.Int32 // pieces under way
	failed   atomic.Bool  // a piece could not be read
	readDone lanes.Job    // of SubmitRead, then of the finish on the CPU pool

	// a wait for durability
	sync  metadata.SyncWait
	syncN int // bytes of the reply that follows
}

// pieceRead is the disk read of one piece of a plan.
type pieceRead struct {
	uring.Read
	c    *call
	file uring.File
	done lanes.Job
}

func (d *Dispatcher) newCall(r *Request) *call {
	c := &call{d: d, r: r}
	c.dir.add = c.dir.entry
	c.dir.d = d
	r.Job.Run, r.Job.Arg = runParked, c
	c.readDone.Arg = c
	c.sync.Job.Run, c.sync.Job.Arg = syncDone, c
	return c
}

// Handle answers a request, now or later.
//
//   - Concurrency: safe for concurrent use with different requests. Never
//     blocks.
//   - Precondition: the transport has checked the request as Request promises.
func (d *Dispatcher) Handle(r *Request) {
	c, _ := r.Job.Arg.(*call)
	if c == nil || c.d != d {
		c = d.newCall(r)
	}
	op := r.Opcode()
	if op >= opSlots {
		op = 0
	}
	d.requests[op].Add(1)
	o := &operations[op]
	switch {
	case o.run == nil:
		c.end(0, errNoSys)
	case o.change && d.o.ReadOnly:
		c.end(0, metadata.ErrReadOnly)
	default:
		n, err := o.run(d, c, metadata.NoWait)
		if err == metadata.ErrWouldBlock || err != nil && errors.Is(err, metadata.ErrWouldBlock) {
			c.park()
			return
		}
		c.end(n, err)
	}
}

// park sends the request to where it may block.
func (c *call) park() {
	c.d.parked.Add(1)
	if c.change() && !c.d.changes.admit(c) {
		return
	}
	c.submit()
}

// change says whether the request changes the store, and so may have to wait
// until the store has caught up.
func (c *call) change() bool { return operations[c.r.Opcode()].change }

func (c *call) submit() {
	d, change := c.d, c.change()
	if err := d.blocking.Submit(&c.r.Job); err != nil {
		c.end(0, fmt.Errorf("%w: %w", errRefused, err))
		if change {
			d.changes.leave()
		}
	}
}

// runParked runs a parked request's operation again, on the BlockingIO lane.
func runParked(j *lanes.Job) {
	c := j.Arg.(*call)
	// From its answer on, which may come during run, the call may be another
	// request's.
	d, change := c.d, c.change()
	n, err := operations[c.r.Opcode()].run(d, c, metadata.Block)
	if err != nil && errors.Is(err, metadata.ErrWouldBlock) {
		n, err = 0, errBlocked
	}
	c.end(n, err)
	if change {
		d.changes.leave()
	}
}

// changeQueue keeps parked changes, which may wait for a flush or for room on
// the disk, from taking every worker of the BlockingIO lane: a lookup that has to
// read a table must not stand behind them. The rest of them wait here, in order.
type changeQueue struct {
	mu         sync.Mutex
	limit      int // workers that changes may take
	running    int
	head, tail *call
}

// admit says whether c may go to the lane now; else leave submits it later.
func (q *changeQueue) admit(c *call) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.running < q.limit {
		q.running++
		return true
	}
	c.next = nil
	if q.tail == nil {
		q.head = c
	} else {
		q.tail.next = c
	}
	q.tail = c
	return false
}

func (q *changeQueue) leave() {
	q.mu.Lock()
	c := q.head
	if c == nil {
		q.running--
	} else if q.head = c.next; q.head == nil {
		q.tail = nil
	}
	q.mu.Unlock()
	if c != nil {
		c.submit()
	}
}

// end ends the request as its operation said. The call must not be used after.
func (c *call) end(n int, err error) {
	switch err {
	case nil:
		c.r.Reply(n, 0)
	case errAsync:
	case errNoReply:
		c.r.NoReply()
	default:
		c.fail(err, errnoOf(err))
	}
}

// fail answers with an errno, and logs err if the caller is not to blame.
func (c *call) fail(err error, errno syscall.Errno) {
	c.d.errors.Add(1)
	if errno == syscall.EIO {
		c.log(err)
	}
	c.r.Reply(0, errno)
}

// log reports an error of the store.
func (c *call) log(err error) {
	logf := c.d.o.Logf
	if logf == nil {
		return
	}
	skipped, ok := c.d.logGate.pass()
	if !ok {
		return
	}
	where := ""
	switch op := c.r.Opcode(); op {
	case OpRead, OpWrite, OpFallocate, OpLseek, OpReaddir, OpReaddirplus:
		where = fmt.Sprintf(" offset %d", le.Uint64(c.r.Op()[8:]))
	case OpLookup, OpCreate, OpMkdir, OpMknod, OpUnlink, OpRmdir, OpRename, OpRename2, OpLink:
		// A parked request's names are still there, as nothing is written to
		// Out before an operation has succeeded.
		name, _, _ := CutName(c.r.Data)
		where = fmt.Sprintf(" name %q", name)
	}
	if skipped > 0 {
		where += fmt.Sprintf(" (%d earlier errors not shown)", skipped)
	}
	logf("fs: %s inode %d%s: %v", OpName(c.r.Opcode()), c.r.Node(), where, err)
}

// logGate lets a bounded number of errors a second through to the log: a disk
// that fails must not fill another one.
type logGate struct {
	now     func() time.Time
	second  atomic.Int64
	count   atomic.Int64 // in second
	skipped atomic.Int64
}

const maxErrorsPerSecond = 20

func (g *logGate) pass() (skipped int64, ok bool) {
	if s := g.now().Unix(); g.second.Swap(s) != s {
		g.count.Store(0)
	}
	if g.count.Add(1) > maxErrorsPerSecond {
		g.skipped.Add(1)
		return 0, false
	}
	return g.skipped.Swap(0), true
}

// opNothing agrees: there is no state behind a handle.
func (d *Dispatcher) opNothing(*call, metadata.Wait) (int, error) { return 0, nil }

// opNoReply ignores what the kernel only mentions. An INTERRUPT has nothing to
// stop: no operation waits for anything but the disk.
func (d *Dispatcher) opNoReply(*call, metadata.Wait) (int, error) { return 0, errNoReply }

// HandlerStats are counts since the start.
type HandlerStats struct {
	// Requests by opcode; 0 counts the opcodes that are unknown here.
	Requests [opSlots]uint64
	// Parked requests went to the BlockingIO lane; Async ones waited for the
	// disk without holding a lane (after being parked, or not).
	Parked, Async uint64
	// Errors counts the requests answered with an errno, ENOSYS included.
	Errors uint64
}

// Total is the number of all requests.
func (s *HandlerStats) Total() (n uint64) {
	for _, v := range s.Requests {
		n += v
	}
	return n
}

// Stats returns the counts. The snapshot is not atomic as a whole.
func (d *Dispatcher) Stats() (s HandlerStats) {
	for i := range s.Requests {
		s.Requests[i] = d.requests[i].Load()
	}
	s.Parked, s.Async, s.Errors = d.parked.Load(), d.async.Load(), d.errors.Load()
	return s
}

var opNames = [opSlots]string{
	0: "other", OpLookup: "LOOKUP", OpForget: "FORGET", OpGetattr: "GETATTR", OpSetattr: "SETATTR", OpReadlink: "READLINK",
	OpSymlink: "SYMLINK", OpMknod: "MKNOD", OpMkdir: "MKDIR", OpUnlink: "UNLINK", OpRmdir: "RMDIR", OpRename: "RENAME",
	OpLink: "LINK", OpOpen: "OPEN", OpRead: "READ", OpWrite: "WRITE", OpStatfs: "STATFS", OpRelease: "RELEASE",
	OpFsync: "FSYNC", OpSetxattr: "SETXATTR", OpGetxattr: "GETXATTR", OpListxattr: "LISTXATTR",
	OpRemovexattr: "REMOVEXATTR", OpFlush: "FLUSH", OpInit: "INIT", OpOpendir: "OPENDIR", OpReaddir: "READDIR",
	OpReleasedir: "RELEASEDIR", OpFsyncdir: "FSYNCDIR", OpGetlk: "GETLK", OpSetlk: "SETLK", OpSetlkw: "SETLKW",
	OpAccess: "ACCESS", OpCreate: "CREATE", OpInterrupt: "INTERRUPT", OpBmap: "BMAP", OpDestroy: "DESTROY",
	OpIoctl: "IOCTL", OpPoll: "POLL", OpNotifyReply: "NOTIFY_REPLY", OpBatchForget: "BATCH_FORGET",
	OpFallocate: "FALLOCATE", OpReaddirplus: "READDIRPLUS", OpRename2: "RENAME2", OpLseek: "LSEEK",
	OpCopyFileRange: "COPY_FILE_RANGE", OpSetupmapping: "SETUPMAPPING", OpRemovemapping: "REMOVEMAPPING",
	OpSyncfs: "SYNCFS", OpTmpfile: "TMPFILE", OpStatx: "STATX", OpCopyFileRange64: "COPY_FILE_RANGE_64",
}

// OpName is the name of an opcode as linux/fuse.h has it, without its prefix.
func OpName(op uint32) string {
	if op < opSlots && opNames[op] != "" {
		return opNames[op]
	}
	return fmt.Sprintf("opcode %d", op)
}
