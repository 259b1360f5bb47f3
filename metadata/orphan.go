package metadata

import (
	"encoding/binary"
	"errors"
	"sync"

	"prismfs/engine"
)

// orphanUnlinked is the value of table O: the inode has no name left and goes,
// with all that belongs to it, when nobody refers to it any more.
var orphanUnlinked = []byte{1}

// reclaimer deletes orphans that lost their last reference, off every caller's
// path and some at a time.
type reclaimer struct {
	mu      sync.Mutex
	idle    sync.Cond // ended has grown, or closed is set
	queue   []orphan
	owed    int64 // bytes that the orphans queued or under way still take
	busy    bool
	taken   uint64 // orphans that batches, ended or not, have taken off the queue
	ended   uint64 // of those, the ones whose batch has ended
	running bool
	closed  bool
	wake    chan struct{}
	stopped chan struct{}
}

// orphan is an inode to delete, and the bytes that it takes as far as they are
// known.
type orphan struct {
	ino   Ino
	bytes int64
}

// reclaimBatch is how many orphans go in one engine batch; reclaimKeys bounds
// the keys of one batch, so that a huge file goes in steps.
const (
	reclaimBatch = 64
	reclaimKeys  = 8192
)

func (r *reclaimer) init() {
	r.idle.L = &r.mu
	r.wake = make(chan struct{}, 1)
	r.stopped = make(chan struct{})
}

func (r *reclaimer) add(ino Ino, bytes int64) {
	r.mu.Lock()
	r.queue = append(r.queue, orphan{ino, bytes})
	r.owed += bytes
	r.mu.Unlock()
	r.kick()
}

func (r *reclaimer) kick() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

func (r *reclaimer) start(s *Store) {
	r.running = true
	go func() {
		defer close(r.stopped)
		var batch []Ino
		var bytes int64 // of the batch
		for range r.wake {
			for {
				r.mu.Lock()
				closed := r.closed
				r.ended = r.taken
				r.owed -= bytes
				bytes = 0
				r.idle.Broadcast()
				if len(r.queue) == 0 || closed {
					r.busy = false
					r.mu.Unlock()
					if closed {
						return
					}
					break
				}
				k := min(len(r.queue), reclaimBatch)
				batch = batch[:0]
				for _, o := range r.queue[:k] {
					batch = append(batch, o.ino)
					bytes += o.bytes
				}
				r.queue = r.queue[k:]
				r.taken += uint64(k)
				r.busy = true
				r.mu.Unlock()
				if err := s.reclaim(batch); err != nil {
					// Whatever is left is found again at the next mount.
					if !errors.Is(err, engine.ErrReadOnly) {
						s.logf("reclaim of deleted files: %v", err)
					}
				}
			}
		}
	}()
}

func (r *reclaimer) halt() {
	if !r.running {
		return
	}
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.kick()
	<-r.stopped
}

// owing is what statfs(2) may count as free before it is, in bytes.
func (r *reclaimer) owing() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.owed
}

// drain waits until the orphans queued by now are gone and says whether there
// were any.
func (r *reclaimer) drain(s *Store) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.running || len(r.queue) == 0 && !r.busy {
		return false
	}
	for upto := r.taken + uint64(len(r.queue)); r.ended < upto && !r.closed; {
		r.idle.Wait()
	}
	return true
}

// reclaim deletes orphans and everything of theirs.
func (s *Store) reclaim(list []Ino) error {
	if err := s.lanes.BlockingIO.Enter(); err != nil {
		return err
	}
	defer s.lanes.BlockingIO.Leave()
	for len(list) > 0 {
		t := s.begin()
		var locked []*inode
		var err error
		more := false // an orphan is not gone yet
		for len(list) > 0 && len(locked) < reclaimBatch && t.b.Count() < reclaimKeys {
			ino := list[0]
			// No name and no reference: nobody holds this lock together
			// with another, so that taking many of them is safe.
			n, lerr := s.wlock(Block, ino)
			if lerr == ErrStale {
				list = list[1:]
				continue
			}
			if lerr != nil {
				err = lerr
				break
			}
			// Who got a reference by number meanwhile is to bring it back here.
			if n.attr.Nlink > 0 || s.refs.orphan(ino) > 0 {
				s.wunlock(n)
				list = list[1:]
				continue
			}
			locked = append(locked, n)
			if more, err = s.reclaimOne(t, n); err != nil || more {
				break
			}
			list = list[1:]
		}
		if err == nil && !t.b.Empty() {
			err = t.commit(Block)
		}
		t.end()
		for i, n := range locked {
			last := i == len(locked)-1
			switch {
			case err == nil && !(last && more):
				s.inodes.kill(n)
			default:
				n.ext.forget() // what it showed may be gone
			}
			s.wunlock(n)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// reclaimOne puts the deletion of an orphan, or of a part of it, into t.
func (s *Store) reclaimOne(t *txn, n *inode) (more bool, err error) {
	a := &n.attr
	if a.Inline {
		t.deleteInline(n.ino)
	}
	if a.isRegular() && !a.Inline && a.Blocks > 0 {
		more, err = s.deleteKeys(t, tableExtent, n.ino, func(off uint64, value []byte) error {
			e, err := decodeExtent(off, value)
			if err != nil {
				return s.damage("extent", n.ino, off, err)
			}
			t.live(e.seg, -e.stored())
			t.delta.bytes -= int64(e.space())
			a.Blocks -= min(a.Blocks, e.space()/512)
			return nil
		})
		if err != nil || more {
			if more {
				t.putInode(a, n.target)
			}
			return more, err
		}
	} else {
		t.delta.bytes -= int64(a.Blocks) * 512
	}
	if a.Xattrs > 0 {
		if more, err = s.deleteKeys(t, tableXattr, n.ino, nil); err != nil || more {
			return more, err
		}
	}
	t.b.Delete(inodeKey(t.key[:0], n.ino))
	t.b.Delete(orphanKey(t.key[:0], n.ino))
	t.delta.inodes--
	return false, nil
}

// deleteKeys puts the deletion of an inode's keys in a table into t, as many as
// fit; more says that some are left.
func (s *Store) deleteKeys(t *txn, table byte, ino Ino, fn func(off uint64, value []byte) error) (more bool, err error) {
	it := s.db.NewIter(engine.IterOptions{Lower: inoKey(nil, table, ino), Upper: inoKey(nil, table, ino+1)})
	defer it.Close()
	for ok := it.First(); ok; ok = it.Next() {
		if t.b.Count() >= reclaimKeys {
			return true, nil
		}
		if fn != nil {
			if err := fn(binary.BigEndian.Uint64(it.Key()[keyPrefixLen+8:]), it.Value()); err != nil {
				return false, err
			}
		}
		t.b.Delete(it.Key())
	}
	return false, it.Err()
}

// collectOrphans queues what an earlier mount left unlinked: the kernel's
// references ended with it.
func (s *Store) collectOrphans() error {
	it := s.db.NewIter(engine.IterOptions{
		Lower: appendPrefix(nil, treeLive, tableOrphan), Upper: appendPrefix(nil, treeLive, tableOrphan+1),
	})
	defer it.Close()
	for ok := it.First(); ok; ok = it.Next() {
		k, err := parseKey(it.Key())
		if err != nil {
			return err
		}
		s.reclaimer.add(k.ino, 0)
	}
	return it.Err()
}
