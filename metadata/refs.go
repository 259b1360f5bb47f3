package metadata

import "sync"

// refTable counts the kernel's references to inodes: one for each lookup reply
// that FORGET has not taken back. It is apart from the inode cache, so that the
// cache may drop attributes of inodes that the kernel still names.
//
// An entry is count<<1 | orphan; orphan says that the last name is gone and the
// inode goes with its last reference.
type refTable struct {
	shards [64]refShard
}

type refShard struct {
	mu sync.Mutex
	m  map[Ino]uint64
	_  [48]byte
}

func (t *refTable) shard(ino Ino) *refShard { return &t.shards[uint64(ino)%uint64(len(t.shards))] }

// add raises the count. It happens before the reply that hands out the
// reference, under a lock that keeps the inode's last name or record in place.
func (t *refTable) add(ino Ino, n uint64) {
	sh := t.shard(ino)
	sh.mu.Lock()
	if sh.m == nil {
		sh.m = make(map[Ino]uint64)
	}
	sh.m[ino] += n << 1
	sh.mu.Unlock()
}

// sub lowers the count and says whether it reached zero on an orphan.
func (t *refTable) sub(ino Ino, n uint64) (reclaim bool) {
	sh := t.shard(ino)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	v, ok := sh.m[ino]
	if !ok {
		return false
	}
	if v>>1 > n {
		sh.m[ino] = v - n<<1
		return false
	}
	delete(sh.m, ino)
	return v&1 != 0
}

// orphan marks an inode whose last name went and returns its count.
func (t *refTable) orphan(ino Ino) (count uint64) {
	sh := t.shard(ino)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	v, ok := sh.m[ino]
	if !ok {
		return 0
	}
	sh.m[ino] = v | 1
	return v >> 1
}

// adopt takes the mark back from an inode that got a name again.
func (t *refTable) adopt(ino Ino) {
	sh := t.shard(ino)
	sh.mu.Lock()
	if v, ok := sh.m[ino]; ok {
		sh.m[ino] = v &^ 1
	}
	sh.mu.Unlock()
}

// size returns the number of inodes with references.
func (t *refTable) size() (n int) {
	for i := range t.shards {
		sh := &t.shards[i]
		sh.mu.Lock()
		n += len(sh.m)
		sh.mu.Unlock()
	}
	return n
}
