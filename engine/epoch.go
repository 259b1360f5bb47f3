package engine

import (
	"math/rand/v2"
	"sync/atomic"
)

const epochShards = 64

// epochs tells when nobody can hold a pointer that was unpublished earlier,
// without a shared cache line on the reader's side.
//
// E1: a reader counts itself in at the current epoch, and reads published
// pointers only after it has seen the epoch unchanged.
// E2: the epoch moves from c to c+1 only when nobody is counted in at c-1; the
// two sets of counters serve even and odd epochs.
// Hence what was unpublished at epoch c or before has no reader left once the
// epoch is c+2.
type epochs struct {
	cur    atomic.Uint64
	shards [2][epochShards]struct {
		n atomic.Int64
		_ [56]byte
	}
}

// enter counts a reader in; it leaves by adding -1 to what enter returned.
func (e *epochs) enter() *atomic.Int64 {
	shard := rand.Uint32() % epochShards
	for {
		c := e.cur.Load()
		n := &e.shards[c&1][shard].n
		n.Add(1)
		if e.cur.Load() == c {
			return n
		}
		n.Add(-1)
	}
}

// advance moves to the next epoch if E2 allows it and returns the current one.
// One caller at a time.
func (e *epochs) advance() uint64 {
	c := e.cur.Load()
	old := &e.shards[(c+1)&1]
	for i := range old {
		if old[i].n.Load() != 0 {
			return c
		}
	}
	e.cur.Store(c + 1)
	return c + 1
}
