package engine

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"prismfs/ordered"
	"prismfs/uring"
)

var profiles = []struct {
	name    string
	profile ordered.Profile
	codecs  []Codec
}{
	{"strict", ordered.Strict, []Codec{None, Snappy}},
	{"default", ordered.Default, []Codec{None, Snappy, Zstd}},
}

// writeTable returns a file with kvs as table 7.
func writeTable(t testing.TB, opts tableOptions, kvs []kv) (*memFile, tableMeta) {
	t.Helper()
	f := &memFile{name: "000007.ldb"}
	w := newTableWriter(f, 7, opts)
	for _, e := range kvs {
		if err := w.add(e.key, e.value); err != nil {
			t.Fatal(err)
		}
	}
	m, err := w.finish()
	if err != nil {
		t.Fatal(err)
	}
	if m.size != int64(len(f.data)) || m.num != 7 || m.entries != uint64(len(kvs)) {
		t.Fatalf("meta %+v of %d bytes and %d entries", m, len(f.data), len(kvs))
	}
	return f, m
}

func openTestTable(t testing.TB, f *memFile, opts tableOptions) *table {
	t.Helper()
	tab, err := openTable(f, 7, int64(len(f.data)), newBlockCache(1<<20), opts)
	if err != nil {
		t.Fatal(err)
	}
	return tab
}

// goldenKVs is the table that FORMAT.md works through.
var goldenKVs = []kv{
	{ik("apple", 3, KindSet), []byte("red")},
	{ik("application", 2, KindSet), []byte("form")},
	{ik("apply", 1, KindDelete), nil},
}

func TestTableGolden(t *testing.T) {
	for _, c := range []struct {
		profile ordered.Profile
		want    string
	}{
		{ordered.Strict, goldenStrict},
		{ordered.Default, goldenDefault},
	} {
		f, _ := writeTable(t, tableOptions{Profile: c.profile, BlockSize: 4096}, goldenKVs)
		if want := unhex(t, c.want); !bytes.Equal(f.data, want) {
			t.Errorf("profile %d: got\n%x\nwant\n%x", c.profile, f.data, want)
		}
	}
}

// The tables of FORMAT.md say what is in the file, at the offset they name, and
// leave no gap.
func TestFormatDocument(t *testing.T) {
	doc, err := os.ReadFile("FORMAT.md")
	if err != nil {
		t.Fatal(err)
	}
	row := regexp.MustCompile("(?m)^\\| (\\d+) \\| (?:`([0-9a-f .]+)`|(\\d+) zeros) \\|")
	golden := [][]byte{unhex(t, goldenStrict), unhex(t, goldenDefault)}
	which, rows, next := -1, 0, 0
	for _, m := range row.FindAllStringSubmatch(string(doc), -1) {
		rows++
		off, err := strconv.Atoi(m[1])
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case off == 0 || off == 61 && next != 61: // the head of a table
			which++
		case next != 0 && off != next:
			t.Errorf("row %s: the row before ends at %d", m[0], next)
		}
		file := golden[which][off:]
		if zeros, err := strconv.Atoi(m[3]); err == nil {
			if !bytes.Equal(file[:zeros], make([]byte, zeros)) {
				t.Errorf("row %s: % x", m[0], file[:zeros])
			}
			next = off + zeros
			continue
		}
		head, tail, elided := strings.Cut(m[2], " ... ")
		h := unhex(t, head)
		next = off + len(h)
		if !bytes.HasPrefix(file, h) {
			t.Errorf("row %s: % x", m[0], file[:len(h)])
		}
		if elided {
			i := bytes.Index(file, unhex(t, tail))
			next = off + i + len(unhex(t, tail))
		}
	}
	if which != 1 || next != len(golden[1]) || rows < 50 {
		t.Errorf("%d rows, the last ends at %d", rows, next)
	}
}

// rewriteGolden writes the larger golden tables anew: only for a new format
// version, never to make a test pass.
var rewriteGolden = os.Getenv("REWRITE_GOLDEN") != ""

// Tables with many blocks, kept as files: they must stay readable, and without
// a codec the writer must still make the same bytes. The strict ones are also
// read by the outside oracle in integration/oracle.
func TestTableGoldenFiles(t *testing.T) {
	kvs := oracleKVs(2000)
	for _, c := range []struct {
		name string
		opts tableOptions
	}{
		{"strict", tableOptions{Profile: ordered.Strict}},
		{"strict-snappy", tableOptions{Profile: ordered.Strict, Codec: Snappy}},
		{"default", tableOptions{}},
		{"default-snappy", tableOptions{Codec: Snappy}},
		{"default-zstd", tableOptions{Codec: Zstd}},
	} {
		c.opts.BlockSize = 1024
		path := filepath.Join("testdata", "tables", c.name+".ldb")
		f, _ := writeTable(t, c.opts, kvs)
		if rewriteGolden {
			if err := os.WriteFile(path, f.data, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		kept, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if c.opts.Codec == None && !bytes.Equal(f.data, kept) {
			t.Errorf("%s: the writer makes other bytes now", c.name)
		}
		checkTable(t, newRand(t), openTestTable(t, &memFile{name: path, data: kept}, c.opts), kvs)
	}
}

// oracleKVs are entries whose values can be told from their keys, so that a
// reader elsewhere can check them. integration/oracle has a copy.
func oracleKVs(n int) []kv {
	var kvs []kv
	for i := range n {
		k := fmt.Sprintf("dir%02d/file%05d", i/100, i)
		if i%7 == 0 {
			kvs = append(kvs, kv{ik(k, SeqNum(n+i), KindDelete), nil})
		}
		kvs = append(kvs, kv{ik(k, SeqNum(i+1), KindSet), bytes.Repeat([]byte(k), i%5)})
	}
	return kvs
}

// goleveldb.ldb was written by goleveldb's table writer, with Snappy and its
// Bloom filter; integration/oracle makes it.
func TestReadForeignTable(t *testing.T) {
	data, err := os.ReadFile(filepath.Join("testdata", "tables", "goleveldb.ldb"))
	if err != nil {
		t.Fatal(err)
	}
	tab := openTestTable(t, &memFile{name: "goleveldb.ldb", data: data}, tableOptions{Profile: ordered.Strict})
	if tab.filter == nil {
		t.Error("the filter was not found")
	}
	checkTable(t, newRand(t), tab, oracleKVs(2000))
}

// checkTable compares gets and iterators of a table with its entries.
func checkTable(t *testing.T, rng *rand.Rand, tab *table, kvs []kv) {
	t.Helper()
	it := tab.newIter(Block)
	checkAgainstModel(t, rng, it, kvs, 1000)
	if err := it.Close(); err != nil {
		t.Fatal(err)
	}
	scan := tab.newScan()
	n := 0
	for ok := scan.First(); ok; ok = scan.Next() {
		if !bytes.Equal(scan.Key(), kvs[n].key) || !bytes.Equal(scan.Value(), kvs[n].value) {
			t.Fatalf("scan at %q, want %q", scan.Key(), kvs[n].key)
		}
		n++
	}
	if err := scan.Close(); err != nil || n != len(kvs) {
		t.Fatalf("scan saw %d of %d entries: %v", n, len(kvs), err)
	}
	for range 2000 {
		target := randomIKey(rng)
		if len(kvs) > 0 && rng.IntN(3) > 0 {
			target = slices.Clone(kvs[rng.IntN(len(kvs))].key)
			if rng.IntN(2) == 0 {
				target[len(target)-trailerLen+1]++
			}
		}
		v, trail, ok, err := tab.get([]byte("x"), target, Block)
		if err != nil {
			t.Fatal(err)
		}
		i, _ := slices.BinarySearchFunc(kvs, target, func(e kv, k []byte) int { return compareInternal(e.key, k) })
		want := i < len(kvs) && equalUserKey(kvs[i].key, target)
		if ok != want {
			t.Fatalf("get %q: %v, want %v", target, ok, want)
		}
		if ok && (trail != trailer(kvs[i].key) || string(v) != "x"+string(kvs[i].value)) {
			t.Fatalf("get %q: trailer %x value %q", target, trail, v)
		}
	}
	for _, b := range tab.cache.allBlocks() {
		if n := b.refs.Load(); n != 1 {
			t.Fatalf("a block has %d holders left", n)
		}
	}
}

func (c *blockCache) allBlocks() []*cachedBlock {
	var all []*cachedBlock
	for i := range c.shards {
		all = append(all, c.shards[i].ring...)
	}
	return all
}

func TestTableRoundTrip(t *testing.T) {
	rng := newRand(t)
	for _, p := range profiles {
		for _, codec := range p.codecs {
			for _, n := range []int{0, 1, 2, 50, 1500} {
				opts := tableOptions{Profile: p.profile, BlockSize: []int{1, 256, 4096}[rng.IntN(3)], Codec: codec}
				t.Run(fmt.Sprintf("%s/codec%d/%d/%d", p.name, codec, n, opts.BlockSize), func(t *testing.T) {
					kvs := randomKVs(rng, n, 300)
					f, m := writeTable(t, opts, kvs)
					if n > 0 && (!bytes.Equal(m.smallest, kvs[0].key) || !bytes.Equal(m.largest, kvs[len(kvs)-1].key)) {
						t.Fatalf("bounds %q %q", m.smallest, m.largest)
					}
					checkTable(t, rng, openTestTable(t, f, opts), kvs)
				})
			}
		}
	}
}

// A value larger than a block, and one larger than the writer's buffer.
func TestTableLargeValues(t *testing.T) {
	for _, p := range profiles {
		for _, codec := range p.codecs {
			kvs := []kv{
				{ik("a", 1, KindSet), bytes.Repeat([]byte("ab"), 100<<10)},
				{ik("b", 2, KindSet), nil},
				{ik("c", 3, KindSet), bytes.Repeat([]byte{0}, 3*writeChunk)},
			}
			opts := tableOptions{Profile: p.profile, BlockSize: 4096, Codec: codec}
			f, _ := writeTable(t, opts, kvs)
			if err := readAll(f, opts, kvs); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestTableWriterErrors(t *testing.T) {
	opts := tableOptions{BlockSize: 4096}
	for name, keys := range map[string][][]byte{
		"same key twice": {ik("a", 1, KindSet), ik("a", 1, KindSet)},
		"out of order":   {ik("b", 1, KindSet), ik("a", 1, KindSet)},
		"older first":    {ik("a", 1, KindSet), ik("a", 2, KindSet)},
		"no trailer":     {[]byte("short")},
	} {
		w := newTableWriter(&memFile{}, 7, opts)
		var err error
		for _, k := range keys {
			err = w.add(k, nil)
		}
		if err == nil {
			t.Errorf("%s was accepted", name)
		}
		if _, ferr := w.finish(); !errors.Is(ferr, err) {
			t.Errorf("%s: finish after a failure: %v", name, ferr)
		}
	}
	// Every write of a table fails once, and the failure sticks.
	value := make([]byte, writeChunk/2)
	for i := 1; ; i++ {
		f := &memFile{failWrites: i, writeErr: fmt.Errorf("%w", uring.ErrNoSpace)}
		w := newTableWriter(f, 7, opts)
		for j := range 5 {
			w.add(ik(fmt.Sprint(j), 1, KindSet), value)
		}
		_, err := w.finish()
		if err == nil {
			if f.failWrites == 0 || i < 3 {
				t.Fatalf("write %d failed unnoticed", i)
			}
			break
		}
		if !errors.Is(err, ErrNoSpace) || !errors.Is(err, uring.ErrNoSpace) {
			t.Fatalf("write %d: %v", i, err)
		}
	}
}

// Any flipped bit is found, or hurts nothing: what is read is right or the
// error is ErrCorrupt. In the default profile every flip is found.
func TestTableBitFlips(t *testing.T) {
	rng := newRand(t)
	kvs := randomKVs(rng, 20, 60)
	for _, p := range profiles {
		for _, codec := range p.codecs {
			opts := tableOptions{Profile: p.profile, BlockSize: 256, Codec: codec}
			f, _ := writeTable(t, opts, kvs)
			for i := range f.data {
				for bit := range 8 {
					if bit != i%8 && rng.IntN(8) != 0 {
						continue
					}
					bad := &memFile{name: "bad", data: slices.Clone(f.data)}
					bad.data[i] ^= 1 << bit
					err := readAll(bad, opts, kvs)
					if err == nil && p.profile == ordered.Default {
						t.Fatalf("%s codec %d: byte %d bit %d went unnoticed", p.name, codec, i, bit)
					}
					if err == nil && i < len(f.data)-footerLen {
						t.Fatalf("%s codec %d: byte %d bit %d outside of the footer went unnoticed", p.name, codec, i, bit)
					}
					if err != nil && !errors.Is(err, ErrCorrupt) {
						t.Fatalf("%s codec %d: byte %d bit %d: %v", p.name, codec, i, bit, err)
					}
				}
			}
			for cut := range f.data {
				bad := &memFile{name: "bad", data: f.data[:cut]}
				if err := readAll(bad, opts, kvs); !errors.Is(err, ErrCorrupt) {
					t.Fatalf("cut to %d bytes: %v", cut, err)
				}
			}
		}
	}
}

// readAll opens a table and reads it by iterator and gets. It returns the
// first error, and an error of its own kind for wrong data.
func readAll(f *memFile, opts tableOptions, kvs []kv) error {
	tab, err := openTable(f, 7, int64(len(f.data)), newBlockCache(1<<20), opts)
	if err != nil {
		return err
	}
	defer tab.release()
	it := tab.newIter(Block)
	n := 0
	for ok := it.First(); ok; ok = it.Next() {
		if n == len(kvs) || !bytes.Equal(it.Key(), kvs[n].key) || !bytes.Equal(it.Value(), kvs[n].value) {
			return errors.New("wrong data")
		}
		n++
	}
	if err := it.Close(); err != nil {
		return err
	}
	if n != len(kvs) {
		return errors.New("entries lost")
	}
	for _, e := range kvs {
		v, _, ok, err := tab.get(nil, e.key, Block)
		if err != nil {
			return err
		}
		if !ok || !bytes.Equal(v, e.value) {
			return errors.New("wrong get")
		}
	}
	return nil
}

// A block in the wrong place has right contents; the default profile's
// checksum says where it belongs.
func TestTableMisplacedBlock(t *testing.T) {
	opts := tableOptions{BlockSize: 128}
	value := make([]byte, 100)
	var kvs, other []kv
	for i := range 10 {
		kvs = append(kvs, kv{ik(fmt.Sprintf("a%d", i), 1, KindSet), value})
		other = append(other, kv{ik(fmt.Sprintf("b%d", i), 1, KindSet), value})
	}
	f, _ := writeTable(t, opts, kvs)

	swapped := &memFile{name: "swapped", data: slices.Clone(f.data)}
	n := bytes.Index(f.data[1:], []byte("a2")) - bytes.Index(f.data[1:], []byte("a0")) // a block's length
	copy(swapped.data[:n], f.data[n:2*n])
	if err := readAll(swapped, opts, kvs); !errors.Is(err, ErrCorrupt) {
		t.Errorf("block of another place: %v", err)
	}

	g := &memFile{}
	w := newTableWriter(g, 8, opts)
	for _, e := range other {
		if err := w.add(e.key, e.value); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.finish(); err != nil {
		t.Fatal(err)
	}
	stale := &memFile{name: "stale", data: slices.Clone(f.data)}
	copy(stale.data[:n], g.data[:n])
	if err := readAll(stale, opts, kvs); !errors.Is(err, ErrCorrupt) {
		t.Errorf("block of another table: %v", err)
	}
}

// Each profile refuses the other's tables.
func TestTableProfilesDiffer(t *testing.T) {
	for _, p := range profiles {
		f, _ := writeTable(t, tableOptions{Profile: p.profile, BlockSize: 4096}, goldenKVs)
		_, err := openTable(f, 7, int64(len(f.data)), newBlockCache(0), tableOptions{Profile: ordered.Strict + ordered.Default - p.profile})
		if !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", p.name, err)
		}
	}
}

func TestTableNoWait(t *testing.T) {
	opts := tableOptions{BlockSize: 128}
	kvs := oracleKVs(100)
	f, _ := writeTable(t, opts, kvs)
	tab := openTestTable(t, f, opts)
	f.cold.Store(true)
	if _, _, _, err := tab.get(nil, kvs[0].key, NoWait); err != ErrWouldBlock {
		t.Fatalf("get: %v", err)
	}
	it := tab.newIter(NoWait)
	if it.First() || it.Err() != ErrWouldBlock || it.Valid() {
		t.Fatalf("first: %v", it.Err())
	}
	// The page cache is good enough.
	f.cold.Store(false)
	if !it.First() || it.Err() != nil {
		t.Fatalf("first: %v", it.Err())
	}
	reads := f.reads.Load()
	if v, _, ok, err := tab.get(nil, kvs[len(kvs)-1].key, NoWait); err != nil || !ok || !bytes.Equal(v, kvs[len(kvs)-1].value) {
		t.Fatalf("get: %v %v", ok, err)
	}
	if f.reads.Load() != reads {
		t.Error("a NoWait get read from the disk")
	}
	// What was read once stays in the block cache.
	f.cold.Store(true)
	if _, _, ok, err := tab.get(nil, kvs[0].key, NoWait); err != nil || !ok {
		t.Fatalf("get: %v %v", ok, err)
	}
	// The walk stops where memory ends and can be taken up again.
	n := 1
	for it.Next() {
		n++
	}
	if it.Err() != ErrWouldBlock || n >= len(kvs) {
		t.Fatalf("walk of %d: %v", n, it.Err())
	}
	f.cold.Store(false)
	if !it.SeekGE(kvs[n].key) || !bytes.Equal(it.Key(), kvs[n].key) {
		t.Fatalf("seek: %v", it.Err())
	}
	if err := it.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestTableReadErrors(t *testing.T) {
	opts := tableOptions{BlockSize: 128}
	kvs := oracleKVs(100)
	f, _ := writeTable(t, opts, kvs)
	tab := openTestTable(t, f, opts)
	f.readErr = fmt.Errorf("medium: %w", syscall.EIO)
	for _, cold := range []bool{false, true} {
		f.cold.Store(cold)
		if _, _, _, err := tab.get(nil, kvs[0].key, Block); !errors.Is(err, syscall.EIO) || errors.Is(err, ErrCorrupt) {
			t.Errorf("get: %v", err)
		}
		it, scan := tab.newIter(Block), tab.newScan()
		for _, ok := range []bool{it.First(), it.Last(), it.SeekGE(kvs[3].key), it.SeekLT(kvs[3].key), scan.First()} {
			if ok {
				t.Error("moved onto unreadable data")
			}
		}
		if !errors.Is(it.Close(), syscall.EIO) || !errors.Is(scan.Close(), syscall.EIO) {
			t.Errorf("iterators: %v, %v", it.Err(), scan.Err())
		}
	}
	if _, err := openTable(f, 7, int64(len(f.data)), tab.cache, opts); !errors.Is(err, syscall.EIO) {
		t.Errorf("open: %v", err)
	}
	// A read error is that read's alone.
	f.readErr = nil
	if _, _, ok, err := tab.get(nil, kvs[0].key, Block); !ok || err != nil {
		t.Errorf("get afterwards: %v %v", ok, err)
	}
}

// Concurrent misses of one block make one read.
func TestTableMissesJoin(t *testing.T) {
	opts := tableOptions{BlockSize: 4096}
	f, _ := writeTable(t, opts, goldenKVs)
	tab := openTestTable(t, f, opts)
	f.cold.Store(true)
	f.entered, f.gate = make(chan struct{}), make(chan struct{})
	before := f.reads.Load()
	var wg sync.WaitGroup
	const readers = 8
	for range readers {
		wg.Go(func() {
			if v, _, ok, err := tab.get(nil, goldenKVs[0].key, Block); err != nil || !ok || string(v) != "red" {
				t.Errorf("%q %v %v", v, ok, err)
			}
		})
	}
	<-f.entered
	// All others must have joined before the read ends.
	fl := &tab.cache.flights
	for joined := 0; joined < readers-1; runtime.Gosched() {
		fl.mu.Lock()
		for _, fl := range fl.m {
			joined = fl.joined
		}
		fl.mu.Unlock()
	}
	f.gate <- struct{}{}
	wg.Wait()
	if n := f.reads.Load() - before; n != 1 {
		t.Errorf("%d reads", n)
	}
	for _, b := range tab.cache.allBlocks() {
		if b.refs.Load() != 1 {
			t.Errorf("%d holders left", b.refs.Load())
		}
	}
}

// FuzzTable opens damaged tables with checksums made right again, so that the
// decoders behind the checksums see bad bytes.
func FuzzTable(f *testing.F) {
	for _, s := range []string{goldenStrict, goldenDefault} {
		f.Add(unhex(f, s), uint16(3), byte(0xff))
	}
	f.Fuzz(func(t *testing.T, data []byte, at uint16, x byte) {
		for _, p := range profiles {
			opts := tableOptions{Profile: p.profile}
			for _, d := range [][]byte{data, fixedUp(p.profile, data, int(at), x)} {
				tab, err := openTable(&memFile{name: "fuzz", data: d}, 7, int64(len(d)), newBlockCache(1<<20), opts)
				if err != nil {
					continue
				}
				it := tab.newIter(Block)
				limit := len(d)*len(d) + 16
				for ok := it.First(); ok && limit > 0; ok = it.Next() {
					limit--
				}
				for ok := it.Last(); ok && limit > 0; ok = it.Prev() {
					limit--
				}
				it.SeekGE(goldenKVs[1].key)
				it.SeekLT(goldenKVs[1].key)
				it.Close()
				tab.get(nil, goldenKVs[1].key, Block)
				tab.release()
			}
		}
	})
}

// fixedUp changes byte at of a table and then makes the checksums of the
// footer, the index, the metaindex and the first block right.
func fixedUp(p ordered.Profile, data []byte, at int, x byte) []byte {
	d := slices.Clone(data)
	if len(d) <= footerLen {
		return d
	}
	d[at%len(d)] ^= x
	foot := d[len(d)-footerLen:]
	magic := appendFooter(nil, p, blockHandle{}, blockHandle{})[footerHandles:]
	copy(foot[footerHandles:], magic)
	if p == ordered.Default {
		putU32(foot[footerSum:], footerChecksum(foot))
	}
	meta, index, err := decodeFooter(foot, p)
	if err != nil {
		return d
	}
	fix := func(h blockHandle) []byte {
		limit := uint64(len(d) - footerLen)
		if h.off > limit || h.length > limit || h.off+h.length+blockTrailerLen > limit {
			return nil
		}
		b := d[h.off : h.off+h.length+blockTrailerLen]
		putU32(b[h.length+1:], blockChecksum(p, 7, h.off, b[:h.length+1]))
		return b[:h.length]
	}
	for _, h := range []blockHandle{meta, index} {
		b, err := makeBlock(fix(h))
		if err != nil {
			continue
		}
		var it blockIter
		it.initRaw(b)
		for ok := it.First(); ok; ok = it.Next() {
			if h, _, ok := decodeHandle(it.Value()); ok {
				fix(h)
			}
		}
	}
	return d
}

func putU32(b []byte, v uint32) {
	b[0], b[1], b[2], b[3] = byte(v), byte(v>>8), byte(v>>16), byte(v>>24)
}

func TestTableUnknownVersion(t *testing.T) {
	d := unhex(t, goldenDefault)
	i := bytes.Index(d, []byte(formatName))
	d[i+len(formatName)]++ // the version is the value behind the key
	meta, _, err := decodeFooter(d[len(d)-footerLen:], ordered.Default)
	if err != nil {
		t.Fatal(err)
	}
	b := d[meta.off : meta.off+meta.length+1]
	putU32(d[meta.off+meta.length+1:], blockChecksum(ordered.Default, 7, meta.off, b))
	_, err = openTable(&memFile{data: d}, 7, int64(len(d)), newBlockCache(0), tableOptions{})
	if err == nil || errors.Is(err, ErrCorrupt) {
		t.Fatalf("a table of a later version is not damaged, it is refused: %v", err)
	}
}

func benchKVs(n int) []kv {
	kvs := make([]kv, n)
	for i := range kvs {
		v := make([]byte, 128)
		for j := 0; j < len(v); j += 2 {
			v[j] = byte(i*j + j>>3)
		}
		kvs[i] = kv{ik(fmt.Sprintf("key-%020d", i), SeqNum(i+1), KindSet), v}
	}
	return kvs
}

func BenchmarkTableGet(b *testing.B) {
	kvs := benchKVs(50000)
	for _, p := range profiles {
		opts := tableOptions{Profile: p.profile, BlockSize: 4096}
		f, m := writeTable(b, opts, kvs)
		tab, err := openTable(f, 7, m.size, newBlockCache(64<<20), opts)
		if err != nil {
			b.Fatal(err)
		}
		order := rand.New(rand.NewPCG(1, 1)).Perm(len(kvs))
		run := func(b *testing.B, key func(i int) []byte, found bool) {
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				var dst []byte
				for i := 0; pb.Next(); i++ {
					v, _, ok, err := tab.get(dst[:0], key(order[i%len(order)]), NoWait)
					if ok != found || err != nil {
						b.Fatal(ok, err)
					}
					dst = v
				}
			})
		}
		b.Run(p.name+"/hot", func(b *testing.B) {
			run(b, func(i int) []byte { return kvs[i].key }, true)
		})
		absent := make([][]byte, len(kvs))
		for i, e := range kvs {
			absent[i] = makeInternal(nil, append(slices.Clone(userKey(e.key)), 'x'), maxSeqNum, kindSeek)
		}
		b.Run(p.name+"/absent", func(b *testing.B) {
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for i := 0; pb.Next(); i++ {
					if _, _, ok, err := tab.get(nil, absent[order[i%len(order)]], NoWait); ok || err != nil {
						b.Fatal(ok, err)
					}
				}
			})
		})
		b.Run(p.name+"/pagecache", func(b *testing.B) {
			tab, err := openTable(f, 7, m.size, newBlockCache(0), opts)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			var dst []byte
			i := 0
			for b.Loop() {
				if dst, _, _, err = tab.get(dst[:0], kvs[order[i%len(order)]].key, NoWait); err != nil {
					b.Fatal(err)
				}
				i++
			}
		})
	}
}

func BenchmarkTableWrite(b *testing.B) {
	kvs := benchKVs(50000)
	for _, p := range profiles {
		for _, codec := range p.codecs {
			b.Run(fmt.Sprintf("%s/codec%d", p.name, codec), func(b *testing.B) {
				b.SetBytes(int64(len(kvs) * (len(kvs[0].key) + len(kvs[0].value))))
				f := &memFile{}
				for b.Loop() {
					f.data = f.data[:0]
					w := newTableWriter(f, 7, tableOptions{Profile: p.profile, BlockSize: 4096, Codec: codec})
					for _, e := range kvs {
						if err := w.add(e.key, e.value); err != nil {
							b.Fatal(err)
						}
					}
					if _, err := w.finish(); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

func BenchmarkTableScan(b *testing.B) {
	kvs := benchKVs(50000)
	opts := tableOptions{BlockSize: 4096}
	f, m := writeTable(b, opts, kvs)
	tab, err := openTable(f, 7, m.size, newBlockCache(64<<20), opts)
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(kvs) * (len(kvs[0].key) + len(kvs[0].value))))
	for b.Loop() {
		it := tab.newScan()
		for ok := it.First(); ok; ok = it.Next() {
		}
		if err := it.Close(); err != nil {
			b.Fatal(err)
		}
	}
}
