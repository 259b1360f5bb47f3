package ordered_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"prismfs/lanes"
	"prismfs/ordered"
	"prismfs/uring"
	"prismfs/uring/simdisk"
)

func randomBytes(rng *rand.Rand, n int) []byte {
	b := make([]byte, n+7)
	for i := 0; i < n; i += 8 {
		binary.LittleEndian.PutUint64(b[i:], rng.Uint64())
	}
	return b[:n]
}

func openDataLog(t testing.TB, o ordered.DataLogOptions) *ordered.DataLog {
	t.Helper()
	d, err := ordered.OpenDataLog(o)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func mustAppend(t testing.TB, d *ordered.DataLog, b []byte) written {
	t.Helper()
	e, pos, err := d.Append(1, 0, b, false)
	if err != nil {
		t.Fatal(err)
	}
	return written{e, pos, b}
}

func checkRead(t testing.TB, d *ordered.DataLog, w written) {
	t.Helper()
	p := make([]byte, len(w.content))
	if err := d.ReadAt(&w.e, 0, p, false); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(p, w.content) {
		t.Fatalf("wrong bytes at %v", w.e.Pos())
	}
}

func TestDataLogReadsBack(t *testing.T) {
	disk := simdisk.New(1)
	for _, codec := range []uint8{ordered.CodecRaw, ordered.CodecS2, ordered.CodecZstd} {
		d := openDataLog(t, ordered.DataLogOptions{Disk: disk, Codec: codec})
		rng := rand.New(rand.NewPCG(1, 2))
		var all []written
		last := ordered.Pos(0)
		for i := range 200 {
			b := randomBytes(rng, 1+rng.IntN(20000))
			if i%2 == 0 {
				b = bytes.Repeat([]byte("prism"), 1+rng.IntN(20000))
			}
			e, pos, err := d.Append(uint64(i), 4096, b, false)
			if err != nil {
				t.Fatal(err)
			}
			if pos <= last {
				t.Fatalf("position %v after %v", pos, last)
			}
			last = pos
			all = append(all, written{e, pos, b})
		}
		check := func(d *ordered.DataLog) {
			t.Helper()
			for i, w := range all {
				off := rng.IntN(len(w.content))
				p := make([]byte, 1+rng.IntN(len(w.content)-off))
				if err := d.ReadAt(&w.e, off, p, false); err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(p, w.content[off:off+len(p)]) {
					t.Fatalf("extent %d: wrong bytes", i)
				}
				if err := d.Verify(&w.e); err != nil {
					t.Fatal(err)
				}
			}
		}
		check(d)
		if pos, err := d.Sync(); err != nil || pos != last || d.Durable() != last || d.Tail() != last {
			t.Fatalf("Sync = %v, %v; want %v", pos, err, last)
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		if size, _ := disk.Stat(fmt.Sprintf("data/%010d.seg", last.Seg())); size != int64(last.Off()) {
			t.Errorf("segment of %d bytes after Close, want %d", size, last.Off())
		}
		d = openDataLog(t, ordered.DataLogOptions{Disk: disk, ReadOnly: true})
		check(d)
		n := 0
		if err := d.Scan(all[0].e.Seg, func(h ordered.RecordHeader, e ordered.Extent) error {
			if w := all[n].e; e.Off != w.Off || e.Stored != w.Stored || e.Codec != w.Codec || !bytes.Equal(e.Sums, w.Sums) || h.Ino != uint64(n) || h.FileOff != 4096 {
				t.Fatalf("record %d: %+v, want %+v", n, e, w)
			}
			n++
			return nil
		}); err != nil || n != len(all) {
			t.Fatalf("Scan: %d records, %v", n, err)
		}
		if _, _, err := d.Append(1, 1, []byte("x"), false); !errors.Is(err, uring.ErrReadOnly) {
			t.Fatalf("Append on a read-only log: %v", err)
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// Goal: the same on a real file system, where the lane and the page cache are.
func TestOnRealDisk(t *testing.T) {
	rt := lanes.NewRuntime(lanes.Config{})
	defer rt.Close()
	disk, err := uring.Open(t.TempDir(), uring.Options{Lanes: rt})
	if err != nil {
		t.Fatal(err)
	}
	defer disk.Close()
	o := ordered.DataLogOptions{Disk: disk, SegmentSize: 1 << 20, MaxTail: 3 << 20, Lane: rt.File}
	l := createLog(t, ordered.LogOptions{Disk: disk, Name: "1.log", Number: 1, Preallocate: 1 << 20})
	rng := rand.New(rand.NewPCG(1, 9))
	var all []written
	for range 2 {
		d := openDataLog(t, o)
		if err := d.Seal(); err != nil {
			t.Fatal(err)
		}
		for i := range 100 {
			all = append(all, mustAppend(t, d, randomBytes(rng, 1+rng.IntN(128<<10))))
			end := appendAll(t, l, numbered(i))[0]
			if i%10 == 0 {
				if _, err := d.Sync(); err != nil {
					t.Fatal(err)
				}
				if err := l.Sync(end); err != nil {
					t.Fatal(err)
				}
			}
			checkRead(t, d, all[rng.IntN(len(all))])
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if got, res, err := readLog(disk, "1.log", 1, ordered.Default); err != nil || len(got) != 200 || res.Tail != ordered.Clean {
		t.Fatalf("%+v, %v", res, err)
	}
	o.ReadOnly = true
	d := openDataLog(t, o)
	defer d.Close()
	for _, w := range all {
		checkRead(t, d, w)
	}
}

// Goal: a segment that is sealed early, removed, and followed by an unused one
// does not give its number back.
func TestNumbersAreNotReused(t *testing.T) {
	o := ordered.DataLogOptions{Disk: simdisk.New(1), SegmentSize: 1 << 20}
	d := openDataLog(t, o)
	var last written
	for i := 0; i < 9; i++ { // past three quarters: the next segment is made
		last = mustAppend(t, d, make([]byte, 100<<10))
	}
	if err := d.Seal(); err != nil {
		t.Fatal(err)
	}
	for len(d.Segments()) < 2 {
		runtime.Gosched()
	}
	for {
		err := d.Remove(last.e.Seg)
		if err == nil {
			break
		}
		if !errors.Is(err, ordered.ErrInUse) { // until the next segment is ready
			t.Fatal(err)
		}
		runtime.Gosched()
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	d = openDataLog(t, o)
	defer d.Close()
	if w := mustAppend(t, d, []byte("x")); w.e.Seg <= last.e.Seg {
		t.Fatalf("segment %d after %d", w.e.Seg, last.e.Seg)
	}
}

func TestAppendRefuses(t *testing.T) {
	d := openDataLog(t, ordered.DataLogOptions{Disk: simdisk.New(1)})
	defer d.Close()
	for _, n := range []int{0, ordered.MaxPayload + 1} {
		if _, _, err := d.Append(1, 0, make([]byte, n), false); !errors.Is(err, ordered.ErrTooLarge) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	if _, _, err := d.AppendCodec(99, 1, 0, []byte("x"), false); err == nil {
		t.Error("unknown codec accepted")
	}
	w := mustAppend(t, d, make([]byte, ordered.MaxPayload))
	checkRead(t, d, w)
	if err := d.ReadAt(&w.e, 1, make([]byte, ordered.MaxPayload), false); err == nil || errors.Is(err, ordered.ErrCorrupt) {
		t.Errorf("read past the end: %v", err)
	}
}

// Goal: extents that no Append returned are refused, not trusted.
func TestBadExtents(t *testing.T) {
	d := openDataLog(t, ordered.DataLogOptions{Disk: simdisk.New(1)})
	defer d.Close()
	good := mustAppend(t, d, make([]byte, 10000)).e
	for what, change := range map[string]func(e *ordered.Extent){
		"segment": func(e *ordered.Extent) { e.Seg = 77 },
		"offset":  func(e *ordered.Extent) { e.Off = 8 },
		"far off": func(e *ordered.Extent) { e.Off = 1<<32 - 1 },
		"raw":     func(e *ordered.Extent) { e.Raw = 1 << 31 },
		"empty":   func(e *ordered.Extent) { e.Raw, e.Stored, e.Sums = 0, 0, nil },
		"stored":  func(e *ordered.Extent) { e.Stored-- },
		"codec":   func(e *ordered.Extent) { e.Codec = 9; e.Sums = e.Sums[:4]; e.Stored-- },
		"sums":    func(e *ordered.Extent) { e.Sums = e.Sums[:8] },
	} {
		e := good
		change(&e)
		if err := d.Verify(&e); !errors.Is(err, ordered.ErrCorrupt) {
			t.Errorf("%s: %v", what, err)
		}
		if s, _, err := d.Locate(&e, false); what != "far off" && !errors.Is(err, ordered.ErrCorrupt) {
			t.Errorf("Locate, %s: %v", what, err)
		} else if err == nil {
			s.Release()
		}
	}
}

// Goal: a flipped bit is found by reads that touch its block and by no others.
func TestCorruptData(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 5))
	for _, codec := range []uint8{ordered.CodecRaw, ordered.CodecS2, ordered.CodecZstd} {
		disk := simdisk.New(1)
		d := openDataLog(t, ordered.DataLogOptions{Disk: disk, Codec: codec})
		w := mustAppend(t, d, bytes.Repeat(randomBytes(rng, 1000), 18)[:17000])
		if (codec == ordered.CodecRaw) != (w.e.Codec == ordered.CodecRaw) {
			t.Fatalf("codec %d stored as %d", codec, w.e.Codec)
		}
		d.Close()
		d = openDataLog(t, ordered.DataLogOptions{Disk: disk})
		name := fmt.Sprintf("data/%010d.seg", w.e.Seg)
		for range 40 {
			at := rng.IntN(int(w.e.Stored))
			disk.Corrupt(name, int64(w.e.Off)+int64(at), 4)
			if err := d.Verify(&w.e); !errors.Is(err, ordered.ErrCorrupt) {
				t.Fatalf("codec %d, byte %d: %v", codec, at, err)
			}
			off := rng.IntN(len(w.content))
			p := make([]byte, 1+rng.IntN(len(w.content)-off))
			err := d.ReadAt(&w.e, off, p, false)
			touched := w.e.Codec != ordered.CodecRaw || (at >= off&^4095 && at/4096 <= (off+len(p)-1)/4096)
			if touched != errors.Is(err, ordered.ErrCorrupt) || (!touched && (err != nil || !bytes.Equal(p, w.content[off:off+len(p)]))) {
				t.Fatalf("codec %d, byte %d, read of [%d,%d): %v", codec, at, off, off+len(p), err)
			}
			disk.Corrupt(name, int64(w.e.Off)+int64(at), 4)
		}
		checkRead(t, d, w)
		d.Close()
	}
}

func TestVerifyBlocks(t *testing.T) {
	d := openDataLog(t, ordered.DataLogOptions{Disk: simdisk.New(1)})
	defer d.Close()
	w := mustAppend(t, d, randomBytes(rand.New(rand.NewPCG(1, 6)), 9000))
	for _, r := range [][2]int{{0, 9000}, {0, 4096}, {4096, 9000}, {8192, 9000}, {4096, 8192}} {
		if err := ordered.VerifyBlocks(&w.e, r[0], w.content[r[0]:r[1]]); err != nil {
			t.Errorf("%v: %v", r, err)
		}
	}
	for _, r := range [][2]int{{1, 9000}, {0, 4095}, {4096, 8193}} {
		if err := ordered.VerifyBlocks(&w.e, r[0], w.content[r[0]:r[1]]); err == nil {
			t.Errorf("%v accepted", r)
		}
	}
	if err := ordered.VerifyBlocks(&w.e, 4096, make([]byte, 9000)); err == nil {
		t.Error("bytes past the end accepted")
	}
}

// Goal: with nowait nothing waits and nothing has an effect.
func TestAppendNoWait(t *testing.T) {
	disk := simdisk.New(1)
	d := openDataLog(t, ordered.DataLogOptions{Disk: disk, MaxTail: 3 << 20, FlushDelay: time.Hour})
	defer d.Close()
	b := make([]byte, 100<<10)
	// The first needs a segment.
	if _, _, err := d.Append(1, 0, b, true); err != uring.ErrWouldBlock {
		t.Fatal(err)
	}
	mustAppend(t, d, b)
	// Hold the disk: the tail fills up.
	release := make(chan bool)
	disk.OnOp(func(op simdisk.Op) error {
		if op.Kind == simdisk.OpWrite {
			<-release
		}
		return nil
	})
	var err error
	var tail ordered.Pos
	for n := 0; err == nil; n++ {
		if n > 100 {
			t.Fatal("the tail has no end")
		}
		tail = d.Tail()
		_, _, err = d.Append(1, 0, b, true)
	}
	if err != uring.ErrWouldBlock || d.Tail() != tail {
		t.Fatalf("%v, tail moved from %v to %v", err, tail, d.Tail())
	}
	// A blocking append waits for the disk and gets through.
	done := make(chan error)
	go func() {
		_, _, err := d.Append(1, 0, b, false)
		done <- err
	}()
	disk.OnOp(nil)
	close(release)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// Goal: no more than MaxUndurable bytes wait for a sync, and writers go on as
// syncs return.
func TestUndurableIsBounded(t *testing.T) {
	disk := simdisk.New(1)
	const limit = 2 << 20
	d := openDataLog(t, ordered.DataLogOptions{Disk: disk, MaxUndurable: limit})
	defer d.Close()
	mustAppend(t, d, []byte("x"))
	if _, err := d.Sync(); err != nil {
		t.Fatal(err)
	}
	from := d.Durable()
	hold := make(chan bool)
	disk.OnOp(func(op simdisk.Op) error {
		if op.Kind == simdisk.OpDatasync {
			<-hold
		}
		return nil
	})
	b := make([]byte, 50<<10)
	var err error
	for err == nil {
		_, _, err = d.Append(1, 0, b, true)
		if err == uring.ErrWouldBlock && d.Tail()-from < limit/2 {
			err = nil // the tail is being flushed
		}
	}
	for i := 0; i < 1000; i++ {
		if d.Tail()-from > limit {
			t.Fatalf("%d bytes undurable", d.Tail()-from)
		}
		d.Append(1, 0, b, true)
	}
	disk.OnOp(nil)
	close(hold)
	for range 100 {
		mustAppend(t, d, b)
	}
}

// Goal: on a small disk segments are small; no space is an error without
// effect and ends when a segment is removed.
func TestDataLogNoSpace(t *testing.T) {
	disk := simdisk.New(1)
	disk.SetCapacity(6 << 20)
	d := openDataLog(t, ordered.DataLogOptions{Disk: disk})
	defer d.Close()
	rng := rand.New(rand.NewPCG(1, 7))
	var all []written
	for {
		b := randomBytes(rng, 100<<10)
		tail := d.Tail()
		e, pos, err := d.Append(1, 0, b, false)
		if errors.Is(err, uring.ErrNoSpace) {
			if errors.Is(err, ordered.ErrFailed) || d.Tail() != tail {
				t.Fatalf("%v, tail moved from %v to %v", err, tail, d.Tail())
			}
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, written{e, pos, b})
	}
	if len(all) < 40 {
		t.Errorf("only %d KiB of 6 MiB used", len(all)*100)
	}
	if _, err := d.Sync(); err != nil {
		t.Fatal(err)
	}
	for _, w := range all {
		checkRead(t, d, w)
	}
	if err := d.Remove(all[0].e.Seg); err != nil {
		t.Fatal(err)
	}
	checkRead(t, d, mustAppend(t, d, []byte("room again")))
}

// Goal: a removed segment is gone from the disk, readable to who has it
// pinned, and its number never returns.
func TestRemoveSegment(t *testing.T) {
	disk := simdisk.New(1)
	o := ordered.DataLogOptions{Disk: disk, SegmentSize: 1 << 20}
	d := openDataLog(t, o)
	w := mustAppend(t, d, make([]byte, 300<<10))
	if err := d.Remove(w.e.Seg); !errors.Is(err, ordered.ErrInUse) {
		t.Fatalf("active segment: %v", err)
	}
	last := w
	for last.e.Seg == w.e.Seg {
		last = mustAppend(t, d, make([]byte, 300<<10))
	}
	// Not even flushed: removal must not lose bytes on their way to a
	// pinned reader.
	s, _, err := d.Locate(&w.e, false)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Remove(w.e.Seg); err != nil {
		t.Fatal(err)
	}
	if disk.Exists(fmt.Sprintf("data/%010d.seg", w.e.Seg)) {
		t.Error("file still there")
	}
	p := make([]byte, w.e.Stored)
	if _, err := s.File().ReadAt(p, int64(w.e.Off)); err != nil {
		t.Error(err)
	}
	if err := ordered.VerifyBlocks(&w.e, 0, p); err != nil {
		t.Error(err)
	}
	s.Release()
	if err := d.Remove(w.e.Seg); !errors.Is(err, ordered.ErrNoSegment) {
		t.Errorf("removed twice: %v", err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	d = openDataLog(t, o)
	defer d.Close()
	list := d.Segments()
	if n := list[len(list)-1]; n.Number != last.e.Seg || n.Sealed {
		t.Fatalf("newest segment %+v", n)
	}
	if err := d.Remove(last.e.Seg); !errors.Is(err, ordered.ErrInUse) {
		t.Fatalf("newest segment: %v", err)
	}
	next := mustAppend(t, d, []byte("x"))
	if next.e.Seg <= last.e.Seg {
		t.Fatalf("segment %d after %d", next.e.Seg, last.e.Seg)
	}
	if err := d.Remove(last.e.Seg); err != nil {
		t.Fatal(err)
	}
}

// Goal: Scan reports the first bad header and passes over nothing.
func TestScanStops(t *testing.T) {
	disk := simdisk.New(1)
	d := openDataLog(t, ordered.DataLogOptions{Disk: disk})
	defer d.Close()
	var all []written
	for range 10 {
		all = append(all, mustAppend(t, d, make([]byte, 5000)))
	}
	if err := d.Flush(); err != nil {
		t.Fatal(err)
	}
	count := func() (n int, err error) {
		err = d.Scan(1, func(ordered.RecordHeader, ordered.Extent) error { n++; return nil })
		return n, err
	}
	if n, err := count(); n != 10 || err != nil {
		t.Fatalf("%d records, %v", n, err)
	}
	header := int64(all[3].pos.Off()) // where the record after it starts
	disk.Corrupt("data/0000000001.seg", header+9, 1)
	if n, err := count(); n != 4 || !errors.Is(err, ordered.ErrCorrupt) {
		t.Fatalf("%d records, %v", n, err)
	}
	stop := errors.New("stop")
	if err := d.Scan(1, func(ordered.RecordHeader, ordered.Extent) error { return stop }); err != stop {
		t.Fatal(err)
	}
	if err := d.Scan(99, nil); !errors.Is(err, ordered.ErrNoSegment) {
		t.Fatal(err)
	}
	disk.Corrupt("data/0000000001.seg", 3, 1)
	if n, err := count(); n != 0 || !errors.Is(err, ordered.ErrCorrupt) {
		t.Fatalf("bad segment header: %d records, %v", n, err)
	}
}

// Goal: after a failed sync or write nothing succeeds but reads.
func TestDataLogFailureIsFinal(t *testing.T) {
	for _, kind := range []simdisk.OpKind{simdisk.OpDatasync, simdisk.OpWrite} {
		disk := simdisk.New(1)
		d := openDataLog(t, ordered.DataLogOptions{Disk: disk, FlushDelay: time.Hour})
		w := mustAppend(t, d, []byte("prism"))
		disk.OnOp(func(op simdisk.Op) error {
			if op.Kind == kind {
				return syscall.EIO
			}
			return nil
		})
		errs := make(chan error)
		for range 4 {
			go func() {
				_, err := d.Sync()
				errs <- err
			}()
		}
		for range 4 {
			if err := <-errs; !errors.Is(err, ordered.ErrFailed) || !errors.Is(err, syscall.EIO) {
				t.Fatal(err)
			}
		}
		disk.OnOp(nil)
		if _, _, err := d.Append(1, 0, []byte("x"), false); !errors.Is(err, ordered.ErrFailed) {
			t.Error(err)
		}
		if _, err := d.Sync(); !errors.Is(err, ordered.ErrFailed) {
			t.Error(err)
		}
		if err := d.Flush(); !errors.Is(err, ordered.ErrFailed) {
			t.Error(err)
		}
		if _, _, ok := d.Undurable(1 << 20); ok {
			t.Error("redo of a failed log")
		}
		checkRead(t, d, w)
		if err := d.Close(); !errors.Is(err, ordered.ErrFailed) {
			t.Error(err)
		}
	}
}

// Goal: a read error is that read's alone, and not corruption.
func TestReadErrorIsNotFinal(t *testing.T) {
	disk := simdisk.New(1)
	d := openDataLog(t, ordered.DataLogOptions{Disk: disk})
	w := mustAppend(t, d, make([]byte, 5000))
	d.Close()
	d = openDataLog(t, ordered.DataLogOptions{Disk: disk})
	defer d.Close()
	disk.OnOp(func(op simdisk.Op) error {
		if op.Kind == simdisk.OpRead {
			return syscall.EIO
		}
		return nil
	})
	if err := d.Verify(&w.e); !errors.Is(err, syscall.EIO) || errors.Is(err, ordered.ErrCorrupt) {
		t.Fatal(err)
	}
	disk.OnOp(nil)
	checkRead(t, d, w)
	disk.SetCold(true)
	if err := d.ReadAt(&w.e, 0, make([]byte, 10), true); err != uring.ErrWouldBlock {
		t.Fatal(err)
	}
}

// Goal: more segments than descriptors are kept.
func TestManySegments(t *testing.T) {
	disk := simdisk.New(1)
	var all []written
	for i := range 140 {
		d := openDataLog(t, ordered.DataLogOptions{Disk: disk, SegmentSize: 1 << 20})
		all = append(all, mustAppend(t, d, fmt.Appendf(nil, "segment %d", i)))
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
	}
	d := openDataLog(t, ordered.DataLogOptions{Disk: disk})
	defer d.Close()
	for range 2 {
		for _, w := range all {
			checkRead(t, d, w)
		}
	}
}

// Goal: appends, reads, flushes, syncs and redo of many goroutines at once
// keep every promise. Method: race detector; each reads back what it wrote;
// then the log is opened again, and its order is that of the positions.
func TestDataLogConcurrency(t *testing.T) {
	rt := lanes.NewRuntime(lanes.Config{})
	defer rt.Close()
	disk := simdisk.New(1)
	d := openDataLog(t, ordered.DataLogOptions{
		Disk: disk, SegmentSize: 1 << 20, MaxTail: 3 << 20, MaxUndurable: 4 << 20, Lane: rt.File, FlushDelay: 100 * time.Microsecond,
	})
	var mu sync.Mutex
	var all []written
	var wg sync.WaitGroup
	stop := make(chan bool)
	var helpers sync.WaitGroup
	helpers.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			redo, upto, ok := d.Undurable(256 << 10)
			if ok {
				for _, r := range redo {
					if len(r.Data) == 0 {
						t.Error("empty redo")
					}
				}
				d.MarkDurable(upto)
			}
			if err := d.Flush(); err != nil {
				t.Error(err)
			}
			d.Segments()
		}
	})
	for g := range 6 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(g), 8))
			var mine []written
			for i := range 60 {
				b := randomBytes(rng, 1+rng.IntN(60<<10))
				codec := uint8(ordered.CodecRaw)
				if i%5 == 0 {
					b = bytes.Repeat(b[:100], 100)
					codec = ordered.CodecS2
				}
				e, pos, err := d.AppendCodec(codec, uint64(g), uint64(i), b, i%2 == 0)
				if err == uring.ErrWouldBlock {
					e, pos, err = d.AppendCodec(codec, uint64(g), uint64(i), b, false)
				}
				if err != nil {
					t.Error(err)
					return
				}
				mine = append(mine, written{e, pos, b})
				w := mine[rng.IntN(len(mine))]
				p := make([]byte, len(w.content))
				if err := d.ReadAt(&w.e, 0, p, false); err != nil || !bytes.Equal(p, w.content) {
					t.Errorf("read at %v: %v", w.e.Pos(), err)
				}
				if i%10 == 0 {
					if upto, err := d.Sync(); err != nil || upto < pos {
						t.Errorf("synced to %v, own record ends at %v: %v", upto, pos, err)
					}
				}
			}
			mu.Lock()
			all = append(all, mine...)
			mu.Unlock()
		})
	}
	wg.Wait()
	close(stop)
	helpers.Wait()
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	d = openDataLog(t, ordered.DataLogOptions{Disk: disk, ReadOnly: true})
	defer d.Close()
	slices.SortFunc(all, func(a, b written) int { return int(int64(a.pos) - int64(b.pos)) })
	n := 0
	for _, s := range d.Segments() {
		if err := d.Scan(s.Number, func(_ ordered.RecordHeader, e ordered.Extent) error {
			if e.Pos() != all[n].e.Pos() {
				t.Fatalf("record %d at %v, want %v", n, e.Pos(), all[n].e.Pos())
			}
			n++
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	if n != len(all) {
		t.Fatalf("%d records, want %d", n, len(all))
	}
	for _, w := range all {
		checkRead(t, d, w)
	}
}

func TestClosedDataLog(t *testing.T) {
	d := openDataLog(t, ordered.DataLogOptions{Disk: simdisk.New(1)})
	w := mustAppend(t, d, make([]byte, 10))
	s, inMemory, err := d.Locate(&w.e, false)
	if err != nil || !inMemory || s.Number() != w.e.Seg {
		t.Fatal(inMemory, err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.File().ReadAt(make([]byte, 10), int64(w.e.Off)); err != nil {
		t.Errorf("pinned segment after Close: %v", err)
	}
	s.Release()
	if _, _, err := d.Append(1, 0, []byte("x"), false); !errors.Is(err, ordered.ErrClosed) {
		t.Error(err)
	}
	if err := d.Close(); !errors.Is(err, ordered.ErrClosed) {
		t.Error(err)
	}
	if _, _, err := d.Locate(&w.e, false); !errors.Is(err, ordered.ErrClosed) {
		t.Error(err)
	}
}
