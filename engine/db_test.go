package engine

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"prismfs/lanes"
	"prismfs/uring"
)

// testLanes is shared by all tests of the package: lanes hold no state of a
// store.
var testLanes = lanes.NewRuntime(lanes.Config{})

// hostDisk is a disk over a directory of the host.
func hostDisk(t testing.TB) uring.Disk {
	t.Helper()
	d, err := uring.Open(t.TempDir(), uring.Options{Mode: uring.Pread, Lanes: testLanes})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

func testOptions(t testing.TB, d uring.Disk) Options {
	return Options{
		Disk: d, Dir: "db", Lanes: testLanes, CreateIfMissing: true,
		MemTableSize: 32 << 10, BlockSize: 512, TableSize: 8 << 10, LevelBase: 32 << 10,
		Logf: func(format string, args ...any) { t.Logf(format, args...) },
	}
}

func mustOpen(t testing.TB, o Options) *DB {
	t.Helper()
	db, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	return db
}

func mustClose(t testing.TB, db *DB) {
	t.Helper()
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

func put(t testing.TB, db *DB, key, value string) {
	t.Helper()
	b := NewBatch()
	b.Put([]byte(key), []byte(value))
	if err := db.Apply(b, Block); err != nil {
		t.Fatal(err)
	}
}

func wantGet(t testing.TB, db *DB, key, value string) {
	t.Helper()
	got, err := db.Get(nil, []byte(key), Block)
	if err != nil || string(got) != value {
		t.Fatalf("Get(%q) = %q, %v; want %q", key, got, err, value)
	}
}

func wantAbsent(t testing.TB, db *DB, key string) {
	t.Helper()
	if got, err := db.Get(nil, []byte(key), Block); !errors.Is(err, ErrNotFound) {
		t.Fatalf("Get(%q) = %q, %v; want ErrNotFound", key, got, err)
	}
}

func TestFirstSteps(t *testing.T) {
	o := testOptions(t, hostDisk(t))
	db := mustOpen(t, o)
	put(t, db, "a", "1")
	b := NewBatch()
	b.Put([]byte("b"), []byte("2"))
	b.Delete([]byte("a"))
	b.Note([]byte("note"))
	if err := db.Apply(b, NoWait); err != nil {
		t.Fatal(err)
	}
	wantGet(t, db, "b", "2")
	wantAbsent(t, db, "a")
	if err := db.Barrier(); err != nil {
		t.Fatal(err)
	}
	mustClose(t, db)

	var notes []string
	o.ReplayNote = func(n []byte) error { notes = append(notes, string(n)); return nil }
	db = mustOpen(t, o)
	if len(notes) != 1 || notes[0] != "note" {
		t.Fatalf("notes %q", notes)
	}
	wantGet(t, db, "b", "2")
	wantAbsent(t, db, "a")
	if err := db.Flush(); err != nil {
		t.Fatal(err)
	}
	wantGet(t, db, "b", "2")
	mustClose(t, db)
	db = mustOpen(t, o)
	wantGet(t, db, "b", "2")
	mustClose(t, db)
}

func TestManyKeysThroughAllLevels(t *testing.T) {
	o := testOptions(t, hostDisk(t))
	db := mustOpen(t, o)
	const n = 20000
	value := bytes.Repeat([]byte("v"), 40)
	for i := range n {
		b := NewBatch()
		b.Put(fmt.Appendf(nil, "key%06d", (i*7919)%n), fmt.Appendf(value[:40:40], "%d", i))
		if err := db.Apply(b, Block); err != nil {
			t.Fatal(err)
		}
	}
	check := func() {
		t.Helper()
		for i := range n {
			wantGet(t, db, fmt.Sprintf("key%06d", (i*7919)%n), fmt.Sprintf("%s%d", value, i))
		}
		it := db.NewIter(IterOptions{})
		defer it.Close()
		count := 0
		for ok := it.First(); ok; ok = it.Next() {
			if want := fmt.Sprintf("key%06d", count); string(it.Key()) != want {
				t.Fatalf("key %q, want %q", it.Key(), want)
			}
			count++
		}
		if it.Err() != nil || count != n {
			t.Fatalf("%d keys, %v", count, it.Err())
		}
		for ok := it.Last(); ok; ok = it.Prev() {
			count--
			if want := fmt.Sprintf("key%06d", count); string(it.Key()) != want {
				t.Fatalf("key %q, want %q", it.Key(), want)
			}
		}
		if it.Err() != nil || count != 0 {
			t.Fatalf("%d keys left, %v", count, it.Err())
		}
	}
	check()
	db.WaitIdle()
	t.Logf("%+v", db.Stats())
	check()
	mustClose(t, db)
	db = mustOpen(t, o)
	check()
	if err := db.CompactRange(nil, nil); err != nil {
		t.Fatal(err)
	}
	check()
	db.WaitIdle()
	t.Logf("%+v", db.Stats())
	mustClose(t, db)
}
