package engine

import (
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"testing"

	"prismfs/uring/simdisk"
)

// TestConcurrentWriters cuts the power while many write and sync. OnCommit gives
// the order in which the batches took effect; what comes back must be a prefix
// of it that holds whatever a barrier had covered.
func TestConcurrentWriters(t *testing.T) {
	const writers, each = 8, 150
	d := simdisk.New(60)
	crng := seededRand(t, 0)
	o := simOptions(t, d)
	o.Logf = func(string, ...any) {}
	group := 0
	o.GroupNote = func(dst []byte) []byte { group++; return fmt.Append(dst, group) }

	var low, high atomic.Int64
	var mu sync.Mutex
	var points []crashPoint
	d.OnOp(func(op simdisk.Op) error {
		mu.Lock()
		defer mu.Unlock()
		if op.Change != 0 && crng.IntN(8) == 0 && len(points) < 120 {
			l := int(low.Load())
			points = append(points, crashPoint{d.Crash(crng, simdisk.Random), op, l, 0})
			// One batch may be in the log already and not be counted yet.
			points[len(points)-1].high = int(high.Load()) + 1
		}
		return nil
	})

	db := mustOpen(t, o)
	m := model{}
	states := []model{{}} // stored on the write lane
	onCommit := func(b *Batch) {
		for r := b.Reader(); r.Next(); {
			m[string(r.Key())] = string(r.Value())
		}
		states = append(states, maps.Clone(m))
		high.Store(int64(len(states) - 1))
	}
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			b := NewBatch()
			b.OnCommit = onCommit
			for i := range each {
				b.Reset()
				b.Put(fmt.Appendf(nil, "w%d", w), fmt.Append(nil, i))
				b.Put(fmt.Appendf(nil, "w%d-%d", w, i%10), fmt.Appendf(nil, "%0100d", i))
				if err := db.Apply(b, Block); err != nil {
					t.Error(err)
					return
				}
				if i%(w+3) == 0 {
					n := high.Load() // at least what this writer has applied
					if err := db.Barrier(); err != nil {
						t.Error(err)
						return
					}
					for {
						l := low.Load()
						if l >= n || low.CompareAndSwap(l, n) {
							break
						}
					}
				}
			}
		})
	}
	wg.Wait()
	mustClose(t, db)
	d.OnOp(nil)
	if len(states) != writers*each+1 {
		t.Fatalf("%d batches were committed", len(states)-1)
	}
	if group < writers*each {
		t.Fatalf("%d group notes", group)
	}
	for i, p := range points {
		o := simOptions(t, p.disk)
		o.Logf = func(string, ...any) {}
		notes := 0
		o.ReplayNote = func([]byte) error { notes++; return nil }
		db := mustOpen(t, o)
		got := content(t, db, nil)
		n := p.low
		p.high = min(p.high, len(states)-1)
		for n <= p.high && !maps.Equal(got, states[n]) {
			n++
		}
		if n > p.high {
			t.Fatalf("crash %d before %s %s: no state from %d to %d matches", i, p.op.Kind, p.op.Name, p.low, p.high)
		}
		if uint64(2*n) != db.LastSeq() {
			t.Fatalf("crash %d: state %d with sequence number %d", i, n, db.LastSeq())
		}
		wantClean(t, db)
		mustClose(t, db)
	}
	t.Logf("%d crashes", len(points))
}

// TestNotesDoNotFillTheDisk: a stream of notes alone doesn't make the logs grow
// without bound.
func TestNotesDoNotFillTheDisk(t *testing.T) {
	d := simdisk.New(61)
	o := simOptions(t, d)
	db := mustOpen(t, o)
	put(t, db, "a", "1")
	note := make([]byte, 4<<10)
	for range 500 {
		if err := db.Note(note); err != nil {
			t.Fatal(err)
		}
		if err := db.Barrier(); err != nil {
			t.Fatal(err)
		}
	}
	db.WaitIdle()
	if s := db.Stats(); s.LogBytes > 9*db.walSize() {
		t.Fatalf("%d bytes of log", s.LogBytes)
	}
	seq := db.LastSeq()
	mustClose(t, db)
	db = mustOpen(t, o)
	wantGet(t, db, "a", "1")
	if db.LastSeq() != seq {
		t.Fatalf("sequence %d, was %d", db.LastSeq(), seq)
	}
	wantClean(t, db)
	mustClose(t, db)
}

// TestManyReadersWhileTablesGo: gets and iterators beside compactions that
// delete the tables under them, with a table cache too small for them all.
func TestManyReadersWhileTablesGo(t *testing.T) {
	o := simOptions(t, simdisk.New(62))
	o.MaxOpenTables = 4
	o.BlockCache = 1 << 20
	db := mustOpen(t, o)
	const keys = 500
	for i := range keys {
		put(t, db, fmt.Sprintf("k%03d", i), "0")
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for r := range 4 {
		wg.Go(func() {
			var last [keys]int
			for i := r; ; i += 7 {
				select {
				case <-stop:
					return
				default:
				}
				k := i % keys
				got, err := db.Get(nil, fmt.Appendf(nil, "k%03d", k), Block)
				n := 0
				fmt.Sscan(string(got), &n)
				if err != nil || n < last[k] {
					t.Errorf("k%03d is %q, %v after %d", k, got, err, last[k])
					return
				}
				last[k] = n
				if i%50 == 0 {
					it := db.NewIter(IterOptions{Lower: fmt.Appendf(nil, "k%03d", k)})
					seen := 0
					for ok := it.First(); ok; ok = it.Next() {
						seen++
					}
					if it.Err() != nil || seen != keys-k {
						t.Errorf("%d keys from %d on, %v", seen, k, it.Err())
					}
					it.Close()
				}
			}
		})
	}
	for n := 1; n <= 15; n++ {
		for i := range keys {
			put(t, db, fmt.Sprintf("k%03d", i), fmt.Sprintf("%d %040d", n, 0))
		}
		if err := db.CompactRange(nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	wg.Wait()
	db.WaitIdle()
	wantClean(t, db)
	mustClose(t, db)
}
