package metadata

import (
	"encoding/binary"
	"fmt"
)

// Inode record, version 1, little-endian:
//
//	 0  version u8, flags u8 (bit 0: small-file bytes are in table B), reserved u16
//	 4  mode, nlink, uid, gid, rdev, chattr flags, project, xattr count: u32 each
//	36  size (bytes), blocks (512 bytes): u64 each
//	52  atime, mtime, ctime, btime: seconds i64, nanoseconds u32 each
//	100 parent, entries: u64 each (directories)
//	116 symlink target
const (
	inodeVersion   = 1
	inodeFixedLen  = 116
	inodeFlagsByte = 1
	inodeInline    = 1
)

func appendTime(dst []byte, t Time) []byte {
	dst = binary.LittleEndian.AppendUint64(dst, uint64(t.Sec))
	return binary.LittleEndian.AppendUint32(dst, t.Nsec)
}

func appendInode(dst []byte, a *Attr, target []byte) []byte {
	var flags byte
	if a.Inline {
		flags |= inodeInline
	}
	dst = append(dst, inodeVersion, flags, 0, 0)
	le := binary.LittleEndian
	for _, v := range [...]uint32{a.Mode, a.Nlink, a.Uid, a.Gid, a.Rdev, a.Flags, a.Project, a.Xattrs} {
		dst = le.AppendUint32(dst, v)
	}
	dst = le.AppendUint64(dst, a.Size)
	dst = le.AppendUint64(dst, a.Blocks)
	dst = appendTime(dst, a.Atime)
	dst = appendTime(dst, a.Mtime)
	dst = appendTime(dst, a.Ctime)
	dst = appendTime(dst, a.Btime)
	dst = le.AppendUint64(dst, uint64(a.Parent))
	dst = le.AppendUint64(dst, a.Entries)
	return append(dst, target...)
}

// decodeInode parses an inode record; target aliases b.
func decodeInode(ino Ino, b []byte) (a Attr, target []byte, err error) {
	if len(b) < inodeFixedLen {
		return a, nil, fmt.Errorf("inode %d: record of %d bytes: %w", ino, len(b), ErrCorrupt)
	}
	if b[0] != inodeVersion {
		return a, nil, fmt.Errorf("inode %d: record version %d: %w", ino, b[0], ErrCorrupt)
	}
	le := binary.LittleEndian
	u32 := func(i int) uint32 { return le.Uint32(b[i:]) }
	u64 := func(i int) uint64 { return le.Uint64(b[i:]) }
	t := func(i int) Time { return Time{int64(u64(i)), u32(i + 8)} }
	a = Attr{
		Ino: ino, Inline: b[inodeFlagsByte]&inodeInline != 0,
		Mode: u32(4), Nlink: u32(8), Uid: u32(12), Gid: u32(16), Rdev: u32(20), Flags: u32(24), Project: u32(28), Xattrs: u32(32),
		Size: u64(36), Blocks: u64(44),
		Atime: t(52), Mtime: t(64), Ctime: t(76), Btime: t(88),
		Parent: Ino(u64(100)), Entries: u64(108),
	}
	return a, b[inodeFixedLen:], nil
}

// Type bits of a mode, as stat(2).
const (
	modeType    = 0170000
	modeDir     = 0040000
	modeRegular = 0100000
	modeSymlink = 0120000
	modeChar    = 0020000
	modeBlock   = 0060000
	modeFifo    = 0010000
	modeSocket  = 0140000

	modeSetuid = 04000
	modeSetgid = 02000
	modePerm   = 07777
)

func (a *Attr) isDir() bool     { return a.Mode&modeType == modeDir }
func (a *Attr) isRegular() bool { return a.Mode&modeType == modeRegular }
func (a *Attr) dirType() uint8  { return uint8(a.Mode & modeType >> 12) }

// killPriv clears the bits that writing to a file must clear. Source:
// setattr_should_drop_suidgid in the kernel.
func (a *Attr) killPriv() {
	if a.isDir() {
		return
	}
	a.Mode &^= modeSetuid
	if a.Mode&010 != 0 {
		a.Mode &^= modeSetgid
	}
}
