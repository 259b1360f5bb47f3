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
// cache is one. Its bytes may be used until release: then they may hold
// another block.
type cachedBlock struct {
	key    blockKey
	blk    block
	buf    []byte // the contents, behind blk
	slab   *slab  // where buf lies, nil if that is the Go heap
	chunk  uint8
	pos    int // in the shard's ring; guarded by its mu
	inSlab int // in slab.cached; guarded by the shard's mu

	refs atomic.Int32
	hot  atomic.Bool // read since the clock's hand passed; stored by readers, cleared by the hand
}

func (b *cachedBlock) retain(n int) { b.refs.Add(int32(n)) }

func (b *cachedBlock) release() {
	switch n := b.refs.Add(-1); {
	case n == 0:
		b.blk = block{} // a use from here on panics rather than reads another block
		b.buf = nil
		if b.slab != nil {
			b.slab.arena.release(b.slab, b.chunk)
		}
	case n < 0:
		panic("engine: block released twice")
	}
}

// blockCache keeps decompressed data blocks within a byte budget. A hit takes
// a shard's lock for reading only; CLOCK chooses what to evict, passing over
// blocks that somebody holds. Blocks up to maxChunk live in the shard's arena,
// longer ones on the heap within a share of their own.
type blockCache struct {
	shards  []cacheShard
	mask    uint64
	flights flights[blockKey, *cachedBlock]
}

// Lock order: mu, then arena.mu.
type cacheShard struct {
	mu      sync.RWMutex
	blocks  map[blockKey]*cachedBlock // guarded by mu
	ring    []*cachedBlock            // guarded by mu; the clock
	hand    int                       // guarded by mu
	heap    int64                     // bytes of cached blocks on the heap; guarded by mu
	maxHeap int64                     // bytes
	arena   *blockArena
	hits    atomic.Int64
	misses  atomic.Int64
	_       [64]byte // shards don't share a cache line
}

// evictTries bounds how often one block makes room for itself: others may
// take it meanwhile.
const evictTries = 4

// newBlockCache makes a cache of at most budget bytes: 13/16 in arenas, 2/16
// for long blocks, and the rest for the records of the blocks themselves.
func newBlockCache(budget int64) *blockCache {
	n := 1
	for n < 4*runtime.NumCPU() && budget/int64(2*n) >= 8*arenaUnit {
		n *= 2
	}
	c := &blockCache{shards: make([]cacheShard, n), mask: uint64(n - 1)}
	for i := range c.shards {
		s := &c.shards[i]
		part := budget / int64(n)
		s.blocks = make(map[blockKey]*cachedBlock)
		s.arena = &blockArena{limit: int(part * 13 / 16)}
		s.maxHeap = part / 8
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

// newBlock returns a block with n bytes of buf to fill, of which the caller
// holds the only reference. It may evict others; without room the bytes are
// the caller's alone, on the heap.
func (c *blockCache) newBlock(k blockKey, n int) *cachedBlock {
	b := &cachedBlock{key: k}
	b.refs.Store(1)
	if n <= maxChunk {
		s := c.shard(k)
		if b.buf, b.slab, b.chunk = s.arena.alloc(n); b.slab != nil {
			return b
		}
		s.mu.Lock()
		for tries := 0; tries < evictTries && s.evictLocked(chunkClass(n)); tries++ {
			if b.buf, b.slab, b.chunk = s.arena.alloc(n); b.slab != nil {
				break
			}
		}
		s.mu.Unlock()
	}
	if b.slab == nil {
		b.buf = make([]byte, n)
	}
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
	if b.slab == nil {
		n := int64(len(b.buf))
		if n <= maxChunk || n > s.maxHeap {
			return b // the arena had no room, or it never will fit
		}
		for s.heap+n > s.maxHeap {
			if !s.evictLocked(onHeap) {
				return b
			}
		}
		s.heap += n
	}
	b.retain(1)
	s.blocks[b.key] = b
	b.pos = len(s.ring)
	s.ring = append(s.ring, b)
	if b.slab != nil {
		b.inSlab = len(b.slab.cached)
		b.slab.cached = append(b.slab.cached, b)
	}
	return b
}

// onHeap stands for a size class where blocks on the heap are meant.
const onHeap = -1

// evictLocked makes room in a size class: it drops the next block in clock
// order that is neither held nor hot. If that one is of another class, its
// whole slab changes hands, so that the slabs follow the demand. It gives up
// after two turns: then the rest is held by readers.
func (s *cacheShard) evictLocked(class int) bool {
	for range 2 * len(s.ring) {
		if s.hand >= len(s.ring) {
			s.hand = 0
		}
		b := s.ring[s.hand]
		// Nobody gains a reference while we hold the lock, so a block with the
		// cache's reference alone is free to go.
		if (b.slab == nil) != (class == onHeap) || b.refs.Load() > 1 || b.hot.Swap(false) {
			s.hand++
			continue
		}
		if b.slab == nil || b.slab.class == class {
			s.dropLocked(b)
			return true
		}
		if s.dropSlabLocked(b.slab) {
			return true
		}
		s.hand++
	}
	return false
}

// dropSlabLocked drops all blocks of a slab, unless one is held or more than a
// quarter are hot.
func (s *cacheShard) dropSlabLocked(sl *slab) bool {
	if sl.inUse() != len(sl.cached) {
		return false // a chunk is with a reader that the cache doesn't know
	}
	hot := 0
	for _, b := range sl.cached {
		if b.refs.Load() > 1 {
			return false
		}
		if b.hot.Load() {
			hot++
		}
	}
	if 4*hot > len(sl.cached) {
		return false
	}
	for len(sl.cached) > 0 {
		s.dropLocked(sl.cached[len(sl.cached)-1])
	}
	return true
}

// dropLocked forgets a block. The last of the ring takes its place.
func (s *cacheShard) dropLocked(b *cachedBlock) {
	s.ring = swapOut(s.ring, b.pos, func(moved *cachedBlock) { moved.pos = b.pos })
	if b.slab == nil {
		s.heap -= int64(len(b.buf))
	} else {
		b.slab.cached = swapOut(b.slab.cached, b.inSlab, func(moved *cachedBlock) { moved.inSlab = b.inSlab })
	}
	delete(s.blocks, b.key)
	b.release()
}

// swapOut removes element i by moving the last one there.
func swapOut(list []*cachedBlock, i int, moved func(*cachedBlock)) []*cachedBlock {
	last := len(list) - 1
	list[i] = list[last]
	moved(list[i])
	list[last] = nil
	return list[:last]
}

// evictTable forgets all blocks of a deleted table.
func (c *blockCache) evictTable(num FileNum) {
	for i := range c.shards {
		s := &c.shards[i]
		s.mu.Lock()
		for j := len(s.ring) - 1; j >= 0; j-- {
			if b := s.ring[j]; b.key.num == num {
				s.dropLocked(b)
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
		st.used += s.heap
		s.mu.RUnlock()
		s.arena.mu.Lock()
		st.used += int64(s.arena.used)
		s.arena.mu.Unlock()
		st.budget += int64(s.arena.limit) + s.maxHeap
	}
	return st
}
