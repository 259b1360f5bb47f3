package oracle

import (
	"bytes"
	"encoding/binary"
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/syndtr/goleveldb/leveldb/comparer"
	"github.com/syndtr/goleveldb/leveldb/filter"
	"github.com/syndtr/goleveldb/leveldb/opt"
	"github.com/syndtr/goleveldb/leveldb/storage"
	"github.com/syndtr/goleveldb/leveldb/table"
	"github.com/syndtr/goleveldb/leveldb/util"
)

var rewrite = flag.Bool("rewrite", false, "write engine/testdata/tables/goleveldb.ldb anew")

const tables = "../../engine/testdata/tables/"

// internalComparer gives goleveldb's table package the order of internal keys,
// which its own database keeps to itself.
type internalComparer struct{}

func ukey(ik []byte) []byte { return ik[:len(ik)-8] }

func (internalComparer) Name() string { return "leveldb.InternalKeyComparator" }

func (internalComparer) Compare(a, b []byte) int {
	if c := bytes.Compare(ukey(a), ukey(b)); c != 0 {
		return c
	}
	ta, tb := binary.LittleEndian.Uint64(a[len(a)-8:]), binary.LittleEndian.Uint64(b[len(b)-8:])
	switch {
	case ta > tb:
		return -1
	case ta < tb:
		return 1
	}
	return 0
}

var maxTrailer = []byte{1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

func (internalComparer) Separator(dst, a, b []byte) []byte {
	ua, ub := ukey(a), ukey(b)
	s := comparer.DefaultComparer.Separator(dst, ua, ub)
	if s != nil && len(s) < len(ua) && bytes.Compare(ua, s) < 0 {
		return append(s, maxTrailer...)
	}
	return nil
}

func (internalComparer) Successor(dst, b []byte) []byte {
	ub := ukey(b)
	s := comparer.DefaultComparer.Successor(dst, ub)
	if s != nil && len(s) < len(ub) && bytes.Compare(ub, s) < 0 {
		return append(s, maxTrailer...)
	}
	return nil
}

// userKeyFilter applies a filter to user keys, as LevelDB's database does.
// goleveldb leaves the 2 out of the name of the same filter.
type userKeyFilter struct{ filter.Filter }

func (f userKeyFilter) Name() string                   { return f.Filter.Name() + "2" }
func (f userKeyFilter) Contains(data, key []byte) bool { return f.Filter.Contains(data, ukey(key)) }
func (f userKeyFilter) NewGenerator() filter.FilterGenerator {
	return userKeyGenerator{f.Filter.NewGenerator()}
}

type userKeyGenerator struct{ filter.FilterGenerator }

func (g userKeyGenerator) Add(key []byte) { g.FilterGenerator.Add(ukey(key)) }

func options(c opt.Compression) *opt.Options {
	return &opt.Options{
		BlockSize:   1024,
		Comparer:    internalComparer{},
		Compression: c,
		Filter:      userKeyFilter{filter.NewBloomFilter(10)},
		Strict:      opt.StrictAll,
	}
}

type kv struct{ key, value []byte }

// oracleKVs are the entries of the golden tables; the engine's tests have the
// same function.
func oracleKVs(n int) []kv {
	ik := func(u string, seq int, kind byte) []byte {
		return binary.LittleEndian.AppendUint64([]byte(u), uint64(seq)<<8|uint64(kind))
	}
	var kvs []kv
	for i := range n {
		k := fmt.Sprintf("dir%02d/file%05d", i/100, i)
		if i%7 == 0 {
			kvs = append(kvs, kv{ik(k, n+i, 0), nil})
		}
		kvs = append(kvs, kv{ik(k, i+1, 1), bytes.Repeat([]byte(k), i%5)})
	}
	return kvs
}

func write(t *testing.T, o *opt.Options) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := table.NewWriter(&buf, o)
	for _, e := range oracleKVs(2000) {
		if err := w.Append(e.key, e.value); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// Without compression the two writers agree in every byte.
func TestWritersAgree(t *testing.T) {
	ours, err := os.ReadFile(tables + "strict.ldb")
	if err != nil {
		t.Fatal(err)
	}
	theirs := write(t, options(opt.NoCompression))
	if !bytes.Equal(ours, theirs) {
		i := 0
		for i < len(ours) && i < len(theirs) && ours[i] == theirs[i] {
			i++
		}
		t.Fatalf("ours has %d bytes, theirs %d; they differ from %d on", len(ours), len(theirs), i)
	}
}

// goleveldb reads our table: every entry, in order and by key.
func TestGoleveldbReadsOurs(t *testing.T) {
	for _, name := range []string{"strict.ldb", "strict-snappy.ldb"} {
		data, err := os.ReadFile(tables + name)
		if err != nil {
			t.Fatal(err)
		}
		r, err := table.NewReader(bytes.NewReader(data), int64(len(data)), storage.FileDesc{Type: storage.TypeTable, Num: 7}, nil, util.NewBufferPool(4096), options(opt.DefaultCompression))
		if err != nil {
			t.Fatal(err)
		}
		kvs := oracleKVs(2000)
		it := r.NewIterator(nil, nil)
		n := 0
		for it.Next() {
			if !bytes.Equal(it.Key(), kvs[n].key) || !bytes.Equal(it.Value(), kvs[n].value) {
				t.Fatalf("%s: entry %d is %q", name, n, it.Key())
			}
			n++
		}
		it.Release()
		if err := it.Error(); err != nil || n != len(kvs) {
			t.Fatalf("%s: %d of %d entries: %v", name, n, len(kvs), err)
		}
		for _, e := range kvs {
			k, v, err := r.Find(e.key, true, nil)
			if err != nil || !bytes.Equal(k, e.key) || !bytes.Equal(v, e.value) {
				t.Fatalf("%s: find %q: %q %v", name, e.key, k, err)
			}
		}
		// The filter keeps absent keys away.
		wrong := 0
		for i := range 1000 {
			k := binary.LittleEndian.AppendUint64(fmt.Appendf(nil, "dir03/gone%05d", i), 1)
			if _, _, err := r.Find(k, true, nil); err == nil {
				wrong++
			} else if err != table.ErrNotFound {
				t.Fatal(err)
			}
		}
		if wrong > 50 {
			t.Errorf("%s: the filter let %d of 1000 absent keys through", name, wrong)
		}
		r.Release()
	}
}

// The engine's tests read this table of goleveldb's.
func TestGoleveldbTable(t *testing.T) {
	data := write(t, options(opt.SnappyCompression))
	path := tables + "goleveldb.ldb"
	if *rewrite {
		if err := os.WriteFile(path, data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	kept, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(kept, data) {
		t.Error("goleveldb writes other bytes now")
	}
}
