package engine

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"sync"
	"testing"
)

// newTestBlock is a block whose every 8 bytes tell its key, so that memory
// handed out twice shows.
func newTestBlock(c *blockCache, k blockKey, n int) *cachedBlock {
	b := c.newBlock(k, n)
	if len(b.buf) != n {
		panic(fmt.Sprintf("%d bytes instead of %d", len(b.buf), n))
	}
	for i := 0; i+8 <= n; i += 8 {
		binary.LittleEndian.PutUint64(b.buf[i:], k.hash())
	}
	return b
}

func checkTestBlock(t testing.TB, b *cachedBlock, k blockKey) {
	t.Helper()
	if b.key != k {
		t.Fatalf("asked for %v, got %v", k, b.key)
	}
	for i := 0; i+8 <= len(b.buf); i += 8 {
		if binary.LittleEndian.Uint64(b.buf[i:]) != k.hash() {
			t.Fatalf("block %v holds foreign bytes at %d of %d", k, i, len(b.buf))
		}
	}
}

// checkAccounts compares what the cache says it uses with its blocks, when
// nobody holds one.
func checkAccounts(t testing.TB, c *blockCache) {
	t.Helper()
	for i := range c.shards {
		s := &c.shards[i]
		heap, arena := int64(0), 0
		for _, b := range s.ring {
			if n := b.refs.Load(); n != 1 {
				t.Fatalf("a block has %d holders left", n)
			}
			if s.blocks[b.key] != b {
				t.Fatalf("block %v is in the ring only", b.key)
			}
			if b.slab == nil {
				heap += int64(len(b.buf))
			} else {
				arena += chunkLen(b.slab.class)
			}
		}
		if len(s.blocks) != len(s.ring) || heap != s.heap || arena != s.arena.used {
			t.Fatalf("%d blocks, %d in the ring; heap %d, counted %d; arena %d, counted %d",
				len(s.blocks), len(s.ring), heap, s.heap, arena, s.arena.used)
		}
		if s.heap > s.maxHeap || s.arena.mapped > s.arena.limit {
			t.Fatalf("heap %d of %d, arena %d of %d", s.heap, s.maxHeap, s.arena.mapped, s.arena.limit)
		}
	}
}

func TestChunkLen(t *testing.T) {
	for class, n := range slabChunks {
		if got := chunkLen(class); got*n > slabLen || class > 0 && got <= chunkLen(class-1) {
			t.Errorf("class %d: %d chunks of %d", class, n, got)
		}
	}
	if chunkLen(len(slabChunks)-1) != maxChunk {
		t.Error("the last class doesn't hold the longest chunk")
	}
}

func TestBlockCacheBudget(t *testing.T) {
	const budget = 8 << 20
	c := newBlockCache(budget)
	rng := newRand(t)
	var held []*cachedBlock
	for i := range 30000 {
		// The usual length drifts, so that slabs must change their class.
		size := 500 + i/10 + rng.IntN(1000)
		if rng.IntN(500) == 0 {
			size = maxChunk + rng.IntN(300<<10)
		}
		k := blockKey{FileNum(rng.IntN(5)), uint64(rng.IntN(5000))}
		b := c.get(k)
		if b == nil {
			b = c.add(newTestBlock(c, k, size))
		}
		checkTestBlock(t, b, k)
		if i%50 == 0 {
			held = append(held, b) // keeps it past eviction
		} else {
			b.release()
		}
		if len(held) > 100 {
			for _, b := range held[:50] {
				checkTestBlock(t, b, b.key)
				b.release()
			}
			held = held[50:]
		}
		if i%5000 == 0 {
			c.evictTable(FileNum(rng.IntN(5)))
		}
		if st := c.stats(); st.used > st.budget || st.budget > budget {
			t.Fatalf("%d bytes in a budget of %d", st.used, st.budget)
		}
	}
	for _, b := range held {
		checkTestBlock(t, b, b.key)
		b.release()
	}
	checkAccounts(t, c)
	if st := c.stats(); st.hits == 0 || st.used < budget/2 {
		t.Fatalf("%+v", st)
	}
	for i := range 5 {
		c.evictTable(FileNum(i))
	}
	checkAccounts(t, c)
	if st := c.stats(); st.used != 0 || st.blocks != 0 {
		t.Fatalf("after evicting all: %+v", st)
	}
	for i := range c.shards {
		a := c.shards[i].arena
		if len(a.empty)*slabLen != a.mapped {
			t.Errorf("%d empty slabs of %d bytes mapped", len(a.empty), a.mapped)
		}
	}
}

// A block that is read between two turns of the clock stays, the others go.
func TestBlockCacheKeepsHot(t *testing.T) {
	c := newBlockCache(1 << 20)
	hot := blockKey{1, 0}
	c.add(newTestBlock(c, hot, 4096)).release()
	for i := range 5000 {
		b := c.get(hot)
		if b == nil {
			t.Fatalf("the hot block was evicted after %d others", i)
		}
		checkTestBlock(t, b, hot)
		b.release()
		c.add(newTestBlock(c, blockKey{2, uint64(i)}, 4096)).release()
	}
	checkAccounts(t, c)
}

// When readers hold everything, a new block isn't cached but usable.
func TestBlockCacheAllHeld(t *testing.T) {
	c := newBlockCache(1 << 20)
	var held []*cachedBlock
	for i := range 300 {
		held = append(held, c.add(newTestBlock(c, blockKey{1, uint64(i)}, 8192)))
	}
	for i, b := range held {
		checkTestBlock(t, b, blockKey{1, uint64(i)})
		b.release()
	}
	checkAccounts(t, c)
	if st := c.stats(); st.blocks == 0 || st.blocks >= len(held) {
		t.Fatalf("%+v", st)
	}
}

func TestBlockCacheLongBlocks(t *testing.T) {
	c := newBlockCache(1 << 20)
	for i := range 50 {
		k := blockKey{1, uint64(i)}
		c.add(newTestBlock(c, k, 40<<10)).release()
		b := c.get(k)
		if b == nil {
			t.Fatalf("block %d isn't cached", i)
		}
		checkTestBlock(t, b, k)
		b.release()
	}
	checkAccounts(t, c)
	k := blockKey{2, 0}
	c.add(newTestBlock(c, k, 1<<20)).release()
	if c.get(k) != nil {
		t.Fatal("a block as long as the budget was cached")
	}
}

// Without any budget everything works, uncached.
func TestBlockCacheNoBudget(t *testing.T) {
	c := newBlockCache(0)
	for _, n := range []int{0, 10, 4096, 1 << 20} {
		k := blockKey{1, uint64(n)}
		b := c.add(newTestBlock(c, k, n))
		checkTestBlock(t, b, k)
		b.release()
		if c.get(k) != nil {
			t.Fatal("cached without a budget")
		}
	}
}

// Two that loaded the same block end up with one.
func TestBlockCacheAddTwice(t *testing.T) {
	c := newBlockCache(1 << 20)
	k := blockKey{1, 0}
	a, b := newTestBlock(c, k, 10), newTestBlock(c, k, 10)
	if c.add(a) != a || c.add(b) != a {
		t.Fatal("the second add didn't give the first block")
	}
	if a.refs.Load() != 3 || b.refs.Load() != 0 {
		t.Fatalf("%d and %d holders", a.refs.Load(), b.refs.Load())
	}
	a.release()
	a.release()
	checkAccounts(t, c)
}

// A block keeps its memory mapped after its cache is gone.
func TestBlockOutlivesCache(t *testing.T) {
	k := blockKey{1, 0}
	c := newBlockCache(1 << 20)
	b := c.add(newTestBlock(c, k, 4096))
	if b.slab == nil {
		t.Fatal("the block isn't in the arena")
	}
	c = nil
	for range 3 {
		runtime.GC()
	}
	checkTestBlock(t, b, k)
	b.release()
}

func TestBlockCacheConcurrent(t *testing.T) {
	c := newBlockCache(2 << 20)
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 5000 {
				k := blockKey{FileNum(i * 7 % 3), uint64(i * (g + 1) % 700)}
				b := c.get(k)
				if b == nil {
					b = c.add(newTestBlock(c, k, 2000+i))
				}
				if b.key != k || binary.LittleEndian.Uint64(b.buf) != k.hash() || binary.LittleEndian.Uint64(b.buf[1992:]) != k.hash() {
					t.Errorf("asked for %v, got %v", k, b.key)
				}
				b.release()
				if i%1000 == 0 {
					c.evictTable(1)
				}
			}
		})
	}
	wg.Wait()
	checkAccounts(t, c)
}

func BenchmarkBlockCacheGet(b *testing.B) {
	c := newBlockCache(64 << 20)
	for i := range 1000 {
		c.add(newTestBlock(c, blockKey{1, uint64(i) * 4100}, 4096)).release()
	}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for i := 0; pb.Next(); i++ {
			blk := c.get(blockKey{1, uint64(i%1000) * 4100})
			if blk == nil {
				b.Fatal("block ", i, " is gone")
			}
			blk.release()
		}
	})
}
