package engine

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"prismfs/uring"
)

// tableCache keeps tables open, bounded in number and, for their indexes and
// filters, in memory. A table in use is never closed under its user: eviction
// only drops the cache's own reference.
type tableCache struct {
	disk    uring.Disk
	dir     string
	opts    tableOptions
	blocks  *blockCache
	shards  []tableShard
	flights flights[FileNum, *table]
}

type tableShard struct {
	mu     sync.RWMutex
	tables map[FileNum]*table // guarded by mu
	ring   []*table           // guarded by mu; a clock as in blockCache
	hand   int                // guarded by mu
	max    int                // tables
	pinned int64              // bytes of indexes and filters; guarded by mu
	budget int64              // bytes for them
	closed bool               // guarded by mu
	_      [64]byte
}

// newTableCache makes a cache of at most maxOpen tables beside those in use.
// Their indexes and filters may take as much memory as the blocks, but one
// table is kept whatever its size.
func newTableCache(disk uring.Disk, dir string, maxOpen int, blocks *blockCache, opts tableOptions) *tableCache {
	n := 1
	for n < 16 && maxOpen/(2*n) >= 16 {
		n *= 2
	}
	c := &tableCache{disk: disk, dir: dir, opts: opts, blocks: blocks, shards: make([]tableShard, n)}
	for i := range c.shards {
		c.shards[i].tables = make(map[FileNum]*table)
		c.shards[i].max = max(1, maxOpen/n)
		c.shards[i].budget = blocks.stats().budget / int64(n)
	}
	return c
}

func (c *tableCache) shard(num FileNum) *tableShard {
	return &c.shards[uint64(num)%uint64(len(c.shards))]
}

// find returns an open table with a reference for the caller. Under NoWait it
// returns ErrWouldBlock if the table isn't open.
func (c *tableCache) find(num FileNum, size int64, w Wait) (*table, error) {
	s := c.shard(num)
	if t, err := s.get(num); t != nil || err != nil {
		return t, err
	}
	if w == NoWait {
		return nil, ErrWouldBlock
	}
	return c.flights.do(num, func() (*table, error) {
		// Another flight may have landed since the look above.
		if t, err := s.get(num); t != nil || err != nil {
			return t, err
		}
		t, err := c.open(num, size)
		if err != nil {
			return nil, err
		}
		if !s.add(t) {
			t.release()
			return nil, ErrClosed
		}
		return t, nil
	})
}

func (s *tableShard) get(num FileNum) (*table, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed {
		return nil, ErrClosed
	}
	t := s.tables[num]
	if t != nil {
		t.retain(1)
		if !t.hot.Load() {
			t.hot.Store(true)
		}
	}
	return t, nil
}

// open opens a table file. Old LevelDB versions named them .sst.
func (c *tableCache) open(num FileNum, size int64) (*table, error) {
	name := tableFileName(c.dir, num)
	f, err := c.disk.Open(name)
	if errors.Is(err, uring.ErrNotExist) {
		f, err = c.disk.Open(strings.TrimSuffix(name, ".ldb") + ".sst")
		if errors.Is(err, uring.ErrNotExist) {
			return nil, fmt.Errorf("engine: open table %s: %w (%w)", name, err, ErrCorrupt)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("engine: open table %s: %w", name, err)
	}
	t, err := openTable(f, num, size, c.blocks, c.opts)
	if err != nil {
		_ = f.Close() // the open's error says more
		return nil, err
	}
	return t, nil
}

// add keeps t with a reference of its own, making room if need be. It is
// false after close.
func (s *tableShard) add(t *table) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	need := t.pinnedBytes()
	for tries := 2 * len(s.ring); len(s.ring) >= s.max || len(s.ring) > 0 && s.pinned+need > s.budget; tries-- {
		if s.hand >= len(s.ring) {
			s.hand = 0
		}
		if tries > 0 && s.ring[s.hand].hot.Swap(false) {
			s.hand++
			continue
		}
		s.dropLocked(s.hand)
	}
	t.retain(1)
	s.tables[t.num] = t
	s.ring = append(s.ring, t)
	s.pinned += need
	return true
}

func (s *tableShard) dropLocked(i int) {
	t := s.ring[i]
	last := len(s.ring) - 1
	s.ring[i], s.ring[last] = s.ring[last], nil
	s.ring = s.ring[:last]
	delete(s.tables, t.num)
	s.pinned -= t.pinnedBytes()
	t.release()
}

// get is table.get on table num.
func (c *tableCache) get(dst []byte, num FileNum, size int64, ikey []byte, w Wait) (value []byte, trail uint64, ok bool, err error) {
	t, err := c.find(num, size, w)
	if err != nil {
		return dst, 0, false, err
	}
	defer t.release()
	return t.get(dst, ikey, w)
}

// newIter returns an iterator that keeps its table open until Close.
func (c *tableCache) newIter(num FileNum, size int64, w Wait) (*tableIter, error) {
	t, err := c.find(num, size, w)
	if err != nil {
		return nil, err
	}
	it := t.newIter(w)
	it.owned = true
	return it, nil
}

// newScan is newIter for one pass that must not disturb the block cache.
func (c *tableCache) newScan(num FileNum, size int64) (*tableIter, error) {
	t, err := c.find(num, size, Block)
	if err != nil {
		return nil, err
	}
	it := t.newScan()
	it.owned = true
	return it, nil
}

// evict forgets a deleted table and its blocks. Users of the table keep it
// until they release it.
func (c *tableCache) evict(num FileNum) {
	s := c.shard(num)
	s.mu.Lock()
	for i, t := range s.ring {
		if t.num == num {
			s.dropLocked(i)
			break
		}
	}
	s.mu.Unlock()
	c.blocks.evictTable(num)
}

// len returns the number of tables kept open.
func (c *tableCache) len() int {
	n, _ := c.stats()
	return n
}

// stats returns the number of tables kept open and the bytes of their indexes
// and filters.
func (c *tableCache) stats() (tables int, pinned int64) {
	for i := range c.shards {
		s := &c.shards[i]
		s.mu.RLock()
		tables += len(s.ring)
		pinned += s.pinned
		s.mu.RUnlock()
	}
	return tables, pinned
}

// close lets go of all tables; later calls return ErrClosed.
func (c *tableCache) close() {
	for i := range c.shards {
		s := &c.shards[i]
		s.mu.Lock()
		s.closed = true
		for len(s.ring) > 0 {
			s.dropLocked(len(s.ring) - 1)
		}
		s.mu.Unlock()
	}
}
