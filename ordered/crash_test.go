package ordered_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"prismfs/ordered"
	"prismfs/uring/simdisk"
)

// Goal: after a power cut a log holds a prefix of what was appended, with all
// that a returned Sync covers, and is not taken for damaged.
// Method: records carry their index; at every change of the disk, crash copies
// in a random mode are read back.
func TestLogCrash(t *testing.T) {
	for _, c := range []struct {
		name     string
		profile  ordered.Profile
		recycle  bool
		prealloc int64
	}{
		{"default", ordered.Default, false, 1 << 20},
		{"default extending", ordered.Default, false, 128 << 10},
		{"default growing", ordered.Default, false, 0},
		{"default recycled", ordered.Default, true, 1 << 20},
		{"strict", ordered.Strict, false, 1 << 20},
	} {
		t.Run(c.name, func(t *testing.T) {
			for seed := range uint64(4) {
				logCrashRun(t, seed, c.profile, c.recycle, c.prealloc)
			}
		})
	}
}

const logCrashRecords = 60

// numbered is record i: its index and a length of bytes that follow from it.
func numbered(i int) []byte {
	rng := rand.New(rand.NewPCG(uint64(i), 7))
	n := 8 + rng.IntN(400)
	if i%17 == 3 {
		n = 8 + rng.IntN(70000)
	}
	b := randomBytes(rng, n)
	binary.LittleEndian.PutUint64(b, uint64(i))
	return b
}

func logCrashRun(t *testing.T, seed uint64, profile ordered.Profile, recycle bool, prealloc int64) {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 1))
	crashes := rand.New(rand.NewPCG(seed, 5))
	disk := simdisk.New(seed)
	o := ordered.LogOptions{Disk: disk, Name: "2.log", Number: 2, Profile: profile, Preallocate: prealloc}
	if recycle {
		old, err := ordered.CreateLog(ordered.LogOptions{Disk: disk, Name: "1.log", Number: 1, Preallocate: prealloc})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 100 {
			old.Append(numbered(i))
		}
		if err := old.Close(); err != nil {
			t.Fatal(err)
		}
		o.Recycle = "1.log"
	}
	l, err := ordered.CreateLog(o)
	if err != nil {
		t.Fatal(err)
	}
	var appended, acked atomic.Int64
	var checking sync.Mutex // the flusher's operations come from its own goroutine
	check := func() {
		checking.Lock()
		defer checking.Unlock()
		atLeast := int(acked.Load())
		after := disk.Crash(crashes, simdisk.Random)
		atMost := int(appended.Load()) + 1 // Append returns before we count it
		n := 0
		res, err := ordered.ReadLog(after, "2.log", 2, profile, func(rec []byte, off int64) error {
			if !bytes.Equal(rec, numbered(n)) {
				return fmt.Errorf("record %d is not what was appended", n)
			}
			n++
			return nil
		})
		if profile == ordered.Strict && errors.Is(err, ordered.ErrCorrupt) && res.Tail == ordered.Damaged {
			err = nil // cannot tell, see ReadLog
		}
		if err != nil {
			t.Errorf("seed %d: after %d records, %d synced: %+v, %v", seed, atMost, atLeast, res, err)
		}
		if n < atLeast || n > atMost {
			t.Errorf("seed %d: %d records read, %d appended, %d synced", seed, n, atMost, atLeast)
		}
	}
	disk.OnOp(func(op simdisk.Op) error {
		if op.Change > 0 && op.Name == "2.log" {
			check()
		}
		return nil
	})
	for i := range logCrashRecords {
		end, err := l.Append(numbered(i))
		if err != nil {
			t.Fatal(err)
		}
		appended.Add(1)
		switch rng.IntN(6) {
		case 0:
			if err := l.Flush(); err != nil {
				t.Fatal(err)
			}
		case 1:
			if err := l.Sync(end); err != nil {
				t.Fatal(err)
			}
			acked.Store(int64(i) + 1)
		}
	}
	disk.OnOp(nil)
	check()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	acked.Store(logCrashRecords)
	check()
}

// Goal: an error of any one operation leaves an honest log.
// Method: fail operation 1, 2, 3 ... until a run meets no failure.
func TestLogFaults(t *testing.T) {
	fault := errors.New("injected")
	for i := 1; ; i++ {
		disk := simdisk.New(uint64(i))
		old, err := ordered.CreateLog(ordered.LogOptions{Disk: disk, Name: "1.log", Number: 1, Preallocate: 256 << 10})
		if err != nil {
			t.Fatal(err)
		}
		if err := old.Close(); err != nil {
			t.Fatal(err)
		}
		before, _ := disk.Ops()
		disk.FailAt(before+i, fault)
		acked, failed := 0, false
		l, err := ordered.CreateLog(ordered.LogOptions{Disk: disk, Name: "2.log", Number: 2, Preallocate: 256 << 10, Recycle: "1.log"})
		if err != nil {
			if !errors.Is(err, fault) {
				t.Fatalf("operation %d: %v", i, err)
			}
			continue
		}
		for n := range 60 {
			end, err := l.Append(numbered(n))
			if err == nil {
				err = l.Sync(end)
			}
			if err != nil {
				if !errors.Is(err, fault) || !errors.Is(err, ordered.ErrFailed) {
					t.Fatalf("operation %d: %v", i, err)
				}
				failed = true
			} else {
				if failed {
					t.Fatalf("operation %d: a failed log works again", i)
				}
				acked = n + 1
			}
		}
		if err := l.Close(); err == nil && failed {
			t.Fatalf("operation %d: closing a failed log succeeds", i)
		} else if err != nil && !errors.Is(err, fault) {
			t.Fatalf("operation %d: %v", i, err)
		}
		after, _ := disk.Ops()
		n := 0
		crashed := disk.Crash(nil, simdisk.LoseAll)
		if _, err := ordered.ReadLog(crashed, "2.log", 2, ordered.Default, func(rec []byte, _ int64) error {
			if !bytes.Equal(rec, numbered(n)) {
				t.Fatalf("operation %d: record %d differs", i, n)
			}
			n++
			return nil
		}); err != nil || n < acked {
			t.Fatalf("operation %d: %d records of %d synced: %v", i, n, acked, err)
		}
		if before+i > after {
			return
		}
	}
}

// Goal: a failed read is an error and never taken for the end.
func TestReadLogReportsReadErrors(t *testing.T) {
	fault := errors.New("injected")
	disk := simdisk.New(1)
	l, err := ordered.CreateLog(ordered.LogOptions{Disk: disk, Name: "1.log", Number: 1, Preallocate: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 60 {
		l.Append(numbered(i))
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	for i := 1; ; i++ {
		before, _ := disk.Ops()
		disk.FailAt(before+i, fault)
		res, err := ordered.ReadLog(disk, "1.log", 1, ordered.Default, func([]byte, int64) error { return nil })
		after, _ := disk.Ops()
		if before+i > after {
			if err != nil || res.Records != 60 {
				t.Fatalf("%+v, %v", res, err)
			}
			return
		}
		if !errors.Is(err, fault) || errors.Is(err, ordered.ErrCorrupt) {
			t.Fatalf("operation %d: %v", i, err)
		}
	}
}

// Goal: after a power cut every extent that a Sync covered verifies, with the
// right bytes, and what is lost is noticed.
func TestDataLogCrash(t *testing.T) {
	for seed := range uint64(8) {
		dataLogCrashRun(t, seed)
	}
}

type written struct {
	e       ordered.Extent
	pos     ordered.Pos
	content []byte
}

func dataLogCrashRun(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 2))
	disk := simdisk.New(seed)
	o := ordered.DataLogOptions{Disk: disk, SegmentSize: 1 << 20, Codec: uint8(seed % 3)}
	var all []written
	for session := range 3 {
		d := openDataLog(t, o)
		if session > 0 {
			if err := d.Seal(); err != nil {
				t.Fatal(err)
			}
		}
		var synced ordered.Pos
		first := len(all)
		for range 40 {
			b := randomBytes(rng, 1+rng.IntN(100<<10))
			if rng.IntN(2) == 0 {
				b = bytes.Repeat(b[:1+len(b)/50], 40)
			}
			e, pos, err := d.Append(7, 0, b, false)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, written{e, pos, b})
			switch rng.IntN(6) {
			case 0:
				if err := d.Flush(); err != nil {
					t.Fatal(err)
				}
			case 1:
				if synced, err = d.Sync(); err != nil || synced != pos {
					t.Fatalf("seed %d: synced to %v, tail %v: %v", seed, synced, pos, err)
				}
			}
		}
		crashed := disk.Crash(rng, simdisk.Random)
		d.Close()
		disk = crashed
		o.Disk = disk
		d = openDataLog(t, o)
		// As a replay does, drop the first that fails and all behind it.
		kept := all[:0]
	replay:
		for i, w := range all {
			err := d.Verify(&w.e)
			switch {
			case err == nil:
				p := make([]byte, len(w.content))
				if err := d.ReadAt(&w.e, 0, p, false); err != nil || !bytes.Equal(p, w.content) {
					t.Fatalf("seed %d: extent %d: wrong bytes pass (%v)", seed, i, err)
				}
				kept = append(kept, w)
			case !errors.Is(err, ordered.ErrCorrupt):
				t.Fatalf("seed %d: extent %d: %v", seed, i, err)
			case i < first || w.pos <= synced:
				t.Fatalf("seed %d: extent %d at %v lost, synced to %v: %v", seed, i, w.pos, synced, err)
			default:
				break replay
			}
		}
		all = kept
		for _, s := range d.Segments() {
			last := uint32(0)
			err := d.Scan(s.Number, func(_ ordered.RecordHeader, e ordered.Extent) error {
				last = e.Off
				return nil
			})
			if err != nil && !errors.Is(err, ordered.ErrCorrupt) {
				t.Fatal(err)
			}
			for _, w := range all {
				if w.e.Seg == s.Number && w.pos <= synced && w.e.Off > last {
					t.Fatalf("seed %d: scan of segment %d ends at %d before the synced %v: %v", seed, s.Number, last, w.pos, err)
				}
			}
		}
		// What recovery accepts must be durable after Seal.
		if err := d.Seal(); err != nil {
			t.Fatal(err)
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		disk = disk.Crash(rng, simdisk.LoseAll)
		o.Disk = disk
	}
}

// Goal: a disk that ignores syncs is found out by Verify.
func TestDataLogNoticesIgnoredSyncs(t *testing.T) {
	disk := simdisk.New(1)
	d := openDataLog(t, ordered.DataLogOptions{Disk: disk})
	if _, _, err := d.Append(1, 0, []byte("a"), false); err != nil {
		t.Fatal(err)
	}
	disk.IgnoreDatasync(true)
	e, _, err := d.Append(1, 0, bytes.Repeat([]byte("lost"), 3000), false)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Sync(); err != nil {
		t.Fatal(err)
	}
	after := disk.Crash(nil, simdisk.LoseAll)
	d.Close()
	d = openDataLog(t, ordered.DataLogOptions{Disk: after, ReadOnly: true})
	defer d.Close()
	if err := d.Verify(&e); !errors.Is(err, ordered.ErrCorrupt) {
		t.Fatalf("Verify = %v", err)
	}
}

// Goal: an error of any one operation leaves an honest data log.
func TestDataLogFaults(t *testing.T) {
	fault := errors.New("injected")
	for i := 1; ; i++ {
		disk := simdisk.New(uint64(i))
		disk.FailAt(i, fault)
		d, err := ordered.OpenDataLog(ordered.DataLogOptions{Disk: disk, SegmentSize: 1 << 20})
		if err != nil {
			if !errors.Is(err, fault) {
				t.Fatalf("operation %d: %v", i, err)
			}
			continue
		}
		var acked, pending []written
		failed := false
		for n := range 14 {
			b := randomBytes(rand.New(rand.NewPCG(uint64(n), 3)), 90<<10)
			e, pos, err := d.Append(1, 0, b, false)
			if err == nil {
				pending = append(pending, written{e, pos, b})
				_, err = d.Sync()
			}
			switch {
			case err == nil && failed:
				t.Fatalf("operation %d: a failed log works again", i)
			case err == nil:
				acked = append(acked, pending...)
				pending = nil
			case !errors.Is(err, fault):
				t.Fatalf("operation %d: %v", i, err)
			case errors.Is(err, ordered.ErrFailed):
				failed = true
			}
			if !failed {
				// Reads go on working.
				p := make([]byte, len(b))
				if err == nil {
					if err := d.ReadAt(&e, 0, p, false); err != nil || !bytes.Equal(p, b) {
						t.Fatalf("operation %d: read: %v", i, err)
					}
				}
			}
		}
		if err := d.Close(); err == nil && failed {
			t.Fatalf("operation %d: closing a failed log succeeds", i)
		} else if err != nil && !errors.Is(err, fault) {
			t.Fatalf("operation %d: %v", i, err)
		}
		ops, _ := disk.Ops()
		after := disk.Crash(nil, simdisk.LoseAll)
		d = openDataLog(t, ordered.DataLogOptions{Disk: after, ReadOnly: true})
		for n, w := range acked {
			if err := d.Verify(&w.e); err != nil {
				t.Fatalf("operation %d: synced extent %d: %v", i, n, err)
			}
		}
		d.Close()
		if i > ops {
			return
		}
	}
}

// Goal: bytes that were only in the redo come back in place, and only those.
func TestRedo(t *testing.T) {
	for _, readOnly := range []bool{false, true} {
		for seed := range uint64(10) {
			rng := rand.New(rand.NewPCG(seed, 4))
			disk := simdisk.New(seed)
			d := openDataLog(t, ordered.DataLogOptions{Disk: disk, SegmentSize: 1 << 20})
			var all []written
			var wal [][]byte
			redone := ordered.Pos(0)
			for range 80 {
				b := randomBytes(rng, 1+rng.IntN(40<<10))
				e, pos, err := d.Append(1, 0, b, false)
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, written{e, pos, b})
				switch rng.IntN(5) {
				case 0:
					redo, upto, ok := d.Undurable(64 << 10)
					if !ok {
						if _, err := d.Sync(); err != nil {
							t.Fatal(err)
						}
						redone = d.Durable()
						break
					}
					if upto != pos {
						t.Fatalf("seed %d: redo up to %v, tail %v", seed, upto, pos)
					}
					n := 0
					for _, r := range redo {
						n += len(r.Data)
					}
					if n > 64<<10 {
						t.Fatalf("seed %d: %d bytes of redo", seed, n)
					}
					wal = append(wal, ordered.AppendRedo(nil, redo))
					d.MarkDurable(upto)
					if redone = upto; d.Durable() != upto {
						t.Fatalf("seed %d: durable %v, want %v", seed, d.Durable(), upto)
					}
					if redo, _, ok := d.Undurable(0); !ok || len(redo) != 0 {
						t.Fatalf("seed %d: %d pieces still undurable", seed, len(redo))
					}
				case 1:
					if err := d.Flush(); err != nil {
						t.Fatal(err)
					}
				}
			}
			disk = disk.Crash(rng, simdisk.Random)
			d.Close()
			d = openDataLog(t, ordered.DataLogOptions{Disk: disk, ReadOnly: readOnly})
			for _, rec := range wal {
				redo, err := ordered.DecodeRedo(rec)
				if err != nil {
					t.Fatal(err)
				}
				if err := d.ApplyRedo(redo); err != nil {
					t.Fatal(err)
				}
			}
			verify := func() {
				for i, w := range all {
					if w.pos > redone {
						break
					}
					p := make([]byte, len(w.content))
					if err := d.ReadAt(&w.e, 0, p, false); err != nil || !bytes.Equal(p, w.content) {
						t.Fatalf("seed %d: extent %d at %v: %v", seed, i, w.pos, err)
					}
				}
			}
			verify()
			if readOnly {
				d.Close()
				continue
			}
			if err := d.FinishRedo(); err != nil {
				t.Fatal(err)
			}
			disk = disk.Crash(rng, simdisk.LoseAll)
			d.Close()
			d = openDataLog(t, ordered.DataLogOptions{Disk: disk, ReadOnly: true})
			verify()
			d.Close()
		}
	}
}

// Goal: a redo needs nothing but what the creation of its segment made durable.
func TestRedoOfFirstRecord(t *testing.T) {
	for _, flushed := range []bool{false, true} {
		disk := simdisk.New(1)
		d := openDataLog(t, ordered.DataLogOptions{Disk: disk, FlushDelay: time.Hour})
		w := mustAppend(t, d, []byte("prism"))
		if flushed {
			if err := d.Flush(); err != nil {
				t.Fatal(err)
			}
		}
		redo, upto, ok := d.Undurable(1000)
		if !ok || upto != w.pos || len(redo) != 1 {
			t.Fatalf("%d pieces up to %v, %v", len(redo), upto, ok)
		}
		if _, _, ok := d.Undurable(10); ok {
			t.Fatal("more than asked for")
		}
		disk = disk.Crash(nil, simdisk.LoseAll)
		d.Close()
		d = openDataLog(t, ordered.DataLogOptions{Disk: disk})
		if err := d.Verify(&w.e); !errors.Is(err, ordered.ErrCorrupt) {
			t.Fatal(err)
		}
		if err := d.ApplyRedo(redo); err != nil {
			t.Fatal(err)
		}
		checkRead(t, d, w)
		d.Close()
	}
}

// Goal: what a replay accepts from the page cache of a killed daemon survives
// a power cut once the first Sync has returned.
func TestFirstSyncCoversOlderSegments(t *testing.T) {
	disk := simdisk.New(1)
	killed := openDataLog(t, ordered.DataLogOptions{Disk: disk, SegmentSize: 1 << 20})
	defer killed.Close()
	var all []written
	for range 30 {
		all = append(all, mustAppend(t, killed, bytes.Repeat([]byte("prism"), 20<<10)))
	}
	if err := killed.Flush(); err != nil {
		t.Fatal(err)
	}
	d := openDataLog(t, ordered.DataLogOptions{Disk: disk})
	for _, w := range all {
		checkRead(t, d, w)
	}
	if _, err := d.Sync(); err != nil {
		t.Fatal(err)
	}
	after := disk.Crash(nil, simdisk.LoseAll)
	d.Close()
	d = openDataLog(t, ordered.DataLogOptions{Disk: after, ReadOnly: true})
	defer d.Close()
	for _, w := range all {
		checkRead(t, d, w)
	}
}

// Goal: a sync covers what it wrote and nothing that came meanwhile, be it in
// the same segment; the next one covers that.
func TestAppendsDuringSync(t *testing.T) {
	disk := simdisk.New(1)
	d := openDataLog(t, ordered.DataLogOptions{Disk: disk, SegmentSize: 1 << 20, FlushDelay: time.Hour})
	content := bytes.Repeat([]byte("prism"), 20<<10)
	all := []written{mustAppend(t, d, content)}
	disk.OnOp(func(op simdisk.Op) error {
		if op.Kind == simdisk.OpWrite && op.Off > 0 {
			disk.OnOp(nil)
			for all[len(all)-1].e.Seg == all[0].e.Seg {
				all = append(all, mustAppend(t, d, content))
			}
		}
		return nil
	})
	if upto, err := d.Sync(); err != nil || upto != all[0].pos {
		t.Fatalf("synced to %v, want %v: %v", upto, all[0].pos, err)
	}
	if upto, err := d.Sync(); err != nil || upto != all[len(all)-1].pos {
		t.Fatalf("synced to %v: %v", upto, err)
	}
	after := disk.Crash(nil, simdisk.LoseAll)
	d.Close()
	d = openDataLog(t, ordered.DataLogOptions{Disk: after, ReadOnly: true})
	defer d.Close()
	for _, w := range all {
		checkRead(t, d, w)
	}
}

func TestRedoSkipsRemovedSegments(t *testing.T) {
	disk := simdisk.New(1)
	d := openDataLog(t, ordered.DataLogOptions{Disk: disk})
	defer d.Close()
	if err := d.ApplyRedo([]ordered.Redo{{Seg: 9, Off: 4096, Data: []byte("x")}}); err != nil {
		t.Fatal(err)
	}
	if disk.Exists("data/0000000009.seg") {
		t.Fatal("redo made a segment")
	}
	if err := d.FinishRedo(); err != nil {
		t.Fatal(err)
	}
}
