package metadata_test

import (
	"errors"
	"path"
	"syscall"
	"testing"

	"prismfs/metadata"
	"prismfs/uring"
	"prismfs/uring/simdisk"
)

// TestDeletedIsFree: on a full disk the bytes of a deleted file count as free as
// soon as it is gone, and can be reserved and written again.
func TestDeletedIsFree(t *testing.T) {
	l := newLanes(t)
	disk := simdisk.New(1)
	disk.SetCapacity(128 << 20)
	if err := metadata.Mkfs(metadata.MkfsOptions{Disk: disk, Lanes: l}); err != nil {
		t.Fatal(err)
	}
	s, err := metadata.Open(metadata.Options{Disk: disk, Lanes: l, Logf: t.Logf, MemTableSize: 256 << 10, SegmentSize: 4 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	free := func() int64 {
		var st metadata.Statfs
		if err := s.Statfs(&st); err != nil {
			t.Fatal(err)
		}
		return int64(st.Avail) * int64(st.BlockSize)
	}
	before := free()
	for round := range 3 {
		f := makeInode(t, s, metadata.RootIno, "f", 0100644, 0)
		chunk := make([]byte, 1<<20)
		var size uint64
		for {
			err := s.Write(metadata.Block, f, size, chunk, 0)
			if errors.Is(err, metadata.ErrNoSpace) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			size += uint64(len(chunk))
		}
		if int64(size) < before*3/4 {
			t.Fatalf("round %d: only %d of %d bytes could be written", round, size, before)
		}
		if err := s.Unlink(metadata.Block, metadata.RootIno, []byte("f")); err != nil {
			t.Fatal(err)
		}
		s.Forget(f, 1)
		if now := free(); now < before*3/4 {
			t.Fatalf("round %d: %d bytes are free at once, %d were", round, now, before)
		}
		g := makeInode(t, s, metadata.RootIno, "g", 0100644, 0)
		if err := s.Fallocate(metadata.Block, g, 0, 0, uint64(before)*3/4); err != nil {
			t.Fatalf("round %d: nothing can be reserved after a deletion: %v", round, err)
		}
		if err := s.Unlink(metadata.Block, metadata.RootIno, []byte("g")); err != nil {
			t.Fatal(err)
		}
		s.Forget(g, 1)
		check(t, s) // waits for the deletions
		if now := free(); now < before*3/4 {
			t.Fatalf("round %d: %d bytes are free, %d were", round, now, before)
		}
	}
}

// TestReservedIsKept: what fallocate(2) has reserved is free for nobody else, can
// be filled on a disk that is full otherwise, and comes back.
func TestReservedIsKept(t *testing.T) {
	l := newLanes(t)
	disk := simdisk.New(1)
	disk.SetCapacity(128 << 20)
	if err := metadata.Mkfs(metadata.MkfsOptions{Disk: disk, Lanes: l}); err != nil {
		t.Fatal(err)
	}
	s, err := metadata.Open(metadata.Options{Disk: disk, Lanes: l, Logf: t.Logf, MemTableSize: 256 << 10, SegmentSize: 4 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	free := func() int64 {
		var st metadata.Statfs
		if err := s.Statfs(&st); err != nil {
			t.Fatal(err)
		}
		return int64(st.Avail) * int64(st.BlockSize)
	}
	const reserved = 20 << 20
	before := free()
	f := makeInode(t, s, metadata.RootIno, "f", 0100644, 0)
	if err := s.Fallocate(metadata.Block, f, 0, 0, reserved); err != nil {
		t.Fatal(err)
	}
	if now := free(); now > before-reserved {
		t.Fatalf("%d bytes are free, %d were", now, before)
	}
	if err := s.Fallocate(metadata.Block, f, metadata.FallocKeepSize, reserved, uint64(before)); !errors.Is(err, metadata.ErrNoSpace) {
		t.Fatalf("more was reserved than there is: %v", err)
	}
	g := makeInode(t, s, metadata.RootIno, "g", 0100644, 0)
	chunk := make([]byte, 1<<20)
	var size uint64
	for err == nil {
		if err = s.Write(metadata.Block, g, size, chunk, 0); err == nil {
			size += uint64(len(chunk))
		}
	}
	if !errors.Is(err, metadata.ErrNoSpace) || size > uint64(before)-reserved {
		t.Fatalf("%d bytes written, then %v", size, err)
	}
	for off := uint64(0); off < reserved*9/10; off += uint64(len(chunk)) {
		if err := s.Write(metadata.Block, f, off, chunk, 0); err != nil {
			t.Fatalf("write at %d of the reserved %d: %v", off, reserved, err)
		}
	}
	for i, ino := range []metadata.Ino{f, g} {
		if err := s.Unlink(metadata.Block, metadata.RootIno, []byte{"fg"[i]}); err != nil {
			t.Fatal(err)
		}
		s.Forget(ino, 1)
	}
	check(t, s) // waits for the deletions
	if now := free(); now < before*9/10 {
		t.Fatalf("%d bytes are free, %d were", now, before)
	}
}

// TestSyncWithoutSpace: a sync of the disk that says "no space", as on a thin
// device, has lost what was acknowledged. It must turn the store read-only and
// not pass for a full disk, which ends.
func TestSyncWithoutSpace(t *testing.T) {
	for _, ext := range []string{".seg", ".log"} {
		l := newLanes(t)
		disk := simdisk.New(1)
		s := newStore(t, disk, l)
		f := makeInode(t, s, metadata.RootIno, "f", 0100644, 0)
		if err := s.Write(metadata.Block, f, 0, make([]byte, 256<<10), 0); err != nil {
			t.Fatal(err)
		}
		disk.OnOp(func(op simdisk.Op) error {
			if op.Kind == simdisk.OpDatasync && path.Ext(op.Name) == ext {
				return uring.WrapError("datasync", op.Name, syscall.ENOSPC)
			}
			return nil
		})
		err := s.Sync()
		disk.OnOp(nil)
		again := s.Sync()
		if err == nil || errors.Is(err, metadata.ErrNoSpace) || again == nil || errors.Is(again, metadata.ErrNoSpace) {
			t.Errorf("%s: the sync that failed says %v, the next one %v", ext, err, again)
		}
		if err := s.Write(metadata.Block, f, 0, []byte("x"), 0); !errors.Is(err, metadata.ErrReadOnly) {
			t.Errorf("%s: a write after the failed sync: %v", ext, err)
		}
		s.Close() // fails
	}
}
