package engine

import (
	"runtime"
	"sync"
	"sync/atomic"
)

// flights joins concurrent calls for one key: the first caller works, the
// others wait for its result.
type flights[K comparable, V interface{ retain(n int) }] struct {
	mu sync.Mutex
	m  map[K]*flight[V] // guarded by mu
}

type flight[V any] struct {
	done   chan struct{} // closed when val and err are set
	joined int           // callers that wait; guarded by flights.mu
	val    V
	err    error
}

// do runs fn, or joins a run under way. Each caller owns one reference to the
// value. It blocks as long as fn does.
func (g *flights[K, V]) do(k K, fn func() (V, error)) (V, error) {
	g.mu.Lock()
	if f := g.m[k]; f != nil {
		f.joined++
		g.mu.Unlock()
		<-f.done
		return f.val, f.err
	}
	f := &flight[V]{done: make(chan struct{})}
	if g.m == nil {
		g.m = make(map[K]*flight[V])
	}
	g.m[k] = f
	g.mu.Unlock()

	f.val, f.err = fn()

	g.mu.Lock()
	delete(g.m, k)
	joined := f.joined
	g.mu.Unlock()
	if f.err == nil && joined > 0 {
		f.val.retain(joined)
	}
	close(f.done)
	return f.val, f.err
}

// blockKey names a data block for as long as its table lives: table numbers
// are never reused.
type blockKey struct {
	num FileNum
	off uint64
}

func (k blockKey) hash() uint64 {
	h := (uint64(k.num)*0x9e3779b97f4a7c15 ^ k.off) * 0xff51afd7ed558ccd
	return h ^ h>>32
}

// cachedBlock is a decoded block and the count of its holders, of which the
// cache is one. Its bytes may be used until release.
type cachedBlock struct {
	key  blockKey
	blk  block
	cost int64 // bytes of budget

	refs atomic.Int32
	hot  atomic.Bool // read since the clock's hand passed; stored by readers, cleared by the hand
}

func (b *cachedBlock) retain(n int) { b.refs.Add(int32(n)) }

func (b *cachedBlock) release() {
	if b.refs.Add(-1) < 0 {
		panic("engine: block released twice")
	}
}

// cachedBlockOverhead is what a cached block costs beside its bytes: the
// struct, its slot in the ring and its share of the map.
const cachedBlockOverhead = 160

// blockCache keeps decompressed data blocks within a byte budget. A hit takes
// a shard's lock for reading only; CLOCK chooses what to evict, passing over
// blocks that somebody holds.
type blockCache struct {
	shards  []cacheShard
	mask    uint64
	flights flights[blockKey, *cachedBlock]
}

type cacheShard struct {
	mu     sync.RWMutex
	blocks map[blockKey]*cachedBlock // guarded by mu
	ring   []*cachedBlock            // guarded by mu; the clock, in insertion order
	hand   int                       // guarded by mu
	used   int64                     // bytes; guarded by mu
	budget int64                     // bytes

	hits, misses atomic.Int64
	_            [64]byte // shards don't share a cache line
}

// newBlockCache makes a cache of at most budget bytes.
func newBlockCache(budget int64) *blockCache {
	n := 1
	for n < 4*runtime.NumCPU() && budget/int64(2*n) >= 256<<10 {
		n *= 2
	}
	c := &blockCache{shards: make([]cacheShard, n), mask: uint64(n - 1)}
	for i := range c.shards {
		c.shards[i].blocks = make(map[blockKey]*cachedBlock)
		c.shards[i].budget = budget / int64(n)
	}
	return c
}

func (c *blockCache) shard(k blockKey) *cacheShard { return &c.shards[k.hash()&c.mask] }

// get returns a block with a reference for the caller, or nil.
func (c *blockCache) get(k blockKey) *cachedBlock {
	s := c.shard(k)
	s.mu.RLock()
	b := s.blocks[k]
	if b != nil {
		b.retain(1) // the cache's own reference keeps it alive under the lock
	}
	s.mu.RUnlock()
	if b == nil {
		s.misses.Add(1)
		return nil
	}
	if !b.hot.Load() {
		b.hot.Store(true)
	}
	s.hits.Add(1)
	return b
}

// add offers b, of which the caller holds the only reference, and returns the
// block to use: another one if somebody was faster. A block that finds no room
// stays the caller's alone.
func (c *blockCache) add(b *cachedBlock) *cachedBlock {
	s := c.shard(b.key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.blocks[b.key]; old != nil {
		old.retain(1)
		b.release()
		return old
	}
	if !s.makeRoomLocked(b.cost) {
		return b
	}
	b.retain(1)
	s.blocks[b.key] = b
	s.used += b.cost
	s.ring = append(s.ring, b)
	return b
}

// makeRoomLocked evicts until need bytes fit. It gives up after two turns of
// the clock: then the rest is held by readers.
func (s *cacheShard) makeRoomLocked(need int64) bool {
	if need > s.budget {
		return false
	}
	for tries := 2 * len(s.ring); s.used+need > s.budget; tries-- {
		if tries <= 0 || len(s.ring) == 0 {
			return false
		}
		if s.hand >= len(s.ring) {
			s.hand = 0
		}
		b := s.ring[s.hand]
		// Nobody gains a reference while we hold the lock, so a block with the
		// cache's reference alone is free to go.
		if b.refs.Load() > 1 || b.hot.Swap(false) {
			s.hand++
			continue
		}
		s.dropLocked(s.hand)
	}
	return true
}

// dropLocked forgets the block in slot i of the ring. The last block takes its
// slot.
func (s *cacheShard) dropLocked(i int) {
	b := s.ring[i]
	last := len(s.ring) - 1
	s.ring[i], s.ring[last] = s.ring[last], nil
	s.ring = s.ring[:last]
	delete(s.blocks, b.key)
	s.used -= b.cost
	b.release()
}

// evictTable forgets all blocks of a deleted table.
func (c *blockCache) evictTable(num FileNum) {
	for i := range c.shards {
		s := &c.shards[i]
		s.mu.Lock()
		for j := len(s.ring) - 1; j >= 0; j-- {
			if s.ring[j].key.num == num {
				s.dropLocked(j)
			}
		}
		s.mu.Unlock()
	}
}

// blockCacheStats are sums over all shards.
type blockCacheStats struct {
	hits, misses int64
	blocks       int
	used, budget int64 // bytes
}

func (c *blockCache) stats() blockCacheStats {
	var st blockCacheStats
	for i := range c.shards {
		s := &c.shards[i]
		st.hits += s.hits.Load()
		st.misses += s.misses.Load()
		s.mu.RLock()
		st.blocks += len(s.ring)
		st.used += s.used
		st.budget += s.budget
		s.mu.RUnlock()
	}
	return st
}
