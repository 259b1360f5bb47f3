package engine

import (
	"bytes"
	"errors"
	"hash/crc32"
	"testing"
)

func TestMaskCRC(t *testing.T) {
	// crc32c_test.cc: the checksum of 32 zeros, and the masking's definition.
	c := crc32.Checksum(make([]byte, 32), castagnoli)
	if c != 0x8a9136aa {
		t.Fatalf("crc32c %08x", c)
	}
	rotated := c>>15 | c&0x7fff<<17
	want := rotated + 0xa282ead8 // modulo 2^32
	if got := maskCRC(c); got != want || got == c {
		t.Fatalf("masked %08x, want %08x", got, want)
	}
}

func TestCompressRoundTrip(t *testing.T) {
	rng := newRand(t)
	random := make([]byte, 5000)
	for i := range random {
		random[i] = byte(rng.Uint32())
	}
	for _, c := range []Codec{None, Snappy, Zstd} {
		var buf []byte
		for _, raw := range [][]byte{nil, []byte("a"), bytes.Repeat([]byte("abc"), 2000), random, make([]byte, 1<<20)} {
			stored, nb, used := compress(c, buf, raw)
			buf = nb
			compressible := len(raw) > 10 && &raw[0] != &random[0]
			if (used != None) != (c != None && compressible) {
				t.Errorf("codec %d used %d for %d bytes", c, used, len(raw))
			}
			n, err := decodedLen(used, stored)
			if err != nil || n != len(raw) {
				t.Fatalf("codec %d: length %d of %d: %v", used, n, len(raw), err)
			}
			out := make([]byte, n)
			if err := decompress(used, out, stored); err != nil || !bytes.Equal(out, raw) {
				t.Fatalf("codec %d: %v", used, err)
			}
		}
	}
}

func FuzzDecompress(f *testing.F) {
	for _, c := range []Codec{Snappy, Zstd} {
		stored, _, _ := compress(c, nil, bytes.Repeat([]byte("abc"), 100))
		f.Add(byte(c), stored)
	}
	f.Add(byte(9), []byte("x"))
	f.Fuzz(func(t *testing.T, c byte, stored []byte) {
		n, err := decodedLen(Codec(c), stored)
		if err == nil {
			if n > 1<<20 {
				return // allowed, but slow to fuzz
			}
			err = decompress(Codec(c), make([]byte, n), stored)
		}
		if err != nil && !errors.Is(err, ErrCorrupt) {
			t.Fatalf("wrong kind of error: %v", err)
		}
	})
}
