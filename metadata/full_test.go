package metadata_test

import (
	"errors"
	"testing"

	"prismfs/metadata"
	"prismfs/uring/simdisk"
)

// TestDeletedIsFree: on a full disk the bytes of a deleted file count as free as
// soon as it is gone, and can be reserved and written again.
func TestDeletedIsFree(t *testing.T) {
	l := newLanes(t)
	disk := simdisk.New(1)
	disk.SetCapacity(64 << 20)
	if err := metadata.Mkfs(metadata.MkfsOptions{Disk: disk, Lanes: l}); err != nil {
		t.Fatal(err)
	}
	s, err := metadata.Open(metadata.Options{Disk: disk, Lanes: l, Logf: t.Logf, MemTableSize: 256 << 10, SegmentSize: 1 << 20})
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
		g := makeInode(t, s, metadata.RootIno, "g", 0100644, 0)
		if err := s.Fallocate(metadata.Block, g, 0, 0, uint64(before)*3/4); err != nil {
			t.Fatalf("round %d: nothing can be reserved after a deletion: %v", round, err)
		}
		if now := free(); now < before*3/4 {
			t.Fatalf("round %d: %d bytes are free, %d were", round, now, before)
		}
		if err := s.Unlink(metadata.Block, metadata.RootIno, []byte("g")); err != nil {
			t.Fatal(err)
		}
		s.Forget(g, 1)
	}
	check(t, s)
}
