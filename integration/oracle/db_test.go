package oracle

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/syndtr/goleveldb/leveldb"
	"github.com/syndtr/goleveldb/leveldb/filter"
	"github.com/syndtr/goleveldb/leveldb/opt"

	"prismfs/engine"
	"prismfs/lanes"
	"prismfs/ordered"
	"prismfs/uring"
)

// update is one step of a history that both databases can make.
type update struct {
	key, value string
	del        bool
}

// history returns batches of updates over a small set of keys, so that many
// versions and deletes of a key end up in different tables.
func history(rng *rand.Rand, batches int) [][]update {
	h := make([][]update, batches)
	for i := range h {
		for range 1 + rng.IntN(20) {
			k := fmt.Sprintf("key%04d", rng.IntN(3000))
			if rng.IntN(4) == 0 {
				h[i] = append(h[i], update{key: k, del: true})
			} else {
				h[i] = append(h[i], update{key: k, value: strings.Repeat(fmt.Sprintf("%s@%d ", k, i), rng.IntN(20))})
			}
		}
	}
	return h
}

func apply(model map[string]string, batches [][]update) {
	for _, b := range batches {
		for _, u := range b {
			if u.del {
				delete(model, u.key)
			} else {
				model[u.key] = u.value
			}
		}
	}
}

func newRand(t *testing.T) *rand.Rand {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// withOurs opens dir with the engine, in the strict profile.
func withOurs(t *testing.T, dir string, codec engine.Codec, fn func(db *engine.DB)) {
	t.Helper()
	rt := lanes.NewRuntime(lanes.Config{})
	defer rt.Close()
	disk, err := uring.Open(dir, uring.Options{Mode: uring.Pread, Lanes: rt})
	if err != nil {
		t.Fatal(err)
	}
	defer disk.Close()
	db, err := engine.Open(engine.Options{
		Disk: disk, Dir: "db", Lanes: rt, Profile: ordered.Strict, Codec: codec,
		MemTableSize: 64 << 10, CreateIfMissing: true, Logf: t.Logf,
	})
	if err != nil {
		t.Fatalf("open with the engine: %v", err)
	}
	fn(db)
	if err := db.Check(func(problem error) { t.Errorf("check: %v", problem) }); err != nil {
		t.Errorf("check: %v", err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

// withTheirs opens dir with goleveldb, checking all it can check.
func withTheirs(t *testing.T, dir string, c opt.Compression, fn func(db *leveldb.DB)) {
	t.Helper()
	db, err := leveldb.OpenFile(filepath.Join(dir, "db"), &opt.Options{
		Strict: opt.StrictAll, Compression: c, WriteBuffer: 64 << 10,
		Filter: userNamedFilter{filter.NewBloomFilter(10)},
	})
	if err != nil {
		t.Fatalf("open with goleveldb: %v", err)
	}
	fn(db)
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

// userNamedFilter gives goleveldb's Bloom filter LevelDB's name.
type userNamedFilter struct{ filter.Filter }

func (f userNamedFilter) Name() string { return f.Filter.Name() + "2" }

func writeOurs(t *testing.T, db *engine.DB, batches [][]update) {
	t.Helper()
	for _, us := range batches {
		b := engine.NewBatch()
		for _, u := range us {
			if u.del {
				b.Delete([]byte(u.key))
			} else {
				b.Put([]byte(u.key), []byte(u.value))
			}
		}
		if err := db.Apply(b, engine.Block); err != nil {
			t.Fatal(err)
		}
	}
}

func writeTheirs(t *testing.T, db *leveldb.DB, batches [][]update) {
	t.Helper()
	for _, us := range batches {
		var b leveldb.Batch
		for _, u := range us {
			if u.del {
				b.Delete([]byte(u.key))
			} else {
				b.Put([]byte(u.key), []byte(u.value))
			}
		}
		if err := db.Write(&b, nil); err != nil {
			t.Fatal(err)
		}
	}
}

func checkOurs(t *testing.T, db *engine.DB, model map[string]string) {
	t.Helper()
	it := db.NewIter(engine.IterOptions{})
	keys := sortedKeys(model)
	n := 0
	for ok := it.First(); ok; ok = it.Next() {
		if n == len(keys) || string(it.Key()) != keys[n] || string(it.Value()) != model[keys[n]] {
			t.Fatalf("ours: entry %d is %q", n, it.Key())
		}
		n++
	}
	if err := it.Err(); err != nil || n != len(keys) {
		t.Fatalf("ours: %d of %d entries: %v", n, len(keys), err)
	}
	if err := it.Close(); err != nil {
		t.Fatal(err)
	}
	for i := range 3000 {
		k := fmt.Sprintf("key%04d", i)
		v, err := db.Get(nil, []byte(k), engine.Block)
		want, ok := model[k]
		if ok != (err == nil) || string(v) != want || (err != nil && !errors.Is(err, engine.ErrNotFound)) {
			t.Fatalf("ours: get %s: %q %v, want %q", k, v, err, want)
		}
	}
}

func checkTheirs(t *testing.T, db *leveldb.DB, model map[string]string) {
	t.Helper()
	it := db.NewIterator(nil, nil)
	keys := sortedKeys(model)
	n := 0
	for it.Next() {
		if n == len(keys) || string(it.Key()) != keys[n] || string(it.Value()) != model[keys[n]] {
			t.Fatalf("theirs: entry %d is %q", n, it.Key())
		}
		n++
	}
	it.Release()
	if err := it.Error(); err != nil || n != len(keys) {
		t.Fatalf("theirs: %d of %d entries: %v", n, len(keys), err)
	}
	for i := range 3000 {
		k := fmt.Sprintf("key%04d", i)
		v, err := db.Get([]byte(k), nil)
		want, ok := model[k]
		if ok != (err == nil) || string(v) != want || (err != nil && err != leveldb.ErrNotFound) {
			t.Fatalf("theirs: get %s: %q %v, want %q", k, v, err, want)
		}
	}
}

func sortedKeys(m map[string]string) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// A database goes back and forth between the two; each finds what the other
// left in tables, log and manifest, and goes on writing.
func TestDatabaseBackAndForth(t *testing.T) {
	for _, c := range []struct {
		name   string
		ours   engine.Codec
		theirs opt.Compression
	}{
		{"none", engine.None, opt.NoCompression},
		{"snappy", engine.Snappy, opt.SnappyCompression},
	} {
		for _, flush := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/flush=%v", c.name, flush), func(t *testing.T) {
				rng := newRand(t)
				dir := t.TempDir()
				model := map[string]string{}
				for range 2 {
					withOurs(t, dir, c.ours, func(db *engine.DB) {
						checkOurs(t, db, model)
						h := history(rng, 300)
						writeOurs(t, db, h)
						apply(model, h)
						if flush {
							if err := db.Flush(); err != nil {
								t.Fatal(err)
							}
						}
						checkOurs(t, db, model)
					})
					withTheirs(t, dir, c.theirs, func(db *leveldb.DB) {
						checkTheirs(t, db, model)
						h := history(rng, 300)
						writeTheirs(t, db, h)
						apply(model, h)
						checkTheirs(t, db, model)
					})
				}
				withOurs(t, dir, c.ours, func(db *engine.DB) {
					if err := db.CompactRange(nil, nil); err != nil {
						t.Fatal(err)
					}
					checkOurs(t, db, model)
				})
				withTheirs(t, dir, c.theirs, func(db *leveldb.DB) { checkTheirs(t, db, model) })
			})
		}
	}
}

// A store of the default profile is refused, not misread.
func TestGoleveldbRefusesDefault(t *testing.T) {
	dir := t.TempDir()
	rt := lanes.NewRuntime(lanes.Config{})
	defer rt.Close()
	disk, err := uring.Open(dir, uring.Options{Mode: uring.Pread, Lanes: rt})
	if err != nil {
		t.Fatal(err)
	}
	defer disk.Close()
	db, err := engine.Open(engine.Options{Disk: disk, Dir: "db", Lanes: rt, CreateIfMissing: true, Logf: t.Logf})
	if err != nil {
		t.Fatal(err)
	}
	writeOurs(t, db, [][]update{{{key: "a", value: "b"}}})
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	theirs, err := leveldb.OpenFile(filepath.Join(dir, "db"), &opt.Options{Strict: opt.StrictAll})
	if err == nil {
		theirs.Close()
		t.Fatal("goleveldb opened a store of the default profile")
	}
	t.Log(err)
}
