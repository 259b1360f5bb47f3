package uring

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"prismfs/lanes"
)

func newTestRing(t *testing.T, entries int, flags uint32) *Ring {
	t.Helper()
	r, err := NewRing(entries, flags)
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// More entries than the queue holds go through, in order, on every kind of ring.
func TestRingOverflow(t *testing.T) {
	for _, flags := range []uint32{0, SetupSQE128, SetupCQSize, SetupSQE128 | SetupSingleIssuer | SetupDeferTaskrun} {
		func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			r := newTestRing(t, 4, flags)
			var got []uint64
			reap := func(c CQE) {
				if c.Res != 0 {
					t.Errorf("flags %x: nop %d = %d", flags, c.UserData, c.Res)
				}
				got = append(got, c.UserData)
			}
			for i := range uint64(100) {
				s := r.NextSQE()
				for s == nil {
					must(t, r.SubmitAndWait(1))
					r.ForEachCQE(reap)
					s = r.NextSQE()
				}
				s.PrepNop(i)
			}
			for len(got) < 100 {
				must(t, r.SubmitAndWait(1))
				r.ForEachCQE(reap)
			}
			for i, ud := range got {
				if ud != uint64(i) {
					t.Fatalf("flags %x: completion %d is of nop %d", flags, i, ud)
				}
			}
			if r.ForEachCQE(reap) != 0 || r.Ready() != 0 {
				t.Errorf("flags %x: completions left", flags)
			}
		}()
	}
}

func TestNewRingErrors(t *testing.T) {
	if _, err := NewRing(0, 0); !errors.Is(err, syscall.EINVAL) && Probe() == nil {
		t.Errorf("NewRing(0) = %v", err)
	}
	if _, err := NewRing(4, 1<<31); err == nil {
		t.Error("NewRing accepts an unknown flag")
	}
}

func TestSQELayout(t *testing.T) {
	r := newTestRing(t, 2, SetupSQE128)
	s := r.NextSQE()
	s.PrepUringCmd(7, 2, 0x1122334455667788, 3, 99)
	cmd := r.Cmd(s)
	for i := range cmd {
		cmd[i] = byte(i + 1)
	}
	raw := unsafe.Slice((*byte)(unsafe.Pointer(s)), 128)
	ne := binary.NativeEndian
	if raw[0] != 46 || ne.Uint32(raw[4:]) != 7 || ne.Uint32(raw[8:]) != 2 || ne.Uint64(raw[16:]) != 0x1122334455667788 ||
		ne.Uint32(raw[24:]) != 3 || ne.Uint64(raw[32:]) != 99 || raw[48] != 1 || raw[127] != 80 || len(cmd) != 80 {
		t.Errorf("entry = %x", raw)
	}
	// The next entry doesn't overlap, and a reused one is clear.
	r.NextSQE().PrepNop(0)
	if raw[127] != 80 {
		t.Error("entries overlap")
	}
	r.takeBack(func(*SQE) {})
	if s2 := r.NextSQE(); s2 != s || !bytes.Equal(raw, make([]byte, 128)) {
		t.Error("the entry is not clear")
	}
	r.takeBack(func(*SQE) {})
}

func TestCmdNeedsSQE128(t *testing.T) {
	r := newTestRing(t, 2, 0)
	defer func() {
		if recover() == nil {
			t.Error("Cmd on a ring of small entries does not panic")
		}
	}()
	r.Cmd(&SQE{})
}

func TestEventfdWakesRing(t *testing.T) {
	r := newTestRing(t, 4, 0)
	e, err := NewEventfd()
	must(t, err)
	buf, err := Alloc(8)
	must(t, err)
	e.PrepWait(r.NextSQE(), buf, 5)
	must(t, r.Submit())
	if r.Ready() != 0 {
		t.Fatal("the read of an eventfd without signals completes")
	}
	must(t, e.Signal())
	must(t, e.Signal())
	must(t, r.SubmitAndWait(1))
	r.ForEachCQE(func(c CQE) {
		if n := binary.NativeEndian.Uint64(buf); c.UserData != 5 || c.Res != 8 || n == 0 || n > 2 {
			t.Errorf("completion %+v, count %d", c, n)
		}
	})
	must(t, e.Close())
	must(t, Free(buf))
}

func TestAllocAndIovecs(t *testing.T) {
	b, err := Alloc(5000)
	must(t, err)
	defer Free(b)
	if len(b) != 8192 || uintptr(unsafe.Pointer(&b[0]))%4096 != 0 || !bytes.Equal(b, make([]byte, 8192)) {
		t.Errorf("Alloc: %d bytes at %p", len(b), b)
	}
	addr := PutIovecs(b[:32], b[100:110], b[4096:])
	if addr != uint64(uintptr(unsafe.Pointer(&b[0]))) {
		t.Errorf("address %x", addr)
	}
	ne := binary.NativeEndian
	if ne.Uint64(b) != addr+100 || ne.Uint64(b[8:]) != 10 || ne.Uint64(b[16:]) != addr+4096 || ne.Uint64(b[24:]) != 4096 {
		t.Errorf("vector %x", b[:32])
	}
}

func TestPinThread(t *testing.T) {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // ends with the goroutine, so the affinity does not leak
		var set unix.CPUSet
		if err := unix.SchedGetaffinity(0, &set); err != nil {
			done <- err
			return
		}
		cpu := 0
		for !set.IsSet(cpu) {
			cpu++
		}
		err := PinThread(cpu)
		if err == nil {
			if err = unix.SchedGetaffinity(0, &set); err == nil && set.Count() != 1 {
				err = errors.New("not pinned")
			}
		}
		done <- err
	}()
	must(t, <-done)
}

// asyncDisk opens a disk with a file "f" of n bytes over the ring.
func asyncDisk(t *testing.T, n int) (*disk, *file, []byte) {
	t.Helper()
	if err := Probe(); err != nil {
		t.Skip(err)
	}
	rt := lanes.NewRuntime(lanes.Config{})
	t.Cleanup(rt.Close)
	dir := t.TempDir()
	want := make([]byte, n)
	for i := range want {
		want[i] = byte(i ^ i>>8)
	}
	must(t, os.WriteFile(filepath.Join(dir, "f"), want, 0o600))
	d, err := Open(dir, Options{Mode: RingOnly, Lanes: rt})
	must(t, err)
	t.Cleanup(func() { d.Close() })
	f, err := d.Open("f")
	must(t, err)
	t.Cleanup(func() { f.Close() })
	return d.(*disk), f.(*file), want
}

// accept does what ReadAsync does before it gives r to a route.
func accept(f *file, p []byte, off int64) (*Read, chan struct{}) {
	done := make(chan struct{})
	r := &Read{P: p, Off: off, Done: &lanes.Job{Run: func(*lanes.Job) { close(done) }}, file: f}
	f.ref.acquire()
	f.d.reads.acquire()
	return r, done
}

// Each result that a completion can carry ends in the right bytes or error.
func TestCompletionResults(t *testing.T) {
	d, f, want := asyncDisk(t, 10_000)
	for _, c := range []struct {
		name string
		res  int32
		n    int
		err  error
	}{
		{"full", 100, 100, nil},
		{"short, so the ring goes on", 40, 100, nil},
		{"end of file", 0, 0, io.EOF},
		{"interrupted, so the lane does it", -int32(syscall.EINTR), 100, nil},
		{"again", -int32(syscall.EAGAIN), 100, nil},
		{"unsupported", -int32(syscall.EOPNOTSUPP), 100, nil},
		{"submitter gone", -int32(syscall.EFAULT), 100, nil},
		{"cancelled", -int32(syscall.ECANCELED), 100, nil},
		{"disk error", -int32(syscall.EIO), 0, syscall.EIO},
	} {
		p := make([]byte, 100)
		copy(p, want[50:][:max(0, c.res)])
		r, done := accept(f, p, 50)
		d.reactor.finish(r, c.res)
		d.reactor.mu.Lock()
		d.reactor.kickLocked()
		d.reactor.mu.Unlock()
		<-done
		if r.N != c.n || !errors.Is(r.Err, c.err) || c.err == nil && !bytes.Equal(p, want[50:150]) {
			t.Errorf("%s: N = %d, Err = %v", c.name, r.N, r.Err)
		}
	}
}

// A ring that stops taking entries loses nothing: what is queued and what comes
// later goes to the lane.
func TestBrokenRing(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.EAGAIN, syscall.EBADF} {
		d, f, want := asyncDisk(t, 1<<20)
		re := d.reactor
		const n = 1000 // more than ring and table hold
		var waits []chan struct{}
		var bufs [][]byte
		re.mu.Lock()
		for i := range n {
			p := make([]byte, 512)
			r, done := accept(f, p, int64(i*1000))
			re.pushLocked(r)
			waits, bufs = append(waits, done), append(bufs, p)
		}
		re.fillLocked()
		re.refuseLocked(errno)
		if re.head != nil || re.ring.unsubmitted() != 0 || len(re.free) != len(re.table) {
			t.Error("reads are left in the ring")
		}
		re.mu.Unlock()
		for i, done := range waits {
			<-done
			if !bytes.Equal(bufs[i], want[i*1000:][:512]) {
				t.Fatalf("read %d is wrong", i)
			}
		}
		wantMode := map[syscall.Errno]string{syscall.EAGAIN: "io_uring", syscall.EBADF: "pread"}[errno]
		if d.Mode() != wantMode {
			t.Errorf("after %v: mode %s, want %s", errno, d.Mode(), wantMode)
		}
		p := make([]byte, 512)
		done := make(chan struct{})
		must(t, f.ReadAsync(&Read{P: p, Off: 512, Done: &lanes.Job{Run: func(*lanes.Job) { close(done) }}}))
		<-done
		if !bytes.Equal(p, want[512:1024]) {
			t.Error("wrong bytes")
		}
	}
}

// Done runs even when the pools no longer take jobs.
func TestReadOutlivesLanes(t *testing.T) {
	rt := lanes.NewRuntime(lanes.Config{})
	d, err := Open(t.TempDir(), Options{Mode: Pread, Lanes: rt})
	must(t, err)
	defer d.Close()
	f, err := d.Create("f")
	must(t, err)
	defer f.Close()
	_, err = f.WriteAt([]byte("x"), 0)
	must(t, err)
	rt.Close()
	p := make([]byte, 1)
	done := make(chan struct{})
	must(t, f.ReadAsync(&Read{P: p, Done: &lanes.Job{Run: func(*lanes.Job) { close(done) }}}))
	<-done
	if p[0] != 'x' {
		t.Errorf("read %q", p)
	}
}

func TestReadOnlyDisk(t *testing.T) {
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "f"), []byte("hello"), 0o600))
	d, err := Open(dir, Options{ReadOnly: true})
	must(t, err)
	defer d.Close()
	if !d.ReadOnly() {
		t.Error("not read-only")
	}
	f, err := d.Open("f")
	must(t, err)
	defer f.Close()
	p := make([]byte, 5)
	if _, err := f.ReadAt(p, 0); err != nil || string(p) != "hello" {
		t.Errorf("ReadAt = %q, %v", p, err)
	}
	_, createErr := d.Create("g")
	_, writeErr := f.WriteAt(p, 0)
	for name, err := range map[string]error{
		"Create": createErr, "WriteAt": writeErr, "Remove": d.Remove("f"), "Rename": d.Rename("f", "g"),
		"MkdirAll": d.MkdirAll("d"), "Truncate": f.Truncate(0), "Allocate": f.Allocate(0, 1, true), "Datasync": f.Datasync(),
	} {
		if !errors.Is(err, ErrReadOnly) {
			t.Errorf("%s = %v", name, err)
		}
	}
	l, err := d.Lock("LOCK") // not there: the root stands in
	must(t, err)
	if _, err := d.Lock("LOCK"); !errors.Is(err, ErrLocked) {
		t.Errorf("second Lock = %v", err)
	}
	must(t, l.Close())
}

func TestErrorKinds(t *testing.T) {
	for errno, kind := range map[syscall.Errno]error{
		syscall.ENOSPC: ErrNoSpace, syscall.EDQUOT: ErrNoSpace, syscall.EROFS: ErrReadOnly,
		syscall.ENOENT: ErrNotExist, syscall.EIO: syscall.EIO,
	} {
		if err := WrapError("op", "name", errno); !errors.Is(err, kind) {
			t.Errorf("%v becomes %v", errno, err)
		}
	}
	if err := WrapError("op", "name", syscall.EDQUOT); !errors.Is(err, syscall.EDQUOT) {
		t.Errorf("%v has lost its errno", err)
	}
	if WrapError("op", "name", nil) != nil {
		t.Error("nil becomes an error")
	}
}

// A file system without fallocate gets zeros beyond the size, nothing below.
func TestAllocateByWriting(t *testing.T) {
	d, err := Open(t.TempDir(), Options{Mode: Pread})
	must(t, err)
	defer d.Close()
	g, err := d.Create("f")
	must(t, err)
	f := g.(*file)
	defer f.Close()
	_, err = f.WriteAt([]byte("hello"), 0)
	must(t, err)
	must(t, f.allocateByWriting(0, 3, false))
	must(t, f.allocateByWriting(0, 3<<20, true))
	if n, _ := f.Size(); n != 5 {
		t.Errorf("size %d", n)
	}
	must(t, f.allocateByWriting(2, 3<<20, false))
	if n, _ := f.Size(); n != 3<<20+2 {
		t.Errorf("size %d", n)
	}
	p := make([]byte, 6)
	if _, err := f.ReadAt(p, 0); err != nil || string(p) != "hello\x00" {
		t.Errorf("ReadAt = %q, %v", p, err)
	}
	if err := f.allocateByWriting(0, 1<<60, true); !errors.Is(err, ErrNoSpace) {
		t.Errorf("allocateByWriting = %v", err)
	}
}

// A descriptor stays open while it is used, and only then.
func TestFdRef(t *testing.T) {
	fd, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	must(t, err)
	var r fdRef
	r.init(fd)
	open := func() bool { _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); return err == nil }
	if !r.acquire() || !r.acquire() || !r.close() || !open() {
		t.Fatal("closed under its users")
	}
	if r.acquire() || r.close() {
		t.Error("usable after close")
	}
	r.release()
	if !open() {
		t.Error("closed under its last user")
	}
	r.release()
	if open() {
		t.Error("open without users")
	}
}

// Neither route of an asynchronous read allocates.
func TestReadAsyncDoesNotAllocate(t *testing.T) {
	d, f, _ := asyncDisk(t, 1<<20)
	done := make(chan struct{}, 1)
	r := &Read{P: make([]byte, 4096), Done: &lanes.Job{Run: func(*lanes.Job) { done <- struct{}{} }}}
	for _, shallow := range []int32{0, laneReads} { // lane, ring
		d.reactor.shallow.Store(shallow)
		n := testing.AllocsPerRun(500, func() {
			r.Off = (r.Off + 4096) % (1 << 20)
			if err := f.ReadAsync(r); err != nil {
				t.Fatal(err)
			}
			<-done
		})
		if n > 0 {
			t.Errorf("shallow %d: %v allocations a read", shallow, n)
		}
		d.reactor.shallow.Store(0)
	}
}
