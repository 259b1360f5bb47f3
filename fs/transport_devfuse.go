package fs

import (
	"fmt"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"prismfs/lanes"
)

// Layout of a devfuse buffer. What read(2) gives starts just far enough before
// the second page that the bytes of a WRITE, after header and struct, are
// page-aligned; the reply's body starts on that page too (so Out aliases Data)
// and its header right before it, so that one write(2) sends both.
const (
	bodyAt = 4096
	readAt = bodyAt - inHeaderLen - 40 // 40 is fuse_write_in
)

// devfuse is the transport of read(2) and write(2) on /dev/fuse.
//
// Each reader reads into a big buffer of its own. A request that is small both
// ways is copied into a small one, so that parking it pins little; another is
// handled where it is, and parking it costs the reader a big buffer from the
// pool. Either way a request answered inside Handle gives its buffer to the
// reader's next one, without touching the pools.
type devfuse struct {
	fd         int
	readers    int
	maxWrite   int
	big, small *requestPool
	logf       func(string, ...any)
	ready      func() // called once when Serve serves
}

// newDevfuse makes a transport that spends at most budget bytes on buffers,
// but has at least one big buffer more than it has readers.
func newDevfuse(fd, readers, maxWrite int, budget int64, logf func(string, ...any), ready func()) *devfuse {
	t := &devfuse{fd: fd, readers: readers, maxWrite: maxWrite, logf: logf, ready: ready}
	bigLen, smallLen := bodyAt+maxWrite, outHeaderLen+smallOut
	t.big = newRequestPool(max(readers+1, int(budget*3/4)/bigLen), func() *Request {
		b, err := unix.Mmap(-1, 0, bigLen, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
		if err != nil {
			b = make([]byte, bigLen) // the heap may still have room
		}
		return &Request{owner: t, raw: b, frame: b[bodyAt-outHeaderLen:]}
	})
	t.small = newRequestPool(max(readers+1, int(budget/4)/smallLen), func() *Request {
		return &Request{owner: t, frame: make([]byte, smallLen)}
	})
	return t
}

func (t *devfuse) Name() string { return "devfuse" }

func (t *devfuse) Serve(h Handler) error {
	errs := make([]error, t.readers)
	var wg sync.WaitGroup
	t.ready()
	for i := range t.readers {
		wg.Go(func() { errs[i] = t.read(h) })
	}
	wg.Wait()
	t.big.waitAll()
	t.small.waitAll()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// read is the life of a reader.
func (t *devfuse) read(h Handler) error {
	big, small := t.big.get(), t.small.get()
	defer func() { t.big.put(big); t.small.put(small) }()
	for {
		n, err := syscall.Read(t.fd, big.raw[readAt:])
		switch err {
		case nil:
		case syscall.EINTR, syscall.EAGAIN, syscall.ENOENT: // ENOENT: the request was given up meanwhile
			continue
		case syscall.ENODEV:
			return nil
		case syscall.ECONNABORTED:
			return ErrAborted
		default:
			return fmt.Errorf("fs: read /dev/fuse: %w", err)
		}
		b := big.raw[readAt : readAt+n]
		errno, err := big.decode(b, big.frame[outHeaderLen:])
		if err != nil {
			t.logf("fs: %v (%d bytes); ignored", err, n)
			continue
		}
		r := big
		if errno == 0 && len(big.Data) <= smallOut && big.replyLen() <= smallOut && big.Opcode() != OpWrite {
			r = small
			out := r.frame[outHeaderLen:]
			r.take(big.In[:inHeaderLen], big.Op(), out[:copy(out, big.Data)], out)
		}
		if errno != 0 {
			if wantsReply(r.Opcode()) {
				r.Reply(0, errno)
			} else {
				r.NoReply()
			}
		} else {
			h.Handle(r)
		}
		if !r.state.CompareAndSwap(stateHandling, stateParked) {
			continue // answered: r is free again
		}
		if r == big {
			big = t.big.get()
		} else {
			small = t.small.get()
		}
	}
}

func (t *devfuse) answered(r *Request) {
	if !r.quiet {
		b := r.frame[:outHeaderLen+r.n]
		r.putOutHeader(b)
		// ENOENT and ENODEV: the caller or the whole file system is gone.
		if _, err := syscall.Write(t.fd, b); err != nil && err != syscall.ENOENT && err != syscall.ENODEV {
			t.logf("fs: reply to opcode %d, %d bytes, errno %d: %v", r.Opcode(), r.n, r.errno, err)
		}
	}
	switch r.state.Swap(stateAnswered) {
	case stateParked:
		r.pool.put(r)
	case stateHandling: // the reader takes it
	default:
		panic("fs: request answered twice")
	}
}

func (t *devfuse) hasRing() bool { return false }

func (t *devfuse) submitRead(*Request, int, int64, []byte, *lanes.Job) bool { return false }

func (t *devfuse) Close() {
	for _, r := range t.big.free {
		// The heap's buffers are not known to Munmap, which refuses them.
		_ = unix.Munmap(r.raw)
	}
	t.big.free = nil
}
