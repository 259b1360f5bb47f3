package main

import (
	"encoding/json"
	"errors"
	"io"
	"log"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// fakeBackend is a store that is one lock and a mount that is one channel.
type fakeBackend struct {
	mu        sync.Mutex
	locked    bool
	tries     atomic.Int32
	mountErr  error
	readyErr  error
	closeErr  error
	busy      bool // Unmount fails
	stuck     bool // Detach does not end it either
	unmounted chan struct{}
	once      sync.Once
	aborted   atomic.Bool
}

var errFakeLocked = errors.New("locked")

func newFakeBackend() *fakeBackend { return &fakeBackend{unmounted: make(chan struct{})} }

func (b *fakeBackend) mkfs(string, *mkfsSettings) error { return nil }
func (b *fakeBackend) isStore(string) error             { return nil }
func (b *fakeBackend) isLocked(err error) bool          { return errors.Is(err, errFakeLocked) }
func (b *fakeBackend) open(string, *mountSettings, *log.Logger) (volume, error) {
	b.tries.Add(1)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.locked {
		return nil, errFakeLocked
	}
	b.locked = true
	return fakeVolume{b}, nil
}
func (b *fakeBackend) mount(volume, string, string, *mountSettings, *log.Logger) (mountServer, error) {
	if b.mountErr != nil {
		return nil, b.mountErr
	}
	return fakeServer{b}, nil
}
func (b *fakeBackend) check(string, func(string)) (any, error) { return nil, nil }

type fakeVolume struct{ b *fakeBackend }

func (v fakeVolume) ReadOnly() bool       { return false }
func (v fakeVolume) Sync() error          { return nil }
func (v fakeVolume) Status() (any, error) { return map[string]int{"inodes": 1}, nil }
func (v fakeVolume) Stats() (any, error)  { return map[string]int{"n": 2}, nil }
func (v fakeVolume) GC() error            { return failf(exitDamaged, "two\nlines") }
func (v fakeVolume) Compact() error       { return nil }
func (v fakeVolume) Close() error {
	v.b.mu.Lock()
	defer v.b.mu.Unlock()
	v.b.locked = false
	return v.b.closeErr
}

type fakeServer struct{ b *fakeBackend }

func (s fakeServer) end() { s.b.once.Do(func() { close(s.b.unmounted) }) }

func (s fakeServer) Serve() error {
	<-s.b.unmounted
	if s.b.aborted.Load() {
		return errors.New("aborted")
	}
	return nil
}
func (s fakeServer) WaitMounted() error {
	if s.b.readyErr != nil {
		s.end()
	}
	return s.b.readyErr
}
func (s fakeServer) Unmount() error {
	if s.b.busy {
		return errors.New("busy")
	}
	s.end()
	return nil
}
func (s fakeServer) Detach() error {
	if !s.b.stuck {
		s.end()
	}
	return nil
}
func (s fakeServer) Abort() error {
	s.b.aborted.Store(true)
	s.end()
	return nil
}
func (s fakeServer) TransportName() string { return "fake" }

// startDaemon runs a daemon in this process and waits for its report.
func startDaemon(t *testing.T, b *fakeBackend, store string) (d *daemon, ended <-chan error, ready readiness) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	d = &daemon{store: store, mnt: "/nowhere", settings: defaultMountSettings(0), log: log.New(io.Discard, "", 0), backend: b}
	done := make(chan error, 1)
	go func() { done <- runDaemon(d, w) }()
	text, err := io.ReadAll(r)
	r.Close()
	if err != nil || json.Unmarshal(text, &ready) != nil {
		t.Fatalf("%q, %v", text, err)
	}
	return d, done, ready
}

// longDir is a directory whose path is longer than a socket's name may be.
func longDir(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), strings.Repeat("long", 40))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestDaemonLife(t *testing.T) {
	store, b := longDir(t), newFakeBackend()
	_, ended, ready := startDaemon(t, b, store)
	if ready.Error != "" {
		t.Fatal(ready.Error)
	}
	fi, err := os.Stat(filepath.Join(store, controlSocket))
	if err != nil || fi.Mode().Perm() != 0o600 {
		t.Fatalf("%v, %v", fi, err)
	}
	c, err := dialControl(store)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var st daemonStatus
	if err := c.call("status", &st, time.Second); err != nil || st.State != "running" || st.Transport != "fake" || st.Pid != os.Getpid() {
		t.Errorf("%+v, %v", st, err)
	}
	for _, op := range []string{"sync", "compact", "stats"} {
		if err := c.call(op, nil, time.Second); err != nil {
			t.Errorf("%s: %v", op, err)
		}
	}
	if err := c.call("gc", nil, time.Second); codeOf(err) != exitDamaged || err.Error() != "two; lines" {
		t.Errorf("gc: %v", err)
	}
	if err := c.call("nonsense", nil, time.Second); codeOf(err) != exitUsage {
		t.Errorf("nonsense: %v", err)
	}
	if _, err := c.conn.Write([]byte("not json\n")); err != nil {
		t.Fatal(err)
	}
	if err := c.answer(nil, time.Second); codeOf(err) != exitUsage {
		t.Errorf("not json: %v", err)
	}
	if err := c.call("wait", nil, time.Second); err != nil {
		t.Fatal(err)
	}
	fakeServer{b}.end()
	if err := c.answer(nil, 10*time.Second); err != nil {
		t.Errorf("the last word: %v", err)
	}
	if err := c.answer(nil, 10*time.Second); !errors.Is(err, io.EOF) {
		t.Errorf("after the last word: %v", err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if _, err := dialControl(store); !errors.Is(err, errNoDaemon) {
		t.Errorf("dial after the end: %v", err)
	}
	if _, err := os.Lstat(filepath.Join(store, controlSocket)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket stays: %v", err)
	}
}

// TestDaemonLastCommit: a failed close reaches whoever waits, and the exit
// code.
func TestDaemonLastCommit(t *testing.T) {
	store, b := t.TempDir(), newFakeBackend()
	b.closeErr = errors.New("input/output error")
	_, ended, _ := startDaemon(t, b, store)
	c, err := dialControl(store)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.call("wait", nil, time.Second); err != nil {
		t.Fatal(err)
	}
	fakeServer{b}.end()
	if err := c.answer(nil, 10*time.Second); codeOf(err) != exitSystem || !strings.Contains(err.Error(), "last commit failed") {
		t.Errorf("the last word: %v", err)
	}
	if err := <-ended; codeOf(err) != exitSystem {
		t.Error(err)
	}
}

func TestDaemonFailsToStart(t *testing.T) {
	for name, b := range map[string]*fakeBackend{
		"mount":   {unmounted: make(chan struct{}), mountErr: failf(exitBusy, "in use")},
		"no INIT": {unmounted: make(chan struct{}), readyErr: errors.New("no answer")},
	} {
		t.Run(name, func(t *testing.T) {
			_, ended, ready := startDaemon(t, b, t.TempDir())
			if ready.Error == "" || ready.Code == exitOK {
				t.Errorf("%+v", ready)
			}
			if err := <-ended; codeOf(err) != ready.Code || err.Error() != "" {
				t.Errorf("%v: what was reported is not to be said again", err)
			}
			if b.locked {
				t.Error("the store stays open")
			}
		})
	}
}

// TestDaemonWaitsForTheLock: a holder without a daemon's answer is about to
// end; one that answers is alive.
func TestDaemonWaitsForTheLock(t *testing.T) {
	store, b := t.TempDir(), newFakeBackend()
	b.locked = true
	go func() {
		for b.tries.Load() < 3 {
			time.Sleep(time.Millisecond) // polls the condition above
		}
		b.mu.Lock()
		b.locked = false
		b.mu.Unlock()
	}()
	_, ended, ready := startDaemon(t, b, store)
	if ready.Error != "" {
		t.Fatal(ready.Error)
	}
	fakeServer{b}.end()
	<-ended

	holder, err := listenControl(store, func(string) (any, error) {
		return daemonStatus{State: "starting", MountPoint: "/there", Pid: 7}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	defer holder.finish(nil)
	b = newFakeBackend()
	b.locked = true
	_, ended, ready = startDaemon(t, b, store)
	if ready.Code != exitBusy || !strings.Contains(ready.Error, "/there") {
		t.Errorf("%+v", ready)
	}
	<-ended
}

// TestDaemonStops: SIGTERM unmounts, detaches what is in use, and cuts off
// what does not end.
func TestDaemonStops(t *testing.T) {
	for _, c := range []struct {
		name        string
		busy, stuck bool
	}{{"free", false, false}, {"busy", true, false}, {"stuck", true, true}} {
		t.Run(c.name, func(t *testing.T) {
			b := newFakeBackend()
			b.busy, b.stuck = c.busy, c.stuck
			d := &daemon{store: t.TempDir(), mnt: "/nowhere", log: log.New(io.Discard, "", 0), backend: b}
			d.server = fakeServer{b}
			served := make(chan struct{})
			go func() { d.server.Serve(); close(served) }()
			signals := make(chan os.Signal, 1)
			if c.stuck {
				signals <- syscall.SIGTERM // the second one shortens the grace
			}
			if err := d.stop(served, signals); err != nil {
				t.Error(err)
			}
			<-served
			if b.aborted.Load() != c.stuck {
				t.Errorf("aborted: %v", b.aborted.Load())
			}
		})
	}
}

func TestRemountFlags(t *testing.T) {
	s := defaultMountSettings(0)
	if err := s.parse("remount,ro,noatime,suid", false); err != nil {
		t.Fatal(err)
	}
	got := remountFlags("rw,nosuid,nodev,relatime", &s)
	if want := uintptr(syscall.MS_RDONLY | syscall.MS_NODEV | syscall.MS_NOATIME); got != want {
		t.Errorf("%#x, want %#x", got, want)
	}
}

// TestDyingDaemonIsGone: the socket of a daemon that was just killed takes
// connections for a moment and then ends them.
func TestDyingDaemonIsGone(t *testing.T) {
	store := t.TempDir()
	l, err := net.Listen("unix", filepath.Join(store, "control.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	if daemonAnswers(store) {
		t.Error("a daemon that ends every connection is taken for a living one")
	}
}
