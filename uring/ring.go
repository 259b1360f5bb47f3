package uring

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Flags of NewRing, IORING_SETUP_* of the kernel.
const (
	// SetupCQSize gives the completion queue 4 entries for each of the
	// submission queue instead of 2.
	SetupCQSize uint32 = 1 << 3
	// SetupSQE128 makes entries of 128 bytes, for PrepUringCmd.
	SetupSQE128 uint32 = 1 << 10
	// SetupSingleIssuer: only the thread that submits first may submit; others
	// get EEXIST.
	SetupSingleIssuer uint32 = 1 << 12
	// SetupDeferTaskrun: completions appear only in SubmitAndWait of that thread.
	SetupDeferTaskrun uint32 = 1 << 13
)

const (
	featSingleMmap = 1 << 0
	featNoDrop     = 1 << 1

	enterGetEvents = 1 << 0

	offSQRing = 0
	offSQEs   = 0x10000000

	registerProbe = 8
	opSupported   = 1 << 0
)

// setupParams is struct io_uring_params.
type setupParams struct {
	sqEntries, cqEntries, flags, sqThreadCPU, sqThreadIdle, features, wqFd uint32
	resv                                                                   [3]uint32
	sqOff                                                                  struct {
		head, tail, ringMask, ringEntries, flags, dropped, array, resv1 uint32
		userAddr                                                        uint64
	}
	cqOff struct {
		head, tail, ringMask, ringEntries, overflow, cqes, flags, resv1 uint32
		userAddr                                                        uint64
	}
}

// Ring is an io_uring instance.
//
//   - Concurrency: the submission side (NextSQE, Submit, SubmitAndWait) has one
//     user at a time, and so has the completion side (ForEachCQE, Ready); the
//     two may differ unless the flags say otherwise.
//   - Memory: what an entry points at stays valid and in place until its
//     completion; see Alloc.
type Ring struct {
	fd       int
	sqeShift uint
	mem      []byte // both rings
	sqes     []byte

	sqHead, sqTail *uint32 // head is stored by the kernel, tail by us
	sqMask         uint32
	sqEntries      uint32
	tail           uint32 // entries handed out; *sqTail follows in publish

	cqHead, cqTail *uint32 // head is stored by us, tail by the kernel
	cqMask         uint32
	cqes           []CQE
}

// NewRing makes a ring of at least entries submissions.
func NewRing(entries int, flags uint32) (*Ring, error) {
	p := setupParams{flags: flags}
	if flags&SetupCQSize != 0 {
		p.cqEntries = uint32(entries) * 4
	}
	fd, err := retry(func() (int, error) {
		fd, _, errno := syscall.Syscall(unix.SYS_IO_URING_SETUP, uintptr(entries), uintptr(unsafe.Pointer(&p)), 0)
		return int(fd), errnoErr(errno)
	})
	if err != nil {
		return nil, WrapError("set up", "ring", err)
	}
	r := &Ring{fd: fd, sqeShift: 6, sqEntries: p.sqEntries}
	if flags&SetupSQE128 != 0 {
		r.sqeShift = 7
	}
	if err := r.mmap(&p); err != nil {
		r.Close()
		return nil, WrapError("map", "ring", err)
	}
	return r, nil
}

func (r *Ring) mmap(p *setupParams) (err error) {
	if p.features&featSingleMmap == 0 || p.features&featNoDrop == 0 {
		return syscall.ENOSYS // before Linux 5.5
	}
	const prot, how = unix.PROT_READ | unix.PROT_WRITE, unix.MAP_SHARED | unix.MAP_POPULATE
	size := max(p.sqOff.array+4*p.sqEntries, p.cqOff.cqes+cqeSize*p.cqEntries)
	if r.mem, err = unix.Mmap(r.fd, offSQRing, int(size), prot, how); err != nil {
		return err
	}
	if r.sqes, err = unix.Mmap(r.fd, offSQEs, int(p.sqEntries)<<r.sqeShift, prot, how); err != nil {
		return err
	}
	at := func(off uint32) *uint32 { return (*uint32)(unsafe.Pointer(&r.mem[off])) }
	r.sqHead, r.sqTail, r.sqMask = at(p.sqOff.head), at(p.sqOff.tail), *at(p.sqOff.ringMask)
	r.cqHead, r.cqTail, r.cqMask = at(p.cqOff.head), at(p.cqOff.tail), *at(p.cqOff.ringMask)
	r.cqes = unsafe.Slice((*CQE)(unsafe.Pointer(&r.mem[p.cqOff.cqes])), p.cqEntries)
	for i := range unsafe.Slice(at(p.sqOff.array), p.sqEntries) {
		*at(p.sqOff.array + 4*uint32(i)) = uint32(i)
	}
	return nil
}

// Close frees the ring. Nothing may be in flight whose memory is reused
// afterwards: the kernel ends requests of a closed ring in its own time.
func (r *Ring) Close() error {
	var errs []error
	for _, m := range [][]byte{r.sqes, r.mem} {
		if m != nil {
			errs = append(errs, unix.Munmap(m))
		}
	}
	r.sqes, r.mem = nil, nil
	errs = append(errs, unix.Close(r.fd))
	return WrapError("close", "ring", errors.Join(errs...))
}

// NextSQE returns a cleared entry, submitting first when the queue is full. It
// is nil if the kernel takes none: reap completions and try again.
func (r *Ring) NextSQE() *SQE {
	if s := r.nextSQE(); s != nil {
		return s
	}
	if err := r.Submit(); err != nil {
		return nil
	}
	return r.nextSQE()
}

// nextSQE is nil when the queue is full.
func (r *Ring) nextSQE() *SQE {
	if r.unsubmitted() >= r.sqEntries {
		return nil
	}
	at := int(r.tail&r.sqMask) << r.sqeShift
	clear(r.sqes[at : at+1<<r.sqeShift])
	r.tail++
	return (*SQE)(unsafe.Pointer(&r.sqes[at]))
}

// Cmd is the command area of an entry, 80 bytes. The ring has SetupSQE128.
func (r *Ring) Cmd(s *SQE) []byte {
	if r.sqeShift != 7 {
		panic("uring: command area without SetupSQE128")
	}
	return unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(s), cmdAt)), cmdSize)
}

// unsubmitted is the number of entries that the kernel has not consumed.
func (r *Ring) unsubmitted() uint32 { return r.tail - atomic.LoadUint32(r.sqHead) }

// publish shows the entries handed out to the kernel.
func (r *Ring) publish() { atomic.StoreUint32(r.sqTail, r.tail) }

// takeBack withdraws the entries that the kernel has not consumed, and shows
// each to fn. No enter may be under way.
func (r *Ring) takeBack(fn func(*SQE)) {
	head := atomic.LoadUint32(r.sqHead)
	for i := head; i != r.tail; i++ {
		fn((*SQE)(unsafe.Pointer(&r.sqes[int(i&r.sqMask)<<r.sqeShift])))
	}
	r.tail = head
	r.publish()
}

// Submit hands all entries to the kernel without waiting. An error leaves them
// queued: EBUSY and EAGAIN pass once completions are reaped.
func (r *Ring) Submit() error {
	if r.unsubmitted() == 0 {
		return nil
	}
	return r.SubmitAndWait(0)
}

// SubmitAndWait hands all entries to the kernel and waits until n completions
// are there; with n = 0 it only lets deferred ones appear. A signal does not
// end it early. If the kernel takes only some of the entries it returns as
// soon as there is something to reap, and the rest goes with the next call.
func (r *Ring) SubmitAndWait(n int) error {
	r.publish()
	for {
		_, errno := r.enter(r.unsubmitted(), uint32(n), enterGetEvents)
		ready, left := r.Ready(), r.unsubmitted()
		switch {
		case errno == syscall.EBUSY || errno == syscall.EAGAIN:
			if ready == 0 {
				return fmt.Errorf("uring: enter ring: %w", errno)
			}
			return nil
		case errno != 0 && errno != syscall.EINTR:
			return fmt.Errorf("uring: enter ring: %w", errno)
		case left == 0 && ready >= n, left > 0 && ready > 0:
			return nil
		}
	}
}

func (r *Ring) enter(submit, wait, flags uint32) (uint32, syscall.Errno) {
	n, _, errno := syscall.Syscall6(unix.SYS_IO_URING_ENTER, uintptr(r.fd), uintptr(submit), uintptr(wait), uintptr(flags), 0, 0)
	return uint32(n), errno
}

// Ready is the number of completions to be reaped.
func (r *Ring) Ready() int { return int(atomic.LoadUint32(r.cqTail) - atomic.LoadUint32(r.cqHead)) }

// ForEachCQE reaps the completions that are there now and returns their number.
// Each has left the queue when fn sees it, so that fn may submit what takes its
// place.
func (r *Ring) ForEachCQE(fn func(CQE)) int {
	head, tail := atomic.LoadUint32(r.cqHead), atomic.LoadUint32(r.cqTail)
	for i := head; i != tail; i++ {
		c := r.cqes[i&r.cqMask]
		atomic.StoreUint32(r.cqHead, i+1)
		fn(c)
	}
	return int(tail - head)
}

// Probe returns nil when io_uring can read files here, and why not otherwise.
// It asks the kernel once.
func Probe() error { return probe() }

var probe = sync.OnceValue(func() error {
	r, err := NewRing(2, 0)
	if err != nil {
		return err
	}
	defer r.Close()
	// struct io_uring_probe: last_op, ops_len, then {op, resv, flags u16, resv2 u32} each.
	var ops struct {
		lastOp, opsLen uint8
		resv           [14]byte
		op             [opRead + 1]struct {
			op, resv uint8
			flags    uint16
			resv2    uint32
		}
	}
	_, _, errno := syscall.Syscall6(unix.SYS_IO_URING_REGISTER, uintptr(r.fd), registerProbe,
		uintptr(unsafe.Pointer(&ops)), uintptr(len(ops.op)), 0, 0)
	if errno != 0 {
		return WrapError("probe", "ring", errno)
	}
	if ops.op[opRead].flags&opSupported == 0 {
		return WrapError("probe", "ring", syscall.EOPNOTSUPP)
	}
	const mark = 42
	r.NextSQE().PrepNop(mark)
	if err := r.SubmitAndWait(1); err != nil {
		return err
	}
	ok := false
	r.ForEachCQE(func(c CQE) { ok = c.UserData == mark && c.Res == 0 })
	if !ok {
		return WrapError("probe", "ring", syscall.EIO)
	}
	return nil
})

func errnoErr(errno syscall.Errno) error {
	if errno == 0 {
		return nil
	}
	return errno
}
