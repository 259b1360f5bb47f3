package metadata_test

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"prismfs/lanes"
	"prismfs/metadata"
	"prismfs/uring"
	"prismfs/uring/simdisk"
)

func newLanes(t testing.TB) *lanes.Runtime {
	l := lanes.NewRuntime(lanes.Config{})
	t.Cleanup(l.Close)
	return l
}

// newStore makes and opens a store on a disk in memory.
func newStore(t testing.TB, disk uring.Disk, l *lanes.Runtime) *metadata.Store {
	t.Helper()
	if err := metadata.Mkfs(metadata.MkfsOptions{Disk: disk, Lanes: l}); err != nil {
		t.Fatal(err)
	}
	return openStore(t, disk, l)
}

func openStore(t testing.TB, disk uring.Disk, l *lanes.Runtime) *metadata.Store {
	t.Helper()
	s, err := metadata.Open(metadata.Options{Disk: disk, Lanes: l, NoTimer: true, Logf: t.Logf, MemTableSize: 256 << 10, SegmentSize: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func check(t testing.TB, s *metadata.Store) metadata.CheckReport {
	t.Helper()
	rep, err := s.Check(func(p string) { t.Errorf("fsck: %s", p) })
	if err != nil {
		t.Fatal(err)
	}
	return rep
}

func TestStoreKeepsFilesOverReopen(t *testing.T) {
	disk := simdisk.New(1)
	l := newLanes(t)
	s := newStore(t, disk, l)
	data := make(map[string][]byte)
	for i := range 50 {
		name := fmt.Sprintf("f%d", i)
		b := bytes.Repeat([]byte{byte(i + 1)}, i*i*100)
		var a metadata.Attr
		if err := s.Make(metadata.Block, metadata.RootIno, []byte(name), &metadata.MakeReq{Mode: 0100644}, &a); err != nil {
			t.Fatal(err)
		}
		if err := s.Write(metadata.Block, a.Ino, 0, b, 0); err != nil {
			t.Fatal(err)
		}
		data[name] = b
	}
	verify := func(s *metadata.Store) {
		t.Helper()
		for name, want := range data {
			var a metadata.Attr
			if err := s.Lookup(metadata.Block, metadata.RootIno, []byte(name), &a); err != nil {
				t.Fatal(name, err)
			}
			got := make([]byte, len(want)+10)
			n, err := s.Read(metadata.Block, a.Ino, 0, got, nil)
			if err != nil || !bytes.Equal(got[:n], want) {
				t.Fatalf("%s: read %d bytes of %d, %v", name, n, len(want), err)
			}
			s.Forget(a.Ino, 1)
		}
	}
	verify(s)
	check(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, disk, l)
	verify(s)
	check(t, s)
	if err := s.Unlink(metadata.Block, metadata.RootIno, []byte("f7")); err != nil {
		t.Fatal(err)
	}
	if err := s.Lookup(metadata.Block, metadata.RootIno, []byte("f7"), new(metadata.Attr)); !errors.Is(err, metadata.ErrNotFound) {
		t.Fatal(err)
	}
	check(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestLostIdentity: a store without its superblock, or with an overwritten one,
// is damaged; calling it no store would invite somebody to make a new one there.
func TestLostIdentity(t *testing.T) {
	l := newLanes(t)
	for name, hurt := range map[string]func(*simdisk.Disk) error{
		"missing":     func(d *simdisk.Disk) error { return d.Remove("superblock") },
		"overwritten": func(d *simdisk.Disk) error { return d.Corrupt("superblock", 0, 0xff) },
		"bit flip":    func(d *simdisk.Disk) error { return d.Corrupt("superblock", 100, 1) },
		"no engine":   func(d *simdisk.Disk) error { return d.Remove("db/CURRENT") },
	} {
		t.Run(name, func(t *testing.T) {
			disk := simdisk.New(3)
			if err := newStore(t, disk, l).Close(); err != nil {
				t.Fatal(err)
			}
			if err := hurt(disk); err != nil {
				t.Fatal(err)
			}
			_, err := metadata.Open(metadata.Options{Disk: disk, Lanes: l, NoTimer: true})
			if !errors.Is(err, metadata.ErrCorrupt) || errors.Is(err, metadata.ErrNotAStore) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// TestClosedStoreAnswers: a control command may come while the store closes. It
// gets an error; it neither waits for ever nor ends the daemon.
func TestClosedStoreAnswers(t *testing.T) {
	s := newStore(t, simdisk.New(1), newLanes(t))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Sync(); err == nil {
		t.Error("a closed store synced")
	}
	if err := s.Compact(); err == nil {
		t.Error("a closed store compacted")
	}
	s.CollectGarbage() // may find nothing to do
	s.Status()
}

// TestGarbageCollectionPassesDamage: a segment that cannot be read through keeps
// what is in it, and does not keep the others from being emptied.
func TestGarbageCollectionPassesDamage(t *testing.T) {
	disk := simdisk.New(4)
	l := newLanes(t)
	s := newStore(t, disk, l)
	var files []metadata.Ino
	for i := range 24 { // 256 KiB each: some four to a segment
		var a metadata.Attr
		if err := s.Make(metadata.Block, metadata.RootIno, fmt.Appendf(nil, "f%d", i), &metadata.MakeReq{Mode: 0100644}, &a); err != nil {
			t.Fatal(err)
		}
		if err := s.Write(metadata.Block, a.Ino, 0, bytes.Repeat([]byte{byte(i + 1)}, 256<<10), 0); err != nil {
			t.Fatal(err)
		}
		files = append(files, a.Ino)
	}
	if err := s.Sync(); err != nil {
		t.Fatal(err)
	}
	// Most of every segment dies; what is left of the first is damaged.
	for i := range files {
		if i%4 != 0 {
			if err := s.Unlink(metadata.Block, metadata.RootIno, fmt.Appendf(nil, "f%d", i)); err != nil {
				t.Fatal(err)
			}
			s.Forget(files[i], 1)
		}
	}
	if err := s.Close(); err != nil { // memory still has the bytes
		t.Fatal(err)
	}
	s = openStore(t, disk, l)
	before := s.Status().Segments
	if err := disk.Corrupt("data/0000000001.seg", 4096+2000, 0xff); err != nil {
		t.Fatal(err)
	}
	var failed error
	for range 20 {
		if err := s.CollectGarbage(); err != nil {
			failed = err
		}
	}
	if !errors.Is(failed, metadata.ErrCorrupt) {
		t.Errorf("the damage was not reported: %v", failed)
	}
	if after := s.Status().Segments; after >= before-1 {
		t.Errorf("%d segments of %d are left", after, before)
	}
	if !disk.Exists("data/0000000001.seg") {
		t.Error("the damaged segment was deleted with a file in it")
	}
	s.Close()
}
