package metadata

import (
	"sync"
	"sync/atomic"
)

// inode is an inode in memory: its attributes, and what has been read of its
// bytes and extents. Everything in it can be read again from the engine, since
// every change is committed before it is shown here.
type inode struct {
	ino  Ino
	mu   sync.RWMutex
	pins int         // guarded by the shard; in use, may not be dropped
	used atomic.Bool // touched since the clock hand last passed
	mem  int         // bytes charged to the shard; guarded by the shard

	// Guarded by mu.
	dead    bool // dropped from the cache (deleted, or never loaded): look it up again
	noCap   bool // known to have no file capabilities
	attr    Attr
	target  []byte // symlinks
	inline  []byte // small files; valid if haveInline
	haveInl bool
	ext     extentMap

	prev, next *inode // the shard's clock list; guarded by the shard
}

const (
	inodeBaseMem = 512
	unchanged    = -1 // a charge that leaves the account as it is
)

func (n *inode) memory() int {
	return inodeBaseMem + cap(n.inline) + len(n.target) + n.ext.memory()
}

// inodeCache holds inodes within a budget of bytes. Second-chance eviction.
type inodeCache struct {
	shards [64]cacheShard
	budget int64
	mem    atomic.Int64 // bytes of all shards
}

type cacheShard struct {
	mu   sync.Mutex
	m    map[Ino]*inode
	hand inode // list head: hand.next is the newest
	mem  int
	all  *atomic.Int64 // inodeCache.mem
}

func (c *inodeCache) init(budget int64) {
	c.budget = budget
	for i := range c.shards {
		sh := &c.shards[i]
		sh.m, sh.all = make(map[Ino]*inode), &c.mem
		sh.hand.next, sh.hand.prev = &sh.hand, &sh.hand
	}
}

func (c *inodeCache) shard(ino Ino) *cacheShard { return &c.shards[uint64(ino)%uint64(len(c.shards))] }

// pin returns the inode of ino. If it was not there, it returns a placeholder
// with its lock held, which the caller fills or kills; no two callers load one
// inode, so nobody can cache a record older than a change committed meanwhile.
func (c *inodeCache) pin(ino Ino) (n *inode, placeholder bool) {
	sh := c.shard(ino)
	sh.mu.Lock()
	n = sh.m[ino]
	if n == nil {
		n = &inode{ino: ino, mem: inodeBaseMem}
		n.mu.Lock() // fresh: never waits
		sh.insertLocked(n)
		placeholder = true
	}
	n.pins++
	if placeholder {
		sh.evictLocked(c.budget)
	}
	sh.mu.Unlock()
	n.used.Store(true)
	return n, placeholder
}

func (sh *cacheShard) insertLocked(n *inode) {
	sh.m[n.ino] = n
	sh.charge(n.mem)
	n.next, n.prev = sh.hand.next, &sh.hand
	n.next.prev, sh.hand.next = n, n
}

func (sh *cacheShard) removeLocked(n *inode) {
	if sh.m[n.ino] != n {
		return
	}
	delete(sh.m, n.ino)
	sh.charge(-n.mem)
	n.prev.next, n.next.prev = n.next, n.prev
	n.prev, n.next = nil, nil
}

func (sh *cacheShard) charge(bytes int) {
	sh.mem += bytes
	sh.all.Add(int64(bytes))
}

// evictLocked drops unpinned inodes from the shard's old end while all shards
// together are over the budget, looking at a bounded number of them.
func (sh *cacheShard) evictLocked(budget int64) {
	for tries := 16; sh.all.Load() > budget && tries > 0; tries-- {
		n := sh.hand.prev
		if n == &sh.hand {
			return
		}
		if n.pins > 0 || n.used.Swap(false) {
			n.prev.next, n.next.prev = n.next, n.prev
			n.next, n.prev = sh.hand.next, &sh.hand
			n.next.prev, sh.hand.next = n, n
			continue
		}
		sh.removeLocked(n)
	}
}

// unpin ends a use. mem is what the inode now takes, or unchanged.
func (c *inodeCache) unpin(n *inode, mem int) {
	sh := c.shard(n.ino)
	sh.mu.Lock()
	n.pins--
	if mem != unchanged && mem != n.mem && sh.m[n.ino] == n {
		sh.charge(mem - n.mem)
		n.mem = mem
		sh.evictLocked(c.budget)
	}
	sh.mu.Unlock()
}

// kill drops an inode for good. The caller holds its lock exclusively.
func (c *inodeCache) kill(n *inode) {
	n.dead = true
	sh := c.shard(n.ino)
	sh.mu.Lock()
	sh.removeLocked(n)
	sh.mu.Unlock()
}

// stats returns the number of inodes held and their bytes.
func (c *inodeCache) stats() (inodes, bytes int) {
	for i := range c.shards {
		sh := &c.shards[i]
		sh.mu.Lock()
		inodes += len(sh.m)
		bytes += sh.mem
		sh.mu.Unlock()
	}
	return
}
