package engine

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"testing"

	"prismfs/uring"
)

// newTestTables returns a cache over n tables, numbered from 1, of one key
// each, and their size.
func newTestTables(t *testing.T, n, maxOpen int) (*tableCache, *memDisk, int64) {
	t.Helper()
	d := &memDisk{files: map[string]*memFile{}}
	var size int64
	for i := 1; i <= n; i++ {
		f := &memFile{}
		w := newTableWriter(f, FileNum(i), tableOptions{BlockSize: 4096})
		if err := w.add(tableKey(i), fmt.Appendf(nil, "value%03d", i)); err != nil {
			t.Fatal(err)
		}
		m, err := w.finish()
		if err != nil {
			t.Fatal(err)
		}
		size = m.size
		name := tableFileName("db", FileNum(i))
		if i%2 == 0 {
			name = name[:len(name)-3] + "sst" // the old name is found too
		}
		d.files[name] = f
	}
	return newTableCache(d, "db", maxOpen, newBlockCache(1<<20), tableOptions{}), d, size
}

func tableKey(i int) []byte { return ik(fmt.Sprintf("key%03d", i), 1, KindSet) }

func (d *memDisk) openNow() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := 0
	for _, f := range d.opens {
		if f.closed.Load() == 0 {
			n++
		}
	}
	return n
}

func TestTableCacheBounds(t *testing.T) {
	const tables, maxOpen = 40, 5
	c, d, size := newTestTables(t, tables, maxOpen)
	rng := newRand(t)
	for range 1000 {
		i := 1 + rng.IntN(tables)
		v, trail, ok, err := c.get(nil, FileNum(i), size, tableKey(i), Block)
		if err != nil || !ok || trail != packTrailer(1, KindSet) || string(v) != fmt.Sprintf("value%03d", i) {
			t.Fatalf("table %d: %q %v %v", i, v, ok, err)
		}
		if n := d.openNow(); n > maxOpen {
			t.Fatalf("%d tables are open", n)
		}
	}
	c.close()
	if n := d.openNow(); n != 0 {
		t.Fatalf("%d tables are open after close", n)
	}
	if _, _, _, err := c.get(nil, 1, size, tableKey(1), Block); !errors.Is(err, ErrClosed) {
		t.Fatalf("get after close: %v", err)
	}
}

// Few large tables are bounded by their memory.
func TestTableCachePinnedBytes(t *testing.T) {
	c, d, size := newTestTables(t, 20, 1000)
	tab, err := c.find(1, size, Block)
	if err != nil {
		t.Fatal(err)
	}
	one := tab.pinnedBytes()
	tab.release()
	for i := range c.shards {
		c.shards[i].budget = 2*one + one/2
	}
	for i := 1; i <= 20; i++ {
		if _, _, ok, err := c.get(nil, FileNum(i), size, tableKey(i), Block); !ok || err != nil {
			t.Fatal(i, ok, err)
		}
	}
	want := 2 * len(c.shards)
	if n, pinned := c.stats(); d.openNow() > want || n > want || pinned != int64(n)*one {
		t.Fatalf("%d files, %d tables, %d bytes, one has %d", d.openNow(), n, pinned, one)
	}
	// One table is kept even over the budget.
	for i := range c.shards {
		c.shards[i].budget = 1
	}
	for range 2 {
		c.get(nil, 5, size, tableKey(5), Block)
	}
	if _, err := c.find(5, size, NoWait); err != nil {
		t.Fatal(err)
	}
	c.close()
	if n, pinned := c.stats(); n != 0 || pinned != 0 {
		t.Fatalf("%d tables, %d bytes after close", n, pinned)
	}
}

// An iterator keeps its table through eviction, deletion and close.
func TestTableCachePins(t *testing.T) {
	c, d, size := newTestTables(t, 3, 1)
	it, err := c.newIter(1, size, Block)
	if err != nil {
		t.Fatal(err)
	}
	scan, err := c.newScan(2, size)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.find(3, size, Block); err != nil { // never released
		t.Fatal(err)
	}
	c.evict(1)
	c.evict(2)
	c.close()
	for i, it := range []*tableIter{it, scan} {
		if !it.First() || !bytes.Equal(it.Key(), tableKey(i+1)) || it.Next() || it.Err() != nil {
			t.Fatalf("table %d: %v", i+1, it.Err())
		}
		if err := it.Close(); err != nil {
			t.Fatal(err)
		}
		if err := it.Close(); err != nil { // once is enough, twice is harmless
			t.Fatal(err)
		}
	}
	if n := d.openNow(); n != 1 {
		t.Fatalf("%d tables are open, wanted the one that is still held", n)
	}
}

func TestTableCacheNoWait(t *testing.T) {
	c, d, size := newTestTables(t, 2, 10)
	if _, _, _, err := c.get(nil, 1, size, tableKey(1), NoWait); err != ErrWouldBlock {
		t.Fatalf("get of a closed table: %v", err)
	}
	if _, err := c.newIter(1, size, NoWait); err != ErrWouldBlock {
		t.Fatalf("iterator of a closed table: %v", err)
	}
	if n := d.openNow(); n != 0 {
		t.Fatal("NoWait opened a table")
	}
	if _, _, _, err := c.get(nil, 1, size, tableKey(1), Block); err != nil {
		t.Fatal(err)
	}
	if _, _, ok, err := c.get(nil, 1, size, tableKey(1), NoWait); !ok || err != nil {
		t.Fatalf("get of an open table: %v %v", ok, err)
	}
	c.close()
}

func TestTableCacheErrors(t *testing.T) {
	c, d, size := newTestTables(t, 2, 10)
	if _, err := c.find(9, size, Block); !errors.Is(err, ErrCorrupt) || !errors.Is(err, uring.ErrNotExist) {
		t.Errorf("missing table: %v", err)
	}
	if _, err := c.find(1, size+1, Block); !errors.Is(err, ErrCorrupt) {
		t.Errorf("table of another size: %v", err)
	}
	d.fail = errors.New("too many open files")
	if _, err := c.find(1, size, Block); !errors.Is(err, d.fail) || errors.Is(err, ErrCorrupt) {
		t.Errorf("failing open: %v", err)
	}
	d.fail = nil
	if n := d.openNow(); n != 0 {
		t.Errorf("%d files left open by failures", n)
	}
	if _, _, ok, err := c.get(nil, 1, size, tableKey(1), Block); !ok || err != nil {
		t.Errorf("get afterwards: %v %v", ok, err)
	}
	c.close()
}

// Deleting a table takes its blocks along.
func TestTableCacheEvict(t *testing.T) {
	c, d, size := newTestTables(t, 2, 10)
	for i := 1; i <= 2; i++ {
		if _, _, _, err := c.get(nil, FileNum(i), size, tableKey(i), Block); err != nil {
			t.Fatal(err)
		}
	}
	c.evict(1)
	if d.openNow() != 1 || c.len() != 1 || c.blocks.stats().blocks != 1 {
		t.Fatalf("%d files, %d tables, %d blocks", d.openNow(), c.len(), c.blocks.stats().blocks)
	}
	c.close()
}

func TestTableCacheConcurrent(t *testing.T) {
	const tables = 30
	c, d, size := newTestTables(t, tables, 4)
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 2000 {
				n := 1 + (i*(g+1))%tables
				it, err := c.newIter(FileNum(n), size, Block)
				if err != nil {
					t.Error(err)
					return
				}
				if !it.First() || !bytes.Equal(it.Key(), tableKey(n)) {
					t.Errorf("table %d: %q %v", n, it.Key(), it.Err())
				}
				if err := it.Close(); err != nil {
					t.Error(err)
				}
				if i%100 == 0 {
					c.evict(FileNum(n))
				}
			}
		})
	}
	wg.Wait()
	c.close()
	if n := d.openNow(); n != 0 {
		t.Fatalf("%d tables are still open", n)
	}
}
