package metadata

import (
	"testing"
	"time"

	"prismfs/lanes"
	"prismfs/uring/simdisk"
)

// TestRenameOfNamesThatChange: a name may stand for another inode when a rename
// has its locks again. Goal: the locks of both rounds fit into the set. Method:
// the rename waits for the lock of one file, while the name that it replaces is
// exchanged.
func TestRenameOfNamesThatChange(t *testing.T) {
	disk, l := simdisk.New(1), lanes.NewRuntime(lanes.Config{})
	defer l.Close()
	if err := Mkfs(MkfsOptions{Disk: disk, Lanes: l}); err != nil {
		t.Fatal(err)
	}
	s, err := Open(Options{Disk: disk, Lanes: l, NoTimer: true, Logf: t.Logf})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	mk := func(name string, mode uint32) Ino {
		var a Attr
		if err := s.Make(Block, RootIno, []byte(name), &MakeReq{Mode: mode}, &a); err != nil {
			t.Fatal(err)
		}
		return a.Ino
	}
	rename := func(from Ino, oldName string, to Ino, newName string, flags uint32) {
		t.Helper()
		if err := s.Rename(Block, from, []byte(oldName), to, []byte(newName), flags); err != nil {
			t.Error(err)
		}
	}
	// The file to wait for has the lowest number, so that nothing else is
	// locked meanwhile.
	a := mk("a", modeRegular)
	mk("b", modeRegular)
	mk("c", modeRegular)
	from, to := mk("from", modeDir), mk("to", modeDir)
	rename(RootIno, "a", from, "a", 0)
	rename(RootIno, "b", to, "b", 0)
	rename(RootIno, "c", to, "c", 0)

	n, err := s.wlock(Block, a)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		rename(from, "a", to, "b", 0)
	}()
	time.Sleep(50 * time.Millisecond) // until it waits for a lock, which cannot be seen; too short, the test only shows nothing
	rename(to, "b", to, "c", RenameExchange)
	s.wunlock(n)
	<-done
	if _, err := s.Check(func(p string) { t.Errorf("fsck: %s", p) }); err != nil {
		t.Fatal(err)
	}
}
