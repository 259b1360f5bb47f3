package engine

import (
	"encoding/binary"
	"errors"
	"fmt"
	"testing"
)

// The cases of LevelDB's filter_block_test.cc, MultiChunk, with the real Bloom
// policy.
func TestStrictFilterLevelDBCases(t *testing.T) {
	var b strictFilterBuilder
	b.startBlock(0)
	b.add([]byte("foo"))
	b.startBlock(2000)
	b.add([]byte("bar"))
	b.startBlock(3100)
	b.add([]byte("box"))
	b.startBlock(9000)
	b.add([]byte("box"))
	b.add([]byte("hello"))
	f := b.finish()
	for _, c := range []struct {
		off  uint64
		key  string
		want bool
	}{
		{0, "foo", true}, {2000, "bar", true}, {0, "box", false}, {0, "hello", false},
		{3100, "box", true}, {3100, "foo", false}, {3100, "bar", false}, {3100, "hello", false},
		{4100, "foo", false}, {4100, "bar", false}, {4100, "box", false}, {4100, "hello", false},
		{9000, "box", true}, {9000, "hello", true}, {9000, "foo", false}, {9000, "bar", false},
		{1 << 40, "foo", true}, // beyond the filters: may contain anything
	} {
		if got := strictMayContain(f, c.off, []byte(c.key)); got != c.want {
			t.Errorf("%s at %d: %v", c.key, c.off, got)
		}
	}
	var empty strictFilterBuilder
	if got := fmt.Sprintf("%x", empty.finish()); got != "000000000b" {
		t.Errorf("empty filter block %s", got)
	}
}

func TestFilterFalsePositives(t *testing.T) {
	const n = 20000
	var hashes []uint64
	var b strictFilterBuilder
	key := func(i int) []byte { return binary.LittleEndian.AppendUint32(nil, uint32(i)) }
	for i := range n {
		hashes = append(hashes, tableBloomHash(key(i)))
		b.add(key(i))
	}
	bloom, err := openTableBloom(buildTableBloom(hashes))
	if err != nil {
		t.Fatal(err)
	}
	strict := b.finish()
	falseTable, falseStrict := 0, 0
	for i := range n {
		if !bloom.mayContain(key(i)) || !strictMayContain(strict, 0, key(i)) {
			t.Fatalf("key %d is missing", i)
		}
		if bloom.mayContain(key(1e9 + i)) {
			falseTable++
		}
		if strictMayContain(strict, 0, key(1e9+i)) {
			falseStrict++
		}
	}
	t.Logf("false positives: table %.2f %%, LevelDB %.2f %%", 100*float64(falseTable)/n, 100*float64(falseStrict)/n)
	if falseTable > n*2/100 || falseStrict > n*2/100 {
		t.Errorf("too many false positives: %d and %d of %d", falseTable, falseStrict, n)
	}
}

func TestTableBloomDamage(t *testing.T) {
	good := buildTableBloom([]uint64{1, 2, 3})
	for _, b := range [][]byte{nil, good[:4], good[1:], append([]byte{0}, good...), make([]byte, 5)} {
		if _, err := openTableBloom(b); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%d bytes: %v", len(b), err)
		}
	}
}

func FuzzFilter(f *testing.F) {
	var b strictFilterBuilder
	b.add([]byte("foo"))
	f.Add(b.finish(), uint64(0), []byte("foo"))
	f.Add(buildTableBloom([]uint64{1}), uint64(1<<20), []byte("x"))
	f.Fuzz(func(t *testing.T, filter []byte, off uint64, key []byte) {
		strictMayContain(filter, off, key)
		if b, err := openTableBloom(filter); err == nil {
			b.mayContain(key)
		}
	})
}

func BenchmarkTableBloom(b *testing.B) {
	var hashes []uint64
	for i := range 100000 {
		hashes = append(hashes, tableBloomHash(fmt.Appendf(nil, "key-%020d", i)))
	}
	bloom, err := openTableBloom(buildTableBloom(hashes))
	if err != nil {
		b.Fatal(err)
	}
	keys := make([][]byte, 1024)
	for i := range keys {
		keys[i] = fmt.Appendf(nil, "key-%020d", i*97)
	}
	i := 0
	for b.Loop() {
		bloom.mayContain(keys[i&1023])
		i++
	}
}
