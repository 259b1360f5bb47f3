package metadata

import (
	"prismfs/engine"
	"prismfs/lanes"
	"prismfs/uring"
)

// Ino is an inode number: 64 bits, unique for the life of a store, never reused.
type Ino uint64

// RootIno is the inode number of the root directory, as FUSE wants it.
const RootIno Ino = 1

// Wait says whether an operation may block (on a lock, on room in the engine,
// on the disk). Under NoWait an operation that would block returns
// ErrWouldBlock before it has had any effect, and may be repeated under Block.
type Wait = engine.Wait

// The two values of Wait.
const (
	Block  = engine.Block
	NoWait = engine.NoWait
)

// Time is a point in time: signed seconds since 1970 (negative before) and
// nanoseconds in [0, 1e9) that always count forward.
type Time struct {
	Sec  int64
	Nsec uint32
}

// Attr is everything stat(2) and statx(2) show of an inode.
//
//   - Mode holds type and permission bits as st_mode does.
//   - Size is in bytes; Blocks in units of 512 bytes.
//   - Rdev is in the kernel's new_encode_dev form.
//   - Flags are the FS_*_FL bits of chattr(1).
//   - Parent and Entries are kept for directories only: the directory above,
//     and the number of names (without "." and "..").
type Attr struct {
	Ino                        Ino
	Mode                       uint32
	Nlink                      uint32
	Uid, Gid                   uint32
	Rdev                       uint32
	Flags                      uint32
	Project                    uint32
	Xattrs                     uint32
	Size                       uint64
	Blocks                     uint64
	Atime, Mtime, Ctime, Btime Time
	Parent                     Ino
	Entries                    uint64
	Inline                     bool
}

// SetMask says which fields of a SetAttr count.
type SetMask uint32

// Bits of SetMask. SetKillPriv clears suid, and sgid where the group may
// execute, of anything but a directory; SetKillSgid clears sgid in any case.
const (
	SetMode SetMask = 1 << iota
	SetUid
	SetGid
	SetSize
	SetAtime
	SetMtime
	SetCtime
	SetAtimeNow
	SetMtimeNow
	SetKillPriv
	SetFlags
	SetProject
	SetKillSgid
)

// SetAttr is one atomic change of attributes. A zero mask still sets ctime.
type SetAttr struct {
	Mask                SetMask
	Mode                uint32 // permission bits only
	Uid, Gid            uint32
	Flags, Project      uint32
	Size                uint64
	Atime, Mtime, Ctime Time
}

// MakeReq describes a new inode.
type MakeReq struct {
	Mode     uint32 // type and permission bits
	Uid, Gid uint32
	Rdev     uint32
	Target   []byte // symlinks only
	Umask    uint32 // taken from Mode unless the directory has a default ACL
}

// WriteFlags modify a write.
type WriteFlags uint32

// WriteKillPriv clears suid and sgid as SetKillPriv does; WriteKeepTimes leaves
// mtime and ctime alone (the kernel owns them under its writeback cache);
// WriteCached says that the bytes come from the kernel's cache, so that whether
// they may be written was settled when they got there.
const (
	WriteKillPriv WriteFlags = 1 << iota
	WriteKeepTimes
	WriteCached
)

// Flags of Rename, as renameat2(2).
const (
	RenameNoReplace = 1 << iota
	RenameExchange
	RenameWhiteout
)

// Modes of Fallocate, as fallocate(2); FallocPunchHole comes with FallocKeepSize.
const (
	FallocKeepSize  = 1
	FallocPunchHole = 2
	FallocZeroRange = 16
)

// Whence values of Lseek.
const (
	SeekData = 3
	SeekHole = 4
)

// Flags of Setxattr, as setxattr(2). XattrKillSgid clears S_ISGID along with a
// new access ACL: its owner is not of the file's group.
const (
	XattrCreate   = 1
	XattrReplace  = 2
	XattrKillSgid = 1 << 8
)

// Dirent is one name as Readdir shows it. Name and Attr are valid until the
// callback returns. Cookie is the position after the entry. Attr is nil unless
// attributes were asked for, and always nil for "." and "..".
type Dirent struct {
	Name   []byte
	Ino    Ino
	Type   uint8 // DT_*: type bits of st_mode >> 12
	Cookie uint64
	Attr   *Attr
}

// Statfs is the answer to statfs(2); Blocks, Free and Avail are in BlockSize units.
type Statfs struct {
	BlockSize           uint32
	Blocks, Free, Avail uint64
	Files, FilesFree    uint64
	NameMax             uint32
}

// ReadPlan is what a read leaves for the disk: pieces that some ring or
// lane fills, after which Finish verifies and assembles them.
//
//   - Shape: every Buf lies in the read's destination or in memory of the plan.
//   - Ownership: pieces pin their segment until Finish or Abort, one of which
//     must be called exactly once if Pieces is not empty.
type ReadPlan struct {
	// Ring, set by the caller, says that a single piece will be read by a ring
	// that looks into the page cache itself: then Read does not do so first.
	Ring bool

	N      int // bytes of the whole read once finished
	Pieces []Piece
	fix    []pieceFix
	want   int // bytes of the whole read
}

// Piece is one contiguous read of a data-log segment: fill Buf from File at Off.
type Piece struct {
	File uring.File
	Off  int64
	Buf  []byte
}

// FS is the set of file-system operations that a front end serves. *Store is
// its implementation; the interface exists so that the front end can be tested
// without one. Names are raw bytes without NUL or slash. Operations that hand
// an inode to the caller (Lookup, LookupIno, Make, Tmpfile, Link, Readdir with
// attributes) add one kernel reference to it, which Forget takes back.
type FS interface {
	Lookup(w Wait, parent Ino, name []byte, out *Attr) error
	LookupIno(w Wait, ino Ino, out *Attr) error
	LookupParent(w Wait, dir Ino, out *Attr) error
	Forget(ino Ino, n uint64)
	Getattr(w Wait, ino Ino, out *Attr) error
	Setattr(w Wait, ino Ino, req *SetAttr, out *Attr) error
	Readlink(w Wait, ino Ino, dst []byte) (n int, err error)
	Make(w Wait, parent Ino, name []byte, req *MakeReq, out *Attr) error
	Tmpfile(w Wait, parent Ino, req *MakeReq, out *Attr) error
	Link(w Wait, ino, newParent Ino, name []byte, out *Attr) error
	Unlink(w Wait, parent Ino, name []byte) error
	Rmdir(w Wait, parent Ino, name []byte) error
	Rename(w Wait, oldParent Ino, oldName []byte, newParent Ino, newName []byte, flags uint32) error
	// Read fills dst from offset off and returns the bytes read (short at the
	// end of the file). With a non-nil plan it may instead return
	// with plan.Pieces to be read and plan.N set (n is then 0).
	Read(w Wait, ino Ino, off uint64, dst []byte, plan *ReadPlan) (n int, err error)
	Write(w Wait, ino Ino, off uint64, data []byte, flags WriteFlags) error
	Fallocate(w Wait, ino Ino, mode uint32, off, n uint64) error
	Lseek(w Wait, ino Ino, off uint64, whence uint32) (uint64, error)
	// Readdir calls fn for the entries after cookie (0: from the start) until
	// fn returns false; the entry for which it did so counts as not delivered.
	Readdir(w Wait, dir Ino, cookie uint64, attrs bool, fn func(*Dirent) bool) error
	Getxattr(w Wait, ino Ino, name []byte) ([]byte, error)
	Setxattr(w Wait, ino Ino, name, value []byte, flags uint32) error
	Listxattr(w Wait, ino Ino) ([]byte, error) // NUL-terminated names
	Removexattr(w Wait, ino Ino, name []byte) error
	Statfs(out *Statfs) error
	// SyncAsync makes everything acknowledged so far durable, then runs
	// done.Job with done.Err set, on the goroutine that all barriers share: the
	// job must not block. SyncAsync itself never blocks.
	SyncAsync(done *SyncWait)
	Lanes() *lanes.Runtime
}

// SyncWait is one waiter of a barrier.
type SyncWait struct {
	Job  lanes.Job
	Err  error
	next *SyncWait
}
