package engine

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sort"
	"strings"
	"testing"
)

type kv struct{ key, value []byte }

// randomKVs returns up to n entries in order, without duplicates.
func randomKVs(rng *rand.Rand, n, maxValue int) []kv {
	var kvs []kv
	for range n {
		k := randomIKey(rng)
		if rng.IntN(2) == 0 {
			k = makeInternal(nil, fmt.Appendf(nil, "inode/%06d/%d", rng.IntN(n*4), rng.IntN(3)), SeqNum(rng.IntN(100)), KindSet)
		}
		v := make([]byte, rng.IntN(maxValue+1))
		for i := range v {
			v[i] = byte(rng.IntN(4)) // compressible
		}
		kvs = append(kvs, kv{k, v})
	}
	slices.SortFunc(kvs, func(a, b kv) int { return compareInternal(a.key, b.key) })
	return slices.CompactFunc(kvs, func(a, b kv) bool { return bytes.Equal(a.key, b.key) })
}

func buildBlock(interval int, kvs []kv) []byte {
	var b blockBuilder
	b.reset(interval)
	for _, e := range kvs {
		b.add(e.key, e.value)
	}
	return b.finish()
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestBlockGolden(t *testing.T) {
	got := buildBlock(2, []kv{
		{ik("apple", 3, KindSet), []byte("red")},
		{ik("application", 2, KindSet), []byte("form")},
		{ik("apply", 1, KindDelete), nil},
	})
	want := unhex(t, `
		00 0d 03  6170706c65 0103000000000000  726564
		04 0f 04  69636174696f6e 0102000000000000  666f726d
		00 0d 00  6170706c79 0001000000000000
		00000000 29000000 02000000`)
	if !bytes.Equal(got, want) {
		t.Fatalf("got\n% x\nwant\n% x", got, want)
	}
}

// checkAgainstModel compares an iterator with the sorted entries it must show,
// over whole walks both ways and steps random moves.
func checkAgainstModel(t *testing.T, rng *rand.Rand, it internalIterator, kvs []kv, steps int) {
	t.Helper()
	check := func(what string, ok bool, pos int) {
		t.Helper()
		if err := it.Err(); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if want := pos >= 0 && pos < len(kvs); ok != want || it.Valid() != want {
			t.Fatalf("%s: returned %v, valid %v, want %v", what, ok, it.Valid(), want)
		} else if want && (!bytes.Equal(it.Key(), kvs[pos].key) || !bytes.Equal(it.Value(), kvs[pos].value)) {
			t.Fatalf("%s: at %q, want %q", what, it.Key(), kvs[pos].key)
		}
	}
	check("first", it.First(), 0)
	for i := 0; i < len(kvs); i++ {
		check("next", it.Next(), i+1)
	}
	check("last", it.Last(), len(kvs)-1)
	for i := len(kvs) - 1; i >= 0; i-- {
		check("prev", it.Prev(), i-1)
	}
	pos := -1
	for range steps {
		switch op := rng.IntN(8); {
		case op == 0:
			pos = 0
			check("first", it.First(), pos)
		case op == 1:
			pos = len(kvs) - 1
			check("last", it.Last(), pos)
		case op <= 3:
			target := randomIKey(rng)
			if len(kvs) > 0 && rng.IntN(2) == 0 {
				target = slices.Clone(kvs[rng.IntN(len(kvs))].key)
				if rng.IntN(2) == 0 {
					target[len(target)-trailerLen]++ // a neighbour in the order
				}
			}
			pos = sort.Search(len(kvs), func(i int) bool { return compareInternal(kvs[i].key, target) >= 0 })
			if op == 2 {
				check("seek ge", it.SeekGE(target), pos)
			} else {
				pos--
				check("seek lt", it.SeekLT(target), pos)
			}
		case it.Valid() && op <= 5:
			pos++
			check("next", it.Next(), pos)
		case it.Valid():
			pos--
			check("prev", it.Prev(), pos)
		}
	}
}

func TestBlockIterModel(t *testing.T) {
	rng := newRand(t)
	for _, interval := range []int{1, 2, 16} {
		for _, n := range []int{0, 1, 2, 15, 16, 17, 33, 200} {
			kvs := randomKVs(rng, n, 200)
			b, err := makeBlock(buildBlock(interval, kvs))
			if err != nil {
				t.Fatal(err)
			}
			var it blockIter
			it.init(b)
			if it.Valid() {
				t.Fatal("valid before it is positioned")
			}
			checkAgainstModel(t, rng, &it, kvs, 2000)
		}
	}
}

func TestBlockBuilderEstimate(t *testing.T) {
	rng := newRand(t)
	var b blockBuilder
	b.reset(16)
	for _, e := range randomKVs(rng, 100, 50) {
		b.add(e.key, e.value)
	}
	want := b.estimatedSize()
	if got := len(b.finish()); got != want {
		t.Fatalf("estimated %d, is %d", want, got)
	}
}

func TestBlockDamage(t *testing.T) {
	for name, s := range map[string]string{
		"empty":                      "",
		"too short":                  "000000",
		"more restarts than room":    "00000000 02000000",
		"huge restart count":         "00000000 ffffffff",
		"entries without a restart":  "000900 61 0101000000000000 00000000",
		"restart out of range":       "000900 61 0101000000000000 ff000000 01000000",
		"first restart not at zero":  "000900 61 0101000000000000 01000000 01000000",
		"shared bytes of no key":     "010900 61 0101000000000000 00000000 01000000",
		"key without a trailer":      "000200 6161 00000000 01000000",
		"key beyond the entries":     "007f00 61 0101000000000000 00000000 01000000",
		"value beyond the entries":   "00097f 61 0101000000000000 00000000 01000000",
		"varint without end":         "ffffffffffffffffffffff 00000000 01000000",
		"length beyond all memory":   "00ffffffffffffffff7f00 00000000 01000000",
		"restart point inside entry": "000900 61 0101000000000000 00000000 05000000 02000000",
	} {
		b, err := makeBlock(unhex(t, s))
		if err == nil {
			err = walkBlock(b)
		}
		if !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// walkBlock makes every kind of move on a block and returns the first error.
func walkBlock(b block) error {
	var it blockIter
	it.init(b)
	var first error
	note := func() {
		if first == nil {
			first = it.Err()
		}
	}
	limit := len(b.data) + 2 // bad restart points must not make a walk endless
	n := 0
	for ok := it.First(); ok && n < limit; ok = it.Next() {
		n++
	}
	note()
	n = 0
	for ok := it.Last(); ok && n < limit; ok = it.Prev() {
		n++
	}
	note()
	for _, k := range [][]byte{ik("", 0, KindSet), ik("a", 1, KindSet), ik("zz", 9, KindSet)} {
		it.SeekGE(k)
		note()
		it.SeekLT(k)
		note()
	}
	return first
}

func FuzzBlock(f *testing.F) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{0, 1, 20} {
		f.Add(buildBlock(16, randomKVs(rng, n, 20)))
		f.Add(buildBlock(1, randomKVs(rng, n, 20)))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		b, err := makeBlock(data)
		if err == nil {
			err = walkBlock(b)
		}
		if err != nil && !errors.Is(err, ErrCorrupt) {
			t.Fatalf("wrong kind of error: %v", err)
		}
	})
}

func BenchmarkBlockSeekGE(b *testing.B) {
	var kvs []kv
	for i := range 27 {
		kvs = append(kvs, kv{ik(fmt.Sprintf("key-%020d", i), 1, KindSet), make([]byte, 128)})
	}
	blk, err := makeBlock(buildBlock(dataRestartInterval, kvs))
	if err != nil {
		b.Fatal(err)
	}
	var it blockIter
	it.init(blk)
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		if !it.SeekGE(kvs[i%len(kvs)].key) {
			b.Fatal("not found")
		}
		i++
	}
}
