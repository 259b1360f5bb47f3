package integration

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/posixtest"
	"golang.org/x/sys/unix"
)

// posixSkips are the cases that do not apply, with the reason.
var posixSkips = map[string]string{
	"FdLeak":              "looks for descriptors of a server in its own process",
	"FcntlFlockLocksFile": "wants two POSIX locks of one process to conflict, which no local file system's do",
}

// TestPosixSuite is go-fuse's collection.
func TestPosixSuite(t *testing.T) {
	m := newMount(t)
	names := make([]string, 0, len(posixtest.All))
	for name := range posixtest.All {
		names = append(names, name)
	}
	slices.Sort(names)
	for i, name := range names {
		t.Run(name, func(t *testing.T) {
			if why := posixSkips[name]; why != "" {
				t.Skip(why)
			}
			dir := m.path(fmt.Sprint("t", i))
			check(t, os.Mkdir(dir, 0o755))
			posixtest.All[name](t, dir)
		})
	}
}

func lstat(t testing.TB, path string) unix.Stat_t {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		t.Fatalf("lstat %s: %v", path, err)
	}
	return st
}

// TestTimes: signed seconds, nanoseconds, UTIME_OMIT, and the four times each
// change when they should; kept by a remount.
func TestTimes(t *testing.T) {
	m := newMount(t)
	f := m.path("f")
	writeFile(t, f, []byte("x"))
	stamps := []unix.Timespec{
		{Sec: -1, Nsec: 999999999}, {Sec: -2208988800, Nsec: 1}, {Sec: 0, Nsec: 0}, {Sec: 1, Nsec: 123456789},
		{Sec: 1<<31 - 1, Nsec: 5}, {Sec: 1 << 31, Nsec: 6}, {Sec: 1<<32 + 7, Nsec: 7}, {Sec: 32503680000, Nsec: 8},
	}
	for i, ts := range stamps {
		name := m.path(fmt.Sprint("t", i))
		writeFile(t, name, nil)
		check(t, unix.UtimesNanoAt(unix.AT_FDCWD, name, []unix.Timespec{ts, ts}, 0))
	}
	verify := func(when string) {
		t.Helper()
		for i, ts := range stamps {
			st := lstat(t, m.path(fmt.Sprint("t", i)))
			if st.Mtim != ts || st.Atim != ts {
				t.Errorf("%s: mtime %v atime %v, want %v", when, st.Mtim, st.Atim, ts)
			}
		}
	}
	verify("at once")

	before := lstat(t, f)
	ts := unix.Timespec{Sec: 1000, Nsec: 1}
	check(t, unix.UtimesNanoAt(unix.AT_FDCWD, f, []unix.Timespec{{Nsec: unix.UTIME_OMIT}, ts}, 0))
	after := lstat(t, f)
	if after.Mtim != ts || after.Atim != before.Atim {
		t.Errorf("UTIME_OMIT: %v %v", after.Atim, after.Mtim)
	}
	if !later(after.Ctim, before.Ctim) {
		t.Errorf("utimensat left ctime at %v", after.Ctim)
	}
	check(t, unix.UtimesNanoAt(unix.AT_FDCWD, f, []unix.Timespec{ts, {Nsec: unix.UTIME_NOW}}, 0))
	if now := lstat(t, f); time.Since(time.Unix(now.Mtim.Unix())).Abs() > time.Minute || now.Atim != ts {
		t.Errorf("UTIME_NOW: %v %v", now.Atim, now.Mtim)
	}

	// Which call moves which time; times must not stand still.
	dir := m.path("dir")
	check(t, os.Mkdir(dir, 0o755))
	moved := func(what, path string, do func() error, mtime, ctime bool) {
		t.Helper()
		old := unix.Timespec{Sec: 100, Nsec: 100}
		check(t, unix.UtimesNanoAt(unix.AT_FDCWD, path, []unix.Timespec{old, old}, unix.AT_SYMLINK_NOFOLLOW))
		b := lstat(t, path)
		check(t, do())
		a := lstat(t, path)
		if (a.Mtim != b.Mtim) != mtime || later(a.Ctim, b.Ctim) != ctime {
			t.Errorf("%s: mtime moved %v, want %v; ctime moved %v, want %v", what, a.Mtim != b.Mtim, mtime, later(a.Ctim, b.Ctim), ctime)
		}
	}
	inside := dir + "/x"
	moved("write", f, func() error { return os.WriteFile(f, []byte("y"), 0o644) }, true, true)
	moved("truncate", f, func() error { return os.Truncate(f, 100) }, true, true)
	moved("chmod", f, func() error { return os.Chmod(f, 0o600) }, false, true)
	moved("link", f, func() error { return os.Link(f, m.path("f2")) }, false, true)
	moved("rename", f, func() error { return errors.Join(os.Rename(f, m.path("f3")), os.Rename(m.path("f3"), f)) }, false, true)
	moved("unlink of another name", f, func() error { return os.Remove(m.path("f2")) }, false, true)
	moved("setxattr", f, func() error { return unix.Setxattr(f, "user.a", []byte("b"), 0) }, false, true)
	moved("create inside", dir, func() error { return os.WriteFile(inside, nil, 0o644) }, true, true)
	moved("write inside", dir, func() error { return os.WriteFile(inside, []byte("z"), 0o644) }, false, false)
	moved("rename inside", dir, func() error { return os.Rename(inside, dir+"/y") }, true, true)
	moved("unlink inside", dir, func() error { return os.Remove(dir + "/y") }, true, true)
	moved("mkdir inside", dir, func() error { return os.Mkdir(dir+"/d", 0o755) }, true, true)
	moved("rmdir inside", dir, func() error { return os.Remove(dir + "/d") }, true, true)

	var stx unix.Statx_t
	check(t, unix.Statx(unix.AT_FDCWD, f, unix.AT_STATX_FORCE_SYNC, unix.STATX_BTIME|unix.STATX_BASIC_STATS, &stx))
	if stx.Mask&unix.STATX_BTIME == 0 || time.Since(time.Unix(stx.Btime.Sec, 0)).Abs() > time.Hour {
		t.Errorf("statx btime: mask %#x, %v", stx.Mask, stx.Btime)
	}
	m.remount()
	verify("after a remount")
	var again unix.Statx_t
	check(t, unix.Statx(unix.AT_FDCWD, f, unix.AT_STATX_FORCE_SYNC, unix.STATX_BTIME, &again))
	if again.Btime != stx.Btime {
		t.Errorf("btime became %v, was %v", again.Btime, stx.Btime)
	}
}

func later(a, b unix.Timespec) bool {
	return a.Sec > b.Sec || a.Sec == b.Sec && a.Nsec > b.Nsec
}

// TestKinds: every type of inode, with its numbers, across a remount.
func TestKinds(t *testing.T) {
	needRoot(t)
	m := newMount(t)
	kinds := []struct {
		name string
		mode uint32
		dev  uint64
	}{
		{"regular", unix.S_IFREG | 0o640, 0}, {"fifo", unix.S_IFIFO | 0o600, 0}, {"socket", unix.S_IFSOCK | 0o755, 0},
		{"char", unix.S_IFCHR | 0o666, unix.Mkdev(1, 3)}, {"block", unix.S_IFBLK | 0o660, unix.Mkdev(259, 70000)},
		{"setuid", unix.S_IFREG | 0o4755, 0}, {"setgid", unix.S_IFREG | 0o2755, 0}, {"sticky", unix.S_IFREG | 0o1644, 0},
	}
	for _, k := range kinds {
		check(t, unix.Mknod(m.path(k.name), k.mode, int(k.dev)))
		check(t, unix.Chmod(m.path(k.name), k.mode&0o7777))
	}
	check(t, unix.Lchown(m.path("regular"), 70000, 80000))
	verify := func() {
		t.Helper()
		for _, k := range kinds {
			st := lstat(t, m.path(k.name))
			if st.Mode != k.mode || st.Rdev != k.dev || st.Nlink != 1 {
				t.Errorf("%s: mode %o dev %x nlink %d, want %o %x 1", k.name, st.Mode, st.Rdev, st.Nlink, k.mode, k.dev)
			}
		}
		if st := lstat(t, m.path("regular")); st.Uid != 70000 || st.Gid != 80000 {
			t.Errorf("owner %d:%d", st.Uid, st.Gid)
		}
	}
	verify()
	m.remount()
	verify()

	// A fifo works between two processes.
	reader := make(chan string, 1)
	go func() {
		b, err := os.ReadFile(m.path("fifo"))
		reader <- fmt.Sprint(string(b), err)
	}()
	check(t, os.WriteFile(m.path("fifo"), []byte("through"), 0))
	if got := <-reader; got != "through<nil>" {
		t.Errorf("fifo: %s", got)
	}
	// A directory's group goes to what is made in it when its setgid bit says so.
	check(t, os.Mkdir(m.path("d"), 0o755))
	check(t, unix.Lchown(m.path("d"), 0, 1234))
	check(t, unix.Chmod(m.path("d"), 0o2755))
	writeFile(t, m.path("d", "f"), nil)
	check(t, os.Mkdir(m.path("d", "d"), 0o755))
	if st := lstat(t, m.path("d", "f")); st.Gid != 1234 {
		t.Errorf("file in a setgid directory has group %d", st.Gid)
	}
	if st := lstat(t, m.path("d", "d")); st.Gid != 1234 || st.Mode&unix.S_ISGID == 0 {
		t.Errorf("directory in a setgid directory: group %d, mode %o", st.Gid, st.Mode)
	}
}

// TestXattrs: namespaces, flags, sizes, lists, errors; kept by a remount.
func TestXattrs(t *testing.T) {
	m := newMount(t)
	f := m.path("f")
	writeFile(t, f, nil)
	big := bytes.Repeat([]byte("v"), 60000)
	want := map[string][]byte{"user.empty": {}, "user.a": []byte("1"), "user.bytes": {0, 1, 255, 0}, "user.big": big}
	if os.Getuid() == 0 {
		want["trusted.t"] = []byte("t")
		want["security.s"] = []byte("s")
	}
	for name, v := range want {
		check(t, unix.Setxattr(f, name, v, 0))
	}
	verify := func() {
		t.Helper()
		list := make([]byte, 4096)
		n, err := unix.Listxattr(f, list)
		check(t, err)
		names := strings.Split(strings.TrimSuffix(string(list[:n]), "\x00"), "\x00")
		if len(names) != len(want) {
			t.Errorf("listxattr: %q", names)
		}
		for name, v := range want {
			buf := make([]byte, 65536)
			n, err := unix.Getxattr(f, name, buf)
			if err != nil || !bytes.Equal(buf[:max(n, 0)], v) {
				t.Errorf("%s: %d bytes, %v", name, n, err)
			}
			if n, err := unix.Getxattr(f, name, nil); err != nil || n != len(v) {
				t.Errorf("size of %s: %d, %v", name, n, err)
			}
			if !slices.Contains(names, name) {
				t.Errorf("listxattr lacks %s", name)
			}
		}
	}
	verify()
	wantErrno(t, "XATTR_CREATE", unix.Setxattr(f, "user.a", nil, unix.XATTR_CREATE), unix.EEXIST)
	wantErrno(t, "XATTR_REPLACE", unix.Setxattr(f, "user.none", nil, unix.XATTR_REPLACE), unix.ENODATA)
	wantErrno(t, "removexattr", unix.Removexattr(f, "user.none"), unix.ENODATA)
	_, err := unix.Getxattr(f, "user.none", nil)
	wantErrno(t, "getxattr", err, unix.ENODATA)
	_, err = unix.Getxattr(f, "user.big", make([]byte, 10))
	wantErrno(t, "short buffer", err, unix.ERANGE)
	_, err = unix.Listxattr(f, make([]byte, 3))
	wantErrno(t, "short list", err, unix.ERANGE)
	wantErrno(t, "unknown namespace", unix.Setxattr(f, "nonsense.a", nil, 0), unix.EOPNOTSUPP)
	check(t, unix.Setxattr(f, "user.a", []byte("two"), unix.XATTR_REPLACE))
	want["user.a"] = []byte("two")
	check(t, unix.Removexattr(f, "user.bytes"))
	delete(want, "user.bytes")
	verify()
	check(t, os.Rename(f, m.path("g")))
	f = m.path("g")
	verify()
	m.remount()
	verify()
	check(t, os.Mkdir(m.path("d"), 0o755))
	check(t, unix.Setxattr(m.path("d"), "user.d", []byte("d"), 0))
	check(t, os.Symlink("nowhere", m.path("l")))
	wantErrno(t, "user xattr of a symlink", unix.Lsetxattr(m.path("l"), "user.l", nil, 0), unix.EPERM)
}

// TestLocks: flock, POSIX and open-file-description locks exclude each other
// as they do on any file system.
func TestLocks(t *testing.T) {
	m := newMount(t)
	name := m.path("f")
	writeFile(t, name, make([]byte, 100))
	open := func() *os.File {
		t.Helper()
		f, err := os.OpenFile(name, os.O_RDWR, 0)
		check(t, err)
		t.Cleanup(func() { f.Close() })
		return f
	}
	a, b := open(), open()
	check(t, unix.Flock(int(a.Fd()), unix.LOCK_EX))
	wantErrno(t, "second flock", unix.Flock(int(b.Fd()), unix.LOCK_EX|unix.LOCK_NB), unix.EWOULDBLOCK)
	check(t, unix.Flock(int(a.Fd()), unix.LOCK_SH))
	check(t, unix.Flock(int(b.Fd()), unix.LOCK_SH|unix.LOCK_NB))
	check(t, unix.Flock(int(a.Fd()), unix.LOCK_UN))
	check(t, unix.Flock(int(b.Fd()), unix.LOCK_UN))

	region := func(kind int16, start, n int64) *unix.Flock_t {
		return &unix.Flock_t{Type: kind, Whence: 0, Start: start, Len: n}
	}
	check(t, unix.FcntlFlock(a.Fd(), unix.F_OFD_SETLK, region(unix.F_WRLCK, 0, 10)))
	wantErrno(t, "overlapping lock", unix.FcntlFlock(b.Fd(), unix.F_OFD_SETLK, region(unix.F_RDLCK, 5, 10)), unix.EAGAIN)
	check(t, unix.FcntlFlock(b.Fd(), unix.F_OFD_SETLK, region(unix.F_WRLCK, 10, 10)))
	check(t, unix.FcntlFlock(a.Fd(), unix.F_OFD_SETLK, region(unix.F_UNLCK, 0, 10)))
	check(t, unix.FcntlFlock(b.Fd(), unix.F_OFD_SETLK, region(unix.F_RDLCK, 5, 10)))
	// A waiting lock gets its turn.
	got := make(chan error, 1)
	go func() { got <- unix.Flock(int(a.Fd()), unix.LOCK_EX) }()
	check(t, <-got)
	go func() { got <- unix.Flock(int(b.Fd()), unix.LOCK_EX) }()
	check(t, unix.Flock(int(a.Fd()), unix.LOCK_UN))
	check(t, <-got)
}

// TestNames: whatever bytes a name may hold.
func TestNames(t *testing.T) {
	m := newMount(t)
	var raw []byte
	for c := 1; c < 256; c++ {
		if c != '/' {
			raw = append(raw, byte(c))
		}
	}
	names := []string{
		strings.Repeat("n", 255), strings.Repeat("ä", 127), "日本語のファイル", "e\u0301", "\u00e9", "👩‍👩‍👧", " ", "  a ", "...", "..a", "-rf", "*", "a\nb", "a\tb", "\\", `"`, "'",
		"\x01", "\xff\xfe", string(raw), "A", "a", "CON", "a:b",
	}
	for _, n := range names {
		writeFile(t, m.path()+"/"+n, []byte(n))
	}
	verify := func() {
		t.Helper()
		d, err := os.Open(m.dir)
		check(t, err)
		defer d.Close()
		got, err := d.Readdirnames(-1)
		check(t, err)
		slices.Sort(got)
		want := slices.Clone(names)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("names are %q, want %q", got, want)
		}
		for _, n := range names {
			wantFile(t, m.path()+"/"+n, []byte(n))
		}
	}
	verify()
	m.remount()
	verify()
	for _, long := range []string{strings.Repeat("n", 256), strings.Repeat("n", 1000)} {
		path := m.path(long)
		_, err := os.Lstat(path)
		wantErrno(t, "stat of a long name", err, unix.ENAMETOOLONG)
		wantErrno(t, "create", os.WriteFile(path, nil, 0o644), unix.ENAMETOOLONG)
		wantErrno(t, "mkdir", os.Mkdir(path, 0o755), unix.ENAMETOOLONG)
		wantErrno(t, "symlink", os.Symlink("x", path), unix.ENAMETOOLONG)
		wantErrno(t, "link", os.Link(m.path("a"), path), unix.ENAMETOOLONG)
		wantErrno(t, "rename", os.Rename(m.path("a"), path), unix.ENAMETOOLONG)
		wantErrno(t, "unlink", os.Remove(path), unix.ENAMETOOLONG)
	}
	target := strings.Repeat("t/", 2000)
	check(t, os.Symlink(target, m.path("link")))
	m.remount()
	if got, err := os.Readlink(m.path("link")); err != nil || got != target {
		t.Errorf("readlink: %d bytes, %v", len(got), err)
	}
}

// TestHardLinks: a thousand names of one file, made in parallel.
func TestHardLinks(t *testing.T) {
	m := newMount(t)
	const links, workers = 1000, 8
	writeFile(t, m.path("0"), []byte("one content"))
	errs := make(chan error, workers)
	for w := range workers {
		go func() {
			for i := 1 + w; i < links; i += workers {
				if err := os.Link(m.path("0"), m.path(fmt.Sprint(i))); err != nil {
					errs <- err
					return
				}
			}
			errs <- nil
		}()
	}
	for range workers {
		check(t, <-errs)
	}
	verify := func(want int) {
		t.Helper()
		first := lstat(t, m.path(fmt.Sprint(links-1)))
		if int(first.Nlink) != want {
			t.Errorf("nlink is %d, want %d", first.Nlink, want)
		}
		for i := links - want; i < links; i++ {
			if st := lstat(t, m.path(fmt.Sprint(i))); st.Ino != first.Ino {
				t.Errorf("name %d is another file", i)
			}
		}
	}
	verify(links)
	m.remount()
	verify(links)
	for i := range links / 2 {
		check(t, os.Remove(m.path(fmt.Sprint(i))))
	}
	verify(links / 2)
	writeFile(t, m.path(fmt.Sprint(links-1)), []byte("changed"))
	wantFile(t, m.path(fmt.Sprint(links/2)), []byte("changed"))
	wantErrno(t, "link of a directory", func() error { check(t, os.Mkdir(m.path("d"), 0o755)); return os.Link(m.path("d"), m.path("d2")) }(), unix.EPERM)
}

// TestTmpfile: O_TMPFILE has no name until linkat gives it one.
func TestTmpfile(t *testing.T) {
	m := newMount(t)
	fd, err := unix.Open(m.dir, unix.O_TMPFILE|unix.O_RDWR, 0o640)
	check(t, err)
	defer unix.Close(fd)
	_, err = unix.Write(fd, []byte("nameless"))
	check(t, err)
	if names, err := os.ReadDir(m.dir); err != nil || len(names) != 0 {
		t.Errorf("O_TMPFILE shows as %v, %v", names, err)
	}
	var st unix.Stat_t
	check(t, unix.Fstat(fd, &st))
	if st.Nlink != 0 {
		t.Errorf("nlink %d", st.Nlink)
	}
	check(t, unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), unix.AT_FDCWD, m.path("named"), unix.AT_SYMLINK_FOLLOW))
	check(t, unix.Fsync(fd))
	wantFile(t, m.path("named"), []byte("nameless"))
	// One that is never named leaves nothing behind.
	fd2, err := unix.Open(m.dir, unix.O_TMPFILE|unix.O_RDWR, 0o600)
	check(t, err)
	_, err = unix.Write(fd2, make([]byte, 1<<20))
	check(t, err)
	check(t, unix.Close(fd2))
	check(t, unix.Close(fd))
	m.kill9()
	m.mount()
	wantFile(t, m.path("named"), []byte("nameless"))
	runtime.KeepAlive(m)
}
