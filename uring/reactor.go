package uring

import (
	"io"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// defaultRingEntries is the depth of a disk's ring. Twice as many reads are in
// flight at most; the rest queues here.
const defaultRingEntries = 256

// reactor drives the asynchronous reads of one disk over a shared ring.
//
//   - The caller of ReadAsync submits. While one is in the kernel others only
//     queue; it takes their reads along in its next call, and reaps what has
//     completed meanwhile, for warm data its own read.
//   - The reaper, a goroutine, waits for the other completions in the Go
//     runtime's poller, which wakes it without a thread of its own: bench_test.go
//     has the comparison.
//   - The first laneReads reads at a time go to the BlockingIO lane instead.
//   - Reaping runs nothing of others: a finished read's Done goes to the CPU
//     pool, a read that the ring can't do goes to the BlockingIO lane.
//
// Invariants:
//
//   - R1: a read in the ring is in the table, which keeps its buffer alive, from
//     before the kernel sees the entry until its completion is reaped.
//   - R2: reads in the table are at most the completion queue's entries, so that
//     it never overflows.
//   - R3: one goroutine at a time enters the ring (submitting).
//   - R4: a read in the queue has a kick to come: of the one who is submitting,
//     or of the one who reaps a read in flight.
//
// Lock order: reaping, mu.
type reactor struct {
	d      *disk
	ring   *Ring
	poll   *os.File    // the ring for the poller
	broken atomic.Bool // stored by the submitter who meets a ring that doesn't work
	done   chan struct{}

	shallow atomic.Int32 // reads on the lane by choice

	reaping sync.Mutex // completion side of the ring

	mu         sync.Mutex // submission side of the ring, and
	table      []*Read    // by user data
	free       []uint32
	head, tail *Read // reads waiting for a place in the table or the ring
	submitting bool
	submitted  sync.Cond // submitting became false
}

// laneReads is how many reads at a time take the BlockingIO lane before the ring
// is used. A read or two cost the same on both while the process is idle, but
// beside CPU-bound goroutines a returning pread keeps its place on the CPU where
// a completion waits for one.
const laneReads = 2

// maxRounds bounds how often one caller enters the ring for others.
const maxRounds = 8

// maxRead bounds one entry: its length has 32 bits, and the kernel's results 31.
const maxRead = 1 << 30

func newReactor(d *disk, entries int) (*reactor, error) {
	if entries <= 0 {
		entries = defaultRingEntries
	}
	ring, err := NewRing(entries, 0)
	if err != nil {
		return nil, err
	}
	re := &reactor{d: d, ring: ring, done: make(chan struct{})}
	if err := re.openPoll(); err != nil {
		ring.Close()
		return nil, WrapError("poll", "ring", err)
	}
	re.submitted.L = &re.mu
	re.table = make([]*Read, len(ring.cqes))
	for i := range re.table {
		re.free = append(re.free, uint32(i))
	}
	go re.reapLoop()
	return re, nil
}

// openPoll gives the runtime's poller a descriptor that it may close.
func (re *reactor) openPoll() error {
	fd, err := unix.FcntlInt(uintptr(re.ring.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return err
	}
	re.poll = os.NewFile(uintptr(fd), "ring")
	// Fails for a descriptor that the poller does not take.
	if err := re.poll.SetReadDeadline(time.Time{}); err != nil {
		re.poll.Close()
		return err
	}
	return nil
}

// submit takes r over, or returns false when the ring doesn't work.
func (re *reactor) submit(r *Read) bool {
	if re.broken.Load() {
		return false
	}
	if re.shallow.Add(1) <= laneReads {
		r.shallow = true
		re.d.readBlocking(r)
		return true
	}
	re.shallow.Add(-1)
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
	for round := 0; round < maxRounds || !re.inFlightLocked(); round++ {
		re.fillLocked()
		n := re.ring.unsubmitted()
		if n == 0 {
			break
		}
		re.ring.publish()
		re.mu.Unlock()
		_, errno := re.ring.enter(n, 0, 0)
		if re.reaping.TryLock() {
			re.reapReady()
		}
		re.mu.Lock()
		if errno != 0 && errno != syscall.EINTR {
			re.refuseLocked(errno)
			break
		}
	}
	re.submitting = false
	re.submitted.Signal()
}

// inFlightLocked says whether the kernel has reads whose completion will bring
// the next kick (R4).
func (re *reactor) inFlightLocked() bool {
	return len(re.table)-len(re.free) > int(re.ring.unsubmitted())
}

// refuseLocked sends everything that the kernel has not taken to the
// BlockingIO lane.
func (re *reactor) refuseLocked(errno syscall.Errno) {
	if errno != syscall.EAGAIN && errno != syscall.EBUSY {
		re.broken.Store(true)
	}
	re.ring.takeBack(func(s *SQE) { re.d.readBlocking(re.takeLocked(uint32(s.UserData))) })
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

// reapLoop waits for completions until close.
func (re *reactor) reapLoop() {
	defer close(re.done)
	conn, err := re.poll.SyscallConn()
	for err == nil {
		err = conn.Read(func(uintptr) bool { return re.ring.Ready() > 0 })
		re.reaping.Lock()
		re.reapReady()
		re.mu.Lock()
		re.kickLocked()
		re.mu.Unlock()
	}
}

// reapReady deals with the completions that are there and unlocks re.reaping,
// which the caller holds. The caller kicks afterwards. What completes later
// wakes the poller anew.
func (re *reactor) reapReady() {
	defer re.reaping.Unlock()
	re.ring.ForEachCQE(func(c CQE) {
		re.mu.Lock()
		r := re.takeLocked(uint32(c.UserData))
		re.mu.Unlock()
		re.finish(r, c.Res)
	})
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
	re.poll.Close()
	<-re.done
	re.mu.Lock()
	defer re.mu.Unlock()
	for re.submitting {
		// A submitter can be overtaken by the completions of its reads.
		re.submitted.Wait()
	}
	return re.ring.Close()
}
