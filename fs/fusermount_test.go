package fs

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// errnoHandler refuses everything.
type errnoHandler struct{}

func (errnoHandler) Handle(r *Request) {
	if wantsReply(r.Opcode()) {
		r.Reply(0, syscall.ENOSYS)
	} else {
		r.NoReply()
	}
}

// Mounting by way of a fusermount3, here one of our own. It is this process's
// own mount, so nothing here touches it.
func TestMountHelper(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	if _, err := os.Stat("/dev/fuse"); err != nil {
		t.Skip("no /dev/fuse")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	bin, dir := t.TempDir(), t.TempDir()
	if err := os.Symlink(self, filepath.Join(bin, "fusermount3")); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin)
	o := MountOptions{Source: "the-source", Mountpoint: dir, AllowOther: true, DefaultPermissions: true, ReadOnly: true, URing: URingOff}
	if err := o.setDefaults(); err != nil {
		t.Fatal(err)
	}
	fl, err := o.flags()
	if err != nil {
		t.Fatal(err)
	}
	fd, err := mountHelper(&o, fl)
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{o: o, fd: fd, handler: errnoHandler{}, ready: make(chan struct{}), served: make(chan struct{})}
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	m, ok, err := mountOf(dir)
	if err != nil || !ok || m.fsType != "fuse.prismfs" || m.source != "the-source" {
		t.Errorf("mounted %+v, %v, %v", m, ok, err)
	}
	done := make(chan error)
	go func() { done <- s.Serve() }()
	if err := s.WaitMounted(); err != nil {
		t.Error(err)
	}
	if err := s.Unmount(); err != nil {
		t.Error(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := s.InvalInode(1, 0, 0); !errors.Is(err, ErrNotMounted) {
		t.Errorf("invalidation after the end: %v", err)
	}

	// What it says is passed on.
	o.Mountpoint = filepath.Join(dir, "none")
	if _, err := mountHelper(&o, fl); !errors.Is(err, ErrNotPermitted) || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("mounting on nothing: %v", err)
	}
	defer func(paths []string) { fusermountPaths = paths }(fusermountPaths)
	fusermountPaths = []string{filepath.Join(dir, "fusermount-that-is-not-there")}
	if _, err := mountHelper(&o, fl); !errors.Is(err, ErrNoFusermount) {
		t.Errorf("without fusermount3: %v", err)
	}
}
