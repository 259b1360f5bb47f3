package metadata

import (
	"bytes"
	"encoding/binary"

	"prismfs/engine"
)

// POSIX ACLs are extended attributes that the mode follows, and that follow the
// mode: the group bits of a file with an access ACL are the ACL's mask.
//
// Value, little-endian: version u32 (2), then entries {tag u16, permissions u16,
// id u32}, by ascending tag and id. The kernel checks who may set which, and
// checks access by them.
//
//   - Source: linux/posix_acl_xattr.h, fs/posix_acl.c in the kernel.
var (
	aclAccessName  = []byte("system.posix_acl_access")
	aclDefaultName = []byte("system.posix_acl_default")
	capabilityName = []byte("security.capability")
)

const (
	aclVersion   = 2
	aclHeaderLen = 4
	aclEntryLen  = 8

	aclUserObj  = 0x01
	aclUser     = 0x02
	aclGroupObj = 0x04
	aclGroup    = 0x08
	aclMask     = 0x10
	aclOther    = 0x20
)

// aclEntry is entry i of an ACL that checkACL accepted.
func aclEntry(acl []byte, i int) (tag uint16, perm []byte) {
	e := acl[aclHeaderLen+i*aclEntryLen:]
	return binary.LittleEndian.Uint16(e), e[2:4]
}

func aclLen(acl []byte) int { return (len(acl) - aclHeaderLen) / aclEntryLen }

// checkACL accepts what posix_acl_valid does. An ACL without entries is none.
func checkACL(acl []byte) (none bool, err error) {
	if len(acl) < aclHeaderLen || (len(acl)-aclHeaderLen)%aclEntryLen != 0 {
		return false, ErrInvalid
	}
	if binary.LittleEndian.Uint32(acl) != aclVersion {
		return false, ErrUnsupported
	}
	if len(acl) == aclHeaderLen {
		return true, nil
	}
	var seen, last uint16
	named := false
	for i := range aclLen(acl) {
		tag, perm := aclEntry(acl, i)
		if binary.LittleEndian.Uint16(perm) > 7 || tag < last {
			return false, ErrInvalid
		}
		last = tag
		switch tag {
		case aclUser, aclGroup:
			named = true
		case aclUserObj, aclGroupObj, aclMask, aclOther:
			if seen&tag != 0 {
				return false, ErrInvalid
			}
		default:
			return false, ErrInvalid
		}
		seen |= tag
	}
	const base = aclUserObj | aclGroupObj | aclOther
	if seen&base != base || named && seen&aclMask == 0 {
		return false, ErrInvalid
	}
	return false, nil
}

// aclMode is the mode bits that go with an ACL, and whether they say all of it.
func aclMode(acl []byte) (mode uint32, equivalent bool) {
	equivalent = true
	for i := range aclLen(acl) {
		tag, p := aclEntry(acl, i)
		perm := uint32(binary.LittleEndian.Uint16(p))
		switch tag {
		case aclUserObj:
			mode |= perm << 6
		case aclGroupObj:
			mode |= perm << 3
		case aclOther:
			mode |= perm
		case aclMask:
			mode = mode&^0070 | perm<<3
			equivalent = false
		default:
			equivalent = false
		}
	}
	return mode, equivalent
}

// aclForMode returns acl as chmod(2) to mode leaves it.
func aclForMode(acl []byte, mode uint32) []byte {
	acl = bytes.Clone(acl)
	var group []byte
	for i := range aclLen(acl) {
		tag, perm := aclEntry(acl, i)
		switch tag {
		case aclUserObj:
			binary.LittleEndian.PutUint16(perm, uint16(mode>>6&7))
		case aclGroupObj:
			group = perm
		case aclMask:
			group = perm
		case aclOther:
			binary.LittleEndian.PutUint16(perm, uint16(mode&7))
		}
	}
	if group != nil {
		binary.LittleEndian.PutUint16(group, uint16(mode>>3&7))
	}
	return acl
}

// inheritACL is what a directory's default ACL makes of a new inode's mode: the
// access ACL that it gets, nil if the mode says all of it, and its mode.
func inheritACL(acl []byte, mode uint32) ([]byte, uint32) {
	acl = bytes.Clone(acl)
	var group []byte
	rest := mode & 0777
	limit := func(perm []byte, shift uint) {
		p := uint32(binary.LittleEndian.Uint16(perm)) & (rest >> shift)
		binary.LittleEndian.PutUint16(perm, uint16(p))
		rest = rest&^(7<<shift) | p<<shift
	}
	equivalent := true
	for i := range aclLen(acl) {
		switch tag, perm := aclEntry(acl, i); tag {
		case aclUserObj:
			limit(perm, 6)
		case aclOther:
			limit(perm, 0)
		case aclGroupObj:
			if group == nil {
				group = perm
			}
		case aclMask:
			group, equivalent = perm, false
		default:
			equivalent = false
		}
	}
	if group != nil {
		limit(group, 3)
	}
	mode = mode&^0777 | rest
	if equivalent {
		return nil, mode
	}
	return acl, mode
}

// putXattr and deleteXattr change one attribute of a; present says whether it
// is there.
func (t *txn) putXattr(a *Attr, name, value []byte, present bool) {
	if !present {
		a.Xattrs++
	}
	t.b.Put(xattrKey(t.key[:0], a.Ino, name), value)
}

func (t *txn) deleteXattr(a *Attr, name []byte, present bool) {
	if present {
		a.Xattrs--
		t.b.Delete(xattrKey(t.key[:0], a.Ino, name))
	}
}

// optionalXattr is the value of an attribute of n, nil if there is none.
func (s *Store) optionalXattr(w Wait, n *inode, name []byte) ([]byte, error) {
	if n.attr.Xattrs == 0 {
		return nil, nil
	}
	v, err := s.xattr(w, n.ino, name)
	if err == ErrNoData {
		return nil, nil
	}
	return v, err
}

// inheritACLs gives a new inode the ACLs that it takes from its directory, or
// applies the caller's umask, in t and a.
func (s *Store) inheritACLs(w Wait, t *txn, d *inode, a *Attr, umask uint32) error {
	if a.Mode&modeType == modeSymlink {
		return nil
	}
	def, err := s.optionalXattr(w, d, aclDefaultName)
	if err != nil {
		return err
	}
	if def == nil {
		a.Mode &^= umask & 0777
		return nil
	}
	if none, err := checkACL(def); err != nil || none {
		return s.damage("default ACL", d.ino, 0, ErrCorrupt)
	}
	acl, mode := inheritACL(def, a.Mode)
	a.Mode = mode
	if acl != nil {
		t.putXattr(a, aclAccessName, acl, false)
	}
	if a.isDir() {
		t.putXattr(a, aclDefaultName, def, false)
	}
	return nil
}

// chmodACL makes n's access ACL, if it has one, follow a's new mode, in t.
func (s *Store) chmodACL(w Wait, t *txn, n *inode, a *Attr) error {
	if a.Mode&modeType == modeSymlink {
		return nil
	}
	acl, err := s.optionalXattr(w, n, aclAccessName)
	if err != nil || acl == nil {
		return err
	}
	if none, err := checkACL(acl); err != nil || none {
		return s.damage("access ACL", n.ino, 0, ErrCorrupt)
	}
	t.putXattr(a, aclAccessName, aclForMode(acl, a.Mode), true)
	return nil
}

// dropCapability removes the file capabilities of n, which no change of its
// bytes, size or owner may leave it with, in t and a.
func (s *Store) dropCapability(w Wait, t *txn, n *inode, a *Attr) error {
	if a.Xattrs == 0 || n.noCap || !a.isRegular() {
		return nil
	}
	var kb [maxKeyLen]byte
	_, err := s.db.Get(nil, xattrKey(kb[:0], n.ino, capabilityName), w)
	switch err {
	case nil:
		t.deleteXattr(a, capabilityName, true)
	case engine.ErrNotFound:
		n.noCap = true
	default:
		return err
	}
	return nil
}
