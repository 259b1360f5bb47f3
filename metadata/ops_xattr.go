package metadata

import (
	"bytes"

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

// Setxattr implements FS. An access ACL also sets the mode, and is not kept
// where the mode says all of it.
func (s *Store) Setxattr(w Wait, ino Ino, name, value []byte, flags uint32) error {
	if len(name) == 0 || len(name) > xattrNameMax {
		return ErrRange
	}
	if len(value) > xattrSizeMax {
		return ErrTooBig
	}
	if flags&^(XattrCreate|XattrReplace|XattrKillSgid) != 0 {
		return ErrInvalid
	}
	access, def := bytes.Equal(name, aclAccessName), bytes.Equal(name, aclDefaultName)
	if access || def {
		none, err := checkACL(value)
		if err != nil {
			return err
		}
		if none {
			return s.Removexattr(w, ino, name)
		}
	}
	if err := s.writable(); err != nil {
		return err
	}
	if err := s.needSpace(w, int64(512+len(value))); err != nil {
		return err
	}
	return s.changeXattr(w, ino, name, func(t *txn, n *inode, a *Attr, exists bool) error {
		switch {
		case exists && flags&XattrCreate != 0:
			return ErrExist
		case !exists && flags&XattrReplace != 0:
			return ErrNoData
		case def && !a.isDir(), (access || def) && a.Mode&modeType == modeSymlink:
			return ErrUnsupported
		case access:
			mode, equivalent := aclMode(value)
			a.Mode = a.Mode&^0777 | mode
			if flags&XattrKillSgid != 0 {
				a.Mode &^= modeSetgid
			}
			if equivalent {
				t.deleteXattr(a, name, exists)
				return nil
			}
		}
		t.putXattr(a, name, value, exists)
		n.noCap = false
		return nil
	})
}

// Removexattr implements FS. To remove an ACL that is not there is no error.
func (s *Store) Removexattr(w Wait, ino Ino, name []byte) error {
	if err := s.writable(); err != nil {
		return err
	}
	return s.changeXattr(w, ino, name, func(t *txn, _ *inode, a *Attr, exists bool) error {
		if !exists && !bytes.Equal(name, aclAccessName) && !bytes.Equal(name, aclDefaultName) {
			return ErrNoData
		}
		t.deleteXattr(a, name, exists)
		return nil
	})
}

func (s *Store) changeXattr(w Wait, ino Ino, name []byte, change func(t *txn, n *inode, a *Attr, exists bool) error) error {
	n, err := s.wlock(w, ino)
	if err != nil {
		return err
	}
	defer s.wunlock(n)
	if n.attr.kept() {
		return ErrPerm
	}
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
	if err := change(t, n, &a, exists); err != nil {
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
