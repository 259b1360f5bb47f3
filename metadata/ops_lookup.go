package metadata

import (
	"encoding/binary"
	"errors"

	"prismfs/engine"
)

// errBusy says that a child's lock was not free; errRelock that an operation
// must take its locks again in order. Neither leaves the package.
var (
	errBusy   = errors.New("busy")
	errRelock = errors.New("locks must be taken again")
)

// Lookup implements FS.
func (s *Store) Lookup(w Wait, parent Ino, name []byte, out *Attr) error {
	if len(name) > NameMax {
		return ErrNameTooLong
	}
	d, err := s.rlock(w, parent)
	if err != nil {
		return err
	}
	if !d.attr.isDir() {
		s.runlock(d)
		return ErrNotDir
	}
	var buf [128]byte
	b, err := s.bucket(w, buf[:0], parent, s.nameHash(name))
	if err != nil {
		s.runlock(d)
		return err
	}
	e, ok, err := findDirent(b, name)
	if err != nil || !ok {
		s.runlock(d)
		if err != nil {
			return s.damage("directory", parent, 0, err)
		}
		return ErrNotFound
	}
	// The reference is taken while the directory's lock keeps the name, and so
	// the inode, in place; after that the inode can at most become an orphan.
	s.refs.add(e.ino, 1)
	s.runlock(d)
	if err := s.getattr(w, e.ino, out); err != nil {
		s.Forget(e.ino, 1)
		if err == ErrStale {
			return s.damage("directory", parent, 0, ErrCorrupt)
		}
		return err
	}
	return nil
}

func (s *Store) getattr(w Wait, ino Ino, out *Attr) error {
	n, err := s.rlock(w, ino)
	if err != nil {
		return err
	}
	*out = n.attr
	s.runlock(n)
	return nil
}

// LookupIno implements FS.
func (s *Store) LookupIno(w Wait, ino Ino, out *Attr) error {
	if ino == 0 || uint64(ino) >= s.nextIno.Load() {
		return ErrStale
	}
	s.refs.add(ino, 1)
	err := s.getattr(w, ino, out)
	if err != nil {
		s.Forget(ino, 1)
	}
	return err
}

// LookupParent implements FS.
func (s *Store) LookupParent(w Wait, dir Ino, out *Attr) error {
	var a Attr
	if err := s.getattr(w, dir, &a); err != nil {
		return err
	}
	if !a.isDir() {
		return ErrNotDir
	}
	return s.LookupIno(w, a.Parent, out)
}

// Getattr implements FS.
func (s *Store) Getattr(w Wait, ino Ino, out *Attr) error { return s.getattr(w, ino, out) }

// Forget implements FS.
func (s *Store) Forget(ino Ino, n uint64) {
	if s.refs.sub(ino, n) {
		var a Attr
		if s.getattr(NoWait, ino, &a) != nil {
			a.Blocks = 0 // only statfs(2) would want to know
		}
		s.reclaimer.add(ino, int64(a.Blocks)*512)
	}
}

// Readlink implements FS.
func (s *Store) Readlink(w Wait, ino Ino, dst []byte) (int, error) {
	n, err := s.rlock(w, ino)
	if err != nil {
		return 0, err
	}
	defer s.runlock(n)
	if n.attr.Mode&modeType != modeSymlink {
		return 0, ErrInvalid
	}
	return copy(dst, n.target), nil
}

// Setattr implements FS.
func (s *Store) Setattr(w Wait, ino Ino, req *SetAttr, out *Attr) error {
	if err := s.writable(); err != nil {
		return err
	}
	if err := s.needRoom(w); err != nil {
		return err
	}
	n, err := s.wlock(w, ino)
	if err != nil {
		return err
	}
	defer s.wunlock(n)
	a := n.attr
	now := s.timeNow()
	m := req.Mask
	if err := a.maySet(m); err != nil {
		return err
	}
	t := s.begin()
	defer t.end()
	var after func()
	if m&SetSize != 0 {
		if !a.isRegular() {
			if a.isDir() {
				return ErrIsDir
			}
			return ErrInvalid
		}
		if req.Size > maxFileSize {
			return ErrFileTooBig
		}
		if req.Size != a.Size {
			if after, err = s.resize(w, t, n, &a, req.Size); err != nil {
				return err
			}
			a.Mtime = now
		}
	}
	if m&SetMode != 0 {
		a.Mode = a.Mode&modeType | req.Mode&modePerm
		if err := s.chmodACL(w, t, n, &a); err != nil {
			return err
		}
	}
	if m&(SetUid|SetGid|SetSize|SetKillPriv) != 0 {
		if err := s.dropCapability(w, t, n, &a); err != nil {
			return err
		}
	}
	if m&SetUid != 0 {
		a.Uid = req.Uid
	}
	if m&SetGid != 0 {
		a.Gid = req.Gid
	}
	if m&SetFlags != 0 {
		a.Flags = req.Flags
	}
	if m&SetProject != 0 {
		a.Project = req.Project
	}
	if m&SetAtimeNow != 0 {
		a.Atime = now
	} else if m&SetAtime != 0 {
		a.Atime = req.Atime
	}
	if m&SetMtimeNow != 0 {
		a.Mtime = now
	} else if m&SetMtime != 0 {
		a.Mtime = req.Mtime
	}
	a.Ctime = now
	if m&SetCtime != 0 {
		a.Ctime = req.Ctime
	}
	if m&SetKillPriv != 0 && m&SetMode == 0 {
		a.killPriv()
		if m&SetKillSgid != 0 && !a.isDir() {
			a.Mode &^= modeSetgid
		}
	}
	t.putInode(&a, n.target)
	if err := t.commit(w); err != nil {
		return err
	}
	n.attr = a
	if after != nil {
		after()
	}
	*out = a
	return nil
}

// Readdir implements FS.
func (s *Store) Readdir(w Wait, dir Ino, cookie uint64, attrs bool, fn func(*Dirent) bool) error {
	d, err := s.rlock(w, dir)
	if err != nil {
		return err
	}
	defer s.runlock(d)
	if !d.attr.isDir() {
		return ErrNotDir
	}
	var de Dirent
	if cookie < cookieDot {
		de = Dirent{Name: dotDot[:1], Ino: dir, Type: modeDir >> 12, Cookie: cookieDot}
		if !fn(&de) {
			return nil
		}
	}
	if cookie < cookieDotDot {
		de = Dirent{Name: dotDot, Ino: d.attr.Parent, Type: modeDir >> 12, Cookie: cookieDotDot}
		if !fn(&de) {
			return nil
		}
		cookie = cookieDotDot
	}
	if d.attr.Entries == 0 {
		return nil
	}
	return s.scanDir(w, dir, cookie+1, func(pos uint64, e *dirent) (bool, error) {
		de = Dirent{Name: e.name, Ino: e.ino, Type: e.typ, Cookie: pos}
		if attrs {
			var a Attr
			// A child's lock inside its directory's: only tried, since
			// elsewhere the order is by number. A child that is busy, or
			// whose record is damaged, goes without attributes; its own
			// lookup will wait, or report it.
			s.refs.add(e.ino, 1)
			err := s.childAttr(w, e.ino, &a)
			if err != nil {
				s.Forget(e.ino, 1)
				if err != errBusy && err != ErrStale && !errors.Is(err, ErrCorrupt) {
					return false, err
				}
			} else {
				de.Attr = &a
			}
		}
		more := fn(&de)
		if !more && de.Attr != nil {
			s.Forget(e.ino, 1)
		}
		return more, nil
	})
}

var dotDot = []byte("..")

// childAttr reads the attributes of an entry while its directory is locked.
func (s *Store) childAttr(w Wait, ino Ino, a *Attr) error {
	n, fresh, err := s.pinLoaded(w, ino)
	if err != nil {
		return err
	}
	switch {
	case fresh:
		*a = n.attr
		n.mu.Unlock()
	case n.mu.TryRLock():
		if dead := n.dead; dead {
			n.mu.RUnlock()
			s.inodes.unpin(n, unchanged)
			return errBusy
		}
		*a = n.attr
		n.mu.RUnlock()
	default:
		err = errBusy
	}
	s.inodes.unpin(n, unchanged)
	return err
}

// scanDir calls fn for every name of a directory from position pos on. The
// caller holds the directory's lock; name is valid during the call.
func (s *Store) scanDir(w Wait, dir Ino, pos uint64, fn func(pos uint64, e *dirent) (bool, error)) error {
	var lb, ub [keyPrefixLen + 16]byte
	it := s.db.NewIter(engine.IterOptions{
		Lower: direntKey(lb[:0], dir, pos>>8),
		Upper: inoKey(ub[:0], tableDirent, dir+1),
		Wait:  w,
	})
	defer it.Close()
	for ok := it.First(); ok; ok = it.Next() {
		k, err := parseKey(it.Key())
		if err != nil {
			return s.damage("directory", dir, pos, err)
		}
		hash := binary.BigEndian.Uint64(k.rest)
		b, err := bucketEntries(it.Value())
		for len(b) > 0 && err == nil {
			var e dirent
			if e, b, err = nextDirent(b); err != nil {
				break
			}
			p := hash<<8 | uint64(e.slot)
			if p < pos {
				continue
			}
			more, ferr := fn(p, &e)
			if ferr != nil {
				return ferr
			}
			if !more {
				return nil
			}
		}
		if err != nil {
			return s.damage("directory", dir, hash<<8, err)
		}
	}
	return it.Err()
}
