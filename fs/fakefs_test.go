package fs

import (
	"bytes"
	"errors"
	"fmt"
	"syscall"
	"testing"
	"unsafe"

	"prismfs/lanes"
	"prismfs/metadata"
	"prismfs/uring"
)

// fakeFS is a store that records what it is asked and answers as scripted.
type fakeFS struct {
	lanes *lanes.Runtime

	// blocks makes NoWait calls return ErrWouldBlock.
	blocks bool
	// err is what calls return otherwise.
	err error

	calls   []string // of one request at a time: no lock
	quiet   bool     // don't record
	attr    metadata.Attr
	data    []byte // of Read, Readlink, Getxattr, Listxattr
	dirents []metadata.Dirent
	// dirErr is returned by Readdir once its entries have been taken.
	dirErr error
	// pieces makes NoWait reads leave a plan.
	pieces []metadata.Piece
	planN  int
	bounce bool // into the pieces' own memory, not the reply
	// syncErr is the outcome of SyncAsync.
	syncErr error
	statfs  metadata.Statfs
}

func (f *fakeFS) call(w metadata.Wait, format string, args ...any) error {
	if w == metadata.NoWait && f.blocks {
		return metadata.ErrWouldBlock
	}
	if !f.quiet {
		f.calls = append(f.calls, fmt.Sprintf(format, args...))
	}
	return f.err
}

func (f *fakeFS) give(out *metadata.Attr, err error) error {
	if err == nil {
		*out = f.attr
	}
	return err
}

func (f *fakeFS) Lookup(w metadata.Wait, parent metadata.Ino, name []byte, out *metadata.Attr) error {
	if f.quiet {
		return f.give(out, f.err)
	}
	return f.give(out, f.call(w, "Lookup %d %q", parent, name))
}
func (f *fakeFS) LookupIno(w metadata.Wait, ino metadata.Ino, out *metadata.Attr) error {
	return f.give(out, f.call(w, "LookupIno %d", ino))
}
func (f *fakeFS) LookupParent(w metadata.Wait, dir metadata.Ino, out *metadata.Attr) error {
	return f.give(out, f.call(w, "LookupParent %d", dir))
}
func (f *fakeFS) Forget(ino metadata.Ino, n uint64) { f.call(metadata.Block, "Forget %d %d", ino, n) }
func (f *fakeFS) Getattr(w metadata.Wait, ino metadata.Ino, out *metadata.Attr) error {
	if f.quiet {
		return f.give(out, f.err)
	}
	return f.give(out, f.call(w, "Getattr %d", ino))
}
func (f *fakeFS) Setattr(w metadata.Wait, ino metadata.Ino, req *metadata.SetAttr, out *metadata.Attr) error {
	return f.give(out, f.call(w, "Setattr %d %+v", ino, *req))
}
func (f *fakeFS) Readlink(w metadata.Wait, ino metadata.Ino, dst []byte) (int, error) {
	if err := f.call(w, "Readlink %d %d", ino, len(dst)); err != nil {
		return 0, err
	}
	return copy(dst, f.data), nil
}
func (f *fakeFS) Make(w metadata.Wait, parent metadata.Ino, name []byte, req *metadata.MakeReq, out *metadata.Attr) error {
	return f.give(out, f.call(w, "Make %d %q mode=%o umask=%o uid=%d gid=%d rdev=%d target=%q", parent, name, req.Mode, req.Umask, req.Uid, req.Gid, req.Rdev, req.Target))
}
func (f *fakeFS) Tmpfile(w metadata.Wait, parent metadata.Ino, req *metadata.MakeReq, out *metadata.Attr) error {
	return f.give(out, f.call(w, "Tmpfile %d mode=%o umask=%o uid=%d gid=%d", parent, req.Mode, req.Umask, req.Uid, req.Gid))
}
func (f *fakeFS) Link(w metadata.Wait, ino, newParent metadata.Ino, name []byte, out *metadata.Attr) error {
	return f.give(out, f.call(w, "Link %d %d %q", ino, newParent, name))
}
func (f *fakeFS) Unlink(w metadata.Wait, parent metadata.Ino, name []byte) error {
	return f.call(w, "Unlink %d %q", parent, name)
}
func (f *fakeFS) Rmdir(w metadata.Wait, parent metadata.Ino, name []byte) error {
	return f.call(w, "Rmdir %d %q", parent, name)
}
func (f *fakeFS) Rename(w metadata.Wait, oldParent metadata.Ino, oldName []byte, newParent metadata.Ino, newName []byte, flags uint32) error {
	return f.call(w, "Rename %d %q %d %q %d", oldParent, oldName, newParent, newName, flags)
}
func (f *fakeFS) Read(w metadata.Wait, ino metadata.Ino, off uint64, dst []byte, plan *metadata.ReadPlan) (int, error) {
	if err := f.call(w, "Read %d %d %d", ino, off, len(dst)); err != nil {
		return 0, err
	}
	if plan != nil && len(f.pieces) > 0 {
		rest := dst
		for _, p := range f.pieces {
			n := len(p.Buf)
			if !f.bounce {
				p.Buf = rest[:n]
			}
			plan.Pieces = append(plan.Pieces, p)
			rest = rest[n:]
		}
		plan.N = f.planN
		return 0, nil
	}
	return copy(dst, f.data), nil
}
func (f *fakeFS) Write(w metadata.Wait, ino metadata.Ino, off uint64, data []byte, flags metadata.WriteFlags) error {
	return f.call(w, "Write %d %d %q flags=%d", ino, off, data, flags)
}
func (f *fakeFS) Fallocate(w metadata.Wait, ino metadata.Ino, mode uint32, off, n uint64) error {
	return f.call(w, "Fallocate %d %d %d %d", ino, mode, off, n)
}
func (f *fakeFS) Lseek(w metadata.Wait, ino metadata.Ino, off uint64, whence uint32) (uint64, error) {
	return off + 1, f.call(w, "Lseek %d %d %d", ino, off, whence)
}
func (f *fakeFS) Readdir(w metadata.Wait, dir metadata.Ino, cookie uint64, attrs bool, fn func(*metadata.Dirent) bool) error {
	if err := f.call(w, "Readdir %d %d %v", dir, cookie, attrs); err != nil {
		return err
	}
	for i := range f.dirents {
		e := f.dirents[i]
		if e.Cookie <= cookie {
			continue
		}
		if !attrs {
			e.Attr = nil
		}
		if !fn(&e) {
			return nil
		}
	}
	if w == metadata.Block && f.dirErr == metadata.ErrWouldBlock {
		return nil
	}
	return f.dirErr
}
func (f *fakeFS) Getxattr(w metadata.Wait, ino metadata.Ino, name []byte) ([]byte, error) {
	return f.data, f.call(w, "Getxattr %d %q", ino, name)
}
func (f *fakeFS) Setxattr(w metadata.Wait, ino metadata.Ino, name, value []byte, flags uint32) error {
	return f.call(w, "Setxattr %d %q %q %d", ino, name, value, flags)
}
func (f *fakeFS) Listxattr(w metadata.Wait, ino metadata.Ino) ([]byte, error) {
	return f.data, f.call(w, "Listxattr %d", ino)
}
func (f *fakeFS) Removexattr(w metadata.Wait, ino metadata.Ino, name []byte) error {
	return f.call(w, "Removexattr %d %q", ino, name)
}
func (f *fakeFS) Statfs(out *metadata.Statfs) error {
	*out = f.statfs
	return f.call(metadata.Block, "Statfs")
}
func (f *fakeFS) SyncAsync(done *metadata.SyncWait) {
	f.call(metadata.Block, "SyncAsync")
	done.Err = f.syncErr
	if err := f.lanes.CPU.Submit(&done.Job); err != nil {
		panic(err)
	}
}
func (f *fakeFS) Lanes() *lanes.Runtime { return f.lanes }

func newFakeFS(tb testing.TB) *fakeFS {
	rt := lanes.NewRuntime(lanes.Config{})
	tb.Cleanup(rt.Close)
	return &fakeFS{lanes: rt, attr: sampleAttr}
}

var sampleAttr = metadata.Attr{
	Ino: 77, Mode: syscall.S_IFREG | 0o4751, Nlink: 3, Uid: 1001, Gid: 1002, Rdev: 0x12345678,
	Flags: flImmutable | flDirsync | flNodump, Project: 9, Size: 1 << 40, Blocks: 24,
	Atime: metadata.Time{Sec: -5, Nsec: 1}, Mtime: metadata.Time{Sec: 2, Nsec: 999999999},
	Ctime: metadata.Time{Sec: 1 << 33, Nsec: 3}, Btime: metadata.Time{Sec: 4, Nsec: 5}, Parent: 1,
}

// answer is what a transport saw of one request.
type answer struct {
	body  []byte
	errno syscall.Errno
	quiet bool
}

// fakeTransport is the transport side of the requests of a test.
type fakeTransport struct {
	answers chan answer
	// ring serves SubmitRead from this content, if not nil.
	ring    []byte
	ringErr error
	reads   int // SubmitReads taken
}

func newFakeTransport() *fakeTransport {
	return &fakeTransport{answers: make(chan answer, 8)} // more than a request may have
}

func (t *fakeTransport) answered(r *Request) {
	t.answers <- answer{bytes.Clone(r.Out[:r.n]), r.errno, r.quiet}
}

func (t *fakeTransport) hasRing() bool { return t.ring != nil || t.ringErr != nil }

func (t *fakeTransport) submitRead(r *Request, fd int, off int64, dst []byte, done *lanes.Job) bool {
	if t.ring == nil && t.ringErr == nil {
		return false
	}
	t.reads++
	if !within(dst, r.Out) {
		panic("a read outside of Out")
	}
	r.ReadN, r.ReadErr = 0, t.ringErr
	if off < int64(len(t.ring)) {
		r.ReadN = copy(dst, t.ring[off:])
	}
	done.Run(done)
	return true
}

// layout says how the memory of a request lies.
type layout int

const (
	apart   layout = iota
	aliased        // Out starts where Data does, as over io_uring
)

const testOut = 64 << 10

// fill makes r carry the given request, as a transport would.
func fill(tb testing.TB, r *Request, l layout, op uint32, node uint64, in, data []byte) {
	tb.Helper()
	head := make([]byte, inHeaderLen)
	le.PutUint32(head, uint32(inHeaderLen+len(in)+len(data)))
	le.PutUint32(head[4:], op)
	le.PutUint64(head[8:], 4242)
	le.PutUint64(head[16:], node)
	le.PutUint32(head[24:], 1001)
	le.PutUint32(head[28:], 1002)
	out := bytes.Repeat([]byte{0xee}, testOut) // what a handler leaves unwritten shows
	d := bytes.Clone(data)
	if l == aliased {
		copy(out, data)
		d = out[:len(data)]
	}
	if errno := r.take(head, in, d, out); errno != 0 {
		tb.Fatalf("%s: the transport refuses the request: %v", OpName(op), errno)
	}
}

// do runs one request to its answer.
func do(tb testing.TB, d *Dispatcher, l layout, op uint32, node uint64, in, data []byte) answer {
	tb.Helper()
	t := newFakeTransport()
	r := &Request{owner: t}
	fill(tb, r, l, op, node, in, data)
	d.Handle(r)
	return t.only(tb)
}

// only returns the answer, of which there must be exactly one.
func (t *fakeTransport) only(tb testing.TB) answer {
	tb.Helper()
	a := <-t.answers
	if len(t.answers) != 0 {
		tb.Fatal("a second answer")
	}
	return a
}

// raw is the memory of a wire structure of go-fuse.
func raw[T any](v *T) []byte {
	return bytes.Clone(unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v)))
}

// opIn is the part of a request's structure behind the header.
func opIn[T any](v T) []byte { return raw(&v)[inHeaderLen:] }

func out[T any](v T) []byte { return raw(&v) }

// fakeFile answers asynchronous reads from memory.
type fakeFile struct {
	uring.File
	lanes   *lanes.Runtime
	content []byte
	fd      int
	err     error // of the read
	refuse  error // of ReadAsync
}

func (f *fakeFile) Fd() int      { return f.fd }
func (f *fakeFile) Name() string { return "data/000001" }
func (f *fakeFile) ReadAsync(r *uring.Read) error {
	if f.refuse != nil {
		return f.refuse
	}
	r.N, r.Err = 0, f.err
	if r.Off < int64(len(f.content)) {
		r.N = copy(r.P, f.content[r.Off:])
	}
	return f.lanes.CPU.Submit(r.Done)
}

var errDisk = errors.New("disk on fire")
