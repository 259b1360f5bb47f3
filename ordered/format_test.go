package ordered

import (
	"bytes"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
)

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func same(t *testing.T, what string, got, want []byte) {
	t.Helper()
	if !bytes.Equal(got, want) {
		t.Errorf("%s:\n%swant\n%s", what, hex.Dump(got), hex.Dump(want))
	}
}

// The bytes of doc.go's formats. A change here breaks existing stores.
func TestGoldenBytes(t *testing.T) {
	same(t, "strict record", appendRecord(nil, Strict, 0, 0, []byte("prism")),
		unhex(t, `18a9e4ab 0500 01 707269736d`))
	same(t, "default record", appendRecord(nil, Default, 7, 0, []byte("prism")),
		unhex(t, `504264e9 0500 05 07000000 707269736d`))
	same(t, "mark", appendMark(nil, 7, 100, 80),
		unhex(t, `74ba28e4 1000 c0 07000000 5000000000000000 6400000000000000`))
	same(t, "segment header", appendSegmentHeader(nil, 3)[:24],
		unhex(t, `507269736d536567 01000000 03000000 0ed13f15 00000000`))
	h := RecordHeader{Ino: 2, FileOff: 4096, Raw: 5, Stored: 5}
	sums := appendSums(nil, []byte("prism"))
	b := make([]byte, payloadOffset(len(sums)))
	putRecordHeader(b, MakePos(3, 4096), &h, sums)
	same(t, "data record", b, unhex(t, `50526563 01 00 0000 0200000000000000 0010000000000000
		05000000 05000000 01000000 af411008 16654822 00000000`))
	same(t, "redo", AppendRedo(nil, []Redo{{Seg: 3, Off: 4096, Data: []byte("prism")}}),
		unhex(t, `03000000 00100000 05000000 707269736d`))
}

// The example of LevelDB's doc/log_format.md, lengths and types.
func TestStrictFragments(t *testing.T) {
	a, b, c := make([]byte, 1000), make([]byte, 97270), make([]byte, 8000)
	var log []byte
	for _, rec := range [][]byte{a, b, c} {
		log = appendRecord(log, Strict, 0, int64(len(log)), rec)
	}
	for _, want := range []struct{ off, length, typ int }{
		{0, 1000, typeFull},
		{1007, 31754, typeFirst},
		{32768, 32761, typeMiddle},
		{65536, 32755, typeLast}, // leaves 6 bytes, the trailer
		{98304, 8000, typeFull},
	} {
		b := log[want.off:]
		if n := int(b[4]) | int(b[5])<<8; n != want.length || int(b[6]) != want.typ {
			t.Errorf("offset %d: length %d type %d, want %d and %d", want.off, n, b[6], want.length, want.typ)
		}
	}
	// A record of 50,000 bytes: 32,761 and 17,239.
	log = appendRecord(nil, Strict, 0, 0, make([]byte, 50000))
	if len(log) != 7+32761+7+17239 {
		t.Errorf("50,000 bytes take %d", len(log))
	}
}

func TestFramedLen(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		p := Profile(rng.IntN(2))
		off := int64(rng.IntN(2 * blockSize))
		n := rng.IntN(3 * blockSize)
		if rng.IntN(2) == 0 {
			off = blockSize - int64(rng.IntN(2*maxLogHeader))
			n = rng.IntN(30)
		}
		if got, want := framedLen(p, off, int64(n)), len(appendRecord(nil, p, 1, off, make([]byte, n))); got != int64(want) {
			t.Fatalf("profile %d, %d bytes at %d: %d, want %d", p, n, off, got, want)
		}
	}
}

func FuzzParseFragment(f *testing.F) {
	f.Add(appendRecord(nil, Default, 7, 0, []byte("prism")), true)
	f.Add(appendRecord(nil, Strict, 7, 0, []byte("prism")), false)
	f.Add(appendMark(nil, 7, 0, 0), true)
	f.Fuzz(func(t *testing.T, b []byte, def bool) {
		p := Strict
		if def {
			p = Default
		}
		frag, state := parseFragment(b, p, 7)
		if state == fragmentValid {
			if again := appendFragment(nil, p, 7, frag.typ, frag.data); !bytes.Equal(again, b[:len(again)]) {
				t.Fatalf("%x is framed as %x", b, again)
			}
		}
	})
}

func FuzzDecodeRecordHeader(f *testing.F) {
	for _, payload := range []string{"prism", strings.Repeat("prism", 3000)} {
		sums := appendSums(nil, []byte(payload))
		b := make([]byte, payloadOffset(len(sums)))
		putRecordHeader(b, MakePos(3, 4096), &RecordHeader{Ino: 2, FileOff: 1, Raw: uint32(len(payload)), Stored: uint32(len(payload))}, sums)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		pos := MakePos(3, 4096)
		h, e, n, err := decodeRecordHeader(b, pos)
		if err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Fatal(err)
			}
			return
		}
		if n < recordHeader || e.check() != nil {
			t.Fatalf("%+v of %d bytes accepted", e, n)
		}
		again := make([]byte, payloadOffset(len(e.Sums)))
		putRecordHeader(again, pos, &h, e.Sums)
		end := recordHeader + len(e.Sums)
		if !bytes.Equal(again[:end], b[:end]) {
			t.Fatalf("%x is encoded as %x", b[:end], again[:end])
		}
		if _, _, _, err := decodeRecordHeader(b, pos+8); err == nil {
			t.Fatal("accepted at another position")
		}
	})
}

func FuzzDecodeRedo(f *testing.F) {
	f.Add(AppendRedo(nil, []Redo{{Seg: 3, Off: 4096, Data: []byte("prism")}, {Seg: 4, Off: 5000}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		redo, err := DecodeRedo(b)
		if err == nil && !bytes.Equal(AppendRedo(nil, redo), b) {
			t.Fatalf("%x is encoded as %x", b, AppendRedo(nil, redo))
		}
	})
}

// Goal: no payload comes back wrong from damaged stored bytes.
func FuzzDecompress(f *testing.F) {
	comp := newCompressor()
	raw := bytes.Repeat([]byte("prism"), 100)
	for _, codec := range []uint8{CodecS2, CodecZstd} {
		stored, _ := comp.compress(codec, raw, make([]byte, 1000))
		f.Add(codec, uint16(len(raw)), bytes.Clone(stored))
	}
	f.Fuzz(func(t *testing.T, codec uint8, n uint16, stored []byte) {
		if n == 0 {
			return
		}
		e := &Extent{Seg: 1, Off: 4096, Codec: codec, Raw: uint32(n), Stored: uint32(len(stored))}
		if err := comp.decompress(e, make([]byte, n), stored); err != nil && !errors.Is(err, ErrCorrupt) {
			t.Fatal(err)
		}
	})
}

func TestCompressLimits(t *testing.T) {
	comp := newCompressor()
	rng := rand.New(rand.NewPCG(1, 2))
	random := make([]byte, 64<<10)
	for i := range random {
		random[i] = byte(rng.Uint32())
	}
	for _, codec := range []uint8{CodecS2, CodecZstd} {
		if _, used := comp.compress(codec, random, make([]byte, 1<<17)); used != CodecRaw {
			t.Errorf("codec %d keeps random bytes compressed", codec)
		}
		// A tenth is not enough.
		mixed := append(bytes.Clone(random[:58<<10]), make([]byte, 6<<10)...)
		if _, used := comp.compress(codec, mixed, make([]byte, 1<<17)); used != CodecRaw {
			t.Errorf("codec %d keeps a saving of a tenth", codec)
		}
		largest := bytes.Repeat([]byte("0123456789abcdef"), MaxPayload/16)
		stored, used := comp.compress(codec, largest, make([]byte, 0, 1<<20))
		if used != codec {
			t.Fatalf("codec %d not used", codec)
		}
		got := make([]byte, MaxPayload)
		e := &Extent{Raw: MaxPayload, Stored: uint32(len(stored)), Codec: codec}
		if err := comp.decompress(e, got, stored); err != nil || !bytes.Equal(got, largest) {
			t.Errorf("codec %d: %v", codec, err)
		}
	}
}
