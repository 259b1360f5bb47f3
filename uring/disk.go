package uring

import (
	"errors"
	"io"
	"os"
	"path"
	"slices"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"prismfs/lanes"
)

// Mode chooses the route of asynchronous reads.
type Mode int

const (
	Auto     Mode = iota // io_uring if Probe succeeds, else pread
	RingOnly             // io_uring or an error
	Pread                // the BlockingIO lane
)

// Options of Open.
type Options struct {
	Mode Mode
	// Lanes carries completions (CPU) and blocking reads (BlockingIO). Without
	// it ReadAsync uses goroutines of its own: for tools.
	Lanes    *lanes.Runtime
	ReadOnly bool
	// RingEntries is the size of the submission queue, a power of two; 0 means
	// 256.
	RingEntries int
}

// Open opens the directory dir as a Disk.
func Open(dir string, o Options) (Disk, error) {
	fd, err := retry(func() (int, error) {
		return unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return nil, WrapError("open disk", dir, err)
	}
	d := &disk{dir: dir, lanes: o.Lanes, readOnly: o.ReadOnly, reads: newAsyncGate()}
	d.root.init(fd)
	if o.Mode != Pread {
		err := Probe()
		if err == nil {
			d.reactor, err = newReactor(d, o.RingEntries)
		}
		if err != nil && o.Mode == RingOnly {
			d.root.close()
			return nil, err
		}
	}
	var st unix.Statfs_t
	if _, err := retry(func() (int, error) { return 0, unix.Fstatfs(fd, &st) }); err == nil && st.Flags&unix.ST_RDONLY != 0 {
		d.readOnly = true
	}
	return d, nil
}

// disk is a directory of the host.
type disk struct {
	dir      string
	root     fdRef
	lanes    *lanes.Runtime
	readOnly bool
	reactor  *reactor // nil: asynchronous reads go to the BlockingIO lane
	reads    *asyncGate
	noNoWait atomic.Bool // stored by the first NOWAIT read that the file system refuses
}

func (d *disk) ReadOnly() bool { return d.readOnly }

func (d *disk) Mode() string {
	if d.reactor == nil || d.reactor.broken.Load() {
		return "pread"
	}
	return "io_uring"
}

func (d *disk) Close() error {
	if !d.root.close() {
		return WrapError("close disk", d.dir, ErrClosed)
	}
	d.reads.closeAndWait()
	if d.reactor != nil {
		return d.reactor.close()
	}
	return nil
}

// at runs fn with the root descriptor and the checked name.
func (d *disk) at(op, name string, fn func(root int, name string) error) error {
	p, err := CheckName(name)
	if err != nil {
		return WrapError(op, name, err)
	}
	if !d.root.acquire() {
		return WrapError(op, name, ErrClosed)
	}
	defer d.root.release()
	_, err = retry(func() (int, error) { return 0, fn(d.root.fd, p) })
	return WrapError(op, name, err)
}

// change is at for operations that a read-only disk refuses.
func (d *disk) change(op, name string, fn func(root int, name string) error) error {
	if d.readOnly {
		return WrapError(op, name, ErrReadOnly)
	}
	return d.at(op, name, fn)
}

func (d *disk) open(op, name string, flags int) (*file, error) {
	f := &file{d: d, name: name}
	err := d.at(op, name, func(root int, p string) error {
		fd, err := unix.Openat(root, p, flags|unix.O_CLOEXEC, 0o600)
		if err != nil {
			return err
		}
		f.ref.init(fd)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return f, nil
}

func (d *disk) Create(name string) (File, error) {
	if d.readOnly {
		return nil, WrapError("create", name, ErrReadOnly)
	}
	f, err := d.open("create", name, unix.O_RDWR|unix.O_CREAT|unix.O_TRUNC)
	if err != nil {
		return nil, err
	}
	return f, nil
}

func (d *disk) Open(name string) (File, error) {
	flags := unix.O_RDWR
	if d.readOnly {
		flags = unix.O_RDONLY
	}
	f, err := d.open("open", name, flags)
	if err != nil {
		return nil, err
	}
	return f, nil
}

func (d *disk) Remove(name string) error {
	return d.change("remove", name, func(root int, p string) error {
		err := unix.Unlinkat(root, p, 0)
		if err == unix.EISDIR {
			err = unix.Unlinkat(root, p, unix.AT_REMOVEDIR)
		}
		return err
	})
}

func (d *disk) Rename(oldName, newName string) error {
	to, err := CheckName(newName)
	if err != nil {
		return WrapError("rename to", newName, err)
	}
	return d.change("rename", oldName, func(root int, p string) error {
		return unix.Renameat(root, p, root, to)
	})
}

func (d *disk) MkdirAll(name string) error {
	return d.change("mkdir", name, func(root int, p string) error { return mkdirAll(root, p) })
}

func mkdirAll(root int, p string) error {
	if p == "." {
		return nil
	}
	err := unix.Mkdirat(root, p, 0o700)
	switch err {
	case unix.ENOENT:
		if err := mkdirAll(root, path.Dir(p)); err != nil {
			return err
		}
		return mkdirAll(root, p)
	case unix.EEXIST:
		var st unix.Stat_t
		if err := unix.Fstatat(root, p, &st, 0); err != nil {
			return err
		}
		if st.Mode&unix.S_IFMT != unix.S_IFDIR {
			return unix.ENOTDIR
		}
		return nil
	}
	return err
}

func (d *disk) List(dir string) ([]string, error) {
	var names []string
	err := d.at("list", dir, func(root int, p string) error {
		fd, err := unix.Openat(root, p, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		f := os.NewFile(uintptr(fd), p)
		defer f.Close()
		names, err = f.Readdirnames(-1)
		return err
	})
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	return names, nil
}

func (d *disk) Stat(name string) (int64, error) {
	var st unix.Stat_t
	err := d.at("stat", name, func(root int, p string) error {
		return unix.Fstatat(root, p, &st, 0)
	})
	return st.Size, err
}

func (d *disk) Exists(name string) bool {
	_, err := d.Stat(name)
	return err == nil
}

func (d *disk) SyncDir(dir string) error {
	return d.at("sync directory", dir, func(root int, p string) error {
		fd, err := unix.Openat(root, p, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Fsync(fd)
	})
}

func (d *disk) Free() (Space, error) {
	var st unix.Statfs_t
	err := d.at("statfs", ".", func(root int, _ string) error { return unix.Fstatfs(root, &st) })
	if err != nil {
		return Space{}, err
	}
	unit := int64(st.Frsize)
	if unit == 0 {
		unit = int64(st.Bsize)
	}
	return Space{
		BlockSize: unit,
		Total:     int64(st.Blocks) * unit,
		Free:      int64(st.Bavail) * unit,
		Files:     int64(st.Files),
		FilesFree: int64(st.Ffree),
	}, nil
}

// Lock uses flock(2): it ends with the process, and two locks of one process
// exclude each other. A read-only disk without the file locks its root.
func (d *disk) Lock(name string) (io.Closer, error) {
	flags := unix.O_RDWR | unix.O_CREAT
	if d.readOnly {
		flags = unix.O_RDONLY
	}
	f, err := d.open("lock", name, flags)
	if d.readOnly && errors.Is(err, ErrNotExist) {
		f, err = d.open("lock", ".", unix.O_RDONLY|unix.O_DIRECTORY)
	}
	if err != nil {
		return nil, err
	}
	_, err = retry(func() (int, error) { return 0, unix.Flock(f.ref.fd, unix.LOCK_EX|unix.LOCK_NB) })
	if err == unix.EWOULDBLOCK {
		err = ErrLocked
	}
	if err != nil {
		f.ref.close()
		return nil, WrapError("lock", name, err)
	}
	return f, nil
}

// retry repeats a system call that a signal interrupted.
func retry(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if err != syscall.EINTR {
			return n, err
		}
	}
}

// refs counts the users of something that can be closed. Nothing is counted
// after the close, so that exactly one call sees the last user go.
type refs struct {
	state atomic.Int64 // refsClosed, and below it the number of users
}

const refsClosed = int64(1) << 62

// acquire adds a user unless closed.
func (r *refs) acquire() bool {
	for {
		s := r.state.Load()
		if s&refsClosed != 0 {
			return false
		}
		if r.state.CompareAndSwap(s, s+1) {
			return true
		}
	}
}

// release says whether this was the last user of something closed.
func (r *refs) release() (last bool) { return r.state.Add(-1) == refsClosed }

// close says whether it was open before, and whether there is no user left.
func (r *refs) close() (wasOpen, last bool) {
	s := r.state.Or(refsClosed)
	return s&refsClosed == 0, s == 0
}

// fdRef is a descriptor with its users: a number that is closed under a running
// call could name another file by the time the kernel looks at it. The last
// user closes it.
type fdRef struct {
	fd int
	refs
}

func (r *fdRef) init(fd int) { r.fd = fd }

func (r *fdRef) release() {
	if r.refs.release() {
		unix.Close(r.fd)
	}
}

// close says whether the descriptor was open before.
func (r *fdRef) close() bool {
	wasOpen, last := r.refs.close()
	if last {
		unix.Close(r.fd)
	}
	return wasOpen
}

// asyncGate counts the asynchronous reads of a disk, from the submission until
// Done is queued, for Close to wait.
type asyncGate struct {
	refs
	idle chan struct{} // closed when closed and without users
}

func newAsyncGate() *asyncGate { return &asyncGate{idle: make(chan struct{})} }

func (g *asyncGate) release() {
	if g.refs.release() {
		close(g.idle)
	}
}

func (g *asyncGate) closeAndWait() {
	if _, last := g.refs.close(); !last {
		<-g.idle
	}
}
