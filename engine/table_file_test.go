package engine

import (
	"io"
	"slices"
	"sync"
	"sync/atomic"

	"prismfs/uring"
)

// memFile is a file of the table tests: bytes in memory that can be damaged,
// cut off from the page cache, and made to fail.
type memFile struct {
	name string

	mu   sync.Mutex
	data []byte // guarded by mu

	cold       atomic.Bool   // ReadAtNoWait finds nothing
	reads      atomic.Int64  // blocking reads
	entered    chan struct{} // if set, each blocking read sends here first
	gate       chan struct{} // if set, each blocking read then receives from here
	readErr    error
	failWrites int // fail the i-th WriteAt from now, counting from 1
	writeErr   error
	closed     atomic.Int64
}

func (f *memFile) Name() string { return f.name }

func (f *memFile) Size() (int64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return int64(len(f.data)), nil
}

func (f *memFile) ReadAt(p []byte, off int64) (int, error) {
	if f.closed.Load() > 0 {
		return 0, uring.ErrClosed
	}
	f.reads.Add(1)
	if f.entered != nil {
		f.entered <- struct{}{}
	}
	if f.gate != nil {
		<-f.gate
	}
	if f.readErr != nil {
		return 0, f.readErr
	}
	return f.read(p, off)
}

func (f *memFile) ReadAtNoWait(p []byte, off int64) (int, error) {
	if f.closed.Load() > 0 {
		return 0, uring.ErrClosed
	}
	if f.cold.Load() {
		return 0, uring.ErrWouldBlock
	}
	if f.readErr != nil {
		return 0, f.readErr
	}
	return f.read(p, off)
}

func (f *memFile) read(p []byte, off int64) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if off > int64(len(f.data)) {
		return 0, io.EOF
	}
	n := copy(p, f.data[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (f *memFile) WriteAt(p []byte, off int64) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failWrites > 0 {
		if f.failWrites--; f.failWrites == 0 {
			return 0, f.writeErr
		}
	}
	if grow := int(off) + len(p) - len(f.data); grow > 0 {
		f.data = slices.Grow(f.data, grow)[:int(off)+len(p)]
	}
	return copy(f.data[off:], p), nil
}

func (f *memFile) Truncate(n int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.data = f.data[:n]
	return nil
}

func (f *memFile) Close() error {
	if f.closed.Add(1) > 1 {
		return uring.ErrClosed
	}
	return nil
}

func (f *memFile) ReadAsync(*uring.Read) error            { panic("not used by tables") }
func (f *memFile) Datasync() error                        { return nil }
func (f *memFile) Sync() error                            { return nil }
func (f *memFile) Prefetch(off, n int64)                  {}
func (f *memFile) StartWriteback(off, n int64)            {}
func (f *memFile) Allocate(off, n int64, keep bool) error { return nil }
func (f *memFile) Fd() int                                { return -1 }

// memDisk serves table files by name; nothing else of a disk is used.
type memDisk struct {
	uring.Disk
	mu    sync.Mutex
	files map[string]*memFile // guarded by mu; the contents
	opens []*memFile          // guarded by mu; every file handed out
	fail  error               // guarded by mu; of all opens
}

func (d *memDisk) Open(name string) (uring.File, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.fail != nil {
		return nil, d.fail
	}
	f := d.files[name]
	if f == nil {
		return nil, uring.WrapError("open", name, uring.ErrNotExist)
	}
	o := &memFile{name: name, data: f.data}
	o.cold.Store(f.cold.Load())
	d.opens = append(d.opens, o)
	return o, nil
}
