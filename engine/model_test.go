package engine

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"prismfs/ordered"
	"prismfs/uring/simdisk"
)

// seededRand returns a generator and prints its seed, which replays the test.
func seededRand(t testing.TB, seed uint64) *rand.Rand {
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 1))
}

// model is what a store should hold.
type model map[string]string

// counterKey holds the number of batches applied, so that a recovered store
// tells which state it claims to be in.
const counterKey = "\x00n"

// randomBatch changes m and returns the batch that does the same to a store.
func randomBatch(rng *rand.Rand, m model, n int) *Batch {
	b := NewBatch()
	b.Put([]byte(counterKey), fmt.Append(nil, n))
	m[counterKey] = fmt.Sprint(n)
	for range rng.IntN(6) {
		key := fmt.Sprintf("k%03d", rng.IntN(300))
		if rng.IntN(3) == 0 {
			b.Delete([]byte(key))
			delete(m, key)
		} else {
			value := fmt.Sprintf("%d-%0*d", n, rng.IntN(200), 0)
			b.Put([]byte(key), []byte(value))
			m[key] = value
		}
	}
	if rng.IntN(4) == 0 {
		b.Note(fmt.Append(nil, n))
	}
	return b
}

// content reads all that a store holds, forwards, and checks that it reads the
// same backwards and key by key.
func content(t testing.TB, db *DB, snap *Snapshot) model {
	t.Helper()
	it := db.NewIter(IterOptions{Snapshot: snap})
	defer it.Close()
	m := model{}
	var keys []string
	for ok := it.First(); ok; ok = it.Next() {
		m[string(it.Key())] = string(it.Value())
		keys = append(keys, string(it.Key()))
	}
	if err := it.Err(); err != nil {
		t.Fatal(err)
	}
	if !slices.IsSorted(keys) {
		t.Fatalf("keys out of order: %q", keys)
	}
	i := len(keys)
	for ok := it.Last(); ok; ok = it.Prev() {
		if i--; i < 0 || keys[i] != string(it.Key()) || m[keys[i]] != string(it.Value()) {
			t.Fatalf("backwards at %d: %q = %q", i, it.Key(), it.Value())
		}
	}
	if err := it.Err(); err != nil || i != 0 {
		t.Fatalf("backwards: %d keys missing, %v", i, err)
	}
	return m
}

func wantContent(t testing.TB, got, want model, what string) {
	t.Helper()
	if maps.Equal(got, want) {
		return
	}
	for k, v := range want {
		if got[k] != v {
			t.Errorf("%s: %q is %.40q, want %.40q", what, k, got[k], v)
		}
	}
	for k, v := range got {
		if _, ok := want[k]; !ok {
			t.Errorf("%s: %q is %.40q, want nothing", what, k, v)
		}
	}
	t.FailNow()
}

func wantClean(t testing.TB, db *DB) {
	t.Helper()
	if err := db.Check(func(problem error) { t.Errorf("check: %v", problem) }); err != nil {
		t.Fatal(err)
	}
	if t.Failed() {
		t.FailNow()
	}
}

// TestModel drives a store and a map with the same random operations, with
// restarts, and compares them through every way of reading.
func TestModel(t *testing.T) {
	for _, profile := range []ordered.Profile{ordered.Default, ordered.Strict} {
		t.Run([]string{"default", "strict"}[profile], func(t *testing.T) {
			rng := seededRand(t, 0)
			o := testOptions(t, simdisk.New(1))
			o.Profile = profile
			o.MemTableSize = minMemTableSize
			o.Codec = Codec(rng.IntN(2))
			db := mustOpen(t, o)
			defer func() { db.Close() }()
			type pinned struct {
				s *Snapshot
				m model
			}
			m := model{}
			var snaps []pinned
			for n := 1; n <= 6000; n++ {
				b := randomBatch(rng, m, n)
				if profile == ordered.Strict {
					b = dropNotes(b)
				}
				if err := db.Apply(b, NoWait); errors.Is(err, ErrWouldBlock) {
					err = db.Apply(b, Block)
					if err != nil {
						t.Fatal(err)
					}
				} else if err != nil {
					t.Fatal(err)
				}
				switch p := rng.IntN(1000); {
				case p < 100:
					key := fmt.Sprintf("k%03d", rng.IntN(300))
					got, err := db.Get([]byte("x"), []byte(key), Block)
					want, ok := m[key]
					if ok && (err != nil || string(got) != "x"+want) || !ok && !errors.Is(err, ErrNotFound) {
						t.Fatalf("Get(%q) = %q, %v; want %q", key, got, err, want)
					}
				case p < 120:
					for range 20 {
						checkWalk(t, rng, db, m)
					}
				case p < 125:
					wantContent(t, content(t, db, nil), m, "all")
				case p < 128 && len(snaps) < 4:
					snaps = append(snaps, pinned{db.NewSnapshot(), maps.Clone(m)})
				case p < 134 && len(snaps) > 0:
					i := rng.IntN(len(snaps))
					wantContent(t, content(t, db, snaps[i].s), snaps[i].m, "snapshot")
					if rng.IntN(2) == 0 {
						snaps[i].s.Release()
						snaps = slices.Delete(snaps, i, i+1)
					}
				case p < 136:
					if err := db.Flush(); err != nil {
						t.Fatal(err)
					}
				case p < 138:
					lo, hi := randomRange(rng)
					if err := db.CompactRange(lo, hi); err != nil {
						t.Fatal(err)
					}
				case p < 140:
					wantClean(t, db)
				case p < 143:
					for _, s := range snaps {
						s.s.Release()
					}
					snaps = nil
					mustClose(t, db)
					db = mustOpen(t, o)
					wantContent(t, content(t, db, nil), m, "reopened")
				}
			}
			for _, s := range snaps {
				wantContent(t, content(t, db, s.s), s.m, "snapshot at the end")
				s.s.Release()
			}
			db.WaitIdle()
			wantClean(t, db)
			wantContent(t, content(t, db, nil), m, "at the end")
		})
	}
}

func dropNotes(b *Batch) *Batch {
	out := NewBatch()
	for r := b.Reader(); r.Next(); {
		switch r.Kind() {
		case KindSet:
			out.Put(r.Key(), r.Value())
		case KindDelete:
			out.Delete(r.Key())
		}
	}
	return out
}

// randomRange returns bounds in order, either of which may be nil.
func randomRange(rng *rand.Rand) (lo, hi []byte) {
	a, b := rng.IntN(300), rng.IntN(300)
	if a > b {
		a, b = b, a
	}
	if rng.IntN(4) != 0 {
		lo = fmt.Appendf(nil, "k%03d", a)
	}
	if rng.IntN(4) != 0 {
		hi = fmt.Appendf(nil, "k%03d", b)
	}
	return lo, hi
}

// checkWalk moves an iterator with random bounds at random and compares it to
// the sorted keys of m.
func checkWalk(t *testing.T, rng *rand.Rand, db *DB, m model) {
	t.Helper()
	lower, upper := randomRange(rng)
	var keys []string
	for k := range m {
		if (lower == nil || k >= string(lower)) && (upper == nil || k < string(upper)) {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	it := db.NewIter(IterOptions{Lower: lower, Upper: upper})
	defer it.Close()
	i := -1 // index of the current key
	for range 60 {
		var ok bool
		var step string
		op := rng.IntN(6)
		if op >= 4 && (i < 0 || i >= len(keys)) {
			op = rng.IntN(4)
		}
		switch op {
		case 0:
			step, ok, i = "First", it.First(), 0
		case 1:
			step, ok, i = "Last", it.Last(), len(keys)-1
		case 2:
			k := fmt.Sprintf("k%03d", rng.IntN(310))
			step, ok = "SeekGE "+k, it.SeekGE([]byte(k))
			i, _ = slices.BinarySearch(keys, k)
		case 3:
			k := fmt.Sprintf("k%03d", rng.IntN(310))
			step, ok = "SeekLT "+k, it.SeekLT([]byte(k))
			i, _ = slices.BinarySearch(keys, k)
			i--
		case 4:
			step, ok = "Next", it.Next()
			i++
		case 5:
			step, ok = "Prev", it.Prev()
			i--
		}
		want := i >= 0 && i < len(keys)
		if err := it.Err(); err != nil || ok != want || ok != it.Valid() {
			t.Fatalf("[%q,%q) %s: %v, %v; want %v", lower, upper, step, ok, err, want)
		}
		if ok && (string(it.Key()) != keys[i] || string(it.Value()) != m[keys[i]]) {
			t.Fatalf("[%q,%q) %s: %q = %.40q; want %q = %.40q", lower, upper, step, it.Key(), it.Value(), keys[i], m[keys[i]])
		}
	}
}

// TestIteratorsUnderWrites: an iterator and a snapshot show one state whatever
// is written, flushed and compacted meanwhile. Every state has all keys with
// the same value.
func TestIteratorsUnderWrites(t *testing.T) {
	o := testOptions(t, simdisk.New(2))
	o.MemTableSize = minMemTableSize
	db := mustOpen(t, o)
	defer mustClose(t, db)
	const keys = 40
	write := func(n int) {
		b := NewBatch()
		for k := range keys {
			b.Put(fmt.Appendf(nil, "key%02d", k), fmt.Appendf(nil, "%08d", n))
		}
		if err := db.Apply(b, Block); err != nil {
			t.Error(err)
		}
	}
	write(0)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for n := 1; n <= 700; n++ {
			write(n)
		}
	}()
	running := func() bool {
		select {
		case <-done:
			return false
		default:
			return true
		}
	}
	for round := 0; running(); round++ {
		var s *Snapshot
		if round%2 == 0 {
			s = db.NewSnapshot()
		}
		it := db.NewIter(IterOptions{Snapshot: s})
		var value []byte
		n := 0
		check := func() {
			if value == nil {
				value = bytes.Clone(it.Value())
			}
			if !bytes.Equal(it.Value(), value) {
				t.Fatalf("round %d: %q is %q, others %q", round, it.Key(), it.Value(), value)
			}
			n++
		}
		for ok := it.First(); ok; ok = it.Next() {
			check()
		}
		for ok := it.Last(); ok; ok = it.Prev() {
			check()
		}
		if err := it.Err(); err != nil || n != 2*keys {
			t.Fatalf("round %d: %d keys, %v", round, n, err)
		}
		it.Close()
		if s != nil {
			s.Release()
		}
		got, err := db.Get(nil, []byte("key07"), Block)
		if err != nil || bytes.Compare(got, value) < 0 {
			t.Fatalf("round %d: Get gave %q, %v after an iterator showed %q", round, got, err, value)
		}
	}
	if s := db.Stats(); s.Flushes < 10 || s.Compactions == 0 {
		t.Fatalf("too little happened: %+v", s)
	}
	db.WaitIdle()
	wantClean(t, db)
}

// simOptions are testOptions over a simulated disk.
func simOptions(t testing.TB, d *simdisk.Disk) Options {
	o := testOptions(t, d)
	o.MemTableSize = minMemTableSize
	return o
}

// TestTurnAtLowerBound: an iterator that turns round at its lower bound stands
// on an entry before it, in whose place a level has a table that lies wholly
// out of bounds. The tables behind that one must not be lost.
func TestTurnAtLowerBound(t *testing.T) {
	db := mustOpen(t, simOptions(t, simdisk.New(50)))
	defer mustClose(t, db)
	for _, keys := range [][2]string{{"b", "gg"}, {"k", "m"}} {
		put(t, db, keys[0], "1")
		put(t, db, keys[1], "2")
		if err := db.CompactRange([]byte(keys[0]), []byte(keys[1])); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(db.view.Load().ver.levels[1]); n != 2 {
		t.Fatalf("%d tables in level 1", n)
	}
	put(t, db, "g", "3")
	it := db.NewIter(IterOptions{Lower: []byte("h")})
	defer it.Close()
	if !it.Last() || !it.Prev() || string(it.Key()) != "k" {
		t.Fatalf("not on k: %v", it.Err())
	}
	if !it.Next() || string(it.Key()) != "m" {
		t.Fatalf("Next did not find m: %v", it.Err())
	}
}
