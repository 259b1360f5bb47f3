package ordered_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"testing"

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

func TestDataLogReadsBack(t *testing.T) {
	disk := simdisk.New(1)
	for _, codec := range []uint8{ordered.CodecRaw, ordered.CodecS2, ordered.CodecZstd} {
		d := openDataLog(t, ordered.DataLogOptions{Disk: disk, Codec: codec})
		rng := rand.New(rand.NewPCG(1, 2))
		var extents []ordered.Extent
		var contents [][]byte
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
			extents, contents = append(extents, e), append(contents, b)
		}
		check := func(d *ordered.DataLog) {
			t.Helper()
			for i, e := range extents {
				off := rng.IntN(len(contents[i]))
				p := make([]byte, 1+rng.IntN(len(contents[i])-off))
				if err := d.ReadAt(&e, off, p, false); err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(p, contents[i][off:off+len(p)]) {
					t.Fatalf("extent %d: wrong bytes", i)
				}
				if err := d.Verify(&e); err != nil {
					t.Fatal(err)
				}
			}
		}
		check(d)
		if pos, err := d.Sync(); err != nil || pos != last || d.Durable() != last {
			t.Fatalf("Sync = %v, %v; want %v", pos, err, last)
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		d = openDataLog(t, ordered.DataLogOptions{Disk: disk, ReadOnly: true})
		check(d)
		n := 0
		if err := d.Scan(extents[0].Seg, func(h ordered.RecordHeader, e ordered.Extent) error {
			if w := extents[n]; e.Off != w.Off || e.Stored != w.Stored || e.Codec != w.Codec || !bytes.Equal(e.Sums, w.Sums) || h.Ino != uint64(n) {
				t.Fatalf("record %d: %+v, want %+v", n, e, w)
			}
			n++
			return nil
		}); err != nil || n != len(extents) {
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
