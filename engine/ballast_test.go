package engine

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"prismfs/uring/simdisk"
)

// TestDeletesWorkOnAFullDisk: the reserve carries all deletions that it takes
// to empty a store that filled its disk, with restarts in between, and is laid
// down again afterwards.
func TestDeletesWorkOnAFullDisk(t *testing.T) {
	d := simdisk.New(21)
	d.SetCapacity(16 << 20)
	o := simOptions(t, d)
	db := mustOpen(t, o)
	if db.Low() {
		t.Fatal("low from the start")
	}
	value := bytes.Repeat([]byte("v"), 500)
	n := 0
	for ; !db.Low(); n++ {
		b := NewBatch()
		b.Put(fmt.Appendf(nil, "key%08d", n), value)
		if err := db.Apply(b, Block); err != nil {
			t.Fatalf("write %d: %v before the store said that it is low", n, err)
		}
	}
	if n < 1000 {
		t.Fatalf("only %d keys", n)
	}
	for i := range n {
		if i == n/2 {
			mustClose(t, db)
			db = mustOpen(t, o)
		}
		b := NewBatch()
		b.Delete(fmt.Appendf(nil, "key%08d", i))
		if err := db.Apply(b, Block); err != nil {
			t.Fatalf("delete %d of %d: %v", i, n, err)
		}
	}
	if err := db.CompactRange(nil, nil); err != nil {
		t.Fatal(err)
	}
	db.WaitIdle()
	for i := 0; db.Low(); i++ {
		if i > 100 {
			t.Fatalf("still low: %+v", db.Stats())
		}
		signal(db.bgWake)
		db.WaitIdle()
	}
	if len(content(t, db, nil)) != 0 {
		t.Fatal("keys are left")
	}
	wantClean(t, db)
	mustClose(t, db)
}

// TestBallastIsAFileOfTheDisk: it is there while the store isn't low, and gone
// when the store has used it.
func TestBallastIsThereUnlessLow(t *testing.T) {
	d := simdisk.New(22)
	o := simOptions(t, d)
	db := mustOpen(t, o)
	if db.Low() || !d.Exists("db/BALLAST") {
		t.Fatal("no reserve on an empty disk")
	}
	d.SetCapacity(1 << 20)
	fill(t, db, bytes.Repeat([]byte("v"), 200))
	if !db.Low() || d.Exists("db/BALLAST") {
		t.Fatal("the reserve is still there on a full disk")
	}
	mustClose(t, db)
	d.SetCapacity(1) // closing gave back what the log had reserved
	db, err := Open(o)
	if err == nil {
		if !db.Low() {
			t.Fatal("a full disk and not low")
		}
		mustClose(t, db)
	} else if !errors.Is(err, ErrNoSpace) {
		t.Fatal(err)
	}
}
