package ordered_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"prismfs/ordered"
	"prismfs/uring"
	"prismfs/uring/simdisk"
)

var profiles = []ordered.Profile{ordered.Default, ordered.Strict}

func createLog(t testing.TB, o ordered.LogOptions) *ordered.Log {
	t.Helper()
	l, err := ordered.CreateLog(o)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func appendAll(t testing.TB, l *ordered.Log, recs ...[]byte) (ends []int64) {
	t.Helper()
	for _, rec := range recs {
		end, err := l.Append(rec)
		if err != nil {
			t.Fatal(err)
		}
		ends = append(ends, end)
	}
	return ends
}

func readLog(disk uring.Disk, name string, number uint64, p ordered.Profile) (recs [][]byte, res ordered.ReadResult, err error) {
	res, err = ordered.ReadLog(disk, name, number, p, func(rec []byte, _ int64) error {
		recs = append(recs, bytes.Clone(rec))
		return nil
	})
	return recs, res, err
}

func readFile(t testing.TB, disk uring.Disk, name string) []byte {
	t.Helper()
	f, err := disk.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, size)
	if n, err := f.ReadAt(b, 0); n != len(b) && !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	return b
}

func writeFile(t testing.TB, disk uring.Disk, name string, b []byte) {
	t.Helper()
	f, err := disk.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(b, 0); err != nil {
		t.Fatal(err)
	}
}

func TestLogReadsBack(t *testing.T) {
	for _, profile := range profiles {
		disk := simdisk.New(1)
		l := createLog(t, ordered.LogOptions{Disk: disk, Name: "1.log", Number: 1, Profile: profile, Preallocate: 1 << 20})
		rng := rand.New(rand.NewPCG(1, 2))
		var recs [][]byte
		for i := range 300 {
			rec := randomBytes(rng, rng.IntN(300))
			if i%20 == 0 {
				rec = randomBytes(rng, rng.IntN(100000))
			}
			ends := appendAll(t, l, rec)
			recs = append(recs, rec)
			if i%7 == 0 {
				if err := l.Sync(ends[0]); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		got, res, err := readLog(disk, "1.log", 1, profile)
		if err != nil || res.Tail != ordered.Clean || res.Records != len(recs) {
			t.Fatalf("profile %d: %+v, %v", profile, res, err)
		}
		for i := range recs {
			if !bytes.Equal(got[i], recs[i]) {
				t.Fatalf("profile %d: record %d differs", profile, i)
			}
		}
		if profile == ordered.Strict && int64(len(readFile(t, disk, "1.log"))) != res.End {
			t.Error("a strict log does not end where its records end")
		}
	}
}

// Goal: wherever the log stops, be it cut off or followed by anything, the
// records before are read, none after, and it is not called damage.
// Method: every byte offset of an unsynced log of records around a block's end.
func TestTornTail(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 3))
	recs := [][]byte{randomBytes(rng, 32600), randomBytes(rng, 100), {}, randomBytes(rng, 60), randomBytes(rng, 33000), randomBytes(rng, 20)}
	for _, profile := range profiles {
		disk := simdisk.New(1)
		l := createLog(t, ordered.LogOptions{Disk: disk, Name: "1.log", Number: 1, Profile: profile})
		ends := appendAll(t, l, recs...)
		if err := l.Flush(); err != nil {
			t.Fatal(err)
		}
		whole := readFile(t, disk, "1.log")
		if int64(len(whole)) != ends[len(ends)-1] {
			t.Fatalf("%d bytes, records end at %v", len(whole), ends)
		}
		l.Close()
		// Step fast through the insides of long records.
		for cut := 0; cut < len(whole); cut++ {
			near := func(at int64) bool { return int64(cut) > at-24 && int64(cut) < at+24 }
			interesting := near(32768) || near(65536)
			for _, end := range ends {
				interesting = interesting || near(end)
			}
			if !interesting && cut%2039 != 0 {
				continue
			}
			for _, tail := range []string{"cut", "zeros", "garbage", "flipped"} {
				b := bytes.Clone(whole[:cut])
				switch tail {
				case "zeros":
					b = append(b, make([]byte, len(whole)-cut)...)
				case "garbage":
					b = append(b, randomBytes(rng, len(whole)-cut)...)
				case "flipped":
					if profile == ordered.Strict {
						continue // what follows is good: damage
					}
					b = bytes.Clone(whole)
					b[cut] ^= 0x10
				}
				want := 0 // what follows the cut may be what stood there
				for i, end := range ends {
					if int64(len(b)) >= end && bytes.Equal(b[:end], whole[:end]) {
						want = i + 1
					}
				}
				writeFile(t, disk, "2.log", b)
				got, res, err := readLog(disk, "2.log", 1, profile)
				if err != nil || len(got) != want || res.Tail == ordered.Damaged {
					t.Fatalf("profile %d, %s at %d: %d records, want %d: %+v, %v", profile, tail, cut, len(got), want, res, err)
				}
				end := int64(0)
				if want > 0 {
					end = ends[want-1]
				}
				if res.End != end {
					t.Fatalf("profile %d, %s at %d: end %d, want %d", profile, tail, cut, res.End, end)
				}
				if clean := int64(cut) == end; tail == "cut" && clean != (res.Tail == ordered.Clean) {
					t.Fatalf("profile %d, %s at %d: tail %v", profile, tail, cut, res.Tail)
				}
			}
		}
	}
}

// Goal: damage to what had been durable is reported with its place and never
// passes for a torn tail.
func TestDamageIsReported(t *testing.T) {
	for _, profile := range profiles {
		disk := simdisk.New(1)
		l := createLog(t, ordered.LogOptions{Disk: disk, Name: "1.log", Number: 1, Profile: profile, Preallocate: 1 << 20})
		var ends []int64
		for i := range 6 {
			ends = append(ends, appendAll(t, l, bytes.Repeat([]byte{byte(i)}, 9000))...)
			if err := l.Sync(ends[i]); err != nil {
				t.Fatal(err)
			}
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		_, clean, err := readLog(disk, "1.log", 1, profile)
		if err != nil {
			t.Fatal(err)
		}
		if profile == ordered.Default && clean.Durable != ends[5] {
			t.Errorf("durable %d, want %d", clean.Durable, ends[5])
		}
		last := 6
		if profile == ordered.Strict {
			last = 5 // nothing follows the last record that could prove damage
		}
		start := int64(0)
		for i, end := range ends[:last] {
			for off := start; off < end; off += 173 {
				if err := disk.Corrupt("1.log", off, 0x41); err != nil {
					t.Fatal(err)
				}
				got, res, err := readLog(disk, "1.log", 1, profile)
				// A bad mark in front of record i loses nothing; it may be
				// read over only if the record is.
				if !errors.Is(err, ordered.ErrCorrupt) || res.Tail != ordered.Damaged || len(got) != i {
					t.Fatalf("profile %d, flip at %d: %d records, %+v, %v", profile, off, len(got), res, err)
				}
				if res.DamagedAt < start || res.DamagedAt > off {
					t.Fatalf("profile %d, flip at %d: damage reported at %d", profile, off, res.DamagedAt)
				}
				disk.Corrupt("1.log", off, 0x41)
			}
			start = end
		}
	}
}

// Goal: what an older use of the file left is never replayed.
// Method: recycle a full log and read after every record.
func TestRecycledLog(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 4))
	disk := simdisk.New(1)
	number := uint64(1)
	o := ordered.LogOptions{Disk: disk, Name: "1.log", Number: number, Preallocate: 256 << 10}
	for number < 6 {
		l := createLog(t, o)
		var recs [][]byte
		for l.Size() < 200<<10 {
			n := rng.IntN(500)
			if rng.IntN(20) == 0 {
				n = rng.IntN(50000)
			}
			rec := randomBytes(rng, n)
			appendAll(t, l, rec)
			recs = append(recs, rec)
			if rng.IntN(4) > 0 {
				continue
			}
			if err := l.Flush(); err != nil {
				t.Fatal(err)
			}
			got, res, err := readLog(disk, o.Name, number, ordered.Default)
			if err != nil || len(got) != len(recs) || res.Tail != ordered.Clean {
				t.Fatalf("log %d: %d records, want %d: %+v, %v", number, len(got), len(recs), res, err)
			}
			for i := range got {
				if !bytes.Equal(got[i], recs[i]) {
					t.Fatalf("log %d: record %d differs", number, i)
				}
			}
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		o.Recycle = o.Name
		number++
		o.Name, o.Number = fmt.Sprintf("%d.log", number), number
		if got, res, err := readLog(disk, o.Recycle, number, ordered.Default); err != nil || len(got) != 0 || res.Tail != ordered.Clean {
			t.Fatalf("log %d: %d records before it was written: %+v, %v", number, len(got), res, err)
		}
	}
	if names, _ := disk.List(""); len(names) != 1 {
		t.Errorf("files %v", names)
	}
	o.Profile = ordered.Strict
	if _, err := ordered.CreateLog(o); err == nil {
		t.Error("a strict log was recycled")
	}
}

// Goal: a copy of a log inside a record's data proves nothing about the log.
func TestMarkInsideDataIsIgnored(t *testing.T) {
	disk := simdisk.New(1)
	o := ordered.LogOptions{Disk: disk, Name: "1.log", Number: 1, Preallocate: 1 << 20}
	l := createLog(t, o)
	for range 5 {
		if err := l.Sync(appendAll(t, l, make([]byte, 5000))[0]); err != nil {
			t.Fatal(err)
		}
	}
	l.Close()
	old := readFile(t, disk, "1.log")[:25000]
	o.Name = "2.log"
	l = createLog(t, o)
	appendAll(t, l, []byte("a"), []byte("b"), old)
	if err := l.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := disk.Corrupt("2.log", 13, 1); err != nil {
		t.Fatal(err)
	}
	if got, res, err := readLog(disk, "2.log", 1, ordered.Default); err != nil || len(got) != 1 || res.Tail != ordered.Torn {
		t.Fatalf("%d records, %+v, %v", len(got), res, err)
	}
	l.Close()
}

// Goal: the flusher hands records over after FlushDelay, or at once when many
// wait; and sleeps otherwise.
func TestFlushDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := simdisk.New(1)
		l := createLog(t, ordered.LogOptions{Disk: disk, Name: "1.log", Number: 1})
		defer l.Close()
		for range 3 {
			appendAll(t, l, []byte("prism"))
			time.Sleep(9 * time.Millisecond) // the bubble's clock, as below
			synctest.Wait()
			if l.Buffered() == 0 {
				t.Fatal("flushed early")
			}
			time.Sleep(2 * time.Millisecond)
			synctest.Wait()
			if l.Buffered() != 0 {
				t.Fatal("not flushed after 11 ms")
			}
			time.Sleep(time.Second)
		}
		appendAll(t, l, make([]byte, 300<<10))
		synctest.Wait()
		if l.Buffered() != 0 {
			t.Fatal("300 KiB wait for the timer")
		}
	})
}

// Goal: Append does not wait for a sync under way, and what it adds is synced
// by the next leader only.
func TestAppendDuringSync(t *testing.T) {
	disk := simdisk.New(1)
	l := createLog(t, ordered.LogOptions{Disk: disk, Name: "1.log", Number: 1, FlushDelay: time.Hour})
	first := appendAll(t, l, []byte("a"))[0]
	inSync, resume := make(chan bool), make(chan bool)
	var once sync.Once
	disk.OnOp(func(op simdisk.Op) error {
		if op.Kind == simdisk.OpDatasync {
			once.Do(func() {
				close(inSync)
				<-resume
			})
		}
		return nil
	})
	errs := make(chan error, 10)
	go func() { errs <- l.Sync(first) }()
	<-inSync
	second := appendAll(t, l, []byte("b"), []byte("c"))[1]
	if l.Durable() != 0 {
		t.Fatal("durable before the sync has returned")
	}
	for range 8 {
		go func() { errs <- l.Sync(second) }()
	}
	if err := l.Flush(); err != nil { // not held up either
		t.Fatal(err)
	}
	close(resume)
	for range 9 {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
	if l.Durable() != second {
		t.Fatalf("durable %d, want %d", l.Durable(), second)
	}
	if n := l.Syncs(); n != 2 {
		t.Errorf("%d syncs, want 2", n)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// Goal: a mark proves only what stands before its position.
// Method: b is appended while a is being synced, and c, with the mark, behind.
func TestMarkBehindUnsyncedRecord(t *testing.T) {
	disk := simdisk.New(1)
	l := createLog(t, ordered.LogOptions{Disk: disk, Name: "1.log", Number: 1, FlushDelay: time.Hour})
	disk.OnOp(func(op simdisk.Op) error {
		if op.Kind == simdisk.OpDatasync {
			disk.OnOp(nil)
			appendAll(t, l, []byte("b"))
		}
		return nil
	})
	a := appendAll(t, l, []byte("a"))[0]
	if err := l.Sync(a); err != nil {
		t.Fatal(err)
	}
	appendAll(t, l, []byte("c"))
	if err := l.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := disk.Corrupt("1.log", a, 1); err != nil {
		t.Fatal(err)
	}
	got, res, err := readLog(disk, "1.log", 1, ordered.Default)
	if err != nil || len(got) != 1 || res.Tail != ordered.Torn || res.Durable != a {
		t.Fatalf("%d records, %+v, %v", len(got), res, err)
	}
	l.Close()
}

// Goal: after a failed sync nothing succeeds, not even what was durable, and
// waiters are told.
func TestFailedSyncIsFinal(t *testing.T) {
	fault := syscall.EIO
	disk := simdisk.New(1)
	l := createLog(t, ordered.LogOptions{Disk: disk, Name: "1.log", Number: 1, FlushDelay: time.Hour})
	durable := appendAll(t, l, []byte("a"))[0]
	if err := l.Sync(durable); err != nil {
		t.Fatal(err)
	}
	disk.OnOp(func(op simdisk.Op) error {
		if op.Kind == simdisk.OpDatasync {
			return fault
		}
		return nil
	})
	end := appendAll(t, l, []byte("b"))[0]
	errs := make(chan error)
	for range 8 {
		go func() { errs <- l.Sync(end) }()
	}
	for range 8 {
		if err := <-errs; !errors.Is(err, ordered.ErrFailed) || !errors.Is(err, fault) {
			t.Fatal(err)
		}
	}
	disk.OnOp(nil)
	for what, err := range map[string]error{
		"Sync": l.Sync(end), "Sync of the past": l.Sync(durable), "Flush": l.Flush(),
		"Append": func() error { _, err := l.Append(nil); return err }(), "Close": l.Close(),
	} {
		if !errors.Is(err, ordered.ErrFailed) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// Goal: a sync that says "no space", as on a thin device, is a failure like any
// other: nobody is to wait for room that proves nothing.
func TestSyncWithoutSpaceIsFinal(t *testing.T) {
	disk := simdisk.New(1)
	l := createLog(t, ordered.LogOptions{Disk: disk, Name: "1.log", Number: 1, FlushDelay: time.Hour})
	d := openDataLog(t, ordered.DataLogOptions{Disk: disk, FlushDelay: time.Hour})
	end := appendAll(t, l, []byte("b"))[0]
	mustAppend(t, d, []byte("prism"))
	disk.OnOp(func(op simdisk.Op) error {
		if op.Kind == simdisk.OpDatasync {
			return uring.WrapError("datasync", op.Name, syscall.ENOSPC)
		}
		return nil
	})
	err := l.Sync(end)
	_, derr := d.Sync()
	disk.OnOp(nil)
	_, aerr := l.Append(nil)
	_, _, daerr := d.Append(1, 0, []byte("x"), false)
	for what, err := range map[string]error{
		"sync of the log": err, "sync of the data log": derr, "append to the log": aerr,
		"append to the data log": daerr, "close of the log": l.Close(), "close of the data log": d.Close(),
	} {
		if !errors.Is(err, ordered.ErrFailed) || errors.Is(err, uring.ErrNoSpace) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// Goal: no space is an error of the Append that meets it, has no effect, and
// ends when room returns; nothing acknowledged is lost.
func TestLogNoSpace(t *testing.T) {
	disk := simdisk.New(1)
	disk.SetCapacity(400 << 10)
	l := createLog(t, ordered.LogOptions{Disk: disk, Name: "1.log", Number: 1, Preallocate: 16 << 20})
	n := 0
	for ; ; n++ {
		end, err := l.Append(numbered(n))
		if errors.Is(err, uring.ErrNoSpace) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Sync(end); err != nil {
			t.Fatal(err)
		}
		if end > 400<<10 {
			t.Fatal("more than fits")
		}
	}
	if n == 0 {
		t.Fatal("a small disk takes nothing")
	}
	disk.SetCapacity(8 << 20)
	if err := l.Sync(appendAll(t, l, numbered(n))[0]); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	got, res, err := readLog(disk, "1.log", 1, ordered.Default)
	if err != nil || len(got) != n+1 {
		t.Fatalf("%d records, want %d: %+v, %v", len(got), n+1, res, err)
	}
}

// Goal: without reserved space a write that meets ENOSPC is repeated by the
// next flush.
func TestLogWriteMeetsNoSpace(t *testing.T) {
	disk := simdisk.New(1)
	disk.SetCapacity(64 << 10)
	l := createLog(t, ordered.LogOptions{Disk: disk, Name: "1.log", Number: 1, FlushDelay: time.Hour})
	recs := [][]byte{make([]byte, 40<<10), bytes.Repeat([]byte("b"), 40<<10), []byte("c")}
	ends := appendAll(t, l, recs[:2]...)
	if err := l.Sync(ends[1]); !errors.Is(err, uring.ErrNoSpace) {
		t.Fatal(err)
	}
	end := appendAll(t, l, recs[2])[0]
	if err := l.Sync(end); !errors.Is(err, uring.ErrNoSpace) {
		t.Fatal(err)
	}
	disk.SetCapacity(1 << 20)
	if err := l.Sync(end); err != nil {
		t.Fatal(err)
	}
	if got, _, err := readLog(disk, "1.log", 1, ordered.Default); err != nil || len(got) != 3 || !bytes.Equal(got[1], recs[1]) {
		t.Fatalf("%d records: %v", len(got), err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// Goal: a log that cannot be made leaves nothing behind.
func TestCreateLogNoSpace(t *testing.T) {
	disk := simdisk.New(1)
	disk.SetCapacity(64 << 10)
	if _, err := ordered.CreateLog(ordered.LogOptions{Disk: disk, Name: "1.log", Number: 1, Preallocate: 1 << 20}); !errors.Is(err, uring.ErrNoSpace) {
		t.Fatal(err)
	}
	if disk.Exists("1.log") {
		t.Fatal("file left behind")
	}
}

func TestClosedLog(t *testing.T) {
	l := createLog(t, ordered.LogOptions{Disk: simdisk.New(1), Name: "1.log", Number: 1})
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Append(nil); !errors.Is(err, ordered.ErrClosed) {
		t.Error(err)
	}
	if err := l.Close(); !errors.Is(err, ordered.ErrClosed) {
		t.Error(err)
	}
}

// Goal: appends beside flushes and syncs of many goroutines keep their order.
func TestLogConcurrency(t *testing.T) {
	disk := simdisk.New(1)
	l := createLog(t, ordered.LogOptions{Disk: disk, Name: "1.log", Number: 1, Preallocate: 256 << 10, FlushDelay: time.Microsecond})
	const writers, each = 8, 50
	var mu sync.Mutex // one appender at a time
	n := 0
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() {
			for i := range each {
				mu.Lock()
				end, err := l.Append(numbered(n))
				n++
				mu.Unlock()
				if err == nil && i%2 == 0 {
					err = l.Sync(end)
					if l.Durable() < end {
						t.Error("Sync returned early")
					}
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	got, _, err := readLog(disk, "1.log", 1, ordered.Default)
	if err != nil || len(got) != writers*each {
		t.Fatalf("%d records: %v", len(got), err)
	}
	for i := range got {
		if !bytes.Equal(got[i], numbered(i)) {
			t.Fatalf("record %d differs", i)
		}
	}
}

// Goal: reading a log while it is written never sees damage.
// Method: the reader's search behind the end that it saw starts at that end;
// the log grows just before.
func TestReadWhileWritten(t *testing.T) {
	disk := simdisk.New(1)
	l := createLog(t, ordered.LogOptions{Disk: disk, Name: "1.log", Number: 1, Preallocate: 8 << 20, FlushDelay: time.Hour})
	defer l.Close()
	n, grown := 0, 0
	more := func() {
		for range 3 {
			n++
			if err := l.Sync(appendAll(t, l, make([]byte, 30000))[0]); err != nil {
				t.Fatal(err)
			}
		}
	}
	more()
	disk.OnOp(func(op simdisk.Op) error {
		if op.Kind == simdisk.OpRead && op.Off == l.Size() {
			grown++
			more()
		}
		return nil
	})
	for range 20 {
		before := n
		_, res, err := readLog(disk, "1.log", 1, ordered.Default)
		if err != nil || res.Records != before {
			t.Fatalf("%+v with %d records, %v", res, before, err)
		}
	}
	if grown != 20 {
		t.Fatalf("grown %d times", grown)
	}
}

// Goal: steady appending does not allocate.
func TestAppendDoesNotAllocate(t *testing.T) {
	l := createLog(t, ordered.LogOptions{Disk: simdisk.New(1), Name: "1.log", Number: 1, Preallocate: 64 << 20, FlushDelay: time.Hour})
	defer l.Close()
	rec := make([]byte, 200)
	for range 2 { // both buffers
		for range 1000 {
			l.Append(rec)
		}
		if err := l.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	if n := testing.AllocsPerRun(900, func() { l.Append(rec) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// Goal: arbitrary bytes never panic the reader and never yield a record that
// framing could not have written.
func FuzzReadLog(f *testing.F) {
	for _, p := range profiles {
		disk := simdisk.New(1)
		l := createLog(f, ordered.LogOptions{Disk: disk, Name: "1.log", Number: 7, Profile: p})
		for _, rec := range [][]byte{[]byte("prism"), nil, make([]byte, 100), []byte("fs")} {
			if err := l.Sync(appendAll(f, l, rec)[0]); err != nil {
				f.Fatal(err)
			}
		}
		l.Close()
		b := readFile(f, disk, "1.log")
		f.Add(b, p == ordered.Default)
		f.Add(append(b[:100:100], b[20:]...), p == ordered.Default)
	}
	f.Fuzz(func(t *testing.T, b []byte, def bool) {
		p := ordered.Strict
		if def {
			p = ordered.Default
		}
		disk := simdisk.New(1)
		writeFile(t, disk, "1.log", b)
		last := int64(-1)
		res, err := ordered.ReadLog(disk, "1.log", 7, p, func(rec []byte, off int64) error {
			if off <= last || off+int64(len(rec)) > int64(len(b)) {
				t.Fatalf("record of %d bytes at %d after %d", len(rec), off, last)
			}
			last = off
			return nil
		})
		if err != nil && (!errors.Is(err, ordered.ErrCorrupt) || res.Tail != ordered.Damaged) {
			t.Fatal(err)
		}
		if res.End > int64(len(b)) {
			t.Fatalf("%+v of %d bytes", res, len(b))
		}
	})
}
