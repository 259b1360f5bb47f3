package metadata

// Flags of chattr(1) that change what may be done. The kernel of a local file
// system checks them; with FUSE it knows nothing of them.
//
//   - Source: linux/fs.h; may_delete, may_create, vfs_link, notify_change,
//     xattr_permission and vfs_fallocate in the kernel.
const (
	flagImmutable = 0x10 // FS_IMMUTABLE_FL
	flagAppend    = 0x20 // FS_APPEND_FL
)

func (a *Attr) immutable() bool { return a.Flags&flagImmutable != 0 }

// kept says that the inode has to keep its name, attributes and old bytes.
func (a *Attr) kept() bool { return a.Flags&(flagImmutable|flagAppend) != 0 }

// mayAdd and mayRemove say whether a directory may get and lose a name.
func (a *Attr) mayAdd() error {
	if a.immutable() {
		return ErrPerm
	}
	return nil
}

func (a *Attr) mayRemove(child *Attr) error {
	if a.kept() || child.kept() {
		return ErrPerm
	}
	return nil
}

// maySet says whether attributes may be changed. What the kernel does by itself
// stays allowed: to drop privileges, and to hand in times from its cache.
func (a *Attr) maySet(m SetMask) error {
	switch {
	case a.Flags&(flagImmutable|flagAppend) == 0, m == SetMtime|SetCtime:
	case m&(SetMode|SetUid|SetGid|SetSize|SetAtime|SetMtime) != 0:
		return ErrPerm
	case m&(SetAtimeNow|SetMtimeNow) != 0 && a.immutable():
		return ErrPerm
	}
	return nil
}

// mayWrite says whether bytes may be written at off.
func (a *Attr) mayWrite(off uint64) error {
	if a.immutable() || a.Flags&flagAppend != 0 && off < a.Size {
		return ErrPerm
	}
	return nil
}
