package metadata

import "prismfs/engine"

// rlock and wlock return the inode of ino, loaded, locked and pinned; runlock
// and wunlock end that.
//
//   - Errors: ErrWouldBlock under NoWait; ErrStale if there is no such inode.
func (s *Store) rlock(w Wait, ino Ino) (*inode, error) {
	for {
		n, fresh, err := s.pinLoaded(w, ino)
		if err != nil {
			return nil, err
		}
		if fresh {
			n.mu.Unlock()
		}
		if w == NoWait {
			if !n.mu.TryRLock() {
				s.inodes.unpin(n, unchanged)
				return nil, ErrWouldBlock
			}
		} else {
			n.mu.RLock()
		}
		if !n.dead {
			return n, nil
		}
		n.mu.RUnlock()
		s.inodes.unpin(n, 0)
	}
}

func (s *Store) wlock(w Wait, ino Ino) (*inode, error) {
	for {
		n, fresh, err := s.pinLoaded(w, ino)
		if err != nil {
			return nil, err
		}
		if fresh {
			return n, nil
		}
		if w == NoWait {
			if !n.mu.TryLock() {
				s.inodes.unpin(n, unchanged)
				return nil, ErrWouldBlock
			}
		} else {
			n.mu.Lock()
		}
		if !n.dead {
			return n, nil
		}
		n.mu.Unlock()
		s.inodes.unpin(n, 0)
	}
}

// pinLoaded pins the inode of ino. fresh means that it was loaded just now and
// is locked exclusively.
func (s *Store) pinLoaded(w Wait, ino Ino) (n *inode, fresh bool, err error) {
	n, placeholder := s.inodes.pin(ino)
	if !placeholder {
		return n, false, nil
	}
	if err := s.loadInode(w, n); err != nil {
		s.inodes.kill(n)
		n.mu.Unlock()
		s.inodes.unpin(n, 0)
		return nil, false, err
	}
	return n, true, nil
}

func (s *Store) loadInode(w Wait, n *inode) error {
	var kb [keyPrefixLen + 8]byte
	b, err := s.db.Get(nil, inodeKey(kb[:0], n.ino), w)
	if err == engine.ErrNotFound {
		return ErrStale
	}
	if err != nil {
		return err
	}
	a, target, err := decodeInode(n.ino, b)
	if err != nil {
		return s.damage("inode record", n.ino, 0, err)
	}
	n.attr = a
	if len(target) > 0 {
		n.target = append([]byte(nil), target...)
	}
	if !a.Inline {
		n.haveInl = true // there are none
	}
	return nil
}

func (s *Store) runlock(n *inode) {
	n.mu.RUnlock()
	s.inodes.unpin(n, unchanged)
}

func (s *Store) wunlock(n *inode) {
	mem := 0
	if !n.dead {
		mem = n.memory()
	}
	n.mu.Unlock()
	s.inodes.unpin(n, mem)
}

// adopt puts a new inode, known to nobody else, into the cache. The caller gets
// it locked exclusively and pinned.
func (s *Store) adopt(ino Ino) *inode {
	for {
		n, placeholder := s.inodes.pin(ino)
		if placeholder {
			n.haveInl = true
			n.ext.store(wholeWindow())
			return n
		}
		// Somebody asked for the number before it was given out (a stale
		// handle): wait until that has failed.
		n.mu.Lock()
		n.mu.Unlock()
		s.inodes.unpin(n, unchanged)
	}
}

// lockSet holds several inodes locked exclusively: of a rename two directories,
// two files that the names stood for at first, and two that they stand for now.
type lockSet struct {
	n   [6]*inode
	len int
}

// lockAll locks the inodes of inos exclusively, each once, by ascending number.
func (s *Store) lockAll(w Wait, set *lockSet, inos ...Ino) error {
	for i := 1; i < len(inos); i++ {
		for j := i; j > 0 && inos[j] < inos[j-1]; j-- {
			inos[j], inos[j-1] = inos[j-1], inos[j]
		}
	}
	for i, ino := range inos {
		if ino == 0 || i > 0 && ino == inos[i-1] {
			continue
		}
		n, err := s.wlock(w, ino)
		if err != nil {
			s.unlockAll(set)
			return err
		}
		set.n[set.len] = n
		set.len++
	}
	return nil
}

func (set *lockSet) get(ino Ino) *inode {
	for _, n := range set.n[:set.len] {
		if n.ino == ino {
			return n
		}
	}
	return nil
}

func (s *Store) unlockAll(set *lockSet) {
	for set.len > 0 {
		set.len--
		s.wunlock(set.n[set.len])
		set.n[set.len] = nil
	}
}
