package fs_test

import (
	"bufio"
	"encoding/gob"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"prismfs/fs"
)

// A process that uses a FUSE mount of its own can hang itself for good. So the
// daemons of these tests are subprocesses: this test binary, told by the
// environment what to be. They are driven by lines on stdin and stdout.

const (
	daemonEnv = "PRISMFS_FS_TEST_DAEMON"
	// timeout ends a daemon that hangs, and with it whoever waits for it.
	timeout = 60 * time.Second
)

func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "fusermount3" {
		os.Exit(fakeFusermount(os.Args[1:]))
	}
	if s := os.Getenv(daemonEnv); s != "" {
		os.Exit(daemonMain(s))
	}
	os.Exit(m.Run())
}

// daemonOptions is what a test asks of its daemon.
type daemonOptions struct {
	Mount   fs.MountOptions
	Backing string
	User    bool // mount as nobody, with fusermount3
}

const nobody = 65534

func daemonMain(s string) int {
	say := func(format string, args ...any) { fmt.Printf(format+"\n", args...) }
	runtime.GOMAXPROCS(8) // queue threads keep theirs while they wait
	var o daemonOptions
	if err := gob.NewDecoder(hex.NewDecoder(strings.NewReader(s))).Decode(&o); err != nil {
		say("failed %v", err)
		return 1
	}
	h, err := newRAMFS(o.Backing)
	if err != nil {
		say("failed %v", err)
		return 1
	}
	before, fdsBefore := runtime.NumGoroutine(), transportFDs()
	srv, err := fs.Mount(o.Mount, h)
	if err != nil {
		say("failed %v", err)
		return 1
	}
	done := make(chan error, 1)
	go func() { done <- srv.Serve() }()
	if err := srv.WaitMounted(); err != nil {
		say("failed %v", err)
		return 1
	}
	n := srv.Negotiated()
	say("mounted %s %#x %d", srv.TransportName(), n.Flags, n.MaxWrite)
	eof := make(chan struct{})
	go func() {
		in := bufio.NewScanner(os.Stdin)
		for in.Scan() {
			word, arg, _ := strings.Cut(in.Text(), " ")
			var err error
			switch word {
			case "umount":
				err = srv.Unmount()
			case "detach":
				err = srv.Detach()
			case "abort":
				err = srv.Abort()
			case "release":
				say("ok %d", h.release())
				continue
			case "holding":
				say("ok %d", h.holding())
				continue
			case "mallocs":
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				say("ok %d", m.Mallocs)
				continue
			case "onring":
				h.mu.Lock()
				say("ok %d", h.onRing)
				h.mu.Unlock()
				continue
			case "resize": // behind the kernel's back: only an invalidation tells it
				h.mu.Lock()
				h.nodes[h.names[arg]].data = []byte("changed")
				id := h.names[arg]
				h.mu.Unlock()
				err = srv.InvalInode(id, 0, 0)
			case "vanish":
				h.mu.Lock()
				delete(h.names, arg)
				h.mu.Unlock()
				err = srv.InvalEntry(1, arg)
			case "expire":
				err = srv.ExpireEntry(1, arg)
			}
			if err != nil {
				say("error %v", err)
			} else {
				say("ok")
			}
		}
		close(eof)
	}()
	err = <-done
	// Everything of the transport is gone: only main, the reader of stdin and
	// what was there before are left. Threads end a moment after Serve.
	runtime.GC()
	left := 0
	for range 100 {
		if left = runtime.NumGoroutine() - before - 1; left <= 0 {
			break
		}
		time.Sleep(time.Millisecond) // polls: goroutines end on their own
	}
	open := transportFDs() - fdsBefore
	say("served goroutines=%d fds=%d err=%v", left, open, err)
	<-eof
	return 0
}

// transportFDs counts descriptors of the kinds that transports use. The Go
// runtime's poller has one of them, from the first directory read here on.
func transportFDs() (n int) {
	fds, _ := os.ReadDir("/proc/self/fd")
	for _, e := range fds {
		switch l, _ := os.Readlink("/proc/self/fd/" + e.Name()); l {
		case "/dev/fuse", "anon_inode:[io_uring]", "anon_inode:[eventfd]":
			n++
		}
	}
	return n
}

// daemon is a running subprocess.
type daemon struct {
	t         testing.TB
	cmd       *exec.Cmd
	in        io.WriteCloser
	lines     chan string
	dir       string
	transport string
	flags     uint64
	maxWrite  int
}

// start mounts o in a new directory and waits for it. It skips the test where
// there is no FUSE for us.
func start(t testing.TB, o daemonOptions) *daemon {
	t.Helper()
	d, msg := tryStart(t, o)
	if msg != "" {
		t.Fatal("daemon: ", msg)
	}
	return d
}

// tryStart is start for mounts that may fail, with the daemon's message.
func tryStart(t testing.TB, o daemonOptions) (*daemon, string) {
	t.Helper()
	needFuse(t)
	d := &daemon{t: t, dir: o.Mount.Mountpoint, lines: make(chan string, 16)}
	if d.dir == "" {
		d.dir = t.TempDir()
		o.Mount.Mountpoint = d.dir
	}
	if o.Mount.Source == "" {
		o.Mount.Source = "prismfs-test"
	}
	d.cmd = exec.Command(os.Args[0])
	if o.User {
		d.cmd = exec.Command(copyBinary(t))
		d.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		d.dir = filepath.Join(filepath.Dir(d.cmd.Path), "mnt")
		o.Mount.Mountpoint = d.dir
		if err := errors.Join(os.Mkdir(d.dir, 0o755), os.Chown(d.dir, nobody, nobody)); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	var b strings.Builder
	if err := gob.NewEncoder(hex.NewEncoder(&b)).Encode(o); err != nil {
		t.Fatal(err)
	}
	d.cmd.Env = append(os.Environ(), daemonEnv+"="+b.String())
	d.cmd.Stderr = os.Stderr
	if d.in, err = d.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := d.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	watchdog := time.AfterFunc(timeout, func() { d.cmd.Process.Kill() })
	go func() {
		s := bufio.NewScanner(out)
		for s.Scan() {
			d.lines <- s.Text()
		}
		close(d.lines)
	}()
	t.Cleanup(func() {
		watchdog.Stop()
		d.in.Close()
		d.cmd.Process.Kill()
		d.cmd.Wait()
		syscall.Unmount(d.dir, syscall.MNT_DETACH)
	})
	line := d.line()
	if strings.HasPrefix(line, "failed ") {
		return nil, line
	}
	if !scan(line, "mounted %s %v %d", &d.transport, &d.flags, &d.maxWrite) {
		t.Fatalf("daemon said %q", line)
	}
	return d, ""
}

// copyBinary puts this program where everybody may run it.
func copyBinary(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "prismfs-test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	b, err := os.ReadFile(os.Args[0])
	if err := errors.Join(err, os.Chmod(dir, 0o755), os.WriteFile(filepath.Join(dir, "daemon"), b, 0o755)); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "daemon")
}

// fakeFusermount does for root what fusermount3 does for users: it mounts, and
// sends the descriptor of /dev/fuse over the socket _FUSE_COMMFD.
func fakeFusermount(args []string) int {
	fail := func(what string, err error) int {
		fmt.Fprintf(os.Stderr, "fusermount3: %s: %v\n", what, err)
		return 1
	}
	set := flag.NewFlagSet("fusermount3", flag.ExitOnError)
	opts, u, uz := set.String("o", "", ""), set.Bool("u", false, ""), set.Bool("uz", false, "")
	set.Parse(args)
	mnt := set.Arg(0)
	switch {
	case *u:
		if err := syscall.Unmount(mnt, 0); err != nil {
			return fail("umount", err)
		}
		return 0
	case *uz:
		if err := syscall.Unmount(mnt, syscall.MNT_DETACH); err != nil {
			return fail("umount", err)
		}
		return 0
	}
	fd, err := syscall.Open("/dev/fuse", syscall.O_RDWR, 0)
	if err != nil {
		return fail("open", err)
	}
	typ, source := "fuse", "fuse"
	data := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fd)
	flags := uintptr(0)
	for _, o := range strings.Split(*opts, ",") {
		name, value, _ := strings.Cut(o, "=")
		switch name {
		case "fsname":
			source = value
		case "subtype":
			typ = "fuse." + value
		case "max_read", "allow_other", "default_permissions":
			data += "," + o
		case "nosuid":
			flags |= syscall.MS_NOSUID
		case "nodev":
			flags |= syscall.MS_NODEV
		case "ro":
			flags |= syscall.MS_RDONLY
		default:
			return fail("unknown option", errors.New(o))
		}
	}
	if err := syscall.Mount(source, mnt, typ, flags, data); err != nil {
		return fail("mount", err)
	}
	var sock int
	if _, err := fmt.Sscan(os.Getenv("_FUSE_COMMFD"), &sock); err != nil {
		return fail("_FUSE_COMMFD", err)
	}
	if err := syscall.Sendmsg(sock, []byte{0}, syscall.UnixRights(fd), nil, 0); err != nil {
		return fail("send", err)
	}
	return 0
}

func needFuse(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	if _, err := os.Stat("/dev/fuse"); err != nil {
		t.Skip("no /dev/fuse")
	}
}

// line is the next line that the daemon says, "" when it is dead.
func (d *daemon) line() string { return <-d.lines }

// do sends a command and returns the answer.
func (d *daemon) do(format string, args ...any) string {
	d.t.Helper()
	if _, err := fmt.Fprintf(d.in, format+"\n", args...); err != nil {
		d.t.Fatalf("daemon is gone: %v", err)
	}
	return d.line()
}

// mustDo is do for commands that succeed; it returns their result.
func (d *daemon) mustDo(format string, args ...any) string {
	d.t.Helper()
	s := d.do(format, args...)
	if s != "ok" && !strings.HasPrefix(s, "ok ") {
		d.t.Fatalf("daemon: %s: %q", fmt.Sprintf(format, args...), s)
	}
	return strings.TrimPrefix(strings.TrimPrefix(s, "ok"), " ")
}

// served waits for Serve's end, checks that nothing is left of it, and
// returns its error.
func (d *daemon) served() string {
	d.t.Helper()
	return d.checkServed(d.line())
}

func (d *daemon) checkServed(s string) string {
	d.t.Helper()
	var left, fds int
	head, err, ok := strings.Cut(s, " err=")
	if !ok || !scan(head, "served goroutines=%d fds=%d", &left, &fds) {
		d.t.Fatalf("daemon said %q", s)
	}
	if left > 0 || fds > 0 {
		d.t.Errorf("after Serve %d goroutines and %d descriptors are left", left, fds)
	}
	return err
}

// end sends a command that ends Serve, and returns its answer and Serve's
// error. The two come in either order.
func (d *daemon) end(cmd string) (answer, err string) {
	d.t.Helper()
	fmt.Fprintln(d.in, cmd)
	a, b := d.line(), d.line()
	if strings.HasPrefix(a, "served ") {
		a, b = b, a
	}
	return a, d.checkServed(b)
}

// stop unmounts and checks for a clean end.
func (d *daemon) stop() {
	d.t.Helper()
	if answer, err := d.end("umount"); answer != "ok" || err != "<nil>" {
		d.t.Errorf("unmount: %q, Serve: %s", answer, err)
	}
}
