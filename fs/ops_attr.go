package fs

import (
	"syscall"

	"prismfs/metadata"
)

const (
	attrOutLen  = 16 + attrLen // fuse_attr_out
	statxOutLen = 32 + 256     // fuse_statx_out

	// attrBlockSize is st_blksize: small, as data is checksummed by 4 KiB.
	attrBlockSize = 4096

	nsecPerSec = 1_000_000_000
)

// putAttr writes a fuse_attr.
func putAttr(b []byte, a *metadata.Attr) {
	_ = b[attrLen-1]
	le.PutUint64(b, uint64(a.Ino))
	le.PutUint64(b[8:], a.Size)
	le.PutUint64(b[16:], a.Blocks)
	le.PutUint64(b[24:], uint64(a.Atime.Sec))
	le.PutUint64(b[32:], uint64(a.Mtime.Sec))
	le.PutUint64(b[40:], uint64(a.Ctime.Sec))
	le.PutUint32(b[48:], a.Atime.Nsec)
	le.PutUint32(b[52:], a.Mtime.Nsec)
	le.PutUint32(b[56:], a.Ctime.Nsec)
	le.PutUint32(b[60:], a.Mode)
	le.PutUint32(b[64:], a.Nlink)
	le.PutUint32(b[68:], a.Uid)
	le.PutUint32(b[72:], a.Gid)
	le.PutUint32(b[76:], a.Rdev)
	le.PutUint32(b[80:], attrBlockSize)
	le.PutUint32(b[84:], 0)
}

// putAttrOut writes a fuse_attr_out.
func (d *Dispatcher) putAttrOut(b []byte, a *metadata.Attr) int {
	le.PutUint64(b, d.attrValid.sec)
	le.PutUint32(b[8:], d.attrValid.nsec)
	le.PutUint32(b[12:], 0)
	putAttr(b[16:], a)
	return attrOutLen
}

func (d *Dispatcher) opGetattr(c *call, w metadata.Wait) (int, error) {
	if c.r.Node() == uint64(firstOpenIno) {
		c.attr = firstOpenAttr
		return d.putAttrOut(c.r.Out, &c.attr), nil
	}
	if err := d.st.Getattr(w, metadata.Ino(c.r.Node()), &c.attr); err != nil {
		return 0, err
	}
	return d.putAttrOut(c.r.Out, &c.attr), nil
}

// Bits of statx(2).
const (
	statxBasicStats = 0x7ff
	statxBtime      = 0x800

	// The attributes that share their bits with FS_*_FL: compressed, immutable,
	// append-only, not dumped.
	statxAttributes = flCompr | flImmutable | flAppend | flNodump
)

// opStatx is GETATTR with the time of birth.
func (d *Dispatcher) opStatx(c *call, w metadata.Wait) (int, error) {
	a := &c.attr
	if err := d.st.Getattr(w, metadata.Ino(c.r.Node()), a); err != nil {
		return 0, err
	}
	out := c.r.Out[:statxOutLen]
	clear(out)
	le.PutUint64(out, d.attrValid.sec)
	le.PutUint32(out[8:], d.attrValid.nsec)
	b := out[32:]
	le.PutUint32(b, statxBasicStats|statxBtime)
	le.PutUint32(b[4:], attrBlockSize)
	le.PutUint64(b[8:], uint64(a.Flags&statxAttributes))
	le.PutUint32(b[16:], a.Nlink)
	le.PutUint32(b[20:], a.Uid)
	le.PutUint32(b[24:], a.Gid)
	le.PutUint16(b[28:], uint16(a.Mode))
	le.PutUint64(b[32:], uint64(a.Ino))
	le.PutUint64(b[40:], a.Size)
	le.PutUint64(b[48:], a.Blocks)
	le.PutUint64(b[56:], statxAttributes)
	for i, t := range [...]*metadata.Time{&a.Atime, &a.Btime, &a.Ctime, &a.Mtime} {
		le.PutUint64(b[64+16*i:], uint64(t.Sec))
		le.PutUint32(b[72+16*i:], t.Nsec)
	}
	// Rdev is in the kernel's encoding: minor in bits 0-7 and 20-31, major in 8-19.
	le.PutUint32(b[128:], a.Rdev>>8&0xfff)
	le.PutUint32(b[132:], a.Rdev&0xff|a.Rdev>>12&^uint32(0xff))
	return statxOutLen, nil
}

// Bits of fuse_setattr_in.valid.
const (
	fattrMode        = 1 << 0
	fattrUid         = 1 << 1
	fattrGid         = 1 << 2
	fattrSize        = 1 << 3
	fattrAtime       = 1 << 4
	fattrMtime       = 1 << 5
	fattrFh          = 1 << 6
	fattrAtimeNow    = 1 << 7
	fattrMtimeNow    = 1 << 8
	fattrCtime       = 1 << 10
	fattrKillSuidgid = 1 << 11
)

// opSetattr changes attributes.
//
// The kernel asks for privileges to be dropped in two ways: with its own bit
// (truncate, chown), and, before fallocate(2) and for chown(-1, -1), with a
// SETATTR that sets nothing at all but perhaps ctime.
//
// An ftruncate(2) or open(2) with O_TRUNC, which come with a handle, changes
// mtime whatever the size was, and leaves that to us.
//
//   - Source: fuse_do_setattr, iattr_to_fattr, update_mtime in the kernel's fs/fuse/dir.c.
func (d *Dispatcher) opSetattr(c *call, w metadata.Wait) (int, error) {
	in := c.r.Op()
	valid := le.Uint32(in)
	s := &c.set
	*s = metadata.SetAttr{}
	if valid&fattrMode != 0 {
		s.Mask |= metadata.SetMode
		s.Mode = le.Uint32(in[68:]) & permBits
	}
	if valid&fattrUid != 0 {
		s.Mask |= metadata.SetUid
		s.Uid = le.Uint32(in[76:])
	}
	if valid&fattrGid != 0 {
		s.Mask |= metadata.SetGid
		s.Gid = le.Uint32(in[80:])
	}
	if valid&fattrSize != 0 {
		s.Mask |= metadata.SetSize
		s.Size = le.Uint64(in[16:])
	}
	switch {
	case valid&fattrAtimeNow != 0:
		s.Mask |= metadata.SetAtimeNow
	case valid&fattrAtime != 0:
		s.Mask |= metadata.SetAtime
		s.Atime = metadata.Time{Sec: int64(le.Uint64(in[32:])), Nsec: le.Uint32(in[56:])}
	}
	switch {
	case valid&fattrMtimeNow != 0, valid&(fattrMtime|fattrSize|fattrFh) == fattrSize|fattrFh:
		s.Mask |= metadata.SetMtimeNow
	case valid&fattrMtime != 0:
		s.Mask |= metadata.SetMtime
		s.Mtime = metadata.Time{Sec: int64(le.Uint64(in[40:])), Nsec: le.Uint32(in[60:])}
	}
	if valid&fattrKillSuidgid != 0 {
		s.Mask |= metadata.SetKillPriv
	} else if s.Mask == 0 {
		s.Mask = metadata.SetKillPriv
		if err := d.st.Getattr(w, metadata.Ino(c.r.Node()), &c.attr); err != nil {
			return 0, err
		}
		if losesSgid(&c.attr, c.r) {
			s.Mask |= metadata.SetKillSgid
		}
	}
	if valid&fattrCtime != 0 {
		s.Mask |= metadata.SetCtime
		s.Ctime = metadata.Time{Sec: int64(le.Uint64(in[48:])), Nsec: le.Uint32(in[64:])}
	}
	if s.Atime.Nsec >= nsecPerSec || s.Mtime.Nsec >= nsecPerSec || s.Ctime.Nsec >= nsecPerSec {
		return 0, metadata.ErrInvalid
	}
	if err := d.st.Setattr(w, metadata.Ino(c.r.Node()), s, &c.attr); err != nil {
		return 0, err
	}
	return d.putAttrOut(c.r.Out, &c.attr), nil
}

// losesSgid tells whether a file whose group may not execute it loses S_ISGID
// as well: not if the caller may give it this bit. The kernel has found that
// something is to go; if that can't be S_ISUID, it is this.
//
//   - Source: setattr_should_drop_sgid in the kernel's fs/attr.c.
func losesSgid(a *metadata.Attr, r *Request) bool {
	if a.Mode&(syscall.S_ISGID|syscall.S_IXGRP) != syscall.S_ISGID {
		return false
	}
	if a.Mode&syscall.S_ISUID == 0 {
		return true
	}
	who := callerOf(r)
	return !who.in(a.Gid) && !who.has(capFsetid)
}

// ioctls that are answered, each also with the size that a 32-bit program uses.
const (
	fsIocGetflags   = 0x80086601
	fsIocSetflags   = 0x40086602
	fsIocGetversion = 0x80087601
	fsIoc32Getflags = 0x80046601
	fsIoc32Setflags = 0x40046602
	fsIoc32Getvers  = 0x80047601
	fsIocFsgetxattr = 0x801c581f
	fsIocFssetxattr = 0x401c5820

	ioctlOutLen = 16 // fuse_ioctl_out
	fsxattrLen  = 28 // struct fsxattr
)

// Bits of FS_IOC_GETFLAGS, as chattr(1) has them.
const (
	flCompr       = 0x4
	flSync        = 0x8
	flImmutable   = 0x10
	flAppend      = 0x20
	flNodump      = 0x40
	flNoatime     = 0x80
	flNocomp      = 0x400
	flDirsync     = 0x10000
	flProjinherit = 0x20000000

	// flSettable are the flags that are kept; chattr of any other fails.
	flSettable = flCompr | flSync | flImmutable | flAppend | flNodump | flNoatime | flNocomp | flDirsync | flProjinherit
)

// xflags pairs the flags of FS_IOC_FSGETXATTR with those of FS_IOC_GETFLAGS.
//
//   - Source: linux/fs.h, fileattr_fill_xflags in the kernel's fs/file_attr.c.
var xflags = [...]struct{ x, fl uint32 }{
	{0x8, flImmutable},
	{0x10, flAppend},
	{0x20, flSync},
	{0x40, flNoatime},
	{0x80, flNodump},
	{0x200, flProjinherit},
}

// opIoctl answers the ioctls behind chattr, lsattr and project quotas.
// Permissions and what may be changed together are the kernel's to check; it
// also asks for the present flags first, under the lock of the inode.
func (d *Dispatcher) opIoctl(c *call, w metadata.Wait) (int, error) {
	op := c.r.Op()
	cmd, inLen, outLen := le.Uint32(op[12:]), int(le.Uint32(op[24:])), int(le.Uint32(op[28:]))
	in, ino := c.r.Data[:inLen], metadata.Ino(c.r.Node())
	switch cmd {
	case fsIocGetflags, fsIoc32Getflags, fsIocGetversion, fsIoc32Getvers, fsIocFsgetxattr:
		need := 4
		if cmd == fsIocFsgetxattr {
			need = fsxattrLen
		}
		if outLen < need {
			return 0, metadata.ErrInvalid
		}
		if err := d.st.Getattr(w, ino, &c.attr); err != nil {
			return 0, err
		}
		b := c.r.Out[:ioctlOutLen+outLen]
		clear(b)
		switch b = b[ioctlOutLen:]; cmd {
		case fsIocGetversion, fsIoc32Getvers:
			le.PutUint32(b, generation)
		case fsIocFsgetxattr:
			for _, f := range xflags {
				if c.attr.Flags&f.fl != 0 {
					le.PutUint32(b, le.Uint32(b)|f.x)
				}
			}
			le.PutUint32(b[12:], c.attr.Project)
		default:
			le.PutUint32(b, c.attr.Flags)
		}
		return ioctlOutLen + outLen, nil

	case fsIocSetflags, fsIoc32Setflags, fsIocFssetxattr:
		s := &c.set
		*s = metadata.SetAttr{Mask: metadata.SetFlags}
		if cmd != fsIocFssetxattr {
			if inLen < 4 {
				return 0, metadata.ErrInvalid
			}
			if s.Flags = le.Uint32(in); s.Flags&^flSettable != 0 {
				return 0, metadata.ErrUnsupported
			}
		} else {
			if inLen < fsxattrLen {
				return 0, metadata.ErrInvalid
			}
			rest := le.Uint32(in)
			if err := d.st.Getattr(w, ino, &c.attr); err != nil {
				return 0, err
			}
			s.Flags = c.attr.Flags
			for _, f := range xflags {
				s.Flags &^= f.fl
				if rest&f.x != 0 {
					s.Flags |= f.fl
				}
				rest &^= f.x
			}
			if rest != 0 || le.Uint32(in[4:]) != 0 || le.Uint32(in[16:]) != 0 { // extent size hints
				return 0, metadata.ErrUnsupported
			}
			s.Mask |= metadata.SetProject
			s.Project = le.Uint32(in[12:])
		}
		if d.o.ReadOnly {
			return 0, metadata.ErrReadOnly
		}
		if err := d.st.Setattr(w, ino, s, &c.attr); err != nil {
			return 0, err
		}
		c.attrChanged(ino)
		clear(c.r.Out[:ioctlOutLen])
		return ioctlOutLen, nil
	}
	return 0, errNotTTY
}
