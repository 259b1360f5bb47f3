package fs_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"prismfs/fs"
)

const uringParam = "/sys/module/fuse/parameters/enable_uring"

// setURing sets the machine's switch for the time of a test.
func setURing(t testing.TB, on string) {
	t.Helper()
	needFuse(t)
	old, err := os.ReadFile(uringParam)
	if err != nil {
		t.Skip("this kernel has no FUSE over io_uring")
	}
	if strings.TrimSpace(string(old)) == on {
		return
	}
	if err := os.WriteFile(uringParam, []byte(on), 0); err != nil {
		t.Skip("can't switch FUSE over io_uring: ", err)
	}
	t.Cleanup(func() { os.WriteFile(uringParam, bytes.TrimSpace(old), 0) })
}

// onTransports runs a test on each transport.
func onTransports(t *testing.T, f func(t *testing.T, mode fs.URingMode)) {
	for _, mode := range []fs.URingMode{fs.URingOff, fs.URingOn} {
		name := "devfuse"
		if mode == fs.URingOn {
			name = "io_uring"
		}
		t.Run(name, func(t *testing.T) {
			if mode == fs.URingOn {
				setURing(t, "Y")
			}
			f(t, mode)
		})
	}
}

func TestFiles(t *testing.T) {
	onTransports(t, func(t *testing.T, mode fs.URingMode) {
		d := start(t, daemonOptions{Mount: fs.MountOptions{URing: mode}})
		want := "devfuse"
		if mode == fs.URingOn {
			want = "io_uring"
		}
		if d.transport != want || (d.flags&fuse.CAP_OVER_IO_URING != 0) != (mode == fs.URingOn) {
			t.Errorf("transport %s, flags %#x, want %s", d.transport, d.flags, want)
		}
		seed := time.Now().UnixNano()
		t.Logf("seed %d", seed)
		rng := rand.New(rand.NewSource(seed))
		content := map[string][]byte{}
		for _, size := range []int{0, 1, 4095, 4096, 4097, 1 << 20, 3<<20 + 77} {
			name := fmt.Sprintf("f%d", size)
			b := make([]byte, size)
			rng.Read(b)
			content[name] = b
			if err := os.WriteFile(filepath.Join(d.dir, name), b, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		ents, err := os.ReadDir(d.dir)
		if err != nil || len(ents) != len(content) {
			t.Errorf("list: %d entries of %d, %v", len(ents), len(content), err)
		}
		for name, want := range content {
			p := filepath.Join(d.dir, name)
			dropCache(t, p)
			got, err := os.ReadFile(p)
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s: read back %d bytes, differing, or %v", name, len(got), err)
			}
		}
		if _, err := os.Stat(filepath.Join(d.dir, "none")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("stat of nothing: %v", err)
		}
		d.stop()
	})
}

// dropCache evicts the file's pages, so that the next read asks the daemon.
func dropCache(t testing.TB, path string) {
	t.Helper()
	if err := evict(path); err != nil {
		t.Fatal(err)
	}
}

func evict(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, _, e := syscall.Syscall6(syscall.SYS_FADVISE64, f.Fd(), 0, 0, 4, 0, 0); e != 0 { // POSIX_FADV_DONTNEED
		return e
	}
	return nil
}

func TestAnswersLater(t *testing.T) {
	onTransports(t, func(t *testing.T, mode fs.URingMode) {
		d := start(t, daemonOptions{Mount: fs.MountOptions{URing: mode}})
		want := bytes.Repeat([]byte("later "), 100_000)
		p := filepath.Join(d.dir, "later1")
		f, err := os.Create(p) // its LOOKUP is answered later, with ENOENT
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write(want); err != nil {
			t.Fatal(err)
		}
		if err := f.Sync(); err != nil { // answered later
			t.Error(err)
		}
		f.Close()
		dropCache(t, p)
		got, err := os.ReadFile(p) // its big READs too
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("read back %d bytes, differing, or %v", len(got), err)
		}
		d.stop()
	})
}

func TestManyParked(t *testing.T) {
	onTransports(t, func(t *testing.T, mode fs.URingMode) {
		const n = 64
		// Room for all of them in one queue, wherever the callers run.
		d := start(t, daemonOptions{Mount: fs.MountOptions{URing: mode, MaxWrite: 128 << 10, Memory: 64 << 20}})
		for round := range 20 {
			var wg sync.WaitGroup
			for i := range n {
				wg.Go(func() {
					_, err := os.Lstat(filepath.Join(d.dir, fmt.Sprintf("meet%d-%d-%d", n, round, i)))
					if !errors.Is(err, os.ErrNotExist) {
						t.Error(err)
					}
				})
			}
			wg.Wait()
		}
		d.stop()
	})
}

// A request allocates nothing on its way through a transport.
func TestNoAllocations(t *testing.T) {
	onTransports(t, func(t *testing.T, mode fs.URingMode) {
		d := start(t, daemonOptions{Mount: fs.MountOptions{URing: mode}})
		f, err := os.Create(filepath.Join(d.dir, "f"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		mallocs := func() (n int) {
			fmt.Sscan(d.mustDo("mallocs"), &n)
			return n
		}
		const rounds = 5000
		buf := make([]byte, 4096)
		before := mallocs()
		for range rounds {
			if _, err := f.Stat(); err != nil {
				t.Fatal(err)
			}
			if _, err := f.WriteAt(buf, 0); err != nil {
				t.Fatal(err)
			}
		}
		if n := mallocs() - before; n > rounds/10 { // the runtime has some of its own
			t.Errorf("%d allocations for %d requests", n, 2*rounds)
		}
		f.Close()
		d.stop()
	})
}

func TestUnmountBusy(t *testing.T) {
	onTransports(t, func(t *testing.T, mode fs.URingMode) {
		d := start(t, daemonOptions{Mount: fs.MountOptions{URing: mode}})
		f, err := os.Create(filepath.Join(d.dir, "open"))
		if err != nil {
			t.Fatal(err)
		}
		if s := d.do("umount"); !strings.Contains(s, fs.ErrMountpointBusy.Error()) {
			t.Errorf("unmounting with an open file: %q", s)
		}
		if _, err := f.Write([]byte("still here")); err != nil {
			t.Error(err)
		}
		f.Close()
		d.stop()
	})
}

func TestDetach(t *testing.T) {
	onTransports(t, func(t *testing.T, mode fs.URingMode) {
		d := start(t, daemonOptions{Mount: fs.MountOptions{URing: mode}})
		f, err := os.Create(filepath.Join(d.dir, "open"))
		if err != nil {
			t.Fatal(err)
		}
		d.mustDo("detach")
		if _, err := os.Stat(filepath.Join(d.dir, "open")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("a detached mount is still in the tree: %v", err)
		}
		if _, err := f.Write([]byte("still here")); err != nil {
			t.Error(err)
		}
		f.Close()
		if err := d.served(); err != "<nil>" {
			t.Error(err)
		}
	})
}

// hold makes a request that the daemon holds, and waits until it does.
func hold(t *testing.T, d *daemon, name string) (result chan error) {
	before := d.mustDo("holding")
	result = make(chan error, 1)
	go func() {
		_, err := os.Lstat(filepath.Join(d.dir, name))
		result <- err
	}()
	for d.mustDo("holding") == before {
		time.Sleep(time.Millisecond) // polls another process
	}
	return result
}

func TestAbortWithParked(t *testing.T) {
	onTransports(t, func(t *testing.T, mode fs.URingMode) {
		d := start(t, daemonOptions{Mount: fs.MountOptions{URing: mode}})
		res := hold(t, d, "hold1")
		d.mustDo("abort")
		if err := <-res; !errors.Is(err, syscall.ECONNABORTED) && !errors.Is(err, syscall.ENOTCONN) {
			t.Errorf("held request: %v", err)
		}
		// Serve must wait for the answer, though nobody else does.
		if n := d.mustDo("holding"); n != "1" {
			t.Errorf("holding %s", n)
		}
		if answer, err := d.end("release"); answer != "ok 1" || err != "<nil>" && err != fs.ErrAborted.Error() {
			t.Errorf("release: %q, Serve: %s", answer, err) // nil without fusectl
		}
	})
}

// An abort from outside is told from an unmount.
func TestAbortByControl(t *testing.T) {
	needFuse(t)
	ctl := t.TempDir()
	if err := syscall.Mount("none", ctl, "fusectl", 0, ""); err != nil {
		t.Skip("no fusectl: ", err)
	}
	defer syscall.Unmount(ctl, syscall.MNT_DETACH)
	onTransports(t, func(t *testing.T, mode fs.URingMode) {
		d := start(t, daemonOptions{Mount: fs.MountOptions{URing: mode}})
		var st syscall.Stat_t
		if err := syscall.Stat(d.dir, &st); err != nil {
			t.Fatal(err)
		}
		p := filepath.Join(ctl, fmt.Sprint(st.Dev&0xff|st.Dev>>12&0xfff00), "abort")
		if err := os.WriteFile(p, []byte("1"), 0); err != nil {
			t.Fatal(err)
		}
		if err := d.served(); err != fs.ErrAborted.Error() {
			t.Errorf("Serve: %s", err)
		}
	})
}

// The connection is cut under writers, readers of the ring, and late answers.
func TestAbortUnderLoad(t *testing.T) {
	backing := filepath.Join(t.TempDir(), "backing")
	if err := os.WriteFile(backing, make([]byte, 4<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	onTransports(t, func(t *testing.T, mode fs.URingMode) {
		for range 5 {
			d := start(t, daemonOptions{Mount: fs.MountOptions{URing: mode}, Backing: backing})
			var wg sync.WaitGroup
			started := make(chan struct{}, 9)
			for i := range 9 {
				wg.Go(func() {
					p := filepath.Join(d.dir, []string{"plain", "later", "disk"}[i%3]+fmt.Sprint(i))
					if i%3 == 2 {
						p = filepath.Join(d.dir, "disk")
					}
					for n := 0; ; n++ {
						var err error
						if i%3 != 2 {
							err = os.WriteFile(p, make([]byte, 300_000), 0o644)
						}
						if err == nil {
							err = evict(p)
						}
						if err == nil {
							_, err = os.ReadFile(p)
						}
						if n == 3 {
							started <- struct{}{}
						}
						if err != nil {
							return
						}
					}
				})
			}
			for range 9 {
				<-started
			}
			if answer, err := d.end("abort"); answer != "ok" || err != "<nil>" && err != fs.ErrAborted.Error() {
				t.Errorf("abort: %q, Serve: %s", answer, err)
			}
			syscall.Unmount(d.dir, syscall.MNT_DETACH) // a forced unmount may have been busy
			wg.Wait()
		}
	})
}

// A queue that the kernel and we disagree about must not hang: the connection
// ends, with the reason.
func TestCommitTwice(t *testing.T) {
	setURing(t, "Y")
	d := start(t, daemonOptions{Mount: fs.MountOptions{URing: fs.URingOn}})
	os.Lstat(filepath.Join(d.dir, "twice"))
	if err := d.served(); !strings.Contains(err, "answered twice") {
		t.Errorf("Serve: %s", err)
	}
}

func TestKillUnderLoad(t *testing.T) {
	onTransports(t, func(t *testing.T, mode fs.URingMode) {
		for round := range 5 {
			d := start(t, daemonOptions{Mount: fs.MountOptions{URing: mode}})
			var wg sync.WaitGroup
			started := make(chan struct{}, 8)
			for i := range 8 {
				wg.Go(func() {
					p := filepath.Join(d.dir, fmt.Sprintf("f%d", i))
					buf := make([]byte, 100_000)
					for n := 0; ; n++ {
						err := os.WriteFile(p, buf, 0o644)
						if err == nil {
							_, err = os.Stat(p)
						}
						if n == 20 {
							started <- struct{}{}
						}
						if err != nil {
							return // the daemon is dead
						}
					}
				})
			}
			for range 8 {
				<-started
			}
			d.cmd.Process.Kill()
			wg.Wait() // nobody hangs
			if _, err := os.Stat(d.dir); !errors.Is(err, syscall.ENOTCONN) && !errors.Is(err, syscall.ECONNABORTED) {
				t.Errorf("round %d: the mount of a dead daemon: %v", round, err)
			}
			if err := syscall.Unmount(d.dir, syscall.MNT_DETACH); err != nil {
				t.Errorf("round %d: %v", round, err)
			}
		}
	})
}

func TestDetachUnderLoad(t *testing.T) {
	onTransports(t, func(t *testing.T, mode fs.URingMode) {
		for range 5 {
			d := start(t, daemonOptions{Mount: fs.MountOptions{URing: mode}})
			stop := make(chan struct{})
			started := make(chan struct{}, 4)
			var wg sync.WaitGroup
			for i := range 4 {
				wg.Go(func() {
					p := filepath.Join(d.dir, fmt.Sprintf("f%d", i))
					for n := 0; ; n++ { // in the directory beneath, in the end
						if err := os.WriteFile(p, []byte("x"), 0o644); err != nil {
							t.Error(err)
						}
						if b, err := os.ReadFile(p); err != nil || string(b) != "x" {
							// Between a write to the mount and a read beneath it.
							if !errors.Is(err, os.ErrNotExist) {
								t.Errorf("%q, %v", b, err)
							}
						}
						if n == 20 {
							started <- struct{}{}
						}
						select {
						case <-stop:
							return
						default:
						}
					}
				})
			}
			for range 4 {
				<-started
			}
			if answer, err := d.end("detach"); answer != "ok" || err != "<nil>" {
				t.Errorf("detach: %q, Serve: %s", answer, err)
			}
			close(stop)
			wg.Wait()
		}
	})
}

func TestURingSwitch(t *testing.T) {
	setURing(t, "N")
	d := start(t, daemonOptions{Mount: fs.MountOptions{URing: fs.URingAuto}})
	if d.transport != "devfuse" || d.flags&fuse.CAP_OVER_IO_URING != 0 {
		t.Errorf("switched off: transport %s, flags %#x", d.transport, d.flags)
	}
	d.stop()
	dir := t.TempDir()
	_, msg := tryStart(t, daemonOptions{Mount: fs.MountOptions{URing: fs.URingOn, Mountpoint: dir}})
	if !strings.Contains(msg, fs.ErrNoURing.Error()) {
		t.Errorf("demanded though switched off: %q", msg)
	}
	if b, _ := os.ReadFile("/proc/self/mountinfo"); strings.Contains(string(b), dir) {
		t.Error("a failed mount is left in the tree")
	}
}

// Too small a budget for the ring's buffers.
func TestURingBudget(t *testing.T) {
	setURing(t, "Y")
	d := start(t, daemonOptions{Mount: fs.MountOptions{URing: fs.URingAuto, Memory: 1 << 20}})
	if d.transport != "devfuse" {
		t.Errorf("transport %s", d.transport)
	}
	d.stop()
	if _, msg := tryStart(t, daemonOptions{Mount: fs.MountOptions{URing: fs.URingOn, Memory: 1 << 20}}); !strings.Contains(msg, fs.ErrNoURing.Error()) {
		t.Errorf("demanded: %q", msg)
	}
}

func TestRemount(t *testing.T) {
	d := start(t, daemonOptions{})
	p := filepath.Join(d.dir, "f")
	for _, c := range []struct {
		flags []string
		want  error
	}{{nil, nil}, {[]string{"ro"}, syscall.EROFS}, {[]string{"rw"}, nil}} {
		if err := fs.Remount(fs.MountOptions{Mountpoint: d.dir, Flags: c.flags}); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, nil, 0o644); !errors.Is(err, c.want) {
			t.Errorf("remounted %v: %v", c.flags, err)
		}
	}
	f, err := os.Create(p)
	if err != nil {
		t.Fatal(err)
	}
	if err := fs.Remount(fs.MountOptions{Mountpoint: d.dir, ReadOnly: true}); !errors.Is(err, fs.ErrMountpointBusy) {
		t.Errorf("read-only under a writer: %v", err)
	}
	f.Close()
	if err := fs.Remount(fs.MountOptions{Mountpoint: d.dir, Flags: []string{"bogus"}}); !errors.Is(err, fs.ErrBadOption) {
		t.Error(err)
	}
	d.stop()
	if err := fs.Remount(fs.MountOptions{Mountpoint: d.dir}); !errors.Is(err, fs.ErrNotMounted) {
		t.Errorf("remounting what isn't mounted: %v", err)
	}
}

func TestURingAuto(t *testing.T) {
	setURing(t, "Y")
	d := start(t, daemonOptions{})
	if d.transport != "io_uring" {
		t.Errorf("switched on: transport %s", d.transport)
	}
	d.stop()
}

func TestCapabilities(t *testing.T) {
	d := start(t, daemonOptions{Mount: fs.MountOptions{URing: fs.URingOff}})
	for _, c := range []uint64{fuse.CAP_HANDLE_KILLPRIV_V2, fuse.CAP_SETXATTR_EXT, fuse.CAP_EXPORT_SUPPORT, fuse.CAP_READDIRPLUS, fuse.CAP_READDIRPLUS_AUTO, fuse.CAP_PARALLEL_DIROPS, fuse.CAP_EXPLICIT_INVAL_DATA, fuse.CAP_CACHE_SYMLINKS} {
		if d.flags&c == 0 {
			t.Errorf("capability %#x is not in force", c)
		}
	}
	for _, c := range []uint64{fuse.CAP_POSIX_LOCKS, fuse.CAP_FLOCK_LOCKS, fuse.CAP_WRITEBACK_CACHE, fuse.CAP_POSIX_ACL, fuse.CAP_DONT_MASK, fuse.CAP_ATOMIC_O_TRUNC} {
		if d.flags&c != 0 {
			t.Errorf("capability %#x is in force", c)
		}
	}
	d.stop()
	d = start(t, daemonOptions{Mount: fs.MountOptions{URing: fs.URingOff, Writeback: true, EnableACL: true, AtomicTrunc: true, MaxWrite: 64 << 10}})
	for _, c := range []uint64{fuse.CAP_WRITEBACK_CACHE, fuse.CAP_POSIX_ACL, fuse.CAP_DONT_MASK, fuse.CAP_ATOMIC_O_TRUNC} {
		if d.flags&c == 0 {
			t.Errorf("capability %#x is not in force", c)
		}
	}
	if d.maxWrite != 64<<10 {
		t.Errorf("MaxWrite %d", d.maxWrite)
	}
	d.stop()
}

func TestMountTable(t *testing.T) {
	dir := filepath.Join(t.TempDir(), `a b\c`)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	d := start(t, daemonOptions{Mount: fs.MountOptions{Mountpoint: link, Source: "/store one", AllowOther: true, DefaultPermissions: true, MaxRatio: 50, NoStrictLimit: true, Flags: []string{"noatime", "noexec", "dirsync"}}})
	b, _ := os.ReadFile("/proc/self/mountinfo")
	esc := strings.NewReplacer(`\`, `\134`, " ", `\040`)
	var line string
	for l := range strings.Lines(string(b)) {
		if strings.Contains(l, " "+esc.Replace(dir)+" ") {
			line = l
		}
	}
	for _, s := range []string{"nosuid", "nodev", "noexec", "noatime", "dirsync", "allow_other", "default_permissions", " fuse.prismfs ", esc.Replace("/store one")} {
		if !strings.Contains(line, s) {
			t.Errorf("no %q in %q", s, line)
		}
	}
	dev := strings.Fields(line)[2]
	for file, want := range map[string]string{"read_ahead_kb": "4096", "max_ratio": "50", "strict_limit": "0"} {
		if got, err := os.ReadFile("/sys/class/bdi/" + dev + "/" + file); err != nil || strings.TrimSpace(string(got)) != want {
			t.Errorf("%s is %q, %v", file, got, err)
		}
	}

	_, msg := tryStart(t, daemonOptions{Mount: fs.MountOptions{Mountpoint: dir, Source: "/store one"}})
	if !strings.Contains(msg, fs.ErrMountpointBusy.Error()) {
		t.Errorf("mounted twice: %q", msg)
	}
	d.stop()
}

func TestMountErrors(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		o    fs.MountOptions
		want error
	}{
		{fs.MountOptions{}, fs.ErrNoMountpoint},
		{fs.MountOptions{Mountpoint: filepath.Join(dir, "none")}, fs.ErrNoMountpoint},
		{fs.MountOptions{Mountpoint: filepath.Join(file, "below")}, fs.ErrNotDirectory},
		{fs.MountOptions{Mountpoint: file}, fs.ErrNotDirectory},
		{fs.MountOptions{Mountpoint: dir, Flags: []string{"bogus"}}, fs.ErrBadOption},
		{fs.MountOptions{Mountpoint: dir, MaxWrite: 4097}, fs.ErrBadOption},
		{fs.MountOptions{Mountpoint: dir, MaxWrite: 2 << 20}, fs.ErrBadOption},
		{fs.MountOptions{Mountpoint: dir, MaxBackground: 1 << 20}, fs.ErrBadOption},
		{fs.MountOptions{Mountpoint: dir, URing: "maybe"}, fs.ErrBadOption},
		{fs.MountOptions{Mountpoint: dir, Readers: -1}, fs.ErrBadOption},
	} {
		if _, err := fs.Mount(c.o, nil); !errors.Is(err, c.want) {
			t.Errorf("%+v: %v, want %v", c.o, err, c.want)
		}
	}
}

// A user mounts with the real fusermount3, where there is one.
func TestUserMount(t *testing.T) {
	if _, err := exec.LookPath("fusermount3"); err != nil {
		t.Skip("no fusermount3")
	}
	needFuse(t)
	if st, err := os.Stat("/dev/fuse"); err != nil || st.Mode()&0o006 != 0o006 {
		t.Skip("/dev/fuse is not for users")
	}
	d := start(t, daemonOptions{User: true, Mount: fs.MountOptions{URing: fs.URingOff, Source: `a,b\c`}})
	b, _ := os.ReadFile("/proc/self/mountinfo")
	for _, s := range []string{d.dir + " rw,nosuid,nodev", ` - fuse.prismfs a,b\134c `} {
		if !strings.Contains(string(b), s) {
			t.Errorf("no %q in\n%s", s, b)
		}
	}
	d.stop()
}

func TestStaleMount(t *testing.T) {
	d := start(t, daemonOptions{Mount: fs.MountOptions{URing: fs.URingOff}})
	d.cmd.Process.Kill()
	d.cmd.Wait()
	if _, err := fs.Mount(fs.MountOptions{Mountpoint: d.dir, Source: "x"}, nil); !errors.Is(err, fs.ErrStaleMount) {
		t.Errorf("mounting over a dead mount: %v", err)
	}
}

func TestNotify(t *testing.T) {
	onTransports(t, func(t *testing.T, mode fs.URingMode) {
		d := start(t, daemonOptions{Mount: fs.MountOptions{URing: mode}})
		p := filepath.Join(d.dir, "file")
		if err := os.WriteFile(p, []byte("initial"), 0o644); err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile(p); string(b) != "initial" {
			t.Fatalf("%q, %v", b, err)
		}
		d.mustDo("resize file")
		if b, err := os.ReadFile(p); string(b) != "changed" {
			t.Errorf("after InvalInode: %q, %v", b, err)
		}
		d.mustDo("expire file")
		if _, err := os.Stat(p); err != nil {
			t.Errorf("after ExpireEntry: %v", err)
		}
		d.mustDo("vanish file")
		if _, err := os.Stat(p); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("after InvalEntry: %v", err)
		}
		d.mustDo("vanish file") // unknown to the kernel by now
		d.stop()
	})
}

func TestSubmitRead(t *testing.T) {
	onTransports(t, func(t *testing.T, mode fs.URingMode) {
		backing := filepath.Join(t.TempDir(), "backing")
		want := make([]byte, 5<<20+1234)
		seed := time.Now().UnixNano()
		t.Logf("seed %d", seed)
		rand.New(rand.NewSource(seed)).Read(want)
		if err := os.WriteFile(backing, want, 0o644); err != nil {
			t.Fatal(err)
		}
		d := start(t, daemonOptions{Mount: fs.MountOptions{URing: mode}, Backing: backing})
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				got, err := os.ReadFile(filepath.Join(d.dir, "disk"))
				if err != nil || !bytes.Equal(got, want) {
					t.Errorf("read %d bytes, differing, or %v", len(got), err)
				}
			})
		}
		wg.Wait()
		if on := d.mustDo("onring") != "0"; on != (mode == fs.URingOn) {
			t.Errorf("reads on the ring: %v", on)
		}
		d.stop()
	})
}

func TestForeignUnmount(t *testing.T) {
	needFuse(t)
	d := start(t, daemonOptions{})
	if out, err := exec.Command("umount", d.dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := d.served(); err != "<nil>" {
		t.Error(err)
	}
}

// onBenchTransports runs a benchmark on each transport with one and four
// client threads. do is what a thread does n times to the open file f.
func onBenchTransports(b *testing.B, size int64, do func(f *os.File, thread, n int) error) {
	for _, mode := range []fs.URingMode{fs.URingOff, fs.URingOn} {
		for _, threads := range []int{1, 4} {
			name := fmt.Sprintf("devfuse/%d", threads)
			if mode == fs.URingOn {
				name = fmt.Sprintf("io_uring/%d", threads)
			}
			b.Run(name, func(b *testing.B) {
				if mode == fs.URingOn {
					setURing(b, "Y")
				}
				d := start(b, daemonOptions{Mount: fs.MountOptions{URing: mode}})
				f, err := os.OpenFile(filepath.Join(d.dir, "f"), os.O_RDWR|os.O_CREATE, 0o644)
				if err != nil {
					b.Fatal(err)
				}
				defer f.Close()
				if _, err := f.Write(make([]byte, size)); err != nil {
					b.Fatal(err)
				}
				b.ResetTimer()
				var wg sync.WaitGroup
				for i := range threads {
					n := (b.N + i) / threads
					wg.Go(func() {
						if err := do(f, i, n); err != nil {
							b.Error(err)
						}
					})
				}
				wg.Wait()
				b.StopTimer()
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "ops/s")
				f.Close()
				d.stop()
			})
		}
	}
}

func BenchmarkGetattr(b *testing.B) {
	onBenchTransports(b, 0, func(f *os.File, _, n int) error {
		var st syscall.Stat_t
		for range n {
			if err := syscall.Fstat(int(f.Fd()), &st); err != nil {
				return err
			}
		}
		return nil
	})
}

// BenchmarkWrite4K overwrites pages of a file, each thread its own.
func BenchmarkWrite4K(b *testing.B) {
	onBenchTransports(b, 16<<20, func(f *os.File, thread, n int) error {
		buf := make([]byte, 4096)
		for i := range n {
			if _, err := syscall.Pwrite(int(f.Fd()), buf, int64(thread)<<22+int64(i%1024)<<12); err != nil {
				return err
			}
		}
		return nil
	})
}

// BenchmarkRead1M reads what isn't cached, in READs of 1 MiB.
func BenchmarkRead1M(b *testing.B) {
	const size = 16 << 20
	onBenchTransports(b, 4*size, func(f *os.File, thread, n int) error {
		buf := make([]byte, 1<<20)
		for i := range n {
			off := int64(thread)*size + int64(i)<<20%size
			if _, _, e := syscall.Syscall6(syscall.SYS_FADVISE64, f.Fd(), uintptr(off), 1<<20, 4, 0, 0); e != 0 {
				return e
			}
			if _, err := syscall.Pread(int(f.Fd()), buf, off); err != nil {
				return err
			}
		}
		return nil
	})
}
