package engine

import (
	"encoding/hex"
	"strings"
	"testing"

	"prismfs/ordered"
	"prismfs/uring/simdisk"
)

// TestBatchBytes is the example of FORMAT.md, read back from a log.
func TestBatchBytes(t *testing.T) {
	d := simdisk.New(70)
	o := simOptions(t, d)
	db := mustOpen(t, o)
	for range 257 {
		put(t, db, "x", "y")
	}
	b := NewBatch()
	b.Note([]byte("hi"))
	b.Put([]byte("a"), []byte("1"))
	if err := db.Apply(b, Block); err != nil {
		t.Fatal(err)
	}
	num := db.w.wal.num
	mustClose(t, db)
	var last string
	_, err := ordered.ReadLog(d, logFileName("db", num), uint64(num), ordered.Default, func(rec []byte, off int64) error {
		last = hex.EncodeToString(rec)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	want := strings.ReplaceAll("02 01 00 00 00 00 00 00  01 00 00 00  7f 02 68 69  01 01 61 01 31", " ", "")
	if last != want {
		t.Fatalf("got %s\nwant %s", last, want)
	}
}

// TestBatchReuse: a batch may be reused after Reset, and one that was applied
// leaves nothing of itself behind.
func TestBatchReuse(t *testing.T) {
	db := mustOpen(t, simOptions(t, simdisk.New(71)))
	defer mustClose(t, db)
	b := NewBatch()
	if err := db.Apply(b, Block); err != nil || db.LastSeq() != 0 {
		t.Fatalf("an empty batch: %v, sequence %d", err, db.LastSeq())
	}
	key, value := []byte("key1"), []byte("value1")
	b.Put(key, value)
	if err := db.Apply(b, Block); err != nil {
		t.Fatal(err)
	}
	copy(key, "xxxx")
	copy(value, "xxxxxx")
	b.Reset()
	b.Put([]byte("key2"), []byte("value2"))
	b.Delete([]byte("key3"))
	if b.Count() != 2 || b.Empty() {
		t.Fatalf("%d updates", b.Count())
	}
	if err := db.Apply(b, Block); err != nil {
		t.Fatal(err)
	}
	wantGet(t, db, "key1", "value1")
	wantGet(t, db, "key2", "value2")
	if db.LastSeq() != 3 {
		t.Fatalf("sequence %d", db.LastSeq())
	}
	big := NewBatch()
	big.Put([]byte("big"), make([]byte, 3*minMemTableSize))
	if err := db.Apply(big, Block); err != nil {
		t.Fatal(err)
	}
	got, err := db.Get(nil, []byte("big"), Block)
	if err != nil || len(got) != 3*minMemTableSize {
		t.Fatalf("%d bytes, %v", len(got), err)
	}
	wantGet(t, db, "key1", "value1")
}

// TestOnRotate: its batch comes last in the memtable that is full, or first in
// the next one when it doesn't fit, and is in the log in either case.
func TestOnRotate(t *testing.T) {
	for _, size := range []int{10, minMemTableSize / 2, 2 * minMemTableSize} {
		d := simdisk.New(72)
		o := simOptions(t, d)
		calls, seq := 0, uint64(0)
		var db *DB
		o.OnRotate = func(b *Batch) {
			calls++
			b.Put([]byte("counter"), []byte(strings.Repeat("c", size)))
			b.Put([]byte("calls"), []byte(strings.Repeat("x", calls)))
			seq = db.LastSeq()
		}
		db = mustOpen(t, o)
		value := strings.Repeat("v", 200)
		for i := 0; i < 2000 && calls < 5; i++ {
			put(t, db, "k", value)
		}
		if calls < 5 {
			t.Fatalf("%d rotations", calls)
		}
		if db.LastSeq() <= seq {
			t.Fatal("the batch of the rotation took no sequence number")
		}
		wantGet(t, db, "counter", strings.Repeat("c", size))
		mustClose(t, db)
		o.OnRotate = nil
		db = mustOpen(t, o)
		wantGet(t, db, "counter", strings.Repeat("c", size))
		wantClean(t, db)
		mustClose(t, db)
	}
}
