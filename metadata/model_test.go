package metadata_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"math/rand/v2"
	"slices"
	"sort"
	"strings"

	"prismfs/metadata"
)

// model is a file system in memory that does what the store should do. It is
// the oracle of the random tests.
type model struct {
	root *mnode
	all  []*mnode // in order of making, for picking one at random
}

type mnode struct {
	ino    metadata.Ino // of the store under test
	mode   uint32
	nlink  int
	data   []byte
	target string
	xattrs map[string]string
	names  map[string]*mnode
	parent *mnode
	held   bool // the test holds a reference
}

func newModel() *model {
	r := &mnode{ino: metadata.RootIno, mode: 0040755, nlink: 2, names: map[string]*mnode{}}
	r.parent = r
	return &model{root: r, all: []*mnode{r}}
}

func (n *mnode) dir() bool { return n.mode&0170000 == 0040000 }
func (n *mnode) reg() bool { return n.mode&0170000 == 0100000 }

// dump writes everything about a tree that the store promises, names in order.
func (n *mnode) dump(w io.Writer, path string) {
	fmt.Fprintf(w, "%s ino %d mode %o nlink %d", path, n.ino, n.mode, n.nlink)
	switch {
	case n.reg():
		sum := sha256.Sum256(n.data)
		fmt.Fprintf(w, " size %d %s", len(n.data), hex.EncodeToString(sum[:8]))
	case n.target != "":
		fmt.Fprintf(w, " -> %s", n.target)
	}
	for _, k := range slices.Sorted(func(yield func(string) bool) {
		for k := range n.xattrs {
			if !yield(k) {
				return
			}
		}
	}) {
		fmt.Fprintf(w, " %s=%q", k, n.xattrs[k])
	}
	io.WriteString(w, "\n")
	var names []string
	for k := range n.names {
		names = append(names, k)
	}
	sort.Strings(names)
	for _, k := range names {
		n.names[k].dump(w, path+"/"+k)
	}
}

func (m *model) digest() string {
	h := sha256.New()
	m.root.dump(h, "")
	return sum(h)
}

func (m *model) text() string {
	var b strings.Builder
	m.root.dump(&b, "")
	return b.String()
}

func sum(h hash.Hash) string { return hex.EncodeToString(h.Sum(nil)[:12]) }

// dumpStore writes a store's tree as dump does a model's.
func dumpStore(s *metadata.Store, w io.Writer) error {
	return dumpInode(s, w, metadata.RootIno, "")
}

func dumpInode(s *metadata.Store, w io.Writer, ino metadata.Ino, path string) error {
	var a metadata.Attr
	if err := s.Getattr(metadata.Block, ino, &a); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	fmt.Fprintf(w, "%s ino %d mode %o nlink %d", path, a.Ino, a.Mode, a.Nlink)
	switch a.Mode & 0170000 {
	case 0100000:
		b := make([]byte, a.Size)
		n, err := s.Read(metadata.Block, ino, 0, b, nil)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if n != len(b) {
			return fmt.Errorf("%s: read %d of %d bytes", path, n, len(b))
		}
		sum := sha256.Sum256(b)
		fmt.Fprintf(w, " size %d %s", len(b), hex.EncodeToString(sum[:8]))
	case 0120000:
		b := make([]byte, 4096)
		n, err := s.Readlink(metadata.Block, ino, b)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		fmt.Fprintf(w, " -> %s", b[:n])
	}
	list, err := s.Listxattr(metadata.Block, ino)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	for _, k := range bytes.Split(bytes.TrimSuffix(list, []byte{0}), []byte{0}) {
		if len(k) == 0 {
			continue
		}
		v, err := s.Getxattr(metadata.Block, ino, k)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		fmt.Fprintf(w, " %s=%q", k, v)
	}
	io.WriteString(w, "\n")
	if a.Mode&0170000 != 0040000 {
		return nil
	}
	type entry struct {
		name string
		ino  metadata.Ino
	}
	var names []entry
	err = s.Readdir(metadata.Block, ino, 0, false, func(e *metadata.Dirent) bool {
		if n := string(e.Name); n != "." && n != ".." {
			names = append(names, entry{n, e.Ino})
		}
		return true
	})
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	slices.SortFunc(names, func(a, b entry) int { return strings.Compare(a.name, b.name) })
	for _, e := range names {
		if err := dumpInode(s, w, e.ino, path+"/"+e.name); err != nil {
			return err
		}
	}
	return nil
}

// driver runs random operations on a store and on the model, and compares.
type driver struct {
	s   *metadata.Store
	m   *model
	rng *rand.Rand
	log func(format string, args ...any)
	max int // largest write, in bytes
}

// try runs an operation as the front end does: first without waiting.
func (d *driver) try(op func(w metadata.Wait) error) error {
	if err := op(metadata.NoWait); !errors.Is(err, metadata.ErrWouldBlock) {
		return err
	}
	return op(metadata.Block)
}

func (d *driver) pick(ok func(*mnode) bool) *mnode {
	for range 20 {
		n := d.m.all[d.rng.IntN(len(d.m.all))]
		if (n.nlink > 0 || n.held) && ok(n) {
			return n
		}
	}
	return nil
}

func (d *driver) pickDir() *mnode {
	n := d.pick(func(n *mnode) bool { return n.dir() && n.nlink > 0 })
	if n == nil {
		return d.m.root
	}
	return n
}

func (d *driver) name() string {
	if d.rng.IntN(40) == 0 {
		return strings.Repeat("x", 250) + fmt.Sprint(d.rng.IntN(5))
	}
	return fmt.Sprintf("n%d", d.rng.IntN(12))
}

func (d *driver) pickName() (dir *mnode, name string, n *mnode) {
	for range 30 {
		dir = d.pickDir()
		if len(dir.names) == 0 {
			continue
		}
		var names []string
		for k := range dir.names {
			names = append(names, k)
		}
		sort.Strings(names)
		name = names[d.rng.IntN(len(names))]
		return dir, name, dir.names[name]
	}
	return d.m.root, "absent", nil
}

func (d *driver) bytes(n int) []byte {
	b := make([]byte, n)
	for i := 0; i < n; i += 8 {
		v := d.rng.Uint64()
		for j := i; j < min(i+8, n); j++ {
			b[j] = byte(v)
			v >>= 8
		}
	}
	return b
}

func (d *driver) size() int {
	switch d.rng.IntN(6) {
	case 0:
		return 1 + d.rng.IntN(100)
	case 1, 2:
		return 1 + d.rng.IntN(5000)
	case 3:
		return 4096 * (1 + d.rng.IntN(8))
	}
	return 1 + d.rng.IntN(d.max)
}

func (d *driver) offset(n *mnode) uint64 {
	switch d.rng.IntN(5) {
	case 0:
		return uint64(len(n.data))
	case 1:
		return uint64(4096 * d.rng.IntN(len(n.data)/4096+2))
	case 2:
		return 0
	}
	return uint64(d.rng.IntN(len(n.data) + 9000))
}

// drop lets the kernel's reference to n go.
func (d *driver) drop(n *mnode) {
	if n.held {
		n.held = false
		d.s.Forget(n.ino, 1)
	}
}

func (d *driver) unlinked(n *mnode) {
	if n.dir() {
		n.nlink = 0
	} else {
		n.nlink--
	}
	if n.nlink == 0 && !n.held {
		d.m.all = slices.DeleteFunc(d.m.all, func(x *mnode) bool { return x == n })
	}
}

func grow(b []byte, n uint64) []byte {
	if uint64(len(b)) < n {
		b = append(b, make([]byte, n-uint64(len(b)))...)
	}
	return b
}

// step does one random operation. It returns a description, and an error if
// the store did not do as the model.
func (d *driver) step() (what string, err error) {
	want := func(what string, got, want error) (string, error) {
		if !errors.Is(got, want) || (got == nil) != (want == nil) {
			return what, fmt.Errorf("%s: got %v, want %v", what, got, want)
		}
		return what, nil
	}
	switch d.rng.IntN(20) {
	case 0, 1, 2, 3: // make
		dir, name := d.pickDir(), d.name()
		mode := []uint32{0100644, 0100644, 0100600, 0040755, 0120777, 0010644, 0020600}[d.rng.IntN(7)]
		req := metadata.MakeReq{Mode: mode, Uid: 7, Gid: 8}
		target := ""
		if mode == 0120777 {
			target = fmt.Sprintf("t/%d", d.rng.IntN(1000))
			req.Target = []byte(target)
		}
		what = fmt.Sprintf("make %d/%s mode %o", dir.ino, name, mode)
		var a metadata.Attr
		err := d.try(func(w metadata.Wait) error { return d.s.Make(w, dir.ino, []byte(name), &req, &a) })
		if dir.names[name] != nil {
			return want(what, err, metadata.ErrExist)
		}
		if err != nil {
			return want(what, err, nil)
		}
		n := &mnode{ino: a.Ino, mode: mode, nlink: 1, target: target, xattrs: map[string]string{}, held: true}
		if n.dir() {
			n.nlink, n.names, n.parent = 2, map[string]*mnode{}, dir
			dir.nlink++
		}
		dir.names[name] = n
		d.m.all = append(d.m.all, n)
		if d.rng.IntN(4) > 0 {
			d.drop(n)
		}
		return what, nil
	case 4, 5, 6, 7, 8, 9: // write
		n := d.pick((*mnode).reg)
		if n == nil {
			return "", nil
		}
		off, b := d.offset(n), d.bytes(d.size())
		what = fmt.Sprintf("write %d at %d: %d bytes (size %d)", n.ino, off, len(b), len(n.data))
		err := d.try(func(w metadata.Wait) error { return d.s.Write(w, n.ino, off, b, 0) })
		n.data = grow(n.data, off+uint64(len(b)))
		copy(n.data[off:], b)
		return want(what, err, nil)
	case 10: // truncate
		n := d.pick((*mnode).reg)
		if n == nil {
			return "", nil
		}
		size := d.offset(n)
		what = fmt.Sprintf("truncate %d from %d to %d", n.ino, len(n.data), size)
		var a metadata.Attr
		err := d.try(func(w metadata.Wait) error {
			return d.s.Setattr(w, n.ino, &metadata.SetAttr{Mask: metadata.SetSize, Size: size}, &a)
		})
		n.data = grow(n.data, size)[:size]
		if err == nil && a.Size != size {
			return what, fmt.Errorf("%s: size is %d", what, a.Size)
		}
		return want(what, err, nil)
	case 11: // fallocate
		n := d.pick((*mnode).reg)
		if n == nil {
			return "", nil
		}
		mode := []uint32{0, metadata.FallocKeepSize, metadata.FallocKeepSize | metadata.FallocPunchHole, metadata.FallocZeroRange, metadata.FallocZeroRange | metadata.FallocKeepSize}[d.rng.IntN(5)]
		off, size := d.offset(n), uint64(d.size())
		what = fmt.Sprintf("fallocate %d mode %d at %d: %d bytes (size %d)", n.ino, mode, off, size, len(n.data))
		err := d.try(func(w metadata.Wait) error { return d.s.Fallocate(w, n.ino, mode, off, size) })
		if mode&metadata.FallocKeepSize == 0 {
			n.data = grow(n.data, off+size)
		}
		if mode&(metadata.FallocPunchHole|metadata.FallocZeroRange) != 0 && off < uint64(len(n.data)) {
			clear(n.data[off:min(off+size, uint64(len(n.data)))])
		}
		return want(what, err, nil)
	case 12: // unlink, rmdir
		dir, name, n := d.pickName()
		rmdir := d.rng.IntN(4) == 0
		if n != nil && d.rng.IntN(4) > 0 {
			rmdir = n.dir()
		}
		what = fmt.Sprintf("remove %d/%s dir %v", dir.ino, name, rmdir)
		err := d.try(func(w metadata.Wait) error {
			if rmdir {
				return d.s.Rmdir(w, dir.ino, []byte(name))
			}
			return d.s.Unlink(w, dir.ino, []byte(name))
		})
		switch {
		case n == nil:
			return want(what, err, metadata.ErrNotFound)
		case rmdir && !n.dir():
			return want(what, err, metadata.ErrNotDir)
		case !rmdir && n.dir():
			return want(what, err, metadata.ErrIsDir)
		case n.dir() && len(n.names) > 0:
			return want(what, err, metadata.ErrNotEmpty)
		}
		delete(dir.names, name)
		if n.dir() {
			dir.nlink--
		}
		d.unlinked(n)
		return want(what, err, nil)
	case 13, 14: // rename
		return d.rename(want)
	case 15: // link
		n := d.pick(func(n *mnode) bool { return !n.dir() && n.nlink > 0 })
		if n == nil {
			return "", nil
		}
		dir, name := d.pickDir(), d.name()
		what = fmt.Sprintf("link %d to %d/%s", n.ino, dir.ino, name)
		var a metadata.Attr
		err := d.try(func(w metadata.Wait) error { return d.s.Link(w, n.ino, dir.ino, []byte(name), &a) })
		if dir.names[name] != nil {
			return want(what, err, metadata.ErrExist)
		}
		if err == nil {
			d.s.Forget(n.ino, 1)
		}
		dir.names[name] = n
		n.nlink++
		return want(what, err, nil)
	case 16: // xattrs
		n := d.pick(func(n *mnode) bool { return n != d.m.root })
		if n == nil {
			return "", nil
		}
		k, v := fmt.Sprintf("user.k%d", d.rng.IntN(4)), string(d.bytes(d.rng.IntN(3000)))
		if _, have := n.xattrs[k]; have && d.rng.IntN(2) == 0 {
			what = fmt.Sprintf("removexattr %d %s", n.ino, k)
			delete(n.xattrs, k)
			return want(what, d.try(func(w metadata.Wait) error { return d.s.Removexattr(w, n.ino, []byte(k)) }), nil)
		}
		what = fmt.Sprintf("setxattr %d %s", n.ino, k)
		n.xattrs[k] = v
		return want(what, d.try(func(w metadata.Wait) error { return d.s.Setxattr(w, n.ino, []byte(k), []byte(v), 0) }), nil)
	case 17: // chmod
		n := d.pick(func(*mnode) bool { return true })
		mode := uint32(d.rng.IntN(01000))
		what = fmt.Sprintf("chmod %d %o", n.ino, mode)
		n.mode = n.mode&0170000 | mode
		var a metadata.Attr
		return want(what, d.try(func(w metadata.Wait) error {
			return d.s.Setattr(w, n.ino, &metadata.SetAttr{Mask: metadata.SetMode, Mode: mode}, &a)
		}), nil)
	case 18: // let a reference go
		n := d.pick(func(n *mnode) bool { return n.held })
		if n == nil {
			return "", nil
		}
		d.drop(n)
		if n.nlink == 0 {
			d.m.all = slices.DeleteFunc(d.m.all, func(x *mnode) bool { return x == n })
		}
		return fmt.Sprintf("forget %d", n.ino), nil
	}
	// read a random range
	n := d.pick((*mnode).reg)
	if n == nil {
		return "", nil
	}
	off, b := d.offset(n), make([]byte, d.size())
	what = fmt.Sprintf("read %d at %d: %d bytes", n.ino, off, len(b))
	var k int
	err = d.try(func(w metadata.Wait) (err error) {
		var plan metadata.ReadPlan
		k, err = d.s.Read(w, n.ino, off, b, &plan)
		if err == nil && len(plan.Pieces) > 0 {
			for _, p := range plan.Pieces {
				if _, err := p.File.ReadAt(p.Buf, p.Off); err != nil {
					plan.Abort()
					return err
				}
			}
			k = plan.N
			err = plan.Finish()
		}
		return err
	})
	if err != nil {
		return want(what, err, nil)
	}
	var exp []byte
	if off < uint64(len(n.data)) {
		exp = n.data[off:min(off+uint64(len(b)), uint64(len(n.data)))]
	}
	if !bytes.Equal(b[:k], exp) {
		i := 0
		for i < min(k, len(exp)) && b[i] == exp[i] {
			i++
		}
		return what, fmt.Errorf("%s: %d bytes, want %d; differ from %d on", what, k, len(exp), off+uint64(i))
	}
	return what, nil
}

func (d *driver) rename(want func(string, error, error) (string, error)) (string, error) {
	od, on, n := d.pickName()
	nd, nn := d.pickDir(), d.name()
	if d.rng.IntN(2) == 0 {
		nd, nn, _ = d.pickName()
	}
	if n == nil {
		return "", nil
	}
	// The kernel refuses to move a directory below itself.
	below := func(x, top *mnode) bool {
		for ; ; x = x.parent {
			if x == top {
				return true
			}
			if x == x.parent {
				return false
			}
		}
	}
	v := nd.names[nn]
	flags := []uint32{0, 0, 0, metadata.RenameNoReplace, metadata.RenameExchange}[d.rng.IntN(5)]
	if n.dir() && below(nd, n) || v != nil && v.dir() && below(od, v) {
		return "", nil
	}
	what := fmt.Sprintf("rename %d/%s (%d) to %d/%s flags %d", od.ino, on, n.ino, nd.ino, nn, flags)
	err := d.try(func(w metadata.Wait) error { return d.s.Rename(w, od.ino, []byte(on), nd.ino, []byte(nn), flags) })
	switch {
	case v != nil && flags == metadata.RenameNoReplace:
		return want(what, err, metadata.ErrExist)
	case v == nil && flags == metadata.RenameExchange:
		return want(what, err, metadata.ErrNotFound)
	case v == n:
		return want(what, err, nil)
	}
	move := func(x, from, to *mnode) {
		if x.dir() {
			x.parent = to
			from.nlink--
			to.nlink++
		}
	}
	if flags == metadata.RenameExchange {
		od.names[on], nd.names[nn] = v, n
		move(n, od, nd)
		move(v, nd, od)
		return want(what, err, nil)
	}
	if v != nil {
		switch {
		case v.dir() && !n.dir():
			return want(what, err, metadata.ErrIsDir)
		case !v.dir() && n.dir():
			return want(what, err, metadata.ErrNotDir)
		case v.dir() && len(v.names) > 0:
			return want(what, err, metadata.ErrNotEmpty)
		}
		if v.dir() {
			nd.nlink--
		}
		d.unlinked(v)
	}
	delete(od.names, on)
	nd.names[nn] = n
	move(n, od, nd)
	return want(what, err, nil)
}

// restart drops what only references kept.
func (m *model) restart() {
	for _, n := range m.all {
		n.held = false
	}
	m.all = slices.DeleteFunc(m.all, func(n *mnode) bool { return n.nlink == 0 })
}

func sumText(s string) string {
	h := sha256.New()
	io.WriteString(h, s)
	return sum(h)
}
