package engine

import (
	"fmt"
	"maps"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"prismfs/uring/simdisk"
)

// crashPoint is a disk as a power cut left it, and what it must hold.
type crashPoint struct {
	disk *simdisk.Disk
	op   simdisk.Op
	low  int // batches known to be durable
	high int // batches that had been given to Apply
}

// TestCrash cuts the power at random operations of a random history, with every
// fate of the unsynced writes. The store must come back with a prefix of the
// batches that holds at least those before the last barrier, and from there on
// must neither lose nor revive anything.
func TestCrash(t *testing.T) {
	rng := seededRand(t, 0)
	for round := range 6 {
		seed := rng.Uint64()
		d := simdisk.New(seed)
		o := simOptions(t, d)
		o.Logf = func(string, ...any) {}

		var low, high atomic.Int64
		var mu sync.Mutex
		var points []crashPoint
		crng := seededRand(t, seed|1)
		d.OnOp(func(op simdisk.Op) error {
			mu.Lock()
			defer mu.Unlock()
			if op.Change == 0 || crng.IntN(4) != 0 || len(points) >= 150 {
				return nil
			}
			l := int(low.Load()) // before the disk is cloned
			points = append(points, crashPoint{d.Crash(crng, simdisk.Random), op, l, 0})
			points[len(points)-1].high = int(high.Load()) // after it
			return nil
		})

		states := []model{{}}
		db := mustOpen(t, o)
		m := model{}
		for n := 1; n <= 700; n++ {
			b := randomBatch(rng, m, n)
			states = append(states, maps.Clone(m))
			high.Store(int64(n))
			if err := db.Apply(b, Block); err != nil {
				t.Fatal(err)
			}
			switch p := rng.IntN(200); {
			case p < 10:
				if err := db.Barrier(); err != nil {
					t.Fatal(err)
				}
				low.Store(int64(n))
			case p == 10:
				if err := db.Flush(); err != nil {
					t.Fatal(err)
				}
				low.Store(int64(n))
			case p == 11:
				if err := db.CompactRange(nil, nil); err != nil {
					t.Fatal(err)
				}
				low.Store(int64(n))
			case p == 12:
				mustClose(t, db)
				low.Store(int64(n))
				db = mustOpen(t, o)
			}
		}
		mustClose(t, db)
		d.OnOp(nil)
		for i, p := range points {
			what := fmt.Sprintf("round %d crash %d before %s %s at %d", round, i, p.op.Kind, p.op.Name, p.op.Off)
			checkCrash(t, p, states, what)
		}
		t.Logf("round %d: %d crashes", round, len(points))
	}
}

// checkCrash recovers a store, writes on, cuts the power again and recovers.
func checkCrash(t *testing.T, p crashPoint, states []model, what string) {
	t.Helper()
	o := simOptions(t, p.disk)
	o.Logf = func(string, ...any) {}
	db, err := Open(o)
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	got := content(t, db, nil)
	n := 0
	if s, ok := got[counterKey]; ok {
		if n, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	if n < p.low || n > p.high {
		t.Fatalf("%s: %d batches recovered, want %d to %d", what, n, p.low, p.high)
	}
	wantContent(t, got, states[n], what)
	wantClean(t, db)

	put(t, db, "later", "1")
	if err := db.Barrier(); err != nil {
		t.Fatal(err)
	}
	again := p.disk.Crash(nil, simdisk.Random)
	mustClose(t, db)
	o.Disk = again
	if db, err = Open(o); err != nil {
		t.Fatalf("%s, second recovery: %v", what, err)
	}
	want := maps.Clone(states[n])
	want["later"] = "1"
	wantContent(t, content(t, db, nil), want, what+", second recovery")
	wantClean(t, db)
	mustClose(t, db)
}

// TestCrashAtEveryOperation does the same at every single operation of a small
// history that has a flush, a compaction and a reopening.
func TestCrashAtEveryOperation(t *testing.T) {
	for _, mode := range []simdisk.CrashMode{simdisk.KeepAll, simdisk.LoseAll, simdisk.Subset, simdisk.Torn} {
		d := simdisk.New(uint64(mode))
		rng := seededRand(t, uint64(mode)+100)
		crng := seededRand(t, uint64(mode)+200)
		o := simOptions(t, d)
		o.Logf = func(string, ...any) {}
		var low, high atomic.Int64
		var mu sync.Mutex
		var points []crashPoint
		d.OnOp(func(op simdisk.Op) error {
			mu.Lock()
			defer mu.Unlock()
			if op.Change != 0 {
				l := int(low.Load())
				points = append(points, crashPoint{d.Crash(crng, mode), op, l, 0})
				points[len(points)-1].high = int(high.Load())
			}
			return nil
		})
		m := model{}
		states := []model{{}}
		n := 0
		db := mustOpen(t, o)
		apply := func(count int, sync func() error) {
			t.Helper()
			for range count {
				n++
				b := randomBatch(rng, m, n)
				states = append(states, maps.Clone(m))
				high.Store(int64(n))
				if err := db.Apply(b, Block); err != nil {
					t.Fatal(err)
				}
			}
			if err := sync(); err != nil {
				t.Fatal(err)
			}
			low.Store(int64(n))
		}
		apply(5, db.Barrier)
		apply(5, db.Flush)
		apply(5, db.Flush)
		apply(5, db.Close)
		db = mustOpen(t, o)
		apply(3, db.Barrier)
		apply(3, func() error { return db.CompactRange(nil, nil) })
		apply(3, db.Close)
		d.OnOp(nil)
		for i, p := range points {
			checkCrash(t, p, states, fmt.Sprintf("%s, crash %d before %s %s at %d", mode, i, p.op.Kind, p.op.Name, p.op.Off))
		}
		t.Logf("%s: %d operations", mode, len(points))
	}
}

// TestPlantedFaults: the tests above can fail. A disk that forgets what was
// synced loses what a barrier had promised.
func TestPlantedFaults(t *testing.T) {
	for _, plant := range []func(d *simdisk.Disk){
		func(d *simdisk.Disk) { d.IgnoreDatasync(true) },
		func(d *simdisk.Disk) { d.IgnoreSyncDir(true) },
	} {
		d := simdisk.New(20)
		o := simOptions(t, d)
		db := mustOpen(t, o)
		mustClose(t, db)
		plant(d)
		db = mustOpen(t, o)
		put(t, db, "a", "1")
		if err := db.Barrier(); err != nil {
			t.Fatal(err)
		}
		o.Disk = d.Crash(nil, simdisk.LoseAll)
		mustClose(t, db)
		db, err := Open(o)
		if err != nil {
			continue
		}
		if _, err := db.Get(nil, []byte("a"), Block); err == nil {
			t.Fatal("the planted fault did no harm")
		}
		mustClose(t, db)
	}
}
