package engine

import (
	"errors"
	"fmt"
	"maps"
	"syscall"
	"testing"

	"prismfs/ordered"
	"prismfs/uring"
	"prismfs/uring/simdisk"
)

// history runs a short life of a store on d and stops at the first error.
// low and high are what a recovery must find; states[n] is the content after n
// batches.
type history struct {
	low, high int
	states    []model
}

func (h *history) run(t *testing.T, d uring.Disk, seed uint64) error {
	rng := seededRand(t, seed)
	o := testOptions(t, d)
	o.MemTableSize = minMemTableSize
	o.Logf = func(string, ...any) {}
	m := model{}
	h.states = []model{{}}
	var db *DB
	step := func(count int, sync func(db *DB) error) error {
		if db == nil {
			var err error
			if db, err = Open(o); err != nil {
				return err
			}
		}
		for range count {
			n := len(h.states)
			b := randomBatch(rng, m, n)
			h.states = append(h.states, maps.Clone(m))
			h.high = n
			if err := db.Apply(b, Block); err != nil {
				return err
			}
		}
		if err := sync(db); err != nil {
			return err
		}
		h.low = len(h.states) - 1
		return nil
	}
	reopen := func(db2 *DB) error {
		db = nil
		return db2.Close()
	}
	for _, s := range []struct {
		count int
		sync  func(*DB) error
	}{
		{5, (*DB).Barrier}, {5, (*DB).Flush}, {20, (*DB).Barrier}, {5, (*DB).Flush}, {5, reopen},
		{3, (*DB).Barrier}, {3, func(db *DB) error { return db.CompactRange(nil, nil) }}, {3, reopen},
	} {
		if err := step(s.count, s.sync); err != nil {
			if db != nil {
				// Nothing may succeed silently from here on, if the store
				// has turned read-only.
				if errors.Is(err, ErrReadOnly) {
					if err := db.Barrier(); err == nil {
						t.Errorf("a barrier succeeded after %v", err)
					}
					b := NewBatch()
					b.Put([]byte("x"), nil)
					if err := db.Apply(b, Block); !errors.Is(err, ErrReadOnly) {
						t.Errorf("a write got %v, want ErrReadOnly", err)
					}
					if _, err := db.Get(nil, []byte(counterKey), Block); err != nil && !errors.Is(err, ErrNotFound) {
						t.Errorf("a read got %v in a read-only store", err)
					}
				}
				db.Close()
			}
			return err
		}
	}
	if db != nil {
		return db.Close()
	}
	return nil
}

// TestFaultAtEveryOperation fails operation i = 1, 2, ... of a history until
// one runs untouched. Whatever failed, what had been made durable must be
// there after a power cut, and nothing that was not given to Apply.
func TestFaultAtEveryOperation(t *testing.T) {
	for _, injected := range []error{syscall.EIO, syscall.ENOSPC} {
		failures := 0
		for i := 1; ; i++ {
			d := simdisk.New(uint64(i))
			d.FailAt(i, injected)
			h := &history{}
			err := h.run(t, d, 42)
			if err != nil {
				failures++
				// A sync that failed is final, even for want of space.
				if !errors.Is(err, injected) && !(injected == syscall.ENOSPC && errors.Is(err, ordered.ErrFailed)) {
					t.Fatalf("operation %d failed with %v, the history with %v", i, injected, err)
				}
			}
			if injected == syscall.ENOSPC && errors.Is(err, ErrReadOnly) && !errors.Is(err, ErrNoSpace) && !errors.Is(err, ordered.ErrFailed) {
				t.Fatalf("operation %d: %v", i, err)
			}
			d.FailAt(i, nil)
			all, _ := d.Ops()
			for _, mode := range []simdisk.CrashMode{simdisk.KeepAll, simdisk.LoseAll, simdisk.Subset} {
				p := crashPoint{disk: d.Crash(nil, mode), low: h.low, high: h.high}
				checkCrash(t, p, h.states, fmt.Sprintf("%v at operation %d, %s", injected, i, mode))
			}
			if all < i {
				t.Logf("%v: %d operations, %d made the history fail", injected, i-1, failures)
				break
			}
		}
	}
}

// TestCompactionReadErrorIsNotFinal: a table that can't be read stops neither
// writes nor reads of the others; when level 0 is full it has to.
func TestCompactionReadErrorIsNotFinal(t *testing.T) {
	d := simdisk.New(30)
	o := simOptions(t, d)
	db := mustOpen(t, o)
	for i := range 2 {
		put(t, db, "key0", "value")
		put(t, db, fmt.Sprint("key", 1+i), "value")
		if err := db.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	bad := db.view.Load().ver.levels[0][0]
	if err := d.Corrupt(tableFileName("db", bad.num), 3, 0x40); err != nil {
		t.Fatal(err)
	}
	var err error
	n := 0
	for ; n < 100 && err == nil; n++ {
		if err = db.Apply(putBatch("key1", fmt.Sprint(n)), Block); err == nil {
			wantGet(t, db, "key1", fmt.Sprint(n))
			err = db.Flush()
		}
	}
	if n < l0Stop-3 || !errors.Is(err, ErrReadOnly) || !errors.Is(err, ErrCorrupt) {
		t.Fatalf("after %d flushes: %v", n, err)
	}
	if db.Stats().CompactionReadErrors != 1 {
		t.Fatalf("%+v", db.Stats())
	}
	if _, err := db.Get(nil, []byte("key0"), Block); !errors.Is(err, ErrCorrupt) {
		t.Fatalf("got %v", err)
	}
	if _, err := db.Get(nil, []byte("key1"), Block); err != nil {
		t.Fatal(err)
	}
	problems := 0
	if err := db.Check(func(error) { problems++ }); err != nil || problems == 0 {
		t.Fatalf("%d problems, %v", problems, err)
	}
	db.Close()
}
