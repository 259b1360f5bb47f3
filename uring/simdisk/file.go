package simdisk

import (
	"io"
	"math"
	"slices"
	"syscall"

	"prismfs/uring"
)

// file is an open file.
type file struct {
	d      *Disk
	n      *node
	name   string
	closed bool // guarded by d.mu
}

// do runs one operation of the file: counted, shown to the hook, and under the
// mutex.
func (f *file) do(kind OpKind, off, n int64, fn func() error) error {
	if err := f.check(kind, off); err != nil {
		return uring.WrapError(kind.String(), f.name, err)
	}
	err := f.d.begin(Op{Kind: kind, Name: f.name, Off: off, Len: n})
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	if err != nil {
		if kind == OpDatasync {
			f.n.abandon()
		}
		return uring.WrapError(kind.String(), f.name, err)
	}
	if f.closed {
		return uring.WrapError(kind.String(), f.name, uring.ErrClosed)
	}
	err = fn()
	if err == io.EOF {
		return err
	}
	return uring.WrapError(kind.String(), f.name, err)
}

// check refuses what does not reach the medium and is not counted.
func (f *file) check(kind OpKind, off int64) error {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	switch {
	case f.closed:
		return uring.ErrClosed
	case f.d.readOnly && kind.changes():
		return uring.ErrReadOnly
	case off < 0:
		return syscall.EINVAL
	}
	return nil
}

func (f *file) Name() string { return f.name }

func (f *file) Fd() int { return -1 }

func (f *file) Close() error {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	if f.closed {
		return uring.WrapError("close", f.name, uring.ErrClosed)
	}
	f.closed = true
	f.n.opens--
	f.d.releaseRoom(f.n)
	return nil
}

func (f *file) Size() (int64, error) {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	if f.closed {
		return 0, uring.WrapError("stat", f.name, uring.ErrClosed)
	}
	return f.n.vol.size, nil
}

func (f *file) ReadAt(p []byte, off int64) (n int, err error) {
	err = f.do(OpRead, off, int64(len(p)), func() error {
		m := &f.n.vol
		n = int(max(0, min(int64(len(p)), m.size-off)))
		m.readAt(p[:n], off)
		if n < len(p) {
			return io.EOF
		}
		return nil
	})
	return n, err
}

func (f *file) ReadAtNoWait(p []byte, off int64) (int, error) {
	f.d.mu.Lock()
	cold := f.d.cold && !f.closed
	f.d.mu.Unlock()
	if cold {
		return 0, uring.ErrWouldBlock
	}
	return f.ReadAt(p, off)
}

// ReadAsync reads at once, so that the order of operations is the order of
// calls; only Done runs elsewhere.
func (f *file) ReadAsync(r *uring.Read) error {
	f.d.mu.Lock()
	closed, lanes := f.closed || f.d.closed, f.d.lanes
	f.d.mu.Unlock()
	if closed {
		return uring.WrapError("read", f.name, uring.ErrClosed)
	}
	r.N, r.Err = f.ReadAt(r.P, r.Off)
	if lanes == nil || lanes.CPU.Submit(r.Done) != nil {
		go r.Done.Run(r.Done)
	}
	return nil
}

// WriteAt writes what fits: with ErrNoSpace it may have written a part.
func (f *file) WriteAt(p []byte, off int64) (n int, err error) {
	err = f.do(OpWrite, off, int64(len(p)), func() error {
		if off > math.MaxInt64-int64(len(p)) {
			return syscall.EFBIG
		}
		n = len(p)
		for n > 0 && !f.d.allocate(f.n, pagesOf(off, int64(n))) {
			// Give up one page and try again.
			n = int(max(0, (off+int64(n)-1)/pageSize*pageSize-off))
		}
		if n > 0 {
			f.d.write(f.n, p[:n], off)
		}
		if n < len(p) {
			return syscall.ENOSPC
		}
		return nil
	})
	return n, err
}

// allocate charges the pages of r to the file, all or none; d.mu is held.
func (d *Disk) allocate(n *node, r pageRange) bool {
	more := n.volAlloc.missing(r)
	if more > 0 && (d.used+more)*pageSize > d.capacity {
		return false
	}
	d.used += more
	n.volAlloc = n.volAlloc.add(r)
	return true
}

func (d *Disk) write(n *node, p []byte, off int64) {
	n.vol.writeAt(p, off)
	end := off + int64(len(p))
	n.vol.size = max(n.vol.size, end)
	for r := pagesOf(off, int64(len(p))); r.from < r.to; r.from++ {
		n.dirty[r.from] = struct{}{}
	}
	d.logFile(n, &fileOp{kind: OpWrite, off: off, data: slices.Clone(p)})
}

func (d *Disk) logFile(n *node, o *fileOp) {
	d.seq++
	o.seq, o.sizeAfter = d.seq, n.vol.size
	n.log = append(n.log, o)
}

func (f *file) Truncate(size int64) error {
	return f.do(OpTruncate, size, 0, func() error {
		f.d.truncate(f.n, size)
		return nil
	})
}

func (d *Disk) truncate(n *node, size int64) {
	if size < n.vol.size {
		n.vol.zeroFrom(size)
		if n.truncated < 0 || size < n.truncated {
			n.truncated = size
		}
		if size%pageSize != 0 {
			n.dirty[size/pageSize] = struct{}{}
		}
		for i := range n.dirty {
			if i >= (size+pageSize-1)/pageSize {
				delete(n.dirty, i)
			}
		}
	}
	before := n.volAlloc.count()
	n.volAlloc = n.volAlloc.cut((size + pageSize - 1) / pageSize)
	d.used -= before - n.volAlloc.count()
	n.vol.size = size
	d.logFile(n, &fileOp{kind: OpTruncate, off: size})
}

func (f *file) Allocate(off, n int64, keepSize bool) error {
	return f.do(OpAllocate, off, n, func() error {
		if n <= 0 {
			return syscall.EINVAL
		}
		if off > math.MaxInt64-n {
			return syscall.EFBIG
		}
		if !f.d.allocate(f.n, pagesOf(off, n)) {
			return syscall.ENOSPC
		}
		if !keepSize {
			f.n.vol.size = max(f.n.vol.size, off+n)
		}
		f.d.logFile(f.n, &fileOp{kind: OpAllocate, off: off})
		return nil
	})
}

func (f *file) Sync() error { return f.Datasync() }

func (f *file) Datasync() error {
	return f.do(OpDatasync, 0, 0, func() error {
		if !f.d.ignoreDatasync {
			f.n.sync()
		}
		return nil
	})
}

// Prefetch promises nothing and does nothing.
func (f *file) Prefetch(off, n int64) {}

// StartWriteback promises nothing and does nothing.
func (f *file) StartWriteback(off, n int64) {}

// sync makes the file durable.
func (n *node) sync() {
	if n.truncated >= 0 {
		n.dur.zeroFrom(n.truncated)
	}
	for i := range n.dirty {
		n.dur.pages[i] = n.vol.freeze(i)
		if n.dur.pages[i] == nil {
			delete(n.dur.pages, i)
		}
	}
	n.dur.size = n.vol.size
	n.durAlloc = slices.Clone(n.volAlloc)
	n.log, n.truncated = nil, -1
	clear(n.dirty)
}

// abandon is the effect of a failed sync: the kernel marks the pages clean, and
// only a new write of a page brings it to the medium. Sizes and truncations,
// which are the file system's own, may still arrive.
func (n *node) abandon() {
	for _, o := range n.log {
		o.abandoned = true
	}
	clear(n.dirty)
}
