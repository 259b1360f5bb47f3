package engine

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"syscall"
	"testing"

	"prismfs/ordered"
	"prismfs/uring"
	"prismfs/uring/simdisk"
)

// writeLog makes a log file with one record per batch. sequence numbers go on
// from seq.
func writeLog(t *testing.T, d uring.Disk, num FileNum, seq uint64, batches ...*Batch) (end int64) {
	t.Helper()
	log, err := ordered.CreateLog(ordered.LogOptions{Disk: d, Name: logFileName("db", num), Number: uint64(num)})
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range batches {
		rec := slices.Clone(b.data)
		for i := range 8 {
			rec[i] = byte(seq >> (8 * i))
		}
		rec[8] = byte(b.count)
		if end, err = log.Append(rec); err != nil {
			t.Fatal(err)
		}
		seq += uint64(max(b.count, 1))
	}
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	return end
}

func putBatch(key, value string) *Batch {
	b := NewBatch()
	b.Put([]byte(key), []byte(value))
	return b
}

// newStore makes an empty store and returns the number of its first log and the
// next free file number.
func newStore(t *testing.T, o Options) (log, next FileNum) {
	t.Helper()
	db := mustOpen(t, o)
	db.mu.Lock()
	log = db.wals[len(db.wals)-1].num
	db.mu.Unlock()
	mustClose(t, db)
	return log, FileNum(db.nextFile.Load())
}

// TestReplayOrder: all notes come first, in order, then the start, then the
// batches with their notes.
func TestReplayOrder(t *testing.T) {
	o := simOptions(t, simdisk.New(1))
	group := 0
	o.GroupNote = func(dst []byte) []byte { group++; return fmt.Appendf(dst, "g%d", group) }
	db := mustOpen(t, o)
	put(t, db, "a", "1")
	b := putBatch("b", "2")
	b.Note([]byte("own"))
	if err := db.Apply(b, Block); err != nil {
		t.Fatal(err)
	}
	if err := db.Note([]byte("alone")); err != nil {
		t.Fatal(err)
	}
	put(t, db, "c", "3")
	mustClose(t, db)

	var log []string
	add := func(format string, args ...any) { log = append(log, fmt.Sprintf(format, args...)) }
	o.ReplayNote = func(n []byte) error { add("note %s", n); return nil }
	o.ReplayStart = func() error { add("start"); return nil }
	o.Replay = func(b *BatchReader) error {
		s := fmt.Sprintf("batch %d of %d:", b.Seq(), b.Count())
		for b.Next() {
			switch b.Kind() {
			case KindNote:
				s += fmt.Sprintf(" note %s", b.Value())
			case KindSet:
				s += fmt.Sprintf(" %s=%s", b.Key(), b.Value())
			}
		}
		add("%s", s)
		return b.Err()
	}
	db = mustOpen(t, o)
	got := strings.Join(log, "\n")
	want := `note g1
note g2
note own
note alone
note g3
start
batch 1 of 1: note g1 a=1
batch 2 of 1: note g2 b=2 note own
batch 3 of 0: note alone
batch 4 of 1: note g3 c=3`
	if got != want {
		t.Fatalf("got\n%s\nwant\n%s", got, want)
	}
	wantGet(t, db, "c", "3")
	mustClose(t, db)
}

// TestReplayNoteSpansTwoByteLengths: a group note has a length of its own kind
// of encoding.
func TestGroupNoteLengths(t *testing.T) {
	for _, n := range []int{0, 1, 127, 128, 1<<14 - 1, 1 << 14, 100_000} {
		o := simOptions(t, simdisk.New(1))
		o.GroupNote = func(dst []byte) []byte { return append(dst, strings.Repeat("x", n)...) }
		db := mustOpen(t, o)
		put(t, db, "a", "1")
		mustClose(t, db)
		seen := -1
		o.ReplayNote = func(note []byte) error { seen = len(note); return nil }
		db = mustOpen(t, o)
		if n == 0 && seen != -1 || n > 0 && seen != n {
			t.Fatalf("note of %d bytes came back with %d", n, seen)
		}
		wantGet(t, db, "a", "1")
		mustClose(t, db)
	}
}

// TestStopReplay: what the callback refuses is gone for good, with all that
// follows, even after a cut at any moment of the open.
func TestStopReplay(t *testing.T) {
	for _, mode := range []simdisk.CrashMode{simdisk.KeepAll, simdisk.LoseAll, simdisk.Subset} {
		d := simdisk.New(7)
		o := simOptions(t, d)
		db := mustOpen(t, o)
		for i := range 10 {
			put(t, db, fmt.Sprintf("k%d", i), "old")
		}
		mustClose(t, db)
		check := func(db *DB, what string) {
			t.Helper()
			for i := range 10 {
				if i < 6 {
					wantGet(t, db, fmt.Sprintf("k%d", i), "old")
				} else {
					wantAbsent(t, db, fmt.Sprintf("k%d", i))
				}
			}
		}
		o.Replay = func(b *BatchReader) error {
			for b.Next() {
				if string(b.Key()) == "k6" {
					return ErrStopReplay
				}
			}
			return nil
		}
		var cuts []*simdisk.Disk
		rng := seededRand(t, 8)
		d.OnOp(func(op simdisk.Op) error {
			if op.Change != 0 {
				cuts = append(cuts, d.Crash(rng, mode))
			}
			return nil
		})
		db = mustOpen(t, o)
		d.OnOp(nil)
		check(db, "open")
		put(t, db, "new", "1")
		mustClose(t, db)
		o.Replay = nil
		db = mustOpen(t, o)
		check(db, "reopen")
		wantGet(t, db, "new", "1")
		mustClose(t, db)
		for i, c := range cuts {
			o := simOptions(t, c)
			first := ""
			o.Replay = func(b *BatchReader) error {
				for b.Next() {
					if string(b.Key()) == "k6" {
						first = "stopped"
						return ErrStopReplay
					}
				}
				return nil
			}
			db := mustOpen(t, o)
			check(db, fmt.Sprintf("cut %d %s", i, first))
			wantClean(t, db)
			mustClose(t, db)
		}
	}
}

// TestGapBetweenLogs: when the end of a log never reached the disk, newer logs
// do not count, and do not come back later.
func TestGapBetweenLogs(t *testing.T) {
	d := simdisk.New(9)
	o := simOptions(t, d)
	log, next := newStore(t, o)
	writeLog(t, d, log, 1, putBatch("a", "1"), putBatch("b", "2"))
	writeLog(t, d, next, 4, putBatch("d", "4")) // 3 is missing
	writeLog(t, d, next+1, 5, putBatch("e", "5"))
	db := mustOpen(t, o)
	wantGet(t, db, "b", "2")
	wantAbsent(t, db, "d")
	wantAbsent(t, db, "e")
	put(t, db, "c", "3") // takes the sequence number that was missing
	mustClose(t, db)
	db = mustOpen(t, o)
	wantGet(t, db, "c", "3")
	wantAbsent(t, db, "d")
	wantClean(t, db)
	mustClose(t, db)
}

// TestLogsInSequence: an unbroken sequence is replayed over all logs, in the
// order of their numbers, empty ones included.
func TestLogsInSequence(t *testing.T) {
	d := simdisk.New(10)
	o := simOptions(t, d)
	log, next := newStore(t, o)
	writeLog(t, d, log, 1, putBatch("a", "1"), putBatch("b", "2"))
	writeLog(t, d, next, 3)
	writeLog(t, d, next+1, 3, putBatch("a", "3"))
	db := mustOpen(t, o)
	wantGet(t, db, "a", "3")
	wantGet(t, db, "b", "2")
	if db.LastSeq() != 3 {
		t.Fatalf("sequence %d", db.LastSeq())
	}
	mustClose(t, db)
}

// refused opens a store that must not open, checks that the error names what it
// should, and that the attempt has changed nothing that matters.
func refused(t *testing.T, o Options, kind error, mention string) {
	t.Helper()
	for range 2 {
		db, err := Open(o)
		if err == nil {
			db.Close()
			t.Fatal("the store opened")
		}
		if !errors.Is(err, kind) || !strings.Contains(err.Error(), mention) {
			t.Fatalf("got %v; want %v that mentions %q", err, kind, mention)
		}
	}
}

func TestSequenceBrokenInsideLog(t *testing.T) {
	d := simdisk.New(11)
	o := simOptions(t, d)
	log, _ := newStore(t, o)
	end := writeLog(t, d, log, 1, putBatch("a", "1"))
	log2, err := ordered.CreateLog(ordered.LogOptions{Disk: d, Name: logFileName("db", log), Number: uint64(log)})
	if err != nil {
		t.Fatal(err)
	}
	for i, seq := range []byte{1, 3} {
		rec := slices.Clone(putBatch("a", fmt.Sprint(i)).data)
		rec[0], rec[8] = seq, 1
		if _, err := log2.Append(rec); err != nil {
			t.Fatal(err)
		}
	}
	if err := log2.Close(); err != nil {
		t.Fatal(err)
	}
	refused(t, o, ErrCorrupt, fmt.Sprintf("%06d.log: at %d", log, end))
	o.Salvage = true
	db := mustOpen(t, o)
	wantGet(t, db, "a", "0")
	mustClose(t, db)
}

// TestDamagedLog: a bad spot in what had been durable refuses the open and is
// named; Salvage gives up what lies behind it.
func TestDamagedLog(t *testing.T) {
	d := simdisk.New(12)
	o := simOptions(t, d)
	db := mustOpen(t, o)
	log := db.w.wal.num
	for i := range 20 {
		put(t, db, fmt.Sprintf("k%02d", i), strings.Repeat("v", 100))
		if err := db.Barrier(); err != nil {
			t.Fatal(err)
		}
	}
	mustClose(t, db)
	if err := d.Corrupt(logFileName("db", log), 1200, 0x10); err != nil {
		t.Fatal(err)
	}
	refused(t, o, ErrCorrupt, fmt.Sprintf("%06d.log", log))
	ro := o
	ro.ReadOnly = true
	refused(t, ro, ErrCorrupt, fmt.Sprintf("%06d.log", log))
	o.Salvage = true
	db = mustOpen(t, o)
	wantGet(t, db, "k00", strings.Repeat("v", 100))
	wantAbsent(t, db, "k19")
	wantClean(t, db)
	mustClose(t, db)
	o.Salvage = false
	db = mustOpen(t, o)
	wantAbsent(t, db, "k19")
	mustClose(t, db)
}

// TestMissingFiles: what the manifest needs and is not there is named, and the
// attempt to open is harmless.
func TestMissingFiles(t *testing.T) {
	d := simdisk.New(13)
	o := simOptions(t, d)
	db := mustOpen(t, o)
	put(t, db, "a", "1")
	if err := db.Flush(); err != nil {
		t.Fatal(err)
	}
	put(t, db, "b", "2")
	mustClose(t, db)
	names, err := d.List("db")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		kind, num := parseFileName(name)
		switch {
		case kind == tableFile, kind == manifestFile, kind == currentFile:
		case kind == logFile && num == db.logNumber:
		default:
			continue
		}
		if err := d.Rename("db/"+name, "aside"); err != nil {
			t.Fatal(err)
		}
		want := ErrCorrupt
		if kind == manifestFile {
			want = uring.ErrNotExist
		}
		refused(t, o, want, name)
		if err := d.Rename("aside", "db/"+name); err != nil {
			t.Fatal(err)
		}
	}
	db = mustOpen(t, o)
	wantGet(t, db, "a", "1")
	wantGet(t, db, "b", "2")
	mustClose(t, db)
}

// TestReadErrorAtOpen: a failed read refuses the open, whichever it is, and
// truncates nothing.
func TestReadErrorAtOpen(t *testing.T) {
	for i := 1; ; i++ {
		d := simdisk.New(14)
		o := simOptions(t, d)
		db := mustOpen(t, o)
		for n := range 10 {
			put(t, db, fmt.Sprint(n), "v")
			if n == 4 {
				if err := db.Flush(); err != nil {
					t.Fatal(err)
				}
			}
		}
		mustClose(t, db)
		reads, failed := 0, ""
		d.OnOp(func(op simdisk.Op) error {
			if op.Kind == simdisk.OpRead {
				if reads++; reads == i {
					failed = op.Name
					return syscall.EIO
				}
			}
			return nil
		})
		db, err := Open(o)
		d.OnOp(nil)
		if failed == "" {
			mustClose(t, db)
			t.Logf("%d reads", reads)
			return
		}
		if err == nil || !errors.Is(err, syscall.EIO) || !strings.Contains(err.Error(), path.Base(failed)) {
			t.Fatalf("read %d, of %s: %v", i, failed, err)
		}
		db = mustOpen(t, o)
		for n := range 10 {
			wantGet(t, db, fmt.Sprint(n), "v")
		}
		wantClean(t, db)
		mustClose(t, db)
	}
}

// TestReadOnlyOpen reads a store without changing a byte of it, the logs
// included.
func TestReadOnlyOpen(t *testing.T) {
	d := simdisk.New(15)
	o := simOptions(t, d)
	o.MemTableSize = 1 << 20
	db := mustOpen(t, o)
	m := model{}
	rng := seededRand(t, 16)
	for n := 1; n <= 300; n++ {
		if err := db.Apply(randomBatch(rng, m, n), Block); err != nil {
			t.Fatal(err)
		}
	}
	db.WaitIdle()
	mustClose(t, db)
	d.SetReadOnly(true)
	o.ReadOnly = true
	o.MemTableSize = minMemTableSize // the logs fill several
	_, before := d.Ops()
	db = mustOpen(t, o)
	wantContent(t, content(t, db, nil), m, "read-only")
	for k, v := range m {
		wantGet(t, db, k, v)
	}
	wantClean(t, db)
	if err := db.Apply(putBatch("x", "y"), Block); !errors.Is(err, ErrReadOnly) {
		t.Fatal(err)
	}
	if err := db.Barrier(); err != nil {
		t.Fatal(err)
	}
	if err := db.Flush(); !errors.Is(err, ErrReadOnly) {
		t.Fatal(err)
	}
	if err := db.CompactRange(nil, nil); !errors.Is(err, ErrReadOnly) {
		t.Fatal(err)
	}
	db.WaitIdle()
	mustClose(t, db)
	if _, after := d.Ops(); after != before {
		t.Fatalf("%d changes", after-before)
	}
}

// TestLocked: a store opens once at a time.
func TestLocked(t *testing.T) {
	o := simOptions(t, simdisk.New(17))
	db := mustOpen(t, o)
	if _, err := Open(o); !errors.Is(err, uring.ErrLocked) {
		t.Fatalf("got %v", err)
	}
	mustClose(t, db)
	if err := db.Close(); !errors.Is(err, ErrClosed) {
		t.Fatalf("second Close: %v", err)
	}
	if err := db.Apply(putBatch("a", "b"), Block); !errors.Is(err, ErrClosed) {
		t.Fatalf("Apply after Close: %v", err)
	}
	if _, err := db.Get(nil, []byte("a"), Block); !errors.Is(err, ErrClosed) {
		t.Fatalf("Get after Close: %v", err)
	}
	if err := db.Barrier(); !errors.Is(err, ErrClosed) {
		t.Fatalf("Barrier after Close: %v", err)
	}
	it := db.NewIter(IterOptions{})
	if it.First() || !errors.Is(it.Err(), ErrClosed) {
		t.Fatalf("iterator after Close: %v", it.Err())
	}
	it.Close()
	mustClose(t, mustOpen(t, o))
}

// TestProfilesRefuseEachOther: neither misreads the other's files.
func TestProfilesRefuseEachOther(t *testing.T) {
	for _, p := range []ordered.Profile{ordered.Default, ordered.Strict} {
		o := simOptions(t, simdisk.New(18))
		o.Profile = p
		db := mustOpen(t, o)
		put(t, db, "a", "1")
		mustClose(t, db)
		o.Profile = ordered.Strict - p
		if db, err := Open(o); err == nil {
			db.Close()
			t.Fatalf("profile %d opened the other's store", o.Profile)
		}
		o.Profile = p
		db = mustOpen(t, o)
		wantGet(t, db, "a", "1")
		mustClose(t, db)
	}
}

// TestManifestIsBounded: edits pile up to a limit, then a new manifest takes
// over.
func TestManifestIsBounded(t *testing.T) {
	d := simdisk.New(19)
	o := simOptions(t, d)
	db := mustOpen(t, o)
	first := db.manifest.num
	db.stepMu.Lock()
	for i := 0; db.manifest.num == first; i++ {
		edit := &versionEdit{pointers: []compactPointer{{1, makeInternal(nil, make([]byte, 60<<10), SeqNum(i), KindSet)}}}
		if err := db.install(edit, nil); err != nil {
			t.Fatal(err)
		}
		if i > 100 {
			t.Fatal("the manifest grows without bound")
		}
	}
	db.stepMu.Unlock()
	wantClean(t, db)
	put(t, db, "a", "1")
	if err := db.Flush(); err != nil {
		t.Fatal(err)
	}
	mustClose(t, db)
	db = mustOpen(t, o)
	wantGet(t, db, "a", "1")
	mustClose(t, db)
}

// TestCurrentNamesNoManifest: CURRENT that names a manifest which is not there
// is damage.
func TestCurrentNamesNoManifest(t *testing.T) {
	d := simdisk.New(1)
	o := simOptions(t, d)
	newStore(t, o)
	num, err := readCurrent(d, "db")
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Remove(manifestFileName("db", num)); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(o); !errors.Is(err, ErrCorrupt) {
		t.Errorf("open: %v", err)
	}
}
