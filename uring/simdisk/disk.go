package simdisk

import (
	"io"
	"maps"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"

	"prismfs/lanes"
	"prismfs/uring"
)

// Disk is the simulated disk. One mutex guards everything; hooks run outside
// it, so that a hook may call Crash.
type Disk struct {
	mu       sync.Mutex
	rng      *rand.Rand
	root     *node
	seq      uint64   // order of changes over the whole disk
	dirLog   []*dirOp // directory changes not yet durable, in order
	locks    map[string]bool
	closed   bool
	capacity int64
	used     int64 // pages allocated to linked or open files

	ops, changes int
	hook         func(Op) error
	failAt       map[int]error

	lanes          *lanes.Runtime
	readOnly       bool
	cold           bool
	ignoreDatasync bool
	ignoreSyncDir  bool
}

var _ uring.Disk = (*Disk)(nil)

// node is an inode: a file or a directory.
type node struct {
	id     uint64
	dir    bool
	opens  int
	linked bool // in the volatile tree

	// Directories.
	entries, durable map[string]*node

	// Files.
	vol, dur           image
	volAlloc, durAlloc ranges
	log                []*fileOp          // changes not yet durable, in order
	dirty              map[int64]struct{} // pages whose volatile version a sync must write
	truncated          int64              // lowest size since the last sync, -1 for none
}

// fileOp is one change of a file.
type fileOp struct {
	seq       uint64
	kind      OpKind
	off       int64 // WriteAt: position; Truncate: new size
	data      []byte
	sizeAfter int64
	abandoned bool // a failed sync has marked the data clean
}

// dirOp is one atomic change of names: each entry is set to a node or, for nil,
// removed.
type dirOp struct {
	seq  uint64
	sets []dirSet
}

type dirSet struct {
	dir  *node
	name string
	to   *node
}

func (o *dirOp) touches(dir *node) bool {
	return slices.ContainsFunc(o.sets, func(s dirSet) bool { return s.dir == dir })
}

// defaultCapacity is what an unlimited disk reports.
const defaultCapacity = 1 << 40

// New makes an empty disk. The seed drives crashes that bring no generator of
// their own.
func New(seed uint64) *Disk {
	d := &Disk{
		rng:      rand.New(rand.NewPCG(seed, 0x5eed)),
		locks:    make(map[string]bool),
		failAt:   make(map[int]error),
		capacity: defaultCapacity,
	}
	d.root = d.newNode(true)
	d.root.linked = true
	return d
}

func (d *Disk) newNode(dir bool) *node {
	d.seq++
	n := &node{id: d.seq, dir: dir}
	if dir {
		n.entries, n.durable = make(map[string]*node), make(map[string]*node)
	} else {
		n.vol, n.dur = newImage(), newImage()
		n.dirty, n.truncated = make(map[int64]struct{}), -1
	}
	return n
}

// SetLanes sends completions of ReadAsync to the CPU pool of r.
func (d *Disk) SetLanes(r *lanes.Runtime) { d.set(func() { d.lanes = r }) }

// SetCapacity limits the disk; what is stored stays even when it is more.
func (d *Disk) SetCapacity(bytes int64) { d.set(func() { d.capacity = bytes }) }

// SetReadOnly makes all changes fail with ErrReadOnly.
func (d *Disk) SetReadOnly(on bool) { d.set(func() { d.readOnly = on }) }

// SetCold lets ReadAtNoWait find nothing in memory.
func (d *Disk) SetCold(on bool) { d.set(func() { d.cold = on }) }

// IgnoreDatasync plants a fault: Datasync and Sync succeed without effect.
func (d *Disk) IgnoreDatasync(on bool) { d.set(func() { d.ignoreDatasync = on }) }

// IgnoreSyncDir plants a fault: SyncDir succeeds without effect.
func (d *Disk) IgnoreSyncDir(on bool) { d.set(func() { d.ignoreSyncDir = on }) }

func (d *Disk) set(fn func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	fn()
}

// Corrupt xors one byte on the medium and in memory, as a decaying disk would.
func (d *Disk) Corrupt(name string, off int64, mask byte) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	n, err := d.lookup(name)
	if err != nil {
		return uring.WrapError("corrupt", name, err)
	}
	if n.dir || off < 0 || off >= n.vol.size {
		return uring.WrapError("corrupt", name, syscall.EINVAL)
	}
	for _, m := range []*image{&n.vol, &n.dur} {
		if off < m.size {
			m.writable(off / pageSize).b[off%pageSize] ^= mask
		}
	}
	return nil
}

func (d *Disk) ReadOnly() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.readOnly
}

func (d *Disk) Mode() string { return "sim" }

func (d *Disk) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return uring.WrapError("close disk", ".", uring.ErrClosed)
	}
	d.closed = true
	return nil
}

// lookup finds a node; the caller holds d.mu.
func (d *Disk) lookup(name string) (*node, error) {
	name, err := uring.CheckName(name)
	if err != nil {
		return nil, err
	}
	n := d.root
	if name == "." {
		return n, nil
	}
	for part := range strings.SplitSeq(name, "/") {
		if !n.dir {
			return nil, syscall.ENOTDIR
		}
		if n = n.entries[part]; n == nil {
			return nil, syscall.ENOENT
		}
	}
	return n, nil
}

// parent finds the directory of name and the last part of it.
func (d *Disk) parent(name string) (*node, string, error) {
	name, err := uring.CheckName(name)
	if err != nil {
		return nil, "", err
	}
	if name == "." {
		return nil, "", syscall.EBUSY
	}
	dir, err := d.lookup(path.Dir(name))
	if err != nil {
		return nil, "", err
	}
	if !dir.dir {
		return nil, "", syscall.ENOTDIR
	}
	return dir, path.Base(name), nil
}

// change applies names to the volatile tree and logs them; d.mu is held.
func (d *Disk) change(sets ...dirSet) {
	d.seq++
	for _, s := range sets {
		set(s.dir.entries, s)
	}
	d.dirLog = append(d.dirLog, &dirOp{seq: d.seq, sets: sets})
}

func set(m map[string]*node, s dirSet) {
	if s.to == nil {
		delete(m, s.name)
	} else {
		m[s.name] = s.to
	}
}

// do runs one operation of the disk: counted, shown to the hook, and under the
// mutex.
func (d *Disk) do(kind OpKind, name string, fn func() error) error {
	err := d.begin(Op{Kind: kind, Name: name})
	if err == nil {
		d.mu.Lock()
		err = d.usable(kind)
		if err == nil {
			err = fn()
		}
		d.mu.Unlock()
	}
	return uring.WrapError(kind.String(), name, err)
}

func (d *Disk) usable(kind OpKind) error {
	switch {
	case d.closed:
		return uring.ErrClosed
	case d.readOnly && kind.changes() && kind != OpSyncDir:
		return uring.ErrReadOnly
	}
	return nil
}

func (d *Disk) Create(name string) (uring.File, error) {
	var f *file
	err := d.do(OpCreate, name, func() error {
		n, err := d.createNode(name)
		if err != nil {
			return err
		}
		if n.vol.size > 0 {
			d.truncate(n, 0)
		}
		f = d.openNode(n, name)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return f, nil
}

// createNode returns the file of that name, new if need be.
func (d *Disk) createNode(name string) (*node, error) {
	dir, base, err := d.parent(name)
	if err != nil {
		return nil, err
	}
	n := dir.entries[base]
	if n == nil {
		n = d.newNode(false)
		n.linked = true
		d.change(dirSet{dir, base, n})
	}
	if n.dir {
		return nil, syscall.EISDIR
	}
	return n, nil
}

func (d *Disk) openNode(n *node, name string) *file {
	n.opens++
	return &file{d: d, n: n, name: name}
}

func (d *Disk) Open(name string) (uring.File, error) {
	var f *file
	err := d.do(OpOpen, name, func() error {
		n, err := d.lookup(name)
		if err != nil {
			return err
		}
		if n.dir {
			return syscall.EISDIR
		}
		f = d.openNode(n, name)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return f, nil
}

func (d *Disk) Remove(name string) error {
	return d.do(OpRemove, name, func() error {
		dir, base, err := d.parent(name)
		if err != nil {
			return err
		}
		n := dir.entries[base]
		if n == nil {
			return syscall.ENOENT
		}
		if n.dir && len(n.entries) > 0 {
			return syscall.ENOTEMPTY
		}
		d.change(dirSet{dir, base, nil})
		d.unlink(n)
		return nil
	})
}

// unlink gives the room of a nameless, closed file back.
func (d *Disk) unlink(n *node) {
	n.linked = false
	d.releaseRoom(n)
}

func (d *Disk) releaseRoom(n *node) {
	if !n.linked && n.opens == 0 {
		d.used -= n.volAlloc.count()
		n.volAlloc = nil
	}
}

func (d *Disk) Rename(oldName, newName string) error {
	return d.do(OpRename, oldName, func() error {
		from, fromBase, err := d.parent(oldName)
		if err != nil {
			return err
		}
		to, toBase, err := d.parent(newName)
		if err != nil {
			return err
		}
		n, old := from.entries[fromBase], to.entries[toBase]
		switch {
		case n == nil:
			return syscall.ENOENT
		case n == old:
			return nil
		case n.dir && strings.HasPrefix(newName, oldName+"/"):
			return syscall.EINVAL
		case old != nil && strings.HasPrefix(oldName, newName+"/"):
			return syscall.ENOTEMPTY // onto its own ancestor
		case old == nil:
		case old.dir && !n.dir:
			return syscall.EISDIR
		case !old.dir && n.dir:
			return syscall.ENOTDIR
		case old.dir && len(old.entries) > 0:
			return syscall.ENOTEMPTY
		}
		d.change(dirSet{from, fromBase, nil}, dirSet{to, toBase, n})
		if old != nil {
			d.unlink(old)
		}
		return nil
	})
}

func (d *Disk) MkdirAll(name string) error {
	return d.do(OpMkdir, name, func() error {
		clean, err := uring.CheckName(name)
		if err != nil || clean == "." {
			return err
		}
		dir := d.root
		for part := range strings.SplitSeq(clean, "/") {
			n := dir.entries[part]
			if n == nil {
				n = d.newNode(true)
				n.linked = true
				d.change(dirSet{dir, part, n})
			}
			if !n.dir {
				return syscall.ENOTDIR
			}
			dir = n
		}
		return nil
	})
}

func (d *Disk) List(dir string) ([]string, error) {
	var names []string
	err := d.do(OpList, dir, func() error {
		n, err := d.lookup(dir)
		if err != nil {
			return err
		}
		if !n.dir {
			return syscall.ENOTDIR
		}
		names = slices.Sorted(maps.Keys(n.entries))
		return nil
	})
	return names, err
}

func (d *Disk) Stat(name string) (int64, error) {
	var size int64
	err := d.do(OpStat, name, func() error {
		n, err := d.lookup(name)
		if err != nil {
			return err
		}
		size = n.vol.size
		return nil
	})
	return size, err
}

func (d *Disk) Exists(name string) bool {
	_, err := d.Stat(name)
	return err == nil
}

func (d *Disk) SyncDir(dir string) error {
	return d.do(OpSyncDir, dir, func() error {
		n, err := d.lookup(dir)
		if err != nil {
			return err
		}
		if !n.dir {
			return syscall.ENOTDIR
		}
		if d.ignoreSyncDir {
			return nil
		}
		keep := d.closure(func(o *dirOp) bool { return o.touches(n) })
		rest := d.dirLog[:0:0]
		for i, o := range d.dirLog {
			if !keep[i] {
				rest = append(rest, o)
				continue
			}
			for _, s := range o.sets {
				set(s.dir.durable, s)
			}
		}
		d.dirLog = rest
		return nil
	})
}

// closure selects directory changes, each with the earlier ones of its names: a
// name can only be reused once its former use has ended on the medium too.
func (d *Disk) closure(want func(*dirOp) bool) []bool {
	keep := make([]bool, len(d.dirLog))
	type key struct {
		dir  *node
		name string
	}
	names := make(map[key]bool) // names of the changes selected so far
	for i := len(d.dirLog) - 1; i >= 0; i-- {
		o := d.dirLog[i]
		keep[i] = want(o) || slices.ContainsFunc(o.sets, func(s dirSet) bool { return names[key{s.dir, s.name}] })
		if keep[i] {
			for _, s := range o.sets {
				names[key{s.dir, s.name}] = true
			}
		}
	}
	return keep
}

func (d *Disk) Free() (uring.Space, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return uring.Space{}, uring.WrapError("statfs", ".", uring.ErrClosed)
	}
	return uring.Space{
		BlockSize: pageSize,
		Total:     d.capacity,
		Free:      max(0, d.capacity-d.used*pageSize),
		Files:     1 << 32,
		FilesFree: 1 << 31,
	}, nil
}

// lock is a lock held; d is nil once it is released.
type lock struct {
	d    *Disk
	mu   sync.Mutex
	name string
}

func (d *Disk) Lock(name string) (io.Closer, error) {
	err := d.do(OpLock, name, func() error {
		if d.locks[name] {
			return uring.ErrLocked
		}
		if !d.readOnly {
			if _, err := d.createNode(name); err != nil {
				return err
			}
		}
		d.locks[name] = true
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &lock{d: d, name: name}, nil
}

func (l *lock) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.d == nil {
		return uring.WrapError("unlock", l.name, uring.ErrClosed)
	}
	l.d.set(func() { delete(l.d.locks, l.name) })
	l.d = nil
	return nil
}
