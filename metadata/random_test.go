package metadata_test

import (
	"bytes"
	"crypto/sha256"
	"flag"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"prismfs/metadata"
	"prismfs/uring/simdisk"
)

var seedFlag = flag.Uint64("seed", 0, "seed of the random tests; 0: from the clock")

func seed(t testing.TB) uint64 {
	s := *seedFlag
	if s == 0 {
		s = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d: repeat with -args -seed=%d", s, s)
	return s
}

func digestOf(t testing.TB, s *metadata.Store) string {
	t.Helper()
	h := sha256.New()
	if err := dumpStore(s, h); err != nil {
		t.Fatal(err)
	}
	return sum(h)
}

// compare fails unless store and model show the same tree.
func compare(t testing.TB, s *metadata.Store, m *model) {
	t.Helper()
	if digestOf(t, s) == m.digest() {
		return
	}
	var b strings.Builder
	dumpStore(s, &b)
	got, want := strings.Split(b.String(), "\n"), strings.Split(m.text(), "\n")
	for i := range max(len(got), len(want)) {
		var g, w string
		if i < len(got) {
			g = got[i]
		}
		if i < len(want) {
			w = want[i]
		}
		if g != w {
			t.Fatalf("line %d:\nstore %.300s\nmodel %.300s", i, g, w)
		}
	}
}

// TestRandomOperations runs random operations against the model, with restarts,
// compactions, garbage collection and checks in between.
func TestRandomOperations(t *testing.T) {
	rounds := 12
	if testing.Short() {
		rounds = 3
	}
	sd := seed(t)
	for round := range rounds {
		rng := rand.New(rand.NewPCG(sd, uint64(round)))
		disk := simdisk.New(sd)
		disk.SetCold(round%3 == 2)
		l := newLanes(t)
		d := &driver{s: newStore(t, disk, l), m: newModel(), rng: rng, max: 300 << 10}
		for i := range 600 {
			what, err := d.step()
			if err != nil {
				t.Fatalf("round %d, operation %d: %v", round, i, err)
			}
			_ = what
			switch rng.IntN(150) {
			case 0:
				compare(t, d.s, d.m)
				check(t, d.s)
			case 1:
				if err := d.s.Sync(); err != nil {
					t.Fatal(err)
				}
			case 2:
				if err := d.s.CollectGarbage(); err != nil {
					t.Fatal(err)
				}
			case 3:
				if err := d.s.Compact(); err != nil {
					t.Fatal(err)
				}
			case 4:
				// A restart ends all references.
				if err := d.s.Close(); err != nil {
					t.Fatal(err)
				}
				d.m.restart()
				d.s = openStore(t, disk, l)
			}
			if t.Failed() {
				t.Fatalf("round %d, after operation %d (%s)", round, i, what)
			}
		}
		compare(t, d.s, d.m)
		check(t, d.s)
		if err := d.s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestRandomWritesToLargeFile has more extents than memory keeps of one file,
// so that its windows are loaded, joined, split and dropped.
func TestRandomWritesToLargeFile(t *testing.T) {
	sd := seed(t)
	rng := rand.New(rand.NewPCG(sd, 0))
	disk := simdisk.New(sd)
	l := newLanes(t)
	s := newStore(t, disk, l)
	var a metadata.Attr
	if err := s.Make(metadata.Block, metadata.RootIno, []byte("f"), &metadata.MakeReq{Mode: 0100644}, &a); err != nil {
		t.Fatal(err)
	}
	const size = 64 << 20
	want := make([]byte, size)
	d := &driver{rng: rng}
	write := func(off uint64, b []byte) {
		t.Helper()
		copy(want[off:], b)
		if err := s.Write(metadata.Block, a.Ino, off, b, 0); err != nil {
			t.Fatal(err)
		}
	}
	for off := uint64(0); off < size; off += 1 << 20 {
		write(off, d.bytes(1<<20))
	}
	verify := func(off, n uint64) {
		t.Helper()
		b := make([]byte, n)
		if _, err := s.Read(metadata.Block, a.Ino, off, b, nil); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(b, want[off:off+n]) {
			t.Fatalf("bytes %d to %d differ", off, off+n)
		}
	}
	for i := range 12000 {
		off := uint64(rng.IntN(size/4096-40)) * 4096
		switch rng.IntN(40) {
		case 0:
			write(off, d.bytes(4096*(1+rng.IntN(40))))
		case 1:
			if err := s.Fallocate(metadata.Block, a.Ino, metadata.FallocKeepSize|metadata.FallocPunchHole, off, 8192); err != nil {
				t.Fatal(err)
			}
			clear(want[off : off+8192])
		case 2:
			verify(off, 128<<10)
		default:
			write(off, d.bytes(4096))
		}
		if i%5000 == 4999 {
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			s = openStore(t, disk, l)
		}
	}
	verify(0, size)
	check(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}
