package engine

import (
	"fmt"
	"strings"
	"testing"

	"prismfs/uring/simdisk"
)

// TestRepair: without CURRENT and manifest everything comes back from tables
// and logs; damage costs what lies behind it, is reported, and nothing else.
func TestRepair(t *testing.T) {
	build := func(seed uint64) (*simdisk.Disk, Options, model) {
		d := simdisk.New(seed)
		o := simOptions(t, d)
		db := mustOpen(t, o)
		m := model{}
		rng := seededRand(t, seed)
		for n := 1; n <= 2000; n++ {
			if err := db.Apply(randomBatch(rng, m, n), Block); err != nil {
				t.Fatal(err)
			}
		}
		db.WaitIdle()
		mustClose(t, db)
		return d, o, m
	}

	d, o, m := build(40)
	names, _ := d.List("db")
	for _, name := range names {
		if kind, _ := parseFileName(name); kind == manifestFile || kind == currentFile {
			if err := d.Remove("db/" + name); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := d.SyncDir("db"); err != nil { // the removal of old tables as well
		t.Fatal(err)
	}
	var cuts []*simdisk.Disk
	crng := seededRand(t, 41)
	d.OnOp(func(op simdisk.Op) error {
		if op.Change > 0 {
			cuts = append(cuts, d.Crash(crng, simdisk.Random))
		}
		return nil
	})
	lost, err := Repair(o)
	d.OnOp(nil)
	if err != nil || len(lost) != 0 {
		t.Fatalf("lost %q, %v", lost, err)
	}
	db := mustOpen(t, o)
	wantContent(t, content(t, db, nil), m, "repaired")
	wantClean(t, db)
	put(t, db, "new", "1")
	mustClose(t, db)
	for i, c := range cuts {
		o := simOptions(t, c)
		if _, err := Repair(o); err != nil {
			t.Fatal(err)
		}
		db := mustOpen(t, o)
		wantContent(t, content(t, db, nil), m, fmt.Sprintf("repair cut at %d and repeated", i))
		mustClose(t, db)
	}

	// One bad table.
	d, o, m = build(42)
	names, _ = d.List("db")
	bad := ""
	for _, name := range names {
		if kind, _ := parseFileName(name); kind == tableFile {
			bad = name
		}
	}
	if err := d.Corrupt("db/"+bad, 5, 1); err != nil {
		t.Fatal(err)
	}
	lost, err = Repair(o)
	if err != nil || len(lost) != 1 || !strings.Contains(lost[0], bad) {
		t.Fatalf("lost %q, %v", lost, err)
	}
	db = mustOpen(t, o)
	wantClean(t, db)
	wantGet(t, db, counterKey, m[counterKey])
	mustClose(t, db)
}
