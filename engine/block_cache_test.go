package engine

import (
	"fmt"
	"sync"
	"testing"
)

func testBlock(num FileNum, off uint64, cost int64) *cachedBlock {
	b := &cachedBlock{key: blockKey{num, off}, cost: cost}
	b.refs.Store(1)
	return b
}

func TestBlockCacheBudget(t *testing.T) {
	const budget = 4 << 20
	c := newBlockCache(budget)
	rng := newRand(t)
	var held []*cachedBlock
	for i := range 20000 {
		k := blockKey{FileNum(rng.IntN(5)), uint64(rng.IntN(5000))}
		b := c.get(k)
		if b == nil {
			b = c.add(testBlock(k.num, k.off, int64(100+rng.IntN(8000))))
		}
		if b.key != k {
			t.Fatalf("asked for %v, got %v", k, b.key)
		}
		if i%100 == 0 {
			held = append(held, b) // keeps it past eviction
		} else {
			b.release()
		}
		if i%1000 == 0 {
			c.evictTable(FileNum(rng.IntN(5)))
		}
		if st := c.stats(); st.used > budget {
			t.Fatalf("%d bytes in a budget of %d", st.used, budget)
		}
	}
	for _, b := range held {
		b.release()
	}
	st := c.stats()
	var used int64
	for _, b := range c.allBlocks() {
		used += b.cost
		if n := b.refs.Load(); n != 1 {
			t.Fatalf("a block has %d holders left", n)
		}
	}
	if st.hits == 0 || st.used != used || st.used < budget/2 {
		t.Fatalf("%+v, blocks sum up to %d", st, used)
	}
	for i := range 5 {
		c.evictTable(FileNum(i))
	}
	if st := c.stats(); st.used != 0 || st.blocks != 0 {
		t.Fatalf("after evicting all: %+v", st)
	}
}

// A block that is read between two turns of the clock stays, the others go.
func TestBlockCacheKeepsHot(t *testing.T) {
	c := newBlockCache(100 * 1000)
	hot := c.add(testBlock(1, 0, 1000))
	hot.release()
	for i := range 1000 {
		b := c.get(blockKey{1, 0})
		if b == nil {
			t.Fatalf("the hot block was evicted after %d others", i)
		}
		b.release()
		c.add(testBlock(2, uint64(i), 1000)).release()
	}
}

// When readers hold everything, a new block isn't cached but usable.
func TestBlockCacheAllHeld(t *testing.T) {
	c := newBlockCache(3000)
	var held []*cachedBlock
	for i := range 5 {
		held = append(held, c.add(testBlock(1, uint64(i), 1000)))
	}
	if st := c.stats(); st.blocks != 3 || st.used != 3000 {
		t.Fatalf("%+v", st)
	}
	for i, b := range held {
		if b.key.off != uint64(i) {
			t.Fatalf("block %d is another", i)
		}
		b.release()
	}
	if b := c.add(testBlock(1, 9, 4000)); c.get(b.key) != nil {
		t.Fatal("a block larger than the budget was cached")
	}
}

// Two that loaded the same block end up with one.
func TestBlockCacheAddTwice(t *testing.T) {
	c := newBlockCache(1 << 20)
	a, b := testBlock(1, 0, 10), testBlock(1, 0, 10)
	if c.add(a) != a || c.add(b) != a {
		t.Fatal("the second add didn't give the first block")
	}
	if a.refs.Load() != 3 || b.refs.Load() != 0 {
		t.Fatalf("%d and %d holders", a.refs.Load(), b.refs.Load())
	}
}

func TestBlockCacheConcurrent(t *testing.T) {
	c := newBlockCache(1 << 20)
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 5000 {
				k := blockKey{FileNum(i * 7 % 3), uint64(i * (g + 1) % 700)}
				b := c.get(k)
				if b == nil {
					b = c.add(testBlock(k.num, k.off, 4096))
				}
				if b.key != k || b.refs.Load() < 1 {
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
	for _, b := range c.allBlocks() {
		if b.refs.Load() != 1 {
			t.Fatalf("%d holders left", b.refs.Load())
		}
	}
}

func BenchmarkBlockCacheGet(b *testing.B) {
	c := newBlockCache(64 << 20)
	for i := range 1000 {
		c.add(testBlock(1, uint64(i)*4100, 4096)).release()
	}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for i := 0; pb.Next(); i++ {
			blk := c.get(blockKey{1, uint64(i%1000) * 4100})
			if blk == nil {
				b.Fatal(fmt.Sprint("block ", i, " is gone"))
			}
			blk.release()
		}
	})
}
