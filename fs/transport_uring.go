package fs

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"prismfs/lanes"
	"prismfs/uring"
)

// The kernel's side of FUSE over io_uring.
//
// Source: linux/fuse.h, struct fuse_uring_req_header, fuse_uring_cmd_req,
// enum fuse_uring_cmd; Documentation/filesystems/fuse-io-uring.rst.
const (
	cmdRegister       = 1
	cmdCommitAndFetch = 2

	entHeaderLen = 288 // in_out[128], op_in[128], fuse_uring_ent_in_out
	entOpIn      = 128
	entCommitID  = 256 + 8
	entPayload   = 256 + 16

	// Of the command area of a submission.
	cmdAreaCommitID = 8
	cmdAreaQueue    = 16
)

// Layout of an entry's memory: the header, the vector that names header and
// payload to the kernel, and from the second page on the payload.
const (
	entVectorAt  = 1024
	entPayloadAt = 4096
)

// Limits of a queue's depth. Fewer entries would let a few slow requests hold
// up everything else of a CPU; more are of no use.
const (
	minDepth = 4
	maxDepth = 64
)

// Kinds of completions, above the index of the entry.
const (
	udFetch = 0       // an entry's REGISTER or COMMIT_AND_FETCH: a request, or the end
	udRead  = 1 << 32 // a read for a handler
	udEvent = 1 << 33 // the eventfd
	udKinds = udRead | udEvent
)

// uringTransport carries requests over io_uring: for each possible CPU a
// queue, which is a ring and the thread that owns it, bound to that CPU; the
// kernel gives a queue the requests of the processes on its CPU. FORGET,
// INTERRUPT and notifications stay on /dev/fuse.
//
// An entry is a request's memory. It is always in one of four states:
//
//	armed    the kernel may fill it any time  -- completion --> busy or dead
//	busy     a handler has its request        -- answer ------> armed
//	reading  busy, and a SubmitRead is under way
//	dead     the connection has ended
//
// A queue's thread ends when no entry is armed or busy.
type uringTransport struct {
	dev    *devfuse
	queues []*queue
	logf   func(string, ...any)
	ready  func()       // called once when all queues are registered
	abort  func() error // cuts the connection

	start  chan Handler // one for each queue; closed to cancel instead
	setup  chan error   // from each queue: resources taken or not
	regs   sync.WaitGroup
	ended  sync.WaitGroup
	failed atomic.Pointer[error] // the first fatal failure
}

// newURing takes all that the transport needs, so that nothing can fail any
// more between promising io_uring to the kernel and keeping it.
func newURing(fd, maxWrite int, budget int64, logf func(string, ...any), ready func(), abort func() error) (*uringTransport, error) {
	cpus, err := cpuList("possible")
	if err != nil {
		return nil, err
	}
	online, err := cpuList("online")
	if err != nil {
		return nil, err
	}
	entLen := entPayloadAt + maxWrite
	depth := min(maxDepth, int(budget/int64(entLen*len(online))))
	if depth < minDepth {
		return nil, fmt.Errorf("request buffers for %d CPUs need %d MiB, the budget is %d MiB", len(online), minDepth*entLen*len(online)>>20, budget>>20)
	}
	t := &uringTransport{
		// Only small requests come this way, and few at a time.
		dev:   newDevfuse(fd, 1, maxWrite, 1<<20, logf, func() {}),
		logf:  logf,
		ready: ready,
		abort: abort,
		start: make(chan Handler, len(cpus)),
		setup: make(chan error, len(cpus)),
	}
	for id, cpu := range cpus {
		q := &queue{t: t, id: id, cpu: cpu, fd: fd, depth: depth, maxWrite: maxWrite}
		if !slices.Contains(online, cpu) {
			// The kernel insists on a queue, but has no requests for it.
			q.depth, q.lazy = minDepth, true
		}
		t.queues = append(t.queues, q)
		t.ended.Add(1)
		go q.thread()
	}
	for range t.queues {
		err = errors.Join(err, <-t.setup)
	}
	if err != nil {
		t.Close()
		return nil, err
	}
	return t, nil
}

func (t *uringTransport) Name() string { return "io_uring" }

func (t *uringTransport) Serve(h Handler) error {
	t.regs.Add(len(t.queues))
	for range t.queues {
		t.start <- h
	}
	t.ended.Add(1)
	go func() {
		defer t.ended.Done()
		t.regs.Wait()
		if t.failed.Load() == nil {
			t.ready()
		}
	}()
	err := t.dev.Serve(h)
	if err != nil && !errors.Is(err, ErrAborted) {
		t.fail(err)
	}
	t.ended.Wait()
	if f := t.failed.Load(); f != nil {
		return *f
	}
	return err
}

// Close ends the queues' threads if Serve was never called.
func (t *uringTransport) Close() {
	if t.start != nil {
		close(t.start)
		t.start = nil
	}
	t.ended.Wait()
	t.dev.Close()
}

// fail ends the transport by cutting the connection: a queue that doesn't work
// would hang its CPU's processes.
func (t *uringTransport) fail(err error) {
	if !t.failed.CompareAndSwap(nil, &err) {
		return
	}
	t.logf("fs: %v; aborting the connection", err)
	t.ended.Add(1)
	go func() { // not on a queue's thread: the kernel may wait for that one
		defer t.ended.Done()
		if err := t.abort(); err != nil {
			t.logf("%v", err)
		}
	}()
}

// queue is a ring and its thread.
type queue struct {
	t        *uringTransport
	id       int
	cpu      int
	fd       int
	depth    int
	maxWrite int
	lazy     bool // takes memory only when it is used

	// Of the thread alone.
	h          Handler
	ring       *uring.Ring
	mem        []byte
	event      *uring.Eventfd
	eventBuf   []byte
	eventArmed bool
	entries    []entry
	armed      int // entries that the kernel has
	busy       int // entries whose requests are with handlers
	broken     bool

	// late are requests answered after their Handle had returned, newest
	// first. Any goroutine pushes, the thread takes all.
	late atomic.Pointer[Request]
	// sleeping is true while the thread may wait in the kernel with late
	// empty: whoever pushes then and clears it, signals the eventfd.
	sleeping atomic.Bool
}

// entry is one of a queue's places for a request.
type entry struct {
	q        *queue
	index    uint32
	header   []byte
	payload  []byte
	commitID uint64
	reading  bool
	r        Request
}

// thread is the life of a queue's thread, which ends with it.
func (q *queue) thread() {
	defer q.t.ended.Done()
	runtime.LockOSThread() // never unlocked: the ring has a single issuer
	start := q.t.start
	err := q.open()
	q.t.setup <- err
	if err == nil {
		var ok bool
		if q.h, ok = <-start; ok {
			q.serve()
		}
	}
	q.close()
}

// open takes ring and memory.
func (q *queue) open() (err error) {
	// A CPU that is offline, or not ours to use, has few requests.
	_ = uring.PinThread(q.cpu)
	// Each entry has at most one submission at a time, and the eventfd one.
	q.ring, err = uring.NewRing(q.depth+1, uring.SetupSQE128|uring.SetupCQSize|uring.SetupSingleIssuer|uring.SetupDeferTaskrun)
	if err != nil {
		return err
	}
	if q.event, err = uring.NewEventfd(); err != nil {
		return err
	}
	size := entPayloadAt + q.maxWrite
	// Untouched memory, given to the kernel page by page, quarters the speed of
	// the first writes.
	if q.lazy {
		q.mem, err = unix.Mmap(-1, 0, q.depth*size+os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	} else {
		q.mem, err = uring.Alloc(q.depth*size + os.Getpagesize())
	}
	if err != nil {
		return err
	}
	q.eventBuf = q.mem[q.depth*size:][:8]
	q.entries = make([]entry, q.depth)
	for i := range q.entries {
		e, m := &q.entries[i], q.mem[i*size:(i+1)*size:(i+1)*size]
		e.q, e.index, e.header, e.payload = q, uint32(i), m[:entHeaderLen:entHeaderLen], m[entPayloadAt:]
		e.r.owner = e
	}
	return nil
}

// close frees what open took. The memory of a broken queue stays: the kernel
// or a handler may still write there.
func (q *queue) close() {
	if q.broken {
		return
	}
	if q.ring != nil {
		if err := q.ring.Close(); err != nil {
			q.t.logf("fs: queue %d: %v", q.id, err)
		}
	}
	if q.event != nil {
		if err := q.event.Close(); err != nil {
			q.t.logf("fs: queue %d: %v", q.id, err)
		}
	}
	if q.mem != nil {
		if err := uring.Free(q.mem); err != nil {
			q.t.logf("fs: queue %d: %v", q.id, err)
		}
	}
}

// serve runs until the connection has ended and all requests are answered.
func (q *queue) serve() {
	for i := range q.entries {
		q.submit(&q.entries[i], cmdRegister)
	}
	q.armEvent()
	err := q.ring.Submit() // a refused REGISTER has completed when this returns
	q.ring.ForEachCQE(q.complete)
	q.t.regs.Done()
	for err == nil {
		q.commitLate()
		if q.armed == 0 && q.busy == 0 {
			break
		}
		q.sleeping.Store(true)
		if q.late.Load() != nil {
			q.sleeping.Store(false)
			continue
		}
		err = q.ring.SubmitAndWait(1)
		q.sleeping.Store(false)
		q.ring.ForEachCQE(q.complete)
	}
	for err == nil && q.eventArmed { // the kernel's last hold on our memory
		if err = q.event.Signal(); err == nil {
			err = q.ring.SubmitAndWait(1)
			q.ring.ForEachCQE(q.complete)
		}
	}
	if err != nil {
		q.broken = true
		q.t.fail(fmt.Errorf("queue %d: %w", q.id, err))
	}
}

// complete handles one completion.
func (q *queue) complete(c uring.CQE) {
	if c.UserData&udKinds == udEvent {
		q.eventArmed = false
		if q.armed+q.busy > 0 {
			q.armEvent()
		}
		return
	}
	e := &q.entries[uint32(c.UserData)]
	if c.UserData&udKinds == udRead {
		e.finishRead(c.Res)
		return
	}
	q.armed--
	if c.Res < 0 {
		q.entryEnded(e, syscall.Errno(-c.Res))
		return
	}
	q.busy++
	if errno := e.decode(); errno != 0 {
		e.r.Reply(0, errno)
	} else {
		q.h.Handle(&e.r)
	}
	e.leave()
}

// entryEnded is told why the kernel has given an entry back for good.
func (q *queue) entryEnded(e *entry, errno syscall.Errno) {
	switch errno {
	case syscall.ENOTCONN, syscall.ECANCELED, syscall.ECONNABORTED: // unmounted, aborted
	case syscall.ENOENT:
		q.t.fail(fmt.Errorf("queue %d: opcode %d, unique %d was answered twice", q.id, e.r.Opcode(), e.commitID))
	default:
		q.t.fail(fmt.Errorf("queue %d: entry %d: %w", q.id, e.index, errno))
	}
}

// submit gives e to the kernel.
func (q *queue) submit(e *entry, cmd uint32) {
	s := q.ring.NextSQE()
	var addr uint64
	var n uint32
	if cmd == cmdRegister {
		at := int(e.index) * (entPayloadAt + q.maxWrite)
		addr, n = uring.PutIovecs(q.mem[at+entVectorAt:], e.header, e.payload), 2
	}
	s.PrepUringCmd(q.fd, cmd, addr, n, udFetch|uint64(e.index))
	area := q.ring.Cmd(s)
	le.PutUint64(area[cmdAreaCommitID:], e.commitID)
	le.PutUint16(area[cmdAreaQueue:], uint16(q.id))
	q.armed++
}

func (q *queue) armEvent() {
	q.event.PrepWait(q.ring.NextSQE(), q.eventBuf, udEvent)
	q.eventArmed = true
}

// push hands an answered request to the queue's thread.
func (q *queue) push(r *Request) {
	for {
		old := q.late.Load()
		r.next = old
		if q.late.CompareAndSwap(old, r) {
			break
		}
	}
	if q.sleeping.Load() && q.sleeping.CompareAndSwap(true, false) {
		if err := q.event.Signal(); err != nil {
			q.t.fail(fmt.Errorf("queue %d: %w", q.id, err))
		}
	}
}

// commitLate commits what was pushed, oldest first.
func (q *queue) commitLate() {
	if q.late.Load() == nil {
		return
	}
	var oldest *Request
	for r := q.late.Swap(nil); r != nil; {
		r.next, oldest, r = oldest, r, r.next
	}
	for r := oldest; r != nil; {
		next := r.next
		r.next = nil
		r.owner.(*entry).commit()
		r = next
	}
}

// decode makes e's request of what the kernel has written.
func (e *entry) decode() syscall.Errno {
	e.commitID = le.Uint64(e.header[entCommitID:])
	return decodeEntry(&e.r, e.header, e.payload)
}

// decodeEntry divides an entry: header and struct have places of their own,
// and everything else is in the payload, which is the reply's place too.
func decodeEntry(r *Request, header, payload []byte) syscall.Errno {
	data := uint64(le.Uint32(header[entPayload:]))
	op := uint64(le.Uint32(header)) - inHeaderLen - data // wraps when negative
	if data > uint64(len(payload)) || op > maxOpStruct {
		r.take(header[:inHeaderLen], nil, nil, payload)
		return syscall.EINVAL
	}
	return r.take(header[:inHeaderLen], header[entOpIn:entOpIn+op], payload[:data], payload)
}

// leave ends the thread's hold on the request after Handle, or after a read's
// done job.
func (e *entry) leave() {
	if !e.r.state.CompareAndSwap(stateHandling, stateParked) {
		e.commit()
	}
}

// answered implements replier. During Handle the thread commits when Handle
// returns, whoever has answered; later the answer goes to the thread.
func (e *entry) answered(r *Request) {
	switch r.state.Swap(stateAnswered) {
	case stateHandling:
	case stateParked:
		e.q.push(r)
	default:
		panic("fs: request answered twice")
	}
}

// commit sends the reply and gives the entry back to the kernel.
func (e *entry) commit() {
	if e.reading {
		panic("fs: request answered while its read is under way")
	}
	r := &e.r
	if r.quiet { // nothing that may go unanswered comes over the ring
		r.errno = syscall.EIO
	}
	r.putOutHeader(e.header)
	le.PutUint32(e.header[entPayload:], uint32(r.n))
	e.q.busy--
	e.q.submit(e, cmdCommitAndFetch)
}

func (e *entry) hasRing() bool { return true }

// submitRead implements replier, on the queue's thread.
func (e *entry) submitRead(r *Request, fd int, off int64, dst []byte, done *lanes.Job) bool {
	if e.reading || len(dst) == 0 {
		return false
	}
	// The kernel writes there while Go runs: only our own memory will do.
	at := uintptr(unsafe.Pointer(unsafe.SliceData(dst))) - uintptr(unsafe.Pointer(unsafe.SliceData(e.payload)))
	if at > uintptr(len(e.payload)) || uintptr(len(dst)) > uintptr(len(e.payload))-at {
		panic("fs: SubmitRead outside of Out")
	}
	e.q.ring.NextSQE().PrepRead(fd, dst, off, udRead|uint64(e.index))
	e.reading, r.readDone = true, done
	return true
}

// finishRead runs the done job of a read as if it were Handle.
func (e *entry) finishRead(res int32) {
	r := &e.r
	r.ReadN, r.ReadErr = int(res), nil
	if res < 0 {
		r.ReadN, r.ReadErr = 0, syscall.Errno(-res)
	}
	done := r.readDone
	e.reading, r.readDone = false, nil
	r.state.Store(stateHandling) // was parked: only done can answer it
	done.Run(done)
	e.leave()
}

// cpuList reads a list of CPUs of the kernel: "possible" has those that it
// makes queues for, "online" those that run now.
func cpuList(kind string) ([]int, error) {
	b, err := os.ReadFile("/sys/devices/system/cpu/" + kind)
	if err != nil {
		return nil, err
	}
	return parseCPUs(strings.TrimSpace(string(b)))
}

// parseCPUs reads a list like "0-3,8".
func parseCPUs(list string) (cpus []int, err error) {
	for part := range strings.SplitSeq(list, ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		a, err1 := strconv.Atoi(first)
		b, err2 := strconv.Atoi(last)
		if err1 != nil || err2 != nil || b < a {
			return nil, fmt.Errorf("CPU list %q", list)
		}
		for cpu := a; cpu <= b; cpu++ {
			cpus = append(cpus, cpu)
		}
	}
	return cpus, nil
}
