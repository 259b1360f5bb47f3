package uring

import (
	"io"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// defaultRingEntries is the depth of a disk's ring. Twice as many reads are in
// flight at most; the rest queues here.
const defaultRingEntries = 256

// reactor drives the asynchronous reads of one disk over a shared ring.
//
//   - The caller of ReadAsync submits. While one is in the kernel others only
//     queue; it takes their reads along in its next call.
//   - The reaper, one goroutine, waits for completions. It runs nothing of
//     others: a finished read's Done goes to the CPU pool, a read that the ring
//     can't do goes to the BlockingIO lane.
//
// Invariants:
//
//   - R1: a read in the ring is in the table, which keeps its buffer alive, from
//     before the kernel sees the entry until its completion is reaped.
//   - R2: reads in the table are at most the completion queue's entries, so that
//     it never overflows.
//   - R3: one goroutine at a time enters the ring to submit (submitting).
type reactor struct {
	d      *disk
	ring   *Ring
	broken atomic.Bool // stored by whoever meets a ring that doesn't work
	done   chan struct{}

	mu         sync.Mutex
	table      []*Read // by user data
	free       []uint32
	head, tail *Read // reads waiting for a place in the table or the ring
	submitting bool
	submitted  sync.Cond // submitting became false
}

// maxRead bounds one entry: its length has 32 bits, and the kernel's results 31.
const maxRead = 1 << 30

// wakeData is the user data of the entry that ends the reaper.
const wakeData = ^uint64(0)

func newReactor(d *disk, entries int) (*reactor, error) {
	if entries <= 0 {
		entries = defaultRingEntries
	}
	ring, err := NewRing(entries, 0)
	if err != nil {
		return nil, err
	}
	n := len(ring.cqes) - 1 // one completion is left for the wake-up
	re := &reactor{d: d, ring: ring, done: make(chan struct{}), table: make([]*Read, n), free: make([]uint32, n)}
	for i := range re.free {
		re.free[i] = uint32(n - 1 - i)
	}
	re.submitted.L = &re.mu
	go re.reap()
	return re, nil
}

// submit takes r over, or returns false when the ring doesn't work.
func (re *reactor) submit(r *Read) bool {
	if re.broken.Load() {
		return false
	}
	re.mu.Lock()
	re.pushLocked(r)
	re.kickLocked()
	re.mu.Unlock()
	return true
}

func (re *reactor) pushLocked(r *Read) {
	r.next = nil
	if re.head == nil {
		re.head = r
	} else {
		re.tail.next = r
	}
	re.tail = r
}

// fillLocked moves waiting reads into the ring while there is room.
func (re *reactor) fillLocked() {
	for re.head != nil && len(re.free) > 0 {
		s := re.ring.nextSQE()
		if s == nil {
			return
		}
		r := re.head
		re.head, r.next = r.next, nil
		slot := re.free[len(re.free)-1]
		re.free = re.free[:len(re.free)-1]
		re.table[slot] = r
		p := r.P[r.N:]
		s.PrepRead(r.file.ref.fd, p[:min(len(p), maxRead)], r.Off+int64(r.N), uint64(slot))
	}
}

// kickLocked submits what is waiting unless somebody else is at it. It drops
// re.mu while in the kernel, where reads never wait for the disk.
func (re *reactor) kickLocked() {
	if re.submitting {
		return
	}
	re.submitting = true
	for {
		re.fillLocked()
		n := re.ring.unsubmitted()
		if n == 0 {
			break
		}
		re.ring.publish()
		re.mu.Unlock()
		_, errno := re.ring.enter(n, 0, 0)
		re.mu.Lock()
		if errno != 0 && errno != syscall.EINTR {
			re.refuseLocked(errno)
			break
		}
	}
	re.submitting = false
	re.submitted.Signal()
}

// refuseLocked sends everything that the kernel has not taken to the
// BlockingIO lane.
func (re *reactor) refuseLocked(errno syscall.Errno) {
	if errno != syscall.EAGAIN && errno != syscall.EBUSY {
		re.broken.Store(true)
	}
	re.ring.takeBack(func(s *SQE) {
		if s.UserData != wakeData {
			re.d.readBlocking(re.takeLocked(uint32(s.UserData)))
		}
	})
	for re.head != nil {
		r := re.head
		re.head, r.next = r.next, nil
		re.d.readBlocking(r)
	}
}

func (re *reactor) takeLocked(slot uint32) *Read {
	r := re.table[slot]
	re.table[slot] = nil
	re.free = append(re.free, slot)
	return r
}

// reap waits for completions until the wake-up of close.
func (re *reactor) reap() {
	defer close(re.done)
	for stop := false; !stop; {
		_, errno := re.ring.enter(0, 1, enterGetEvents)
		if errno != 0 && errno != syscall.EINTR && errno != syscall.EAGAIN && errno != syscall.EBUSY {
			// What is in flight still completes into the mapped queue.
			re.broken.Store(true)
			time.Sleep(time.Millisecond)
		}
		re.ring.ForEachCQE(func(c CQE) {
			if c.UserData == wakeData {
				stop = true
				return
			}
			re.mu.Lock()
			r := re.takeLocked(uint32(c.UserData))
			re.mu.Unlock()
			re.finish(r, c.Res)
		})
		re.mu.Lock()
		re.kickLocked()
		re.mu.Unlock()
	}
}

// finish deals with one completion.
func (re *reactor) finish(r *Read, res int32) {
	switch {
	case res > 0:
		r.N += int(res)
		if r.N < len(r.P) {
			// Short: the end of the file, or not; the next read tells.
			re.mu.Lock()
			re.pushLocked(r)
			re.mu.Unlock()
			return
		}
	case res == 0:
		if len(r.P) > r.N {
			r.Err = io.EOF
		}
	case ringOnly(syscall.Errno(-res)):
		re.d.readBlocking(r)
		return
	default:
		r.Err = WrapError("read", r.file.name, syscall.Errno(-res))
	}
	re.d.complete(r)
}

// ringOnly says whether an errno may be the ring's trouble and not the disk's:
// an unsupported file, no memory, or a submitting thread that has exited.
func ringOnly(errno syscall.Errno) bool {
	switch errno {
	case syscall.EINTR, syscall.EAGAIN, syscall.EINVAL, syscall.EOPNOTSUPP, syscall.ECANCELED,
		syscall.EFAULT, syscall.ENOMEM, syscall.EBADF:
		return true
	}
	return false
}

// close ends the reaper. There is no read left: the disk has waited.
func (re *reactor) close() error {
	re.mu.Lock()
	for re.submitting {
		// A submitter can be overtaken by the completions of its reads.
		re.submitted.Wait()
	}
	re.ring.nextSQE().PrepNop(wakeData)
	re.mu.Unlock()
	if err := re.ring.Submit(); err != nil {
		return err
	}
	<-re.done
	return re.ring.Close()
}
