package fs

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"syscall"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"prismfs/lanes"
)

// noReplier owns the requests of tests that answer nobody.
type noReplier struct{}

func (noReplier) answered(*Request) {}
func (noReplier) hasRing() bool     { return false }

func (noReplier) submitRead(*Request, int, int64, []byte, *lanes.Job) bool { return false }

// message is a request as read(2) gives it.
func message(op uint32, parts ...[]byte) []byte {
	b := make([]byte, inHeaderLen)
	for _, p := range parts {
		b = append(b, p...)
	}
	le.PutUint32(b, uint32(len(b)))
	le.PutUint32(b[4:], op)
	le.PutUint64(b[8:], 42)
	le.PutUint64(b[16:], 7)
	le.PutUint32(b[24:], 1000)
	le.PutUint32(b[28:], 100)
	le.PutUint32(b[32:], 4711)
	return b
}

// words makes a struct of 32-bit fields.
func words(v ...uint32) []byte {
	b := make([]byte, 4*len(v))
	for i, v := range v {
		le.PutUint32(b[4*i:], v)
	}
	return b
}

func TestDecode(t *testing.T) {
	name := []byte("name\x00")
	write := func(size uint32) []byte { return words(1, 0, 4096, 0, size, 0, 0, 0, 0, 0) }
	for _, c := range []struct {
		what  string
		b     []byte
		errno syscall.Errno
		op    int    // length of the struct
		data  string // what must be in Data
	}{
		{"lookup", message(OpLookup, name), 0, 0, "name\x00"},
		{"lookup of no name", message(OpLookup), syscall.EINVAL, 0, ""},
		{"lookup without NUL", message(OpLookup, []byte("name")), syscall.EINVAL, 0, "name"},
		{"getattr", message(OpGetattr, make([]byte, 16)), 0, 16, ""},
		{"short getattr", message(OpGetattr, make([]byte, 15)), syscall.EINVAL, 15, ""},
		{"setattr, the longest", message(OpSetattr, make([]byte, 88)), 0, 88, ""},
		{"write", message(OpWrite, write(3), []byte("abc")), 0, 40, "abc"},
		{"write with more than it says", message(OpWrite, write(2), []byte("abc")), 0, 40, "ab"},
		{"write with less than it says", message(OpWrite, write(4), []byte("abc")), syscall.EINVAL, 40, "abc"},
		{"read", message(OpRead, write(8192)), 0, 40, ""},
		{"read of more than Out holds", message(OpRead, write(8193)), syscall.EINVAL, 40, ""},
		{"rename", message(OpRename, make([]byte, 8), name, name), 0, 8, "name\x00name\x00"},
		{"rename with one name", message(OpRename, make([]byte, 8), name), syscall.EINVAL, 8, "name\x00"},
		{"symlink", message(OpSymlink, name, name), 0, 0, "name\x00name\x00"},
		{"setxattr", message(OpSetxattr, words(3, 0, 0, 0), name, []byte("abc")), 0, 16, "name\x00abc"},
		{"setxattr with less than it says", message(OpSetxattr, words(4, 0, 0, 0), name, []byte("abc")), syscall.EINVAL, 16, "name\x00abc"},
		{"setxattr of a huge size", message(OpSetxattr, words(1<<32-1, 0, 0, 0), name, []byte("abc")), syscall.EINVAL, 16, "name\x00abc"},
		{"getxattr", message(OpGetxattr, words(100, 0), name), 0, 8, "name\x00"},
		{"listxattr of a huge size", message(OpListxattr, words(1<<31, 0)), syscall.EINVAL, 8, ""},
		{"batch forget", message(OpBatchForget, words(1, 0), make([]byte, 16)), 0, 8, string(make([]byte, 16))},
		{"batch forget of too many", message(OpBatchForget, words(1<<28, 0), make([]byte, 16)), syscall.EINVAL, 8, string(make([]byte, 16))},
		{"ioctl", message(OpIoctl, words(0, 0, 0, 0, 0, 0, 4, 4), []byte("abcd")), 0, 32, "abcd"},
		{"ioctl with less than it says", message(OpIoctl, words(0, 0, 0, 0, 0, 0, 5, 4), []byte("abcd")), syscall.EINVAL, 32, "abcd"},
		{"ioctl of a huge reply", message(OpIoctl, words(0, 0, 0, 0, 0, 0, 0, 1<<32-1)), syscall.EINVAL, 32, ""},
		{"unknown opcode", message(4000, []byte("abc")), 0, 0, "abc"},
		{"opcode between", message(7, []byte("abc")), 0, 0, "abc"},
	} {
		r := &Request{owner: noReplier{}}
		errno, err := r.decode(c.b, make([]byte, 8192))
		if err != nil || errno != c.errno || len(r.Op()) != c.op || string(r.Data) != c.data {
			t.Errorf("%s: errno %d, %v, struct of %d bytes, data %q", c.what, errno, err, len(r.Op()), r.Data)
		}
		if r.Unique() != 42 || r.Node() != 7 || r.Uid() != 1000 || r.Gid() != 100 || r.Pid() != 4711 {
			t.Errorf("%s: header %v", c.what, r.In[:inHeaderLen])
		}
	}
	for _, b := range [][]byte{nil, make([]byte, 39), make([]byte, 40), message(OpLookup, name)[:44]} {
		if _, err := new(Request).decode(b, make([]byte, 8192)); err == nil {
			t.Errorf("%d bytes are a request", len(b))
		}
	}
}

// exercise uses what a handler may rely on without checks of its own.
func exercise(t *testing.T, r *Request) {
	n, known := OpLen(r.Opcode())
	if known && len(r.Op()) != n {
		t.Fatalf("opcode %d has a struct of %d bytes", r.Opcode(), len(r.Op()))
	}
	switch r.Opcode() {
	case OpWrite:
		if len(r.Data) != int(le.Uint32(r.Op()[16:])) {
			t.Fatal("size of a WRITE")
		}
	case OpRead, OpReaddir, OpReaddirplus:
		_ = r.Out[:le.Uint32(r.Op()[16:])]
	case OpGetxattr, OpListxattr:
		_ = r.Out[:le.Uint32(r.Op())]
	case OpBatchForget:
		_ = r.Data[:16*le.Uint32(r.Op())]
	case OpRename, OpRename2, OpSymlink:
		if bytes.Count(r.Data, []byte{0}) < 2 {
			t.Fatal("less than two names")
		}
	}
}

func FuzzDecode(f *testing.F) {
	for op := range uint32(len(opLen)) {
		n, _ := OpLen(op)
		f.Add(message(op, make([]byte, n), []byte("a\x00b\x00")))
	}
	f.Add(message(OpWrite, words(0, 0, 0, 0, 1<<31)))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := &Request{owner: noReplier{}}
		if errno, err := r.decode(b, make([]byte, 8192)); err == nil && errno == 0 {
			exercise(t, r)
		} else if err == nil {
			r.Reply(0, errno)
		}
	})
}

func FuzzDecodeEntry(f *testing.F) {
	for op := range uint32(len(opLen)) {
		n, _ := OpLen(op)
		f.Add(message(op), make([]byte, n), []byte("a\x00b\x00"), uint32(inHeaderLen+n+4), uint32(4))
	}
	f.Add(message(OpLookup), []byte(nil), []byte(nil), uint32(0), uint32(1<<32-1))
	f.Fuzz(func(t *testing.T, head, op, data []byte, total, payloadLen uint32) {
		header, payload := make([]byte, entHeaderLen), make([]byte, 8192)
		copy(header[:entOpIn], head)
		copy(header[entOpIn:256], op)
		copy(payload, data)
		le.PutUint32(header, total)
		le.PutUint32(header[entPayload:], payloadLen)
		r := &Request{owner: noReplier{}}
		if errno := decodeEntry(r, header, payload); errno == 0 {
			exercise(t, r)
		} else {
			r.Reply(0, errno)
		}
	})
}

// The lengths of structs against go-fuse's, which begin with the header.
func TestOpLen(t *testing.T) {
	for op, size := range map[uint32]uintptr{
		OpGetattr: sizeOf[fuse.GetAttrIn](), OpSetattr: sizeOf[fuse.SetAttrIn](), OpMknod: sizeOf[fuse.MknodIn](),
		OpMkdir: sizeOf[fuse.MkdirIn](), OpRename2: sizeOf[fuse.RenameIn](), OpLink: sizeOf[fuse.LinkIn](),
		OpOpen: sizeOf[fuse.OpenIn](), OpRead: sizeOf[fuse.ReadIn](), OpWrite: sizeOf[fuse.WriteIn](),
		OpRelease: sizeOf[fuse.ReleaseIn](), OpFsync: sizeOf[fuse.FsyncIn](), OpSetxattr: sizeOf[fuse.SetXAttrIn](),
		OpGetxattr: sizeOf[fuse.GetXAttrIn](), OpFlush: sizeOf[fuse.FlushIn](), OpInit: sizeOf[fuse.InitIn](),
		OpGetlk: sizeOf[fuse.LkIn](), OpAccess: sizeOf[fuse.AccessIn](), OpCreate: sizeOf[fuse.CreateIn](),
		OpInterrupt: sizeOf[fuse.InterruptIn](), OpFallocate: sizeOf[fuse.FallocateIn](), OpLseek: sizeOf[fuse.LseekIn](),
		OpCopyFileRange: sizeOf[fuse.CopyFileRangeIn](), OpStatx: sizeOf[fuse.StatxIn](), OpForget: sizeOf[fuse.ForgetIn](),
	} {
		if n, _ := OpLen(op); uintptr(n) != size-inHeaderLen {
			t.Errorf("opcode %d: %d bytes, go-fuse has %d", op, n, size-inHeaderLen)
		}
	}
}

func TestNegotiate(t *testing.T) {
	const all = 1<<43 - 1
	o := MountOptions{}
	if err := o.setDefaults(); err != nil {
		t.Fatal(err)
	}
	in := initIn{major: 7, minor: 45, flags: all, maxReadahead: 131072}
	n, err := negotiate(in, &o)
	if err != nil || !n.Has(capsAlways|fuse.CAP_OVER_IO_URING) || n.Flags&^(capsAlways|fuse.CAP_OVER_IO_URING) != 0 {
		t.Errorf("flags %#x, %v", n.Flags, err)
	}
	in.flags = capsNeeded
	if n, err = negotiate(in, &o); err != nil || n.Flags != capsNeeded {
		t.Errorf("what isn't offered is in force: %#x, %v", n.Flags, err)
	}
	for _, in := range []initIn{
		{major: 6, minor: 45, flags: all}, {major: 8, minor: 0, flags: all},
		{major: 7, minor: 32, flags: all}, {major: 7, minor: 45, flags: all &^ fuse.CAP_SETXATTR_EXT},
	} {
		if _, err := negotiate(in, &o); err == nil {
			t.Errorf("INIT %+v is accepted", in)
		}
	}
}

func TestParseInit(t *testing.T) {
	in, err := parseInit(message(OpInit, words(7, 45, 131072, fuse.CAP_INIT_EXT|1, 1<<9), make([]byte, 44)))
	if want := (initIn{42, 7, 45, 131072, fuse.CAP_INIT_EXT | 1 | fuse.CAP_OVER_IO_URING}); err != nil || in != want {
		t.Errorf("%+v, %v", in, err)
	}
	// An old kernel's INIT ends after the flags.
	if in, err := parseInit(message(OpInit, words(7, 31, 131072, 1))); err != nil || in.flags != 1 {
		t.Errorf("%+v, %v", in, err)
	}
	for _, b := range [][]byte{nil, message(OpInit, words(7, 45, 0)), message(OpLookup, make([]byte, 64))} {
		if _, err := parseInit(b); err == nil {
			t.Errorf("%v is an INIT", b)
		}
	}
}

func TestMountFlags(t *testing.T) {
	for _, c := range []struct {
		o    MountOptions
		want uintptr
	}{
		{MountOptions{}, unix.MS_NOSUID | unix.MS_NODEV},
		{MountOptions{Suid: true, Dev: true, ReadOnly: true}, unix.MS_RDONLY},
		{MountOptions{Flags: []string{"suid", "dev"}}, 0},
		{MountOptions{Flags: []string{"suid", "nosuid", "dev", "ro", "rw"}}, unix.MS_NOSUID},
		{MountOptions{Suid: true, Dev: true, Flags: []string{"noatime", "relatime"}}, unix.MS_RELATIME},
		{MountOptions{Suid: true, Dev: true, Flags: []string{"sync", "dirsync", "async"}}, unix.MS_DIRSYNC},
	} {
		if fl, err := c.o.flags(); err != nil || fl != c.want {
			t.Errorf("%+v: %#x, %v, want %#x", c.o, fl, err, c.want)
		}
	}
	if s := flagNames(unix.MS_RDONLY | unix.MS_NODEV); len(s) != 2 || s[0] != "ro" || s[1] != "nodev" {
		t.Error(s)
	}
}

func TestFindMount(t *testing.T) {
	const below = "22 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n" +
		"30 22 0:40 / /mnt/a\\040b rw shared:1 master:2 - fuse.prismfs /st\\134ore rw,user_id=0\n"
	const table = below + "31 22 0:41 / /mnt/a\\040b ro - tmpfs none ro\ngarbage\n"
	for table, want := range map[string]mountInfo{below: {"0:40", "fuse.prismfs", `/st\ore`}, table: {"0:41", "tmpfs", "none"}} {
		if m, ok := findMount(table, "/mnt/a b"); !ok || m != want {
			t.Errorf("%+v, %v, want %+v", m, ok, want)
		}
	}
	if _, ok := findMount(table, "/mnt"); ok {
		t.Error("found what isn't there")
	}
}

func TestParseCPUs(t *testing.T) {
	for list, want := range map[string][]int{"0": {0}, "0-1": {0, 1}, "0-2,8,10-11": {0, 1, 2, 8, 10, 11}} {
		if got, err := parseCPUs(list); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %v, %v", list, got, err)
		}
	}
	for _, list := range []string{"", "a", "3-1", "0-", "1,,2"} {
		if got, err := parseCPUs(list); err == nil {
			t.Errorf("%q: %v", list, got)
		}
	}
}

func TestMountpointErrors(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(dir, "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	if p, err := checkMountpoint(link); err != nil || p != dir {
		t.Errorf("%q, %v", p, err)
	}
}

// The bound of a pool holds, and waiters get what comes back.
func TestRequestPool(t *testing.T) {
	p := newRequestPool(2, func() *Request { return new(Request) })
	a, b := p.get(), p.get()
	got := make(chan *Request)
	go func() { got <- p.get() }()
	select {
	case <-got:
		t.Fatal("three requests of a pool of two")
	default:
	}
	p.put(a)
	if c := <-got; c != a {
		t.Error("the third isn't the one that came back")
	}
	p.put(a)
	p.put(b)
	p.waitAll()
}

func sizeOf[T any]() uintptr { return reflect.TypeFor[T]().Size() }
