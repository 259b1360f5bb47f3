package engine

import (
	"bytes"
	"errors"
	"fmt"
	"path"
	"testing"

	"prismfs/uring/simdisk"
)

// fill writes until the store answers ErrNoSpace and returns how many keys went
// in.
func fill(t *testing.T, db *DB, value []byte) int {
	t.Helper()
	for n := 0; n < 1<<20; n++ {
		b := NewBatch()
		b.Put(fmt.Appendf(nil, "key%08d", n), value)
		err := db.Apply(b, Block)
		if errors.Is(err, ErrNoSpace) {
			return n
		}
		if err != nil {
			t.Fatalf("write %d: %v", n, err)
		}
	}
	t.Fatal("the disk never got full")
	return 0
}

func wantKeys(t *testing.T, db *DB, n int, value []byte) {
	t.Helper()
	for i := range n {
		got, err := db.Get(nil, fmt.Appendf(nil, "key%08d", i), Block)
		if err != nil || !bytes.Equal(got, value) {
			t.Fatalf("key %d of %d: %q, %v", i, n, got, err)
		}
	}
}

// TestNoSpaceEnds: a full disk refuses writes without effect, loses nothing,
// and is forgotten when room returns, without a new start.
func TestNoSpaceEnds(t *testing.T) {
	d := simdisk.New(3)
	o := simOptions(t, d)
	db := mustOpen(t, o)
	d.SetCapacity(1 << 20)
	value := bytes.Repeat([]byte("v"), 100)
	n := fill(t, db, value)
	t.Logf("%d keys fit, %+v", n, db.Stats())
	if !db.Stats().NoSpace {
		t.Fatal("Stats doesn't say that the disk is full")
	}
	wantKeys(t, db, n, value)
	if err := db.Barrier(); err != nil {
		t.Fatalf("barrier on a full disk: %v", err)
	}
	// Refused again and again, quickly and without effect. A flush that was under
	// way may still make a little room first.
	b := NewBatch()
	for refused := 0; refused < 3; {
		b.Reset()
		b.Put(fmt.Appendf(nil, "key%08d", n), value)
		switch err := db.Apply(b, Block); {
		case err == nil:
			if n++; n > 100_000 {
				t.Fatal("the disk is not full any more")
			}
			continue
		case !errors.Is(err, ErrNoSpace):
			t.Fatalf("got %v", err)
		}
		refused++
	}
	wantKeys(t, db, n, value)
	wantAbsent(t, db, fmt.Sprintf("key%08d", n))
	b.Reset()
	b.Put([]byte("more"), value)

	d.SetCapacity(64 << 20)
	if err := db.Apply(b, Block); err != nil {
		t.Fatalf("after room returned: %v", err)
	}
	for i := range 2000 {
		put(t, db, fmt.Sprintf("later%d", i), string(value))
	}
	db.WaitIdle()
	wantKeys(t, db, n, value)
	wantClean(t, db)
	mustClose(t, db)
	db = mustOpen(t, o)
	wantKeys(t, db, n, value)
	wantGet(t, db, "more", string(value))
	mustClose(t, db)
}

// TestNoSpaceAtOpen: a store on a full disk does not open for writing, loses
// nothing by the attempt, and opens once there is room.
func TestNoSpaceAtOpen(t *testing.T) {
	d := simdisk.New(4)
	o := simOptions(t, d)
	db := mustOpen(t, o)
	put(t, db, "a", "1")
	mustClose(t, db)
	d.SetCapacity(1)
	if db, err := Open(o); err == nil {
		// There was room enough in what had been reserved.
		wantGet(t, db, "a", "1")
		mustClose(t, db)
	} else if !errors.Is(err, ErrNoSpace) {
		t.Fatal(err)
	}
	ro := o
	ro.ReadOnly = true
	db = mustOpen(t, ro)
	wantGet(t, db, "a", "1")
	mustClose(t, db)
	d.SetCapacity(64 << 20)
	db = mustOpen(t, o)
	wantGet(t, db, "a", "1")
	mustClose(t, db)
}

// TestNoWaitReadsNothing: calls under NoWait touch the disk for cached pages
// only, and have no effect when they give up.
func TestNoWaitReadsNothing(t *testing.T) {
	d := simdisk.New(5)
	o := simOptions(t, d)
	db := mustOpen(t, o)
	for i := range 300 {
		put(t, db, fmt.Sprintf("key%03d", i), "value")
	}
	if err := db.Flush(); err != nil {
		t.Fatal(err)
	}
	put(t, db, "in memory", "1")
	mustClose(t, db)
	db = mustOpen(t, o)
	put(t, db, "in memory", "2")
	db.WaitIdle()
	if err := db.Barrier(); err != nil {
		t.Fatal(err)
	}

	d.SetCold(true)
	d.OnOp(func(op simdisk.Op) error {
		// The background may prepare a log; nobody may read.
		if op.Kind == simdisk.OpRead || op.Kind == simdisk.OpOpen {
			t.Errorf("%s of %s at %d", op.Kind, op.Name, op.Off)
		}
		return nil
	})
	if got, err := db.Get(nil, []byte("in memory"), NoWait); err != nil || string(got) != "2" {
		t.Fatalf("got %q, %v", got, err)
	}
	if _, err := db.Get(nil, []byte("key007"), NoWait); err != ErrWouldBlock {
		t.Fatalf("got %v", err)
	}
	it := db.NewIter(IterOptions{Wait: NoWait})
	if it.First() || it.Err() != ErrWouldBlock {
		t.Fatalf("First: %v", it.Err())
	}
	if it.SeekLT([]byte("key100")) || it.Err() != ErrWouldBlock {
		t.Fatalf("SeekLT: %v", it.Err())
	}
	it.Close()
	d.OnOp(nil)
	d.SetCold(false)

	// Once it was read it comes from memory, even from a cold disk.
	wantGet(t, db, "key007", "value")
	d.SetCold(true)
	d.OnOp(func(op simdisk.Op) error {
		if op.Kind == simdisk.OpRead || op.Kind == simdisk.OpOpen {
			t.Errorf("%s of %s at %d", op.Kind, op.Name, op.Off)
		}
		return nil
	})
	if got, err := db.Get(nil, []byte("key007"), NoWait); err != nil || string(got) != "value" {
		t.Fatalf("got %q, %v", got, err)
	}
	d.OnOp(nil)
	mustClose(t, db)
}

// TestNoWaitWhileFlushIsStuck: a writer that may not wait is told so, without
// effect, when the memtable is full and the one before is still being written;
// a writer that may wait goes on when that is done.
func TestNoWaitWhileFlushIsStuck(t *testing.T) {
	d := simdisk.New(6)
	o := simOptions(t, d)
	db := mustOpen(t, o)
	release := make(chan struct{})
	d.OnOp(func(op simdisk.Op) error {
		if kind, _ := parseFileName(path.Base(op.Name)); kind == tableFile && op.Kind == simdisk.OpCreate {
			<-release
		}
		return nil
	})
	value := bytes.Repeat([]byte("v"), 100)
	n := 0
	for refused := 0; refused < 1000; n++ {
		b := NewBatch()
		b.Put(fmt.Appendf(nil, "key%08d", n), value)
		err := db.Apply(b, NoWait)
		if errors.Is(err, ErrWouldBlock) {
			// The next log may just be in the making; only a view with an
			// immutable memtable stays full.
			if len(db.view.Load().imm) > 0 {
				refused++
			}
			n--
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	seq := db.LastSeq()
	if seq != uint64(n) {
		t.Fatalf("%d writes went in, the sequence number is %d", n, seq)
	}
	wantKeys(t, db, n, value)
	done := make(chan error)
	go func() {
		b := NewBatch()
		b.Put(fmt.Appendf(nil, "key%08d", n), value)
		done <- db.Apply(b, Block)
	}()
	select {
	case err := <-done:
		t.Fatalf("a write got through a full memtable: %v", err)
	default:
	}
	close(release)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	wantKeys(t, db, n+1, value)
	d.OnOp(nil)
	mustClose(t, db)
}

// TestFlushWhileTheLaneIsTaken: whoever holds the Compaction lane may write
// more than the memtable takes.
func TestFlushWhileTheLaneIsTaken(t *testing.T) {
	o := simOptions(t, simdisk.New(31))
	db := mustOpen(t, o)
	if err := testLanes.Compaction.Enter(); err != nil {
		t.Fatal(err)
	}
	value := string(bytes.Repeat([]byte("v"), 500))
	for i := range 20 * minMemTableSize / 500 {
		put(t, db, fmt.Sprint(i), value)
	}
	testLanes.Compaction.Leave()
	if db.Stats().Flushes < l0Stop {
		t.Fatalf("%+v", db.Stats())
	}
	mustClose(t, db)
}
