package integration

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand"
	"os"
	"runtime/debug"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// TestMmap: shared and private maps agree with read and write, and msync makes
// what was written through a map durable.
func TestMmap(t *testing.T) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	m := newMount(t)
	name := m.path("f")
	const size = 1<<20 + 123
	want := make([]byte, size)
	rand.New(rand.NewSource(1)).Read(want)
	writeFile(t, name, want)
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	check(t, err)
	defer f.Close()
	shared, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	check(t, err)
	private, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE)
	check(t, err)
	if !bytes.Equal(shared, want) || !bytes.Equal(private, want) {
		t.Error("a map shows something else than was written")
	}
	copy(private[5000:], "private")
	wantFile(t, name, want)
	for _, off := range []int{0, 4095, 4096, 100000, size - 6} {
		copy(shared[off:], "shared")
		copy(want[off:], "shared")
	}
	wantFile(t, name, want)
	_, err = f.WriteAt([]byte("written"), 200000)
	check(t, err)
	copy(want[200000:], "written")
	if !bytes.Equal(shared, want) {
		t.Error("the map does not show what was written")
	}
	check(t, unix.Msync(shared, unix.MS_SYNC))
	check(t, unix.Munmap(shared))
	check(t, unix.Munmap(private))
	check(t, f.Close())
	m.kill9()
	m.mount()
	wantFile(t, name, want)
}

// TestOpenFlags: O_APPEND with two writers, O_TRUNC, O_EXCL, O_NOFOLLOW,
// O_DIRECTORY, O_SYNC, O_DSYNC, O_DIRECT, O_PATH.
func TestOpenFlags(t *testing.T) {
	m := newMount(t)
	name := m.path("f")
	open := func(flags int) *os.File {
		t.Helper()
		f, err := os.OpenFile(name, flags, 0o644)
		check(t, err)
		t.Cleanup(func() { f.Close() })
		return f
	}
	a, b := open(os.O_CREATE|os.O_APPEND|os.O_WRONLY), open(os.O_APPEND|os.O_RDWR)
	want := ""
	for i := range 200 {
		for j, f := range []*os.File{a, b} {
			line := fmt.Sprintf("%d from %d\n", i, j)
			_, err := f.WriteString(line)
			check(t, err)
			want += line
		}
	}
	wantFile(t, name, []byte(want))
	_, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	wantErrno(t, "O_EXCL", err, unix.EEXIST)
	open(os.O_TRUNC | os.O_WRONLY)
	wantFile(t, name, nil)
	if st := lstat(t, name); st.Size != 0 {
		t.Errorf("size %d after O_TRUNC", st.Size)
	}
	check(t, os.Symlink("f", m.path("l")))
	_, err = os.OpenFile(m.path("l"), unix.O_NOFOLLOW|os.O_RDONLY, 0)
	wantErrno(t, "O_NOFOLLOW", err, unix.ELOOP)
	_, err = os.OpenFile(name, unix.O_DIRECTORY, 0)
	wantErrno(t, "O_DIRECTORY", err, unix.ENOTDIR)
	_, err = os.OpenFile(m.dir, os.O_WRONLY, 0)
	wantErrno(t, "write a directory", err, unix.EISDIR)
	_, err = os.OpenFile(m.path("absent"), os.O_RDONLY, 0)
	wantErrno(t, "open", err, unix.ENOENT)
	_, err = os.OpenFile(m.path("f", "x"), os.O_RDONLY, 0)
	wantErrno(t, "open below a file", err, unix.ENOTDIR)

	// What a synchronous write returned for survives the kill.
	var synced []byte
	for _, flag := range []int{unix.O_SYNC, unix.O_DSYNC} {
		f := open(flag | os.O_WRONLY | os.O_APPEND)
		for range 20 {
			_, err := f.WriteString("synchronous")
			check(t, err)
			synced = append(synced, "synchronous"...)
		}
		check(t, f.Close())
	}
	for _, f := range []*os.File{a, b} {
		check(t, f.Close())
	}
	m.kill9()
	m.mount()
	wantFile(t, name, synced)

	direct := m.path("direct")
	fd, err := unix.Open(direct, unix.O_DIRECT|unix.O_RDWR|unix.O_CREAT, 0o644)
	check(t, err)
	f := os.NewFile(uintptr(fd), direct)
	defer f.Close()
	buf := aligned(64 << 10)
	var all []byte
	for i := range 16 {
		for j := range buf {
			buf[j] = byte(i + j/512)
		}
		_, err := f.WriteAt(buf, int64(len(all)))
		check(t, err)
		all = append(all, buf...)
	}
	wantFile(t, direct, all)
	n, err := f.ReadAt(buf, 128<<10)
	if err != nil || n != len(buf) || !bytes.Equal(buf, all[128<<10:192<<10]) {
		t.Errorf("O_DIRECT read: %d, %v", n, err)
	}
	n, err = f.ReadAt(buf, int64(len(all))-4096)
	if n != 4096 || err != io.EOF {
		t.Errorf("O_DIRECT read over the end: %d, %v", n, err)
	}
}

// aligned is memory as O_DIRECT wants it.
func aligned(n int) []byte {
	const align = 4096
	b := make([]byte, n+align)
	off := align - int(uintptr(unsafe.Pointer(&b[0]))%align)
	return b[off : off+n]
}

// TestSparse: SEEK_HOLE and SEEK_DATA, and each mode of fallocate, against a
// model in memory.
func TestSparse(t *testing.T) {
	m := newMount(t)
	name := m.path("f")
	f, err := os.Create(name)
	check(t, err)
	defer f.Close()
	fd := int(f.Fd())
	const mib = 1 << 20
	check(t, f.Truncate(16*mib))
	if st := lstat(t, name); st.Blocks != 0 {
		t.Errorf("a hole uses %d blocks", st.Blocks)
	}
	data := bytes.Repeat([]byte("data"), mib/4)
	for _, off := range []int64{2 * mib, 8 * mib} {
		_, err := f.WriteAt(data, off)
		check(t, err)
	}
	seek := func(off int64, whence int, want int64) {
		t.Helper()
		if got, err := unix.Seek(fd, off, whence); err != nil || got != want {
			t.Errorf("lseek(%d, %d) = %d, %v, want %d", off, whence, got, err, want)
		}
	}
	seek(0, unix.SEEK_DATA, 2*mib)
	seek(2*mib, unix.SEEK_HOLE, 3*mib)
	seek(3*mib, unix.SEEK_DATA, 8*mib)
	seek(8*mib+5, unix.SEEK_DATA, 8*mib+5)
	seek(8*mib, unix.SEEK_HOLE, 9*mib)
	seek(12*mib, unix.SEEK_HOLE, 12*mib)
	_, err = unix.Seek(fd, 12*mib, unix.SEEK_DATA)
	wantErrno(t, "SEEK_DATA in the last hole", err, unix.ENXIO)
	_, err = unix.Seek(fd, 20*mib, unix.SEEK_HOLE)
	wantErrno(t, "SEEK_HOLE beyond the end", err, unix.ENXIO)

	model := make([]byte, 16*mib)
	copy(model[2*mib:], data)
	copy(model[8*mib:], data)
	verify := func(what string) {
		t.Helper()
		if st := lstat(t, name); st.Size != int64(len(model)) {
			t.Errorf("%s: size %d, want %d", what, st.Size, len(model))
		}
		wantFile(t, name, model)
		if t.Failed() {
			t.Fatalf("after %s", what)
		}
	}
	verify("writing")
	before := lstat(t, name).Blocks
	check(t, unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 8*mib+1000, mib/2))
	clear(model[8*mib+1000 : 8*mib+1000+mib/2])
	verify("PUNCH_HOLE")
	if after := lstat(t, name).Blocks; after >= before {
		t.Errorf("a punched hole frees nothing: %d blocks before, %d after", before, after)
	}
	check(t, unix.Fallocate(fd, unix.FALLOC_FL_ZERO_RANGE, 2*mib+77, 5000))
	clear(model[2*mib+77 : 2*mib+77+5000])
	verify("ZERO_RANGE")
	check(t, unix.Fallocate(fd, unix.FALLOC_FL_ZERO_RANGE|unix.FALLOC_FL_KEEP_SIZE, 15*mib, 4*mib))
	verify("ZERO_RANGE|KEEP_SIZE beyond the end")
	check(t, unix.Fallocate(fd, unix.FALLOC_FL_KEEP_SIZE, 0, 20*mib))
	verify("KEEP_SIZE")
	check(t, unix.Fallocate(fd, 0, 16*mib, 1000))
	model = append(model, make([]byte, 1000)...)
	verify("fallocate beyond the end")
	check(t, unix.Fallocate(fd, unix.FALLOC_FL_ZERO_RANGE, int64(len(model))-10, 100))
	model = append(model, make([]byte, 90)...)
	verify("ZERO_RANGE over the end")
	wantErrno(t, "COLLAPSE_RANGE", unix.Fallocate(fd, unix.FALLOC_FL_COLLAPSE_RANGE, 0, 4096), unix.EOPNOTSUPP)
	wantErrno(t, "fallocate of nothing", unix.Fallocate(fd, 0, 0, 0), unix.EINVAL)
	check(t, f.Close())
	m.remount()
	verify("a remount")
}

// TestShrink: shrinking and growing inside the last block, in every
// combination, never shows old bytes.
func TestShrink(t *testing.T) {
	m := newMount(t)
	sizes := []int64{0, 1, 100, 4095, 4096, 4097, 5000, 8191, 8192, 8193, 70000}
	full := bytes.Repeat([]byte{0xAA}, 70000)
	i := 0
	for _, start := range sizes {
		for _, small := range sizes {
			if small >= start {
				continue
			}
			for _, again := range sizes {
				name := m.path(fmt.Sprint("f", i))
				i++
				writeFile(t, name, full[:start])
				check(t, os.Truncate(name, small))
				check(t, os.Truncate(name, again))
				want := make([]byte, again)
				copy(want, full[:min(small, again)])
				wantFile(t, name, want)
			}
		}
	}
	m.remount()
	i = 0
	for _, start := range sizes {
		for _, small := range sizes {
			if small >= start {
				continue
			}
			for _, again := range sizes {
				want := make([]byte, again)
				copy(want, full[:min(small, again)])
				wantFile(t, m.path(fmt.Sprint("f", i)), want)
				i++
			}
		}
	}
}

// TestRandomWrites: reads, writes, truncations, holes and copies against a
// model in memory, with remounts.
func TestRandomWrites(t *testing.T) {
	rng := rand.New(rand.NewSource(seed(t)))
	m := newMount(t)
	name := m.path("f")
	const limit = 1 << 20
	var model []byte
	grow := func(n int) {
		if n > len(model) {
			model = append(model, make([]byte, n-len(model))...)
		}
	}
	writeFile(t, name, nil)
	rounds := 3000
	if testing.Short() {
		rounds = 600
	}
	var f *os.File
	open := func() {
		var err error
		f, err = os.OpenFile(name, os.O_RDWR, 0)
		check(t, err)
	}
	open()
	defer func() { f.Close() }()
	for i := range rounds {
		off, n := rng.Intn(limit), 1+rng.Intn(1<<(1+rng.Intn(17)))
		what := ""
		switch p := rng.Intn(100); {
		case p < 50:
			what = fmt.Sprintf("write %d at %d", n, off)
			b := make([]byte, n)
			rng.Read(b)
			_, err := f.WriteAt(b, int64(off))
			check(t, err)
			grow(off + n)
			copy(model[off:], b)
		case p < 60:
			what = fmt.Sprintf("truncate to %d", off)
			check(t, f.Truncate(int64(off)))
			grow(off)
			model = model[:off:off]
		case p < 70:
			what = fmt.Sprintf("punch %d at %d", n, off)
			check(t, unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, int64(off), int64(n)))
			if off < len(model) {
				clear(model[off:min(off+n, len(model))])
			}
		case p < 75 && len(model) > 0:
			src := rng.Intn(len(model))
			n = min(n, len(model)-src)
			if max(src, off) < min(src, off)+n {
				continue // overlapping: copy_file_range refuses
			}
			what = fmt.Sprintf("copy %d from %d to %d", n, src, off)
			from, to := int64(src), int64(off)
			for left := n; left > 0; {
				k, err := unix.CopyFileRange(int(f.Fd()), &from, int(f.Fd()), &to, left, 0)
				check(t, err)
				if k == 0 {
					t.Fatalf("%s copied nothing", what)
				}
				left -= k
			}
			grow(off + n)
			copy(model[off:off+n], model[src:src+n])
		case p < 78:
			what = "fsync"
			check(t, f.Sync())
		case p < 79 && !testing.Short():
			what = "remount"
			check(t, f.Close())
			m.remount()
			open()
		default:
			what = fmt.Sprintf("read %d at %d", n, off)
			b := make([]byte, n)
			k, err := f.ReadAt(b, int64(off))
			if err != nil && err != io.EOF {
				t.Fatal(err)
			}
			want := []byte{}
			if off < len(model) {
				want = model[off:min(off+n, len(model))]
			}
			if !bytes.Equal(b[:k], want) {
				t.Fatalf("round %d: %s: %d bytes, want %d, first difference at %d", i, what, k, len(want), firstDifference(b[:k], want))
			}
		}
		if i%50 == 0 {
			wantFile(t, name, model)
			if t.Failed() {
				t.Fatalf("round %d, after %s", i, what)
			}
		}
	}
	check(t, f.Close())
	m.kill9Synced(name)
	wantFile(t, name, model)
}

// kill9Synced makes name durable, kills and mounts again.
func (m *mount) kill9Synced(name string) {
	m.t.Helper()
	f, err := os.Open(name)
	check(m.t, err)
	check(m.t, f.Sync())
	check(m.t, f.Close())
	m.kill9()
	m.mount()
}

// TestUnlinkedOpen: a file without a name lives as long as it is open.
func TestUnlinkedOpen(t *testing.T) {
	m := newMount(t)
	f, err := os.Create(m.path("f"))
	check(t, err)
	_, err = f.WriteString("before")
	check(t, err)
	check(t, os.Remove(m.path("f")))
	_, err = f.WriteString(" after")
	check(t, err)
	b := make([]byte, 20)
	n, _ := f.ReadAt(b, 0)
	if string(b[:n]) != "before after" {
		t.Errorf("reads %q", b[:n])
	}
	var st unix.Stat_t
	check(t, unix.Fstat(int(f.Fd()), &st))
	if st.Nlink != 0 || st.Size != 12 {
		t.Errorf("nlink %d size %d", st.Nlink, st.Size)
	}
	writeFile(t, m.path("f"), []byte("another"))
	n, _ = f.ReadAt(b, 0)
	if string(b[:n]) != "before after" {
		t.Errorf("reads %q after its name was used again", b[:n])
	}
	// Replaced by rename while open.
	g, err := os.Open(m.path("f"))
	check(t, err)
	defer g.Close()
	writeFile(t, m.path("new"), []byte("newer"))
	check(t, os.Rename(m.path("new"), m.path("f")))
	if b, err := io.ReadAll(g); err != nil || string(b) != "another" {
		t.Errorf("reads %q, %v after being replaced", b, err)
	}
	wantFile(t, m.path("f"), []byte("newer"))
	check(t, f.Close())
	// The daemon dies while a nameless file is open: nothing of it remains.
	h, err := os.Create(m.path("orphan"))
	check(t, err)
	_, err = h.Write(make([]byte, 1<<20))
	check(t, err)
	check(t, os.Remove(m.path("orphan")))
	mustPrismfs(t, "sync", m.dir)
	pid := m.pid()
	check(t, syscall.Kill(pid, syscall.SIGKILL))
	waitGone(t, pid)
	if err := h.Close(); err != nil && !errors.Is(err, unix.ENOTCONN) && !errors.Is(err, unix.ECONNABORTED) {
		t.Errorf("close after the kill: %v", err)
	}
	m.mount()
	wantFile(t, m.path("f"), []byte("newer"))
}
