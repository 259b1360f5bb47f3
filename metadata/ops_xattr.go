package metadata

import (
	"prismfs/engine"
)

// Limits of extended attributes, as Linux has them (limits.h), in bytes.
const (
	xattrNameMax = 255
	xattrSizeMax = 65536
	xattrListMax = 65536
)

// Getxattr implements FS.
func (s *Store) Getxattr(w Wait, ino Ino, name []byte) ([]byte, error) {
	n, err := s.rlock(w, ino)
	if err != nil {
		return nil, err
	}
	defer s.runlock(n)
	if n.attr.Xattrs == 0 {
		return nil, ErrNoData
	}
	return s.xattr(w, ino, name)
}

func (s *Store) xattr(w Wait, ino Ino, name []byte) ([]byte, error) {
	if len(name) == 0 || len(name) > xattrNameMax {
		return nil, ErrRange
	}
	var kb [maxKeyLen]byte
	b, err := s.db.Get([]byte{}, xattrKey(kb[:0], ino, name), w)
	if err == engine.ErrNotFound {
		return nil, ErrNoData
	}
	return b, err
}

// Setxattr implements FS.
func (s *Store) Setxattr(w Wait, ino Ino, name, value []byte, flags uint32) error {
	if len(name) == 0 || len(name) > xattrNameMax {
		return ErrRange
	}
	if len(value) > xattrSizeMax {
		return ErrTooBig
	}
	if flags&^(XattrCreate|XattrReplace) != 0 {
		return ErrInvalid
	}
	if err := s.writable(); err != nil {
		return err
	}
	if err := s.needSpace(w, int64(512+len(value))); err != nil {
		return err
	}
	return s.changeXattr(w, ino, name, func(t *txn, a *Attr, exists bool) error {
		switch {
		case exists && flags&XattrCreate != 0:
			return ErrExist
		case !exists && flags&XattrReplace != 0:
			return ErrNoData
		case !exists:
			a.Xattrs++
		}
		t.b.Put(xattrKey(t.key[:0], ino, name), value)
		return nil
	})
}

// Removexattr implements FS.
func (s *Store) Removexattr(w Wait, ino Ino, name []byte) error {
	if err := s.writable(); err != nil {
		return err
	}
	return s.changeXattr(w, ino, name, func(t *txn, a *Attr, exists bool) error {
		if !exists {
			return ErrNoData
		}
		a.Xattrs--
		t.b.Delete(xattrKey(t.key[:0], ino, name))
		return nil
	})
}

func (s *Store) changeXattr(w Wait, ino Ino, name []byte, change func(t *txn, a *Attr, exists bool) error) error {
	n, err := s.wlock(w, ino)
	if err != nil {
		return err
	}
	defer s.wunlock(n)
	exists := false
	if n.attr.Xattrs > 0 {
		if _, err := s.xattr(w, ino, name); err == nil {
			exists = true
		} else if err != ErrNoData {
			return err
		}
	}
	a := n.attr
	a.Ctime = s.timeNow()
	t := s.begin()
	defer t.end()
	if err := change(t, &a, exists); err != nil {
		return err
	}
	t.putInode(&a, n.target)
	if err := t.commit(w); err != nil {
		return err
	}
	n.attr = a
	return nil
}

// Listxattr implements FS.
func (s *Store) Listxattr(w Wait, ino Ino) ([]byte, error) {
	n, err := s.rlock(w, ino)
	if err != nil {
		return nil, err
	}
	defer s.runlock(n)
	if n.attr.Xattrs == 0 {
		return nil, nil
	}
	var lb, ub [maxKeyLen]byte
	it := s.db.NewIter(engine.IterOptions{Lower: xattrKey(lb[:0], ino, nil), Upper: inoKey(ub[:0], tableXattr, ino+1), Wait: w})
	defer it.Close()
	var list []byte
	for ok := it.First(); ok; ok = it.Next() {
		list = append(list, it.Key()[keyPrefixLen+8:]...)
		list = append(list, 0)
		if len(list) > xattrListMax {
			return nil, ErrTooBig
		}
	}
	return list, it.Err()
}
