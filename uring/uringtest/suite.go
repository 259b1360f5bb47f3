// Package uringtest is the conformance suite of uring.Disk: what its users rely
// on, run over every implementation.
package uringtest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
	"testing"

	"prismfs/lanes"
	"prismfs/uring"
)

// Run runs the suite. open returns a new, empty, writable disk; the suite closes
// it.
func Run(t *testing.T, open func(t *testing.T) uring.Disk) {
	for _, c := range []struct {
		name string
		test func(*testing.T, uring.Disk)
	}{
		{"ReadWrite", testReadWrite},
		{"EndOfFile", testEndOfFile},
		{"Sparse", testSparse},
		{"CreateTruncates", testCreateTruncates},
		{"Truncate", testTruncate},
		{"Allocate", testAllocate},
		{"NoWait", testNoWait},
		{"Names", testNames},
		{"NotExist", testNotExist},
		{"OtherErrors", testOtherErrors},
		{"Rename", testRename},
		{"RemoveWhileOpen", testRemoveWhileOpen},
		{"Lock", testLock},
		{"ClosedFile", testClosedFile},
		{"ClosedDisk", testClosedDisk},
		{"Syncs", testSyncs},
		{"Free", testFree},
		{"Async", testAsync},
		{"AsyncEndOfFile", testAsyncEndOfFile},
		{"AsyncParallel", testAsyncParallel},
		{"AsyncCloseInFlight", testAsyncCloseInFlight},
		{"ParallelReadersAndWriter", testParallelReadersAndWriter},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := open(t)
			c.test(t, d)
			if err := d.Close(); err != nil && !errors.Is(err, uring.ErrClosed) {
				t.Errorf("Close = %v", err)
			}
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantErr(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s = %v, want %v", what, err, want)
	}
}

func create(t *testing.T, d uring.Disk, name string, data []byte) uring.File {
	t.Helper()
	f, err := d.Create(name)
	must(t, err)
	n, err := f.WriteAt(data, 0)
	must(t, err)
	if n != len(data) {
		t.Fatalf("WriteAt wrote %d of %d bytes", n, len(data))
	}
	return f
}

// pattern is n bytes that differ at every position.
func pattern(n int) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(i ^ i>>8 ^ i>>16)
	}
	return p
}

func wantContent(t *testing.T, f uring.File, want []byte) {
	t.Helper()
	size, err := f.Size()
	must(t, err)
	if size != int64(len(want)) {
		t.Fatalf("%s: size %d, want %d", f.Name(), size, len(want))
	}
	got := make([]byte, size)
	_, err = f.ReadAt(got, 0)
	must(t, err)
	if !bytes.Equal(got, want) {
		t.Fatalf("%s: wrong content", f.Name())
	}
}

func testReadWrite(t *testing.T, d uring.Disk) {
	want := pattern(100_000)
	f := create(t, d, "f", want)
	defer f.Close()
	wantContent(t, f, want)
	// An overwrite across pages, by a second handle.
	g, err := d.Open("f")
	must(t, err)
	defer g.Close()
	patch := bytes.Repeat([]byte{0xee}, 9000)
	_, err = g.WriteAt(patch, 4000)
	must(t, err)
	copy(want[4000:], patch)
	wantContent(t, f, want)
	if f.Name() != "f" {
		t.Errorf("Name = %q", f.Name())
	}
	size, err := d.Stat("f")
	if err != nil || size != int64(len(want)) {
		t.Errorf("Stat = %d, %v", size, err)
	}
}

func testEndOfFile(t *testing.T, d uring.Disk) {
	f := create(t, d, "f", []byte("hello"))
	defer f.Close()
	for name, read := range map[string]func([]byte, int64) (int, error){"ReadAt": f.ReadAt, "ReadAtNoWait": f.ReadAtNoWait} {
		for _, c := range []struct {
			len int
			off int64
			n   int
			err error
		}{
			{5, 0, 5, nil}, {6, 0, 5, io.EOF}, {3, 1, 3, nil}, {9, 4, 1, io.EOF},
			{1, 5, 0, io.EOF}, {1, 5000, 0, io.EOF}, {0, 0, 0, nil}, {0, 9, 0, nil},
		} {
			p := make([]byte, c.len)
			n, err := read(p, c.off)
			if name == "ReadAtNoWait" && err == uring.ErrWouldBlock {
				continue
			}
			if c.len == 0 && err == io.EOF {
				err = nil // io.ReaderAt allows both
			}
			if n != c.n || err != c.err {
				t.Errorf("%s(%d bytes, %d) = %d, %v; want %d, %v", name, c.len, c.off, n, err, c.n, c.err)
			}
			if n == c.n && !bytes.Equal(p[:n], []byte("hello"[min(5, c.off):][:n])) {
				t.Errorf("%s(%d bytes, %d): wrong bytes %q", name, c.len, c.off, p[:n])
			}
		}
	}
}

func testSparse(t *testing.T, d uring.Disk) {
	f := create(t, d, "f", nil)
	defer f.Close()
	const far = 3 << 30
	_, err := f.WriteAt([]byte("x"), far)
	must(t, err)
	size, err := f.Size()
	if err != nil || size != far+1 {
		t.Errorf("Size = %d, %v", size, err)
	}
	p := bytes.Repeat([]byte{1}, 10000)
	_, err = f.ReadAt(p, 1<<30)
	must(t, err)
	if !bytes.Equal(p, make([]byte, len(p))) {
		t.Error("a hole does not read as zeros")
	}
	p = p[:2]
	if n, err := f.ReadAt(p, far-1); n != 2 || err != nil || string(p) != "\x00x" {
		t.Errorf("ReadAt = %d, %v, %q", n, err, p)
	}
}

func testCreateTruncates(t *testing.T, d uring.Disk) {
	f := create(t, d, "f", pattern(5000))
	defer f.Close()
	g := create(t, d, "f", []byte("new"))
	defer g.Close()
	wantContent(t, f, []byte("new"))
}

func testTruncate(t *testing.T, d uring.Disk) {
	want := pattern(10_000)
	f := create(t, d, "f", want)
	defer f.Close()
	// What was cut off never comes back, within a block and beyond.
	for _, n := range []int{9000, 4096, 4095, 1, 0, 5000, 12_000} {
		must(t, f.Truncate(int64(n)))
		if n < len(want) {
			want = want[:n:n]
		} else {
			want = append(want, make([]byte, n-len(want))...)
		}
		wantContent(t, f, want)
		must(t, f.Truncate(15_000))
		wantContent(t, f, append(want[:n:n], make([]byte, 15_000-n)...))
		must(t, f.Truncate(int64(n)))
	}
	if err := f.Truncate(-1); err == nil {
		t.Error("Truncate(-1) succeeds")
	}
}

func testAllocate(t *testing.T, d uring.Disk) {
	want := pattern(5000)
	f := create(t, d, "f", want)
	defer f.Close()
	must(t, f.Allocate(0, 100_000, true))
	wantContent(t, f, want)
	must(t, f.Allocate(1000, 2000, false))
	wantContent(t, f, want)
	must(t, f.Allocate(0, 20_000, false))
	wantContent(t, f, append(want, make([]byte, 15_000)...))
	if err := f.Allocate(0, 0, false); err == nil {
		t.Error("Allocate of nothing succeeds")
	}
	if d.Mode() != "sim" {
		return // a real disk would be filled before it refuses
	}
	space, err := d.Free()
	must(t, err)
	wantErr(t, "Allocate of more than there is", f.Allocate(0, space.Total+1, true), uring.ErrNoSpace)
	wantContent(t, f, append(want, make([]byte, 15_000)...))
}

func testNoWait(t *testing.T, d uring.Disk) {
	want := pattern(50_000)
	f := create(t, d, "f", want)
	defer f.Close()
	p := make([]byte, len(want))
	// What was just written is in memory, or the file system can't say.
	switch n, err := f.ReadAtNoWait(p, 0); {
	case err == uring.ErrWouldBlock:
	case err != nil || n != len(p) || !bytes.Equal(p, want):
		t.Errorf("ReadAtNoWait = %d, %v", n, err)
	}
}

func testNames(t *testing.T, d uring.Disk) {
	must(t, d.MkdirAll("a/b/c"))
	must(t, d.MkdirAll("a/b/c"))
	must(t, d.MkdirAll("."))
	for _, name := range []string{"z", "a/f", "a/b/y", "a/b/x"} {
		must(t, create(t, d, name, nil).Close())
	}
	for dir, want := range map[string][]string{"": {"a", "z"}, ".": {"a", "z"}, "a": {"b", "f"}, "a/b": {"c", "x", "y"}, "a/b/c": {}} {
		got, err := d.List(dir)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("List(%q) = %q, %v; want %q", dir, got, err, want)
		}
	}
	for name, want := range map[string]bool{"a": true, "a/b/x": true, "a/b/w": false, "w/x": false, "z/x": false} {
		if d.Exists(name) != want {
			t.Errorf("Exists(%q) = %v", name, !want)
		}
	}
	wantErr(t, "Remove of a full directory", d.Remove("a"), syscall.ENOTEMPTY)
	must(t, d.Remove("a/b/c"))
	must(t, d.Remove("a/f"))
	if d.Exists("a/b/c") || d.Exists("a/f") {
		t.Error("removed names exist")
	}
}

func testNotExist(t *testing.T, d uring.Disk) {
	_, err := d.Open("no")
	wantErr(t, "Open", err, uring.ErrNotExist)
	wantErr(t, "Open", err, fs.ErrNotExist)
	_, err = d.Create("no/f")
	wantErr(t, "Create", err, uring.ErrNotExist)
	_, err = d.Stat("no")
	wantErr(t, "Stat", err, uring.ErrNotExist)
	_, err = d.List("no")
	wantErr(t, "List", err, uring.ErrNotExist)
	wantErr(t, "Remove", d.Remove("no"), uring.ErrNotExist)
	wantErr(t, "Rename", d.Rename("no", "yes"), uring.ErrNotExist)
	wantErr(t, "SyncDir", d.SyncDir("no"), uring.ErrNotExist)
	must(t, create(t, d, "f", nil).Close())
	wantErr(t, "Rename", d.Rename("f", "no/f"), uring.ErrNotExist)
}

func testOtherErrors(t *testing.T, d uring.Disk) {
	must(t, d.MkdirAll("dir"))
	must(t, create(t, d, "f", nil).Close())
	for _, name := range []string{"/etc/passwd", "../f", "dir/../f", "a//b", "./f", "f/"} {
		_, err := d.Open(name)
		wantErr(t, fmt.Sprintf("Open(%q)", name), err, syscall.EINVAL)
		_, err = d.Create(name)
		wantErr(t, fmt.Sprintf("Create(%q)", name), err, syscall.EINVAL)
		wantErr(t, fmt.Sprintf("Rename to %q", name), d.Rename("f", name), syscall.EINVAL)
	}
	_, err := d.Create("f/g")
	wantErr(t, "Create below a file", err, syscall.ENOTDIR)
	_, err = d.Create("dir")
	wantErr(t, "Create over a directory", err, syscall.EISDIR)
	_, err = d.List("f")
	wantErr(t, "List of a file", err, syscall.ENOTDIR)
	wantErr(t, "MkdirAll over a file", d.MkdirAll("f"), syscall.ENOTDIR)
	wantErr(t, "MkdirAll below a file", d.MkdirAll("f/g"), syscall.ENOTDIR)
	wantErr(t, "Rename of a directory over a file", d.Rename("dir", "f"), syscall.ENOTDIR)
	wantErr(t, "Rename of a file over a directory", d.Rename("f", "dir"), syscall.EISDIR)
	f, err := d.Open("f")
	must(t, err)
	defer f.Close()
	_, err = f.ReadAt(make([]byte, 1), -1)
	wantErr(t, "ReadAt(-1)", err, syscall.EINVAL)
	_, err = f.WriteAt(make([]byte, 1), -1)
	wantErr(t, "WriteAt(-1)", err, syscall.EINVAL)
}

func testRename(t *testing.T, d uring.Disk) {
	must(t, d.MkdirAll("dir"))
	old := create(t, d, "old", []byte("old"))
	defer old.Close()
	f := create(t, d, "new", []byte("new"))
	defer f.Close()
	must(t, d.Rename("new", "old"))
	if d.Exists("new") {
		t.Error("the former name exists")
	}
	g, err := d.Open("old")
	must(t, err)
	defer g.Close()
	wantContent(t, g, []byte("new"))
	wantContent(t, old, []byte("old")) // the replaced file lives while open
	must(t, d.Rename("old", "dir/moved"))
	must(t, d.Rename("dir/moved", "dir/moved"))
	must(t, d.Rename("dir", "dir2"))
	if size, err := d.Stat("dir2/moved"); err != nil || size != 3 {
		t.Errorf("Stat = %d, %v", size, err)
	}
}

func testRemoveWhileOpen(t *testing.T, d uring.Disk) {
	want := pattern(10_000)
	f := create(t, d, "f", want)
	defer f.Close()
	must(t, d.Remove("f"))
	wantContent(t, f, want)
	must(t, f.Datasync())
	g := create(t, d, "f", []byte("other"))
	defer g.Close()
	wantContent(t, f, want)
}

func testLock(t *testing.T, d uring.Disk) {
	l, err := d.Lock("LOCK")
	must(t, err)
	_, err = d.Lock("LOCK")
	wantErr(t, "second Lock", err, uring.ErrLocked)
	other, err := d.Lock("LOCK2")
	must(t, err)
	must(t, other.Close())
	must(t, l.Close())
	wantErr(t, "second unlock", l.Close(), uring.ErrClosed)
	l, err = d.Lock("LOCK")
	must(t, err)
	must(t, l.Close())
}

func testClosedFile(t *testing.T, d uring.Disk) {
	f := create(t, d, "f", []byte("x"))
	must(t, f.Close())
	p := make([]byte, 1)
	_, err := f.ReadAt(p, 0)
	wantErr(t, "ReadAt", err, uring.ErrClosed)
	_, err = f.ReadAtNoWait(p, 0)
	wantErr(t, "ReadAtNoWait", err, uring.ErrClosed)
	_, err = f.WriteAt(p, 0)
	wantErr(t, "WriteAt", err, uring.ErrClosed)
	_, err = f.Size()
	wantErr(t, "Size", err, uring.ErrClosed)
	wantErr(t, "Datasync", f.Datasync(), uring.ErrClosed)
	wantErr(t, "Sync", f.Sync(), uring.ErrClosed)
	wantErr(t, "Truncate", f.Truncate(0), uring.ErrClosed)
	wantErr(t, "Allocate", f.Allocate(0, 1, false), uring.ErrClosed)
	wantErr(t, "Close", f.Close(), uring.ErrClosed)
	f.StartWriteback(0, 1)
	f.Prefetch(0, 1)
	done := func(*lanes.Job) { t.Error("Done of a refused read runs") }
	wantErr(t, "ReadAsync", f.ReadAsync(&uring.Read{P: p, Done: &lanes.Job{Run: done}}), uring.ErrClosed)
}

func testClosedDisk(t *testing.T, d uring.Disk) {
	f := create(t, d, "f", []byte("x"))
	must(t, d.Close())
	_, err := d.Open("f")
	wantErr(t, "Open", err, uring.ErrClosed)
	_, err = d.Create("f")
	wantErr(t, "Create", err, uring.ErrClosed)
	_, err = d.List("")
	wantErr(t, "List", err, uring.ErrClosed)
	_, err = d.Lock("l")
	wantErr(t, "Lock", err, uring.ErrClosed)
	_, err = d.Free()
	wantErr(t, "Free", err, uring.ErrClosed)
	wantErr(t, "SyncDir", d.SyncDir(""), uring.ErrClosed)
	wantErr(t, "Close", d.Close(), uring.ErrClosed)
	wantErr(t, "ReadAsync", f.ReadAsync(&uring.Read{P: make([]byte, 1), Done: &lanes.Job{}}), uring.ErrClosed)
	wantContent(t, f, []byte("x"))
	must(t, f.Close())
}

func testSyncs(t *testing.T, d uring.Disk) {
	must(t, d.MkdirAll("a"))
	f := create(t, d, "a/f", pattern(100_000))
	defer f.Close()
	f.StartWriteback(0, 100_000)
	must(t, f.Datasync())
	must(t, f.Sync())
	must(t, d.SyncDir("a"))
	must(t, d.SyncDir("."))
	must(t, d.SyncDir(""))
}

func testFree(t *testing.T, d uring.Disk) {
	s, err := d.Free()
	must(t, err)
	if s.BlockSize <= 0 || s.Total <= 0 || s.Free < 0 || s.Free > s.Total || s.FilesFree > s.Files {
		t.Errorf("Free = %+v", s)
	}
	if d.ReadOnly() {
		t.Error("a writable disk is read-only")
	}
	if m := d.Mode(); m != "io_uring" && m != "pread" && m != "sim" {
		t.Errorf("Mode = %q", m)
	}
}

// readAsync reads and waits.
func readAsync(t *testing.T, f uring.File, p []byte, off int64) (int, error) {
	t.Helper()
	done := make(chan struct{})
	r := &uring.Read{P: p, Off: off, Done: &lanes.Job{Run: func(*lanes.Job) { close(done) }}}
	must(t, f.ReadAsync(r))
	<-done
	return r.N, r.Err
}

func testAsync(t *testing.T, d uring.Disk) {
	want := pattern(3 << 20)
	f := create(t, d, "f", want)
	defer f.Close()
	for _, c := range []struct{ off, len int }{{0, 1}, {0, 0}, {100, 5000}, {4096, 4096}, {1, 3<<20 - 2}, {0, 3 << 20}} {
		p := make([]byte, c.len)
		n, err := readAsync(t, f, p, int64(c.off))
		if n != c.len || err != nil || !bytes.Equal(p, want[c.off:][:c.len]) {
			t.Errorf("ReadAsync(%d bytes, %d) = %d, %v", c.len, c.off, n, err)
		}
	}
	_, err := readAsync(t, f, make([]byte, 1), -1)
	wantErr(t, "ReadAsync(-1)", err, syscall.EINVAL)
}

func testAsyncEndOfFile(t *testing.T, d uring.Disk) {
	f := create(t, d, "f", pattern(10_000))
	defer f.Close()
	p := make([]byte, 8192)
	for off, want := range map[int64]int{5000: 5000, 9999: 1, 10_000: 0, 1 << 30: 0} {
		if n, err := readAsync(t, f, p, off); n != want || err != io.EOF {
			t.Errorf("ReadAsync at %d = %d, %v; want %d, EOF", off, n, err, want)
		}
	}
}

// More reads than any queue has places, from many goroutines, each restarted
// by its own completion.
func testAsyncParallel(t *testing.T, d uring.Disk) {
	want := pattern(1 << 20)
	f := create(t, d, "f", want)
	defer f.Close()
	const readers, perReader, rounds = 16, 60, 5
	var start, done sync.WaitGroup
	for g := range readers {
		start.Add(1)
		done.Add(perReader)
		go func() {
			defer start.Done()
			rng := rand.New(rand.NewPCG(uint64(g), 0))
			for range perReader {
				p := make([]byte, 1+rng.IntN(20_000))
				r := &uring.Read{P: p, Off: rng.Int64N(int64(len(want) - len(p)))}
				left := rounds
				r.Done = &lanes.Job{Run: func(*lanes.Job) {
					if r.Err != nil || r.N != len(p) || !bytes.Equal(p, want[r.Off:][:len(p)]) {
						t.Errorf("read of %d bytes at %d = %d, %v", len(p), r.Off, r.N, r.Err)
					}
					if left--; left == 0 {
						done.Done()
						return
					}
					clear(p)
					r.Off = (r.Off + 77_777) % int64(len(want)-len(p))
					if err := f.ReadAsync(r); err != nil {
						t.Errorf("ReadAsync = %v", err)
						done.Done()
					}
				}}
				if err := f.ReadAsync(r); err != nil {
					t.Errorf("ReadAsync = %v", err)
					done.Done()
				}
			}
		}()
	}
	start.Wait()
	done.Wait()
}

// File and disk are closed with reads in flight: every accepted read completes
// right, every other is refused.
func testAsyncCloseInFlight(t *testing.T, d uring.Disk) {
	want := pattern(1 << 20)
	f := create(t, d, "f", want)
	var accepted sync.WaitGroup
	for i := range 1000 {
		p := make([]byte, 4096)
		r := &uring.Read{P: p, Off: int64(i * 1000)}
		r.Done = &lanes.Job{Run: func(*lanes.Job) {
			if r.Err != nil || !bytes.Equal(p, want[r.Off:][:len(p)]) {
				t.Errorf("read at %d = %d, %v", r.Off, r.N, r.Err)
			}
			accepted.Done()
		}}
		accepted.Add(1)
		if err := f.ReadAsync(r); err != nil {
			accepted.Done()
			if i < 900 || !errors.Is(err, uring.ErrClosed) {
				t.Errorf("read %d: %v", i, err)
			}
		}
		if i == 900 {
			must(t, f.Close())
		}
	}
	must(t, d.Close())
	accepted.Wait()
}

// Readers of one page at a time see it before or after a write, never a hole.
func testParallelReadersAndWriter(t *testing.T, d uring.Disk) {
	f := create(t, d, "f", bytes.Repeat([]byte{1}, 64<<10))
	defer f.Close()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			p := make([]byte, 64<<10)
			for range 50 {
				if _, err := f.ReadAt(p, 0); err != nil {
					t.Error(err)
				}
				for _, b := range p {
					if b == 0 {
						t.Error("a zero was never written")
						return
					}
				}
			}
		})
	}
	for v := range 50 {
		if _, err := f.WriteAt(bytes.Repeat([]byte{byte(v + 2)}, 64<<10), 0); err != nil {
			t.Error(err)
		}
	}
	wg.Wait()
}
