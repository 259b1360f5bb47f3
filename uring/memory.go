package uring

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// Alloc returns at least n bytes of zeroed memory outside the Go heap: page
// aligned, at a fixed address, already faulted in. For what the kernel writes
// while Go code runs.
func Alloc(n int) ([]byte, error) {
	page := unix.Getpagesize()
	n = (n + page - 1) / page * page
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE|unix.MAP_POPULATE)
	if err != nil {
		return nil, WrapError("allocate", "memory", err)
	}
	return b, nil
}

// Free returns memory of Alloc, the whole slice. Nothing may use it any more,
// the kernel included.
func Free(b []byte) error { return WrapError("free", "memory", unix.Munmap(b)) }

// PinThread binds the calling thread to one CPU. The goroutine has called
// runtime.LockOSThread and never unlocks.
func PinThread(cpu int) error {
	var set unix.CPUSet
	set.Set(cpu)
	return WrapError("pin", "thread", unix.SchedSetaffinity(0, &set))
}

// Eventfd wakes a ring: the ring keeps a read of it in flight.
type Eventfd struct{ fd int }

// NewEventfd makes a blocking eventfd: a read through the ring waits in the
// kernel, where a non-blocking one would complete with EAGAIN.
func NewEventfd() (*Eventfd, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return nil, WrapError("create", "eventfd", err)
	}
	return &Eventfd{fd}, nil
}

// Signal wakes the reader; signals not yet read add up. It does not block.
func (e *Eventfd) Signal() error {
	var one [8]byte
	binary.NativeEndian.PutUint64(one[:], 1)
	_, err := retry(func() (int, error) { return unix.Write(e.fd, one[:]) })
	return WrapError("signal", "eventfd", err)
}

// PrepWait reads the eventfd into buf, 8 bytes of Alloc.
func (e *Eventfd) PrepWait(s *SQE, buf []byte, userData uint64) {
	s.PrepRead(e.fd, buf[:8], 0, userData)
}

func (e *Eventfd) Close() error { return WrapError("close", "eventfd", unix.Close(e.fd)) }
