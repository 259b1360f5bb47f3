package uring

import (
	"io"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"prismfs/lanes"
)

// file is an open file of the host: everything but ReadAsync over the ring is
// an ordinary system call on the caller's thread.
type file struct {
	d    *disk
	name string
	ref  fdRef
}

func (f *file) Name() string { return f.name }

func (f *file) Fd() int { return f.ref.fd }

func (f *file) Close() error {
	if !f.ref.close() {
		return WrapError("close", f.name, ErrClosed)
	}
	return nil
}

func (f *file) Size() (int64, error) {
	if !f.ref.acquire() {
		return 0, WrapError("stat", f.name, ErrClosed)
	}
	defer f.ref.release()
	var st unix.Stat_t
	if _, err := retry(func() (int, error) { return 0, unix.Fstat(f.ref.fd, &st) }); err != nil {
		return 0, WrapError("stat", f.name, err)
	}
	return st.Size, nil
}

func (f *file) ReadAt(p []byte, off int64) (int, error) {
	if !f.ref.acquire() {
		return 0, WrapError("read", f.name, ErrClosed)
	}
	defer f.ref.release()
	return f.readFull(p, 0, off)
}

// readFull reads p[n:] at off+n, the rest of a read of p at off.
func (f *file) readFull(p []byte, n int, off int64) (int, error) {
	for n < len(p) {
		m, err := unix.Pread(f.ref.fd, p[n:], off+int64(n))
		switch {
		case err == syscall.EINTR || err == syscall.EAGAIN:
		case err != nil:
			return n, WrapError("read", f.name, err)
		case m == 0:
			return n, io.EOF
		default:
			n += m
		}
	}
	return n, nil
}

func (f *file) ReadAtNoWait(p []byte, off int64) (int, error) {
	if f.d.noNoWait.Load() {
		return 0, ErrWouldBlock
	}
	if !f.ref.acquire() {
		return 0, WrapError("read", f.name, ErrClosed)
	}
	defer f.ref.release()
	for n := 0; n < len(p); {
		m, err := preadNoWait(f.ref.fd, p[n:], off+int64(n))
		switch err {
		case 0:
			if m == 0 {
				return n, io.EOF
			}
			n += m
		case syscall.EINTR:
		case syscall.EAGAIN:
			return 0, ErrWouldBlock
		case syscall.EOPNOTSUPP, syscall.ENOSYS:
			f.d.noNoWait.Store(true)
			return 0, ErrWouldBlock
		default:
			return 0, WrapError("read", f.name, err)
		}
	}
	return len(p), nil
}

// preadNoWait is preadv2(2) with RWF_NOWAIT, without unix.Preadv2's slice of
// vectors on the heap.
func preadNoWait(fd int, p []byte, off int64) (int, syscall.Errno) {
	iov := unix.Iovec{Base: unsafe.SliceData(p)}
	iov.SetLen(len(p))
	n, _, errno := syscall.Syscall6(unix.SYS_PREADV2, uintptr(fd), uintptr(unsafe.Pointer(&iov)), 1,
		uintptr(off), uintptr(uint64(off)>>63>>1), unix.RWF_NOWAIT)
	return int(n), errno
}

func (f *file) ReadAsync(r *Read) error {
	if !f.ref.acquire() {
		return WrapError("read", f.name, ErrClosed)
	}
	if !f.d.reads.acquire() {
		f.ref.release()
		return WrapError("read", f.name, ErrClosed)
	}
	r.file, r.N, r.Err = f, 0, nil
	// To the ring a negative position means the file's own.
	if re := f.d.reactor; re != nil && r.Off >= 0 && re.submit(r) {
		return nil
	}
	f.d.readBlocking(r)
	return nil
}

// readBlocking does r, or what the ring has left of it, on the BlockingIO lane.
// A lane that is closing takes nothing, but an accepted read must end.
func (d *disk) readBlocking(r *Read) {
	r.job.Run, r.job.Arg = runBlockingRead, r
	if d.lanes == nil || d.lanes.BlockingIO.Submit(&r.job) != nil {
		go runBlockingRead(&r.job)
	}
}

func runBlockingRead(j *lanes.Job) {
	r := j.Arg.(*Read)
	d := r.file.d
	r.N, r.Err = r.file.readFull(r.P, r.N, r.Off)
	if r.shallow {
		r.shallow = false
		d.reactor.shallow.Add(-1)
	}
	d.complete(r)
}

// complete hands a finished read back: the references first, as the owner may
// reuse r, and close the file, from the moment Done is queued.
func (d *disk) complete(r *Read) {
	r.file.ref.release()
	r.file = nil
	if d.lanes == nil || d.lanes.CPU.Submit(r.Done) != nil {
		go r.Done.Run(r.Done)
	}
	d.reads.release()
}

func (f *file) WriteAt(p []byte, off int64) (int, error) {
	if err := f.acquireForChange("write"); err != nil {
		return 0, err
	}
	defer f.ref.release()
	n := 0
	for n < len(p) {
		m, err := unix.Pwrite(f.ref.fd, p[n:], off+int64(n))
		switch {
		case err == syscall.EINTR || err == syscall.EAGAIN:
		case err != nil:
			return n, WrapError("write", f.name, err)
		case m == 0:
			return n, WrapError("write", f.name, io.ErrShortWrite)
		default:
			n += m
		}
	}
	return n, nil
}

func (f *file) acquireForChange(op string) error {
	if !f.ref.acquire() {
		return WrapError(op, f.name, ErrClosed)
	}
	if f.d.readOnly {
		f.ref.release()
		return WrapError(op, f.name, ErrReadOnly)
	}
	return nil
}

// call runs one system call that changes the file.
func (f *file) call(op string, fn func(fd int) error) error {
	if err := f.acquireForChange(op); err != nil {
		return err
	}
	defer f.ref.release()
	_, err := retry(func() (int, error) { return 0, fn(f.ref.fd) })
	return WrapError(op, f.name, err)
}

func (f *file) Datasync() error { return f.call("datasync", unix.Fdatasync) }

func (f *file) Sync() error { return f.call("sync", unix.Fsync) }

func (f *file) Truncate(n int64) error {
	return f.call("truncate", func(fd int) error { return unix.Ftruncate(fd, n) })
}

func (f *file) Prefetch(off, n int64) {
	if f.ref.acquire() {
		unix.Fadvise(f.ref.fd, off, n, unix.FADV_WILLNEED)
		f.ref.release()
	}
}

func (f *file) StartWriteback(off, n int64) {
	if f.ref.acquire() {
		unix.SyncFileRange(f.ref.fd, off, n, unix.SYNC_FILE_RANGE_WRITE)
		f.ref.release()
	}
}

func (f *file) Allocate(off, n int64, keepSize bool) error {
	mode := uint32(0)
	if keepSize {
		mode = unix.FALLOC_FL_KEEP_SIZE
	}
	if err := f.acquireForChange("allocate"); err != nil {
		return err
	}
	defer f.ref.release()
	_, err := retry(func() (int, error) { return 0, unix.Fallocate(f.ref.fd, mode, off, n) })
	if err == syscall.EOPNOTSUPP || err == syscall.ENOSYS {
		return f.allocateByWriting(off, n, keepSize)
	}
	return WrapError("allocate", f.name, err)
}

// allocateByWriting stands in for fallocate. Bytes below the size are left
// alone, holes there included.
func (f *file) allocateByWriting(off, n int64, keepSize bool) error {
	size, err := f.Size()
	if err != nil {
		return err
	}
	from, end := max(off, size), off+n
	if from >= end {
		return nil
	}
	if keepSize {
		space, err := f.d.Free()
		if err != nil {
			return err
		}
		if space.Free < end-from {
			return WrapError("allocate", f.name, syscall.ENOSPC)
		}
		return nil
	}
	zeros := make([]byte, min(end-from, 1<<20))
	for from < end {
		m, err := f.WriteAt(zeros[:min(end-from, int64(len(zeros)))], from)
		if err != nil {
			return err
		}
		from += int64(m)
	}
	return nil
}
