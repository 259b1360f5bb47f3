package fs

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"syscall"
	"testing"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"

	"prismfs/lanes"
	"prismfs/metadata"
	"prismfs/uring/simdisk"
)

// storeTest drives a real store on a simulated disk by requests.
type storeTest struct {
	*testing.T
	disk *simdisk.Disk
	rt   *lanes.Runtime
	st   *metadata.Store
	d    *Dispatcher

	mu  sync.Mutex
	log []string
}

func newStoreTest(t *testing.T) *storeTest {
	s := &storeTest{T: t, disk: simdisk.New(1), rt: lanes.NewRuntime(lanes.Config{})}
	s.disk.SetLanes(s.rt)
	if err := metadata.Mkfs(metadata.MkfsOptions{Disk: s.disk}); err != nil {
		t.Fatal(err)
	}
	s.open()
	t.Cleanup(func() {
		if err := s.st.Close(); err != nil {
			t.Error(err)
		}
		s.rt.Close()
	})
	return s
}

func (s *storeTest) open() {
	s.Helper()
	st, err := metadata.Open(metadata.Options{Disk: s.disk, Lanes: s.rt, NoTimer: true, Logf: s.logf})
	if err != nil {
		s.Fatal(err)
	}
	s.st, s.d = st, NewHandler(st, HandlerOptions{NoOpen: true, Logf: s.logf})
}

// reopen forgets everything that is in memory.
func (s *storeTest) reopen() {
	s.Helper()
	if err := s.st.Close(); err != nil {
		s.Fatal(err)
	}
	s.open()
}

func (s *storeTest) logf(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log = append(s.log, fmt.Sprintf(format, args...))
}

func (s *storeTest) fails(want syscall.Errno, op uint32, node uint64, in []byte, data string) []byte {
	s.Helper()
	a := do(s, s.d, aliased, op, node, in, []byte(data))
	if a.errno != want {
		s.Fatalf("%s node %d %.40q: errno %v, want %v", OpName(op), node, data, a.errno, want)
	}
	return a.body
}

func (s *storeTest) ok(op uint32, node uint64, in []byte, data string) []byte {
	s.Helper()
	return s.fails(0, op, node, in, data)
}

func (s *storeTest) entry(body []byte) *fuse.EntryOut {
	return (*fuse.EntryOut)(unsafe.Pointer(&bytes.Clone(body)[0]))
}

func (s *storeTest) create(parent uint64, name string) uint64 {
	s.Helper()
	return s.entry(s.ok(OpCreate, parent, opIn(fuse.CreateIn{Mode: 0o644}), name+"\x00")).NodeId
}

func (s *storeTest) lookup(parent uint64, name string) *fuse.EntryOut {
	s.Helper()
	return s.entry(s.ok(OpLookup, parent, nil, name+"\x00"))
}

func (s *storeTest) write(node, off uint64, data []byte) {
	s.Helper()
	for len(data) > 0 {
		n := min(len(data), 60<<10)
		s.ok(OpWrite, node, opIn(fuse.WriteIn{Offset: off, Size: uint32(n)}), string(data[:n]))
		off, data = off+uint64(n), data[n:]
	}
}

func (s *storeTest) read(node, off uint64, n int) []byte {
	s.Helper()
	return s.ok(OpRead, node, opIn(fuse.ReadIn{Offset: off, Size: uint32(n)}), "")
}

// names lists a directory, a few entries to each request.
func (s *storeTest) names(dir uint64, op uint32) (names []string) {
	s.Helper()
	for off := uint64(0); ; {
		b := s.ok(op, dir, opIn(fuse.ReadIn{Offset: off, Size: 1000}), "")
		if len(b) == 0 {
			return names
		}
		for len(b) > 0 {
			if op == OpReaddirplus {
				if id := le.Uint64(b); id != 0 {
					s.ok2(OpForget, id, u64(1))
				}
				b = b[entryLen:]
			}
			off = le.Uint64(b[8:])
			n := int(le.Uint32(b[16:]))
			names = append(names, string(b[24:24+n]))
			b = b[(24+n+7)&^7:]
		}
	}
}

// ok2 sends what gets no reply.
func (s *storeTest) ok2(op uint32, node uint64, in []byte) {
	s.Helper()
	if a := do(s, s.d, aliased, op, node, in, nil); !a.quiet {
		s.Fatalf("%s: a reply", OpName(op))
	}
}

func TestStoreNames(t *testing.T) {
	s := newStoreTest(t)
	if e := s.lookup(1, "f"); e.NodeId != 0 || e.EntryValid != day {
		t.Fatalf("absent name: %+v", e)
	}
	dir := s.entry(s.ok(OpMkdir, 1, opIn(fuse.MkdirIn{Mode: 0o755}), "dir\x00")).NodeId
	f := s.create(dir, "f")
	s.fails(syscall.EEXIST, OpCreate, dir, opIn(fuse.CreateIn{Mode: 0o644}), "f\x00")
	s.fails(syscall.EEXIST, OpMkdir, dir, opIn(fuse.MkdirIn{}), "f\x00")
	if e := s.lookup(dir, "f"); e.NodeId != f || e.Mode != syscall.S_IFREG|0o644 || e.Uid != 1001 || e.Gid != 1002 || e.Nlink != 1 {
		t.Fatalf("file: %+v", e)
	}
	if e := s.lookup(dir, ".."); e.NodeId != 1 {
		t.Fatalf("parent: %+v", e)
	}
	s.ok(OpSymlink, dir, nil, "l\x00../tar/get\x00")
	l := s.lookup(dir, "l")
	if got := s.ok(OpReadlink, l.NodeId, nil, ""); string(got) != "../tar/get" || l.Size != 10 {
		t.Fatalf("target %q, size %d", got, l.Size)
	}
	if e := s.entry(s.ok(OpLink, dir, u64(f), "g\x00")); e.NodeId != f || e.Nlink != 2 {
		t.Fatalf("link: %+v", e)
	}
	s.fails(syscall.EISDIR, OpUnlink, 1, nil, "dir\x00")
	s.fails(syscall.ENOTDIR, OpRmdir, dir, nil, "f\x00")
	s.fails(syscall.ENOTEMPTY, OpRmdir, 1, nil, "dir\x00")
	s.ok(OpRename, dir, u64(1), "f\x00h\x00")
	s.fails(syscall.EEXIST, OpRename2, dir, opIn(fuse.RenameIn{Newdir: 1, Flags: metadata.RenameNoReplace}), "l\x00h\x00")
	s.fails(syscall.ENOENT, OpRename, dir, u64(1), "f\x00i\x00")
	for i := range 100 {
		s.create(dir, fmt.Sprintf("file-%03d", i))
	}
	for _, op := range []uint32{OpReaddir, OpReaddirplus} {
		for _, cold := range []bool{false, true} {
			s.disk.SetCold(cold)
			s.reopen()
			seen := map[string]bool{}
			for _, n := range s.names(dir, op) {
				if seen[n] {
					t.Fatalf("%s: %q twice", OpName(op), n)
				}
				seen[n] = true
			}
			if len(seen) != 104 || !seen["."] || !seen[".."] || !seen["g"] || !seen["file-099"] {
				t.Fatalf("%s: %d names", OpName(op), len(seen))
			}
		}
	}
	s.ok(OpSetxattr, f, opIn(fuse.SetXAttrIn{Size: 5}), "user.a\x00value")
	s.fails(syscall.EEXIST, OpSetxattr, f, opIn(fuse.SetXAttrIn{Size: 5, Flags: metadata.XattrCreate}), "user.a\x00value")
	s.ok(OpSetxattr, f, opIn(fuse.SetXAttrIn{Size: 1}), "trusted.b\x00v")
	if got := s.ok(OpGetxattr, f, u32(100, 0), "user.a\x00"); string(got) != "value" {
		t.Fatalf("xattr %q", got)
	}
	if got := s.ok(OpListxattr, f, u32(100, 0), ""); string(got) != "user.a\x00" {
		t.Fatalf("xattrs %q", got)
	}
	s.ok(OpRemovexattr, f, nil, "user.a\x00")
	s.fails(syscall.ENODATA, OpGetxattr, f, u32(100, 0), "user.a\x00")
	s.fails(syscall.ESTALE, OpLookup, 1<<40, nil, ".\x00")
	s.ok(OpFsyncdir, dir, opIn(fuse.FsyncIn{}), "")
	st := (*fuse.StatfsOut)(unsafe.Pointer(&s.ok(OpStatfs, 1, nil, "")[0]))
	if st.Bsize != 4096 || st.NameLen != 255 || st.Files <= st.Ffree {
		t.Fatalf("statfs %+v", st)
	}
	if len(s.log) != 0 {
		t.Fatalf("log %q", s.log)
	}
}

// TestStoreColdReads reads what only the disk has, whole and in unaligned
// pieces, and then what it has wrongly.
func TestStoreColdReads(t *testing.T) {
	s := newStoreTest(t)
	content := make([]byte, 300<<10+77)
	rand.NewChaCha8([32]byte{2}).Read(content)
	f := s.create(1, "f")
	s.write(f, 0, content)
	s.ok(OpFsync, f, opIn(fuse.FsyncIn{}), "")
	s.reopen()
	s.disk.SetCold(true)
	rnd := rand.New(rand.NewPCG(3, 4))
	for i := range 200 {
		off := rnd.IntN(len(content) + 10)
		n := 1 + rnd.IntN(testOut)
		if i%2 == 0 { // as the kernel reads
			off, n = off&^4095, (n+4095)&^4095
		}
		want := content[min(off, len(content)):min(off+n, len(content))]
		if got := s.read(f, uint64(off), n); !bytes.Equal(got, want) {
			t.Fatalf("read %d: %d bytes at %d are wrong", i, n, off)
		}
	}
	c := s.d.Stats()
	if c.Async < 150 {
		t.Errorf("only %d of 200 cold reads came from the disk without a lane; counts %+v", c.Async, c)
	}

	// One damaged byte costs its own block, and nothing else.
	damage(s, content[100<<10:][:64])
	for off := 0; off < len(content); off += 4096 {
		want := syscall.Errno(0)
		if off == 100<<10 {
			want = syscall.EIO
		}
		got := s.fails(want, OpRead, f, opIn(fuse.ReadIn{Offset: uint64(off), Size: 4096}), "")
		if want == 0 && !bytes.Equal(got, content[off:min(off+4096, len(content))]) {
			t.Fatalf("block at %d is wrong", off)
		}
	}
	if log := strings.Join(s.log, "\n"); !strings.Contains(log, fmt.Sprintf("fs: READ inode %d offset %d: ", f, 100<<10)) {
		t.Errorf("log:\n%s", log)
	}
}

// damage flips a bit where the data log holds the given bytes.
func damage(s *storeTest, needle []byte) {
	s.Helper()
	names, err := s.disk.List("data")
	if err != nil {
		s.Fatal(err)
	}
	for _, n := range names {
		f, err := s.disk.Open("data/" + n)
		if err != nil {
			s.Fatal(err)
		}
		size, _ := f.Size()
		b := make([]byte, size)
		f.ReadAt(b, 0)
		f.Close()
		if at := bytes.Index(b, needle); at >= 0 {
			if err := s.disk.Corrupt("data/"+n, int64(at), 1); err != nil {
				s.Fatal(err)
			}
			return
		}
	}
	s.Fatal("the bytes are not in the data log")
}

// TestStoreAttributes: what fsx-like programs see of size and times.
func TestStoreAttributes(t *testing.T) {
	s := newStoreTest(t)
	f := s.create(1, "f")
	attr := func() *fuse.AttrOut {
		return (*fuse.AttrOut)(unsafe.Pointer(&s.ok(OpGetattr, f, opIn(fuse.GetAttrIn{}), "")[0]))
	}
	s.write(f, 10, []byte("hello"))
	if a := attr(); a.Size != 15 || a.Blocks == 0 {
		t.Fatalf("after a write: %+v", a)
	}
	s.ok(OpSetattr, f, setattrIn(func(a *fuse.SetAttrIn) { a.Valid, a.Mode = fuse.FATTR_MODE, 0o6775 }), "")
	s.ok(OpWrite, f, opIn(fuse.WriteIn{Size: 1, WriteFlags: 4}), "x")
	if a := attr(); a.Mode != syscall.S_IFREG|0o775 {
		t.Fatalf("mode %o after somebody else's write", a.Mode)
	}
	s.ok(OpSetattr, f, setattrIn(func(a *fuse.SetAttrIn) {
		a.Valid, a.Mtime, a.Mtimensec = fuse.FATTR_MTIME, ^uint64(1e9)+1, 999999999
	}), "")
	if a := attr(); int64(a.Mtime) != -1e9 || a.Mtimensec != 999999999 {
		t.Fatalf("mtime %d.%d", int64(a.Mtime), a.Mtimensec)
	}
	s.ok(OpSetattr, f, setattrIn(func(a *fuse.SetAttrIn) { a.Valid, a.Size = fuse.FATTR_SIZE|fuse.FATTR_FH, 15 }), "")
	if a := attr(); int64(a.Mtime) < 0 || a.Size != 15 {
		t.Fatalf("mtime %d after ftruncate to the same size", int64(a.Mtime))
	}
	s.ok(OpSetattr, f, setattrIn(func(a *fuse.SetAttrIn) { a.Valid, a.Size = fuse.FATTR_SIZE, 3 }), "")
	if got := s.read(f, 0, 4096); string(got) != "x\x00\x00" {
		t.Fatalf("after truncate: %q", got)
	}
	s.fails(syscall.EFBIG, OpSetattr, f, setattrIn(func(a *fuse.SetAttrIn) { a.Valid, a.Size = fuse.FATTR_SIZE, 1<<63 }), "")
	s.ok(OpFallocate, f, opIn(fuse.FallocateIn{Offset: 8192, Length: 4096}), "")
	if got := s.ok(OpLseek, f, opIn(fuse.LseekIn{Offset: 0, Whence: 3}), ""); le.Uint64(got) != 0 {
		t.Fatalf("data at %d", le.Uint64(got))
	}
	s.fails(syscall.ENXIO, OpLseek, f, opIn(fuse.LseekIn{Offset: 1 << 30, Whence: 3}), "")
	s.fails(syscall.EOPNOTSUPP, OpFallocate, f, opIn(fuse.FallocateIn{Length: 4096, Mode: 0x40}), "")
	s.ok(OpIoctl, f, ioctlIn(fsIocSetflags, 4, 0), string(u32(flNodump)))
	if got := s.ok(OpIoctl, f, ioctlIn(fsIocGetflags, 0, 4), ""); le.Uint32(got[16:]) != flNodump {
		t.Fatalf("flags %x", le.Uint32(got[16:]))
	}
	s.ok(OpWrite, f, opIn(fuse.WriteIn{Size: 1, Flags: syscall.O_SYNC}), "y")
	if s.d.Stats().Async == 0 {
		t.Error("an O_SYNC write did not wait")
	}
	tmp := s.entry(s.ok(OpTmpfile, 1, opIn(fuse.CreateIn{Mode: 0o600}), "#\x00"))
	if tmp.Nlink != 0 {
		t.Fatalf("tmpfile: %+v", tmp)
	}
	s.ok2(OpForget, tmp.NodeId, u64(1))
	s.fails(syscall.EISDIR, OpRead, 1, opIn(fuse.ReadIn{Size: 10}), "")
}
