package engine

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"time"
)

// newRand returns a random source and prints its seed, so that a failure can
// be run again.
func newRand(t testing.TB) *rand.Rand {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

func ik(ukey string, seq SeqNum, kind Kind) []byte {
	return makeInternal(nil, []byte(ukey), seq, kind)
}

func TestInternalKeyBytes(t *testing.T) {
	got := ik("ab", 0x0102030405060708>>8, KindSet)
	// The trailer is little-endian, so the kind comes first.
	want := []byte{'a', 'b', 1, 7, 6, 5, 4, 3, 2, 1}
	if !bytes.Equal(got, want) {
		t.Fatalf("got % x want % x", got, want)
	}
	if string(userKey(got)) != "ab" || trailerSeq(trailer(got)) != 0x01020304050607 || trailerKind(trailer(got)) != KindSet {
		t.Fatalf("doesn't decode: % x", got)
	}
}

func TestCompareInternal(t *testing.T) {
	sorted := [][]byte{
		ik("", 9, KindSet),
		ik("", 1, KindSet),
		ik("a", 7, KindSet),
		ik("a", 7, KindDelete),
		ik("a", 6, KindSet),
		ik("a\x00", 1<<55, KindSet),
		ik("a\x00", 255, KindSet),
		ik("aa", 256, KindSet),
		ik("b", 0, KindDelete),
	}
	for i, a := range sorted {
		for j, b := range sorted {
			want := 0
			if i < j {
				want = -1
			} else if i > j {
				want = 1
			}
			if got := compareInternal(a, b); got != want {
				t.Errorf("compare(%q, %q) = %d, want %d", a, b, got, want)
			}
		}
	}
}

func TestSeparator(t *testing.T) {
	short := func(u string) []byte { return ik(u, maxSeqNum, kindSeek) }
	for _, c := range []struct{ last, next, want []byte }{
		// The cases of LevelDB's dbformat_test.cc.
		{ik("foo", 100, KindSet), ik("foo", 99, KindSet), ik("foo", 100, KindSet)},
		{ik("foo", 100, KindSet), ik("foo", 100, KindDelete), ik("foo", 100, KindSet)},
		{ik("foo", 100, KindSet), ik("hello", 200, KindSet), short("g")},
		{ik("foo", 100, KindSet), ik("foobar", 200, KindSet), ik("foo", 100, KindSet)},
		{ik("abc1xyz", 5, KindSet), ik("abc9", 5, KindSet), short("abc2")},
		{ik("abc1", 5, KindSet), ik("abc9", 5, KindSet), ik("abc1", 5, KindSet)}, // not shorter
		{ik("abc1xyz", 5, KindSet), ik("abc2", 5, KindSet), ik("abc1xyz", 5, KindSet)},
		{ik("a\xffxx", 5, KindSet), ik("b", 5, KindSet), ik("a\xffxx", 5, KindSet)},
	} {
		if got := separator(nil, c.last, c.next); !bytes.Equal(got, c.want) {
			t.Errorf("separator(%q, %q) = %q, want %q", c.last, c.next, got, c.want)
		}
	}
	for _, c := range []struct{ last, want []byte }{
		{ik("foo", 100, KindSet), short("g")},
		{ik("\xff\xff", 100, KindSet), ik("\xff\xff", 100, KindSet)},
		{ik("\xffab", 100, KindSet), short("\xffb")},
		{ik("f", 100, KindSet), ik("f", 100, KindSet)},
		{ik("", 100, KindSet), ik("", 100, KindSet)},
	} {
		if got := successor(nil, c.last); !bytes.Equal(got, c.want) {
			t.Errorf("successor(%q) = %q, want %q", c.last, got, c.want)
		}
	}
}

// last <= separator < next is what keeps the index from misrouting a lookup.
func TestSeparatorBounds(t *testing.T) {
	rng := newRand(t)
	for range 20000 {
		a, b := randomIKey(rng), randomIKey(rng)
		switch c := compareInternal(a, b); {
		case c == 0:
			continue
		case c > 0:
			a, b = b, a
		}
		s := separator(nil, a, b)
		if compareInternal(a, s) > 0 || compareInternal(s, b) >= 0 {
			t.Fatalf("separator(%q, %q) = %q", a, b, s)
		}
		if s := successor(nil, b); compareInternal(b, s) > 0 {
			t.Fatalf("successor(%q) = %q", b, s)
		}
	}
}

// randomIKey draws from a small alphabet with the bytes that carries and
// prefixes stumble over.
func randomIKey(rng *rand.Rand) []byte {
	const alphabet = "\x00\x01ab\xfe\xff"
	u := make([]byte, rng.IntN(5))
	for i := range u {
		u[i] = alphabet[rng.IntN(len(alphabet))]
	}
	return makeInternal(nil, u, SeqNum(rng.IntN(300)), Kind(rng.IntN(2)))
}
