package fs

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"prismfs/lanes"
	"prismfs/metadata"
)

const day = 86400

func wantAttr(a *metadata.Attr) fuse.Attr {
	return fuse.Attr{
		Ino: uint64(a.Ino), Size: a.Size, Blocks: a.Blocks,
		Atime: uint64(a.Atime.Sec), Mtime: uint64(a.Mtime.Sec), Ctime: uint64(a.Ctime.Sec),
		Atimensec: a.Atime.Nsec, Mtimensec: a.Mtime.Nsec, Ctimensec: a.Ctime.Nsec,
		Mode: a.Mode, Nlink: a.Nlink, Owner: fuse.Owner{Uid: a.Uid, Gid: a.Gid}, Rdev: a.Rdev, Blksize: 4096,
	}
}

func wantEntry() []byte {
	return out(fuse.EntryOut{NodeId: 77, Generation: 1, EntryValid: day, AttrValid: day, Attr: wantAttr(&sampleAttr)})
}

func wantAttrOut() []byte {
	return out(fuse.AttrOut{AttrValid: day, Attr: wantAttr(&sampleAttr)})
}

func wantOpen(flags uint32) []byte { return out(fuse.OpenOut{OpenFlags: flags}) }

const (
	keepNoflush = fuse.FOPEN_KEEP_CACHE | 1<<5
	keepDir     = fuse.FOPEN_KEEP_CACHE | fuse.FOPEN_CACHE_DIR
)

func cat(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

// opTest is one request, what the store is asked, and the reply to the byte.
// The structures of go-fuse, which were written independently, are the measure.
type opTest struct {
	name  string
	o     HandlerOptions
	op    uint32
	in    []byte
	data  string
	setup func(*fakeFS)
	calls string // joined by "; "
	body  []byte
	errno syscall.Errno
	quiet bool
}

var longName = strings.Repeat("n", 256)

func u32(v ...uint32) (b []byte) {
	for _, x := range v {
		b = le.AppendUint32(b, x)
	}
	return b
}

func u64(v ...uint64) (b []byte) {
	for _, x := range v {
		b = le.AppendUint64(b, x)
	}
	return b
}

func setattrIn(f func(*fuse.SetAttrIn)) []byte {
	var in fuse.SetAttrIn
	f(&in)
	return opIn(in)
}

func ioctlIn(cmd, inSize, outSize uint32) []byte {
	return opIn(fuse.IoctlIn{Cmd: cmd, InSize: inSize, OutSize: outSize})
}

func fails(err error) func(*fakeFS) { return func(f *fakeFS) { f.err = err } }

func holds(data string) func(*fakeFS) { return func(f *fakeFS) { f.data = []byte(data) } }

// mode gives the inode a mode; moded is the answer with it.
func mode(m uint32) func(*fakeFS) { return func(f *fakeFS) { f.attr.Mode = m } }

func moded(m uint32) []byte {
	a := sampleAttr
	a.Mode = m
	return out(fuse.AttrOut{AttrValid: day, Attr: wantAttr(&a)})
}

// flagged gives the inode flags of chattr.
func flagged(fl uint32) func(*fakeFS) { return func(f *fakeFS) { f.attr.Flags = fl } }

func opTests() []opTest {
	noOpen := HandlerOptions{NoOpen: true}
	dirents := func(f *fakeFS) {
		f.dirents = []metadata.Dirent{
			{Name: []byte("."), Ino: 5, Type: 4, Cookie: 1},
			{Name: []byte(".."), Ino: 1, Type: 4, Cookie: 2},
			{Name: []byte("12345678"), Ino: 77, Type: 8, Cookie: 1 << 40, Attr: &f.attr},
			{Name: []byte("z"), Ino: 77, Type: 8, Cookie: 1<<40 + 1, Attr: &f.attr},
		}
	}
	dot := cat(u64(5, 1), u32(1, 4), []byte(".\x00\x00\x00\x00\x00\x00\x00"))
	dotdot := cat(u64(1, 2), u32(2, 4), []byte("..\x00\x00\x00\x00\x00\x00"))
	eight := cat(u64(77, 1<<40), u32(8, 8), []byte("12345678"))
	zed := cat(u64(77, 1<<40+1), u32(1, 8), []byte("z\x00\x00\x00\x00\x00\x00\x00"))
	none := make([]byte, entryLen)
	read := func(off uint64, size uint32) []byte { return opIn(fuse.ReadIn{Offset: off, Size: size}) }
	return []opTest{
		{name: "lookup", op: OpLookup, data: "a\x00", calls: `Lookup 5 "a"`, body: wantEntry()},
		{name: "lookup dot", op: OpLookup, data: ".\x00", calls: "LookupIno 5", body: wantEntry()},
		{name: "lookup dotdot", op: OpLookup, data: "..\x00", calls: "LookupParent 5", body: wantEntry()},
		{name: "lookup dot of a lost inode", op: OpLookup, data: ".\x00", setup: fails(metadata.ErrStale), calls: "LookupIno 5", errno: syscall.ESTALE},
		{name: "lookup three dots", op: OpLookup, data: "...\x00", calls: `Lookup 5 "..."`, body: wantEntry()},
		{name: "lookup nothing", op: OpLookup, data: "a\x00", setup: fails(metadata.ErrNotFound), calls: `Lookup 5 "a"`, body: out(fuse.EntryOut{EntryValid: day})},
		{name: "lookup nothing, not to be remembered", o: HandlerOptions{NegativeTimeout: -1}, op: OpLookup, data: "a\x00", setup: fails(metadata.ErrNotFound), calls: `Lookup 5 "a"`, errno: syscall.ENOENT},
		{name: "lookup dotdot of nothing", op: OpLookup, data: "..\x00", setup: fails(metadata.ErrNotFound), calls: "LookupParent 5", errno: syscall.ENOENT},
		{name: "lookup timeouts", o: HandlerOptions{EntryTimeout: 1500 * time.Millisecond, AttrTimeout: -1}, op: OpLookup, data: "a\x00", calls: `Lookup 5 "a"`,
			body: out(fuse.EntryOut{NodeId: 77, Generation: 1, EntryValid: 1, EntryValidNsec: 5e8, Attr: wantAttr(&sampleAttr)})},
		{name: "lookup 255", op: OpLookup, data: longName[:255] + "\x00", calls: `Lookup 5 "` + longName[:255] + `"`, body: wantEntry()},
		{name: "lookup 256", op: OpLookup, data: longName + "\x00", errno: syscall.ENAMETOOLONG},
		{name: "lookup empty", op: OpLookup, data: "\x00", errno: syscall.EINVAL},

		{name: "forget", op: OpForget, in: u64(9), calls: "Forget 5 9", quiet: true},
		{name: "batch forget", op: OpBatchForget, in: u32(2, 0), data: string(u64(7, 1, 8, 1<<40)), calls: fmt.Sprintf("Forget 7 1; Forget 8 %d", 1<<40), quiet: true},
		{name: "interrupt", op: OpInterrupt, in: u64(9), quiet: true},
		{name: "notify reply", op: OpNotifyReply, in: make([]byte, 40), quiet: true},

		{name: "getattr", op: OpGetattr, in: opIn(fuse.GetAttrIn{}), calls: "Getattr 5", body: wantAttrOut()},
		{name: "statx", op: OpStatx, in: opIn(fuse.StatxIn{}), calls: "Getattr 5", body: out(fuse.StatxOut{AttrValid: day, Statx: fuse.Statx{
			Mask: 0xfff, Blksize: 4096, Attributes: flImmutable | flNodump, AttributesMask: 0x74, Nlink: 3, Uid: 1001, Gid: 1002, Mode: syscall.S_IFREG | 0o4751,
			Ino: 77, Size: 1 << 40, Blocks: 24, RdevMajor: 0x456, RdevMinor: 0x12378,
			Atime: fuse.SxTime{Sec: ^uint64(4), Nsec: 1}, Btime: fuse.SxTime{Sec: 4, Nsec: 5}, Ctime: fuse.SxTime{Sec: 1 << 33, Nsec: 3}, Mtime: fuse.SxTime{Sec: 2, Nsec: 999999999},
		}})},

		{name: "setattr everything", op: OpSetattr, in: setattrIn(func(s *fuse.SetAttrIn) {
			s.Valid = fuse.FATTR_MODE | fuse.FATTR_UID | fuse.FATTR_GID | fuse.FATTR_SIZE | fuse.FATTR_ATIME | fuse.FATTR_MTIME | fuse.FATTR_CTIME | fuse.FATTR_FH
			s.Mode, s.Uid, s.Gid, s.Size = syscall.S_IFREG|0o4755, 6, 7, 8
			s.Atime, s.Atimensec, s.Mtime, s.Mtimensec, s.Ctime, s.Ctimensec = ^uint64(0), 1, 10, 2, 11, 3
		}), calls: "Setattr 5 {Mask:127 Mode:2541 Uid:6 Gid:7 Flags:0 Project:0 Size:8 Atime:{Sec:-1 Nsec:1} Mtime:{Sec:10 Nsec:2} Ctime:{Sec:11 Nsec:3}}", body: wantAttrOut()},
		{name: "setattr now", op: OpSetattr, in: setattrIn(func(s *fuse.SetAttrIn) {
			s.Valid = fuse.FATTR_ATIME | fuse.FATTR_MTIME | fuse.FATTR_ATIME_NOW | fuse.FATTR_MTIME_NOW
			s.Atime, s.Mtime = 10, 11
		}), calls: setattrCall(metadata.SetAttr{Mask: metadata.SetAtimeNow | metadata.SetMtimeNow}), body: wantAttrOut()},
		{name: "setattr truncate by another", op: OpSetattr, in: setattrIn(func(s *fuse.SetAttrIn) { s.Valid, s.Size = fuse.FATTR_SIZE|1<<11, 3 }),
			calls: setattrCall(metadata.SetAttr{Mask: metadata.SetSize | metadata.SetKillPriv, Size: 3}), body: wantAttrOut()},
		{name: "setattr truncate by handle", op: OpSetattr, in: setattrIn(func(s *fuse.SetAttrIn) { s.Valid, s.Size = fuse.FATTR_SIZE|fuse.FATTR_FH, 3 }),
			calls: setattrCall(metadata.SetAttr{Mask: metadata.SetSize | metadata.SetMtimeNow, Size: 3}), body: wantAttrOut()},
		{name: "setattr truncate by handle, with its time", op: OpSetattr, in: setattrIn(func(s *fuse.SetAttrIn) { s.Valid, s.Mtime = fuse.FATTR_SIZE|fuse.FATTR_FH|fuse.FATTR_MTIME, 9 }),
			calls: setattrCall(metadata.SetAttr{Mask: metadata.SetSize | metadata.SetMtime, Mtime: metadata.Time{Sec: 9}}), body: wantAttrOut()},
		{name: "setattr nothing drops privileges", op: OpSetattr, in: setattrIn(func(s *fuse.SetAttrIn) { s.Valid = fuse.FATTR_FH }),
			calls: "Getattr 5; " + setattrCall(metadata.SetAttr{Mask: metadata.SetKillPriv}), body: wantAttrOut()},
		{name: "setattr only ctime drops privileges", op: OpSetattr, in: setattrIn(func(s *fuse.SetAttrIn) { s.Valid, s.Ctime = fuse.FATTR_CTIME, 1 }),
			calls: "Getattr 5; " + setattrCall(metadata.SetAttr{Mask: metadata.SetKillPriv | metadata.SetCtime, Ctime: metadata.Time{Sec: 1}}), body: wantAttrOut()},
		{name: "setattr nothing drops only S_ISGID", op: OpSetattr, in: setattrIn(func(s *fuse.SetAttrIn) {}), setup: mode(0o102666),
			calls: "Getattr 5; " + setattrCall(metadata.SetAttr{Mask: metadata.SetKillPriv | metadata.SetKillSgid}), body: moded(0o102666)},
		{name: "setattr nothing leaves a mode without S_ISGID", op: OpSetattr, in: setattrIn(func(s *fuse.SetAttrIn) {}), setup: mode(0o104666),
			calls: "Getattr 5; " + setattrCall(metadata.SetAttr{Mask: metadata.SetKillPriv}), body: moded(0o104666)},
		{name: "setattr nothing by a stranger", op: OpSetattr, in: setattrIn(func(s *fuse.SetAttrIn) {}), setup: mode(0o106666),
			calls: "Getattr 5; " + setattrCall(metadata.SetAttr{Mask: metadata.SetKillPriv | metadata.SetKillSgid}), body: moded(0o106666)},
		{name: "setattr bad nanoseconds", op: OpSetattr, in: setattrIn(func(s *fuse.SetAttrIn) { s.Valid, s.Mtimensec = fuse.FATTR_MTIME, 1e9 }), errno: syscall.EINVAL},

		{name: "readlink", op: OpReadlink, setup: holds("tar/get"), calls: "Readlink 5 4095", body: []byte("tar/get")},
		{name: "symlink", op: OpSymlink, data: "l\x00tar/get\x00", calls: `Make 5 "l" mode=120777 umask=0 uid=1001 gid=1002 rdev=0 target="tar/get"`, body: wantEntry()},
		{name: "symlink to nothing", op: OpSymlink, data: "l\x00\x00", errno: syscall.EINVAL},
		{name: "symlink too far", op: OpSymlink, data: "l\x00" + strings.Repeat("t", 4096) + "\x00", errno: syscall.ENAMETOOLONG},
		{name: "mknod", op: OpMknod, in: opIn(fuse.MknodIn{Mode: syscall.S_IFCHR | 0o600, Rdev: 0x501}), data: "c\x00", calls: `Make 5 "c" mode=20600 umask=0 uid=1001 gid=1002 rdev=1281 target=""`, body: wantEntry()},
		{name: "mknod without a type", op: OpMknod, in: opIn(fuse.MknodIn{Mode: 0o600}), data: "f\x00", calls: `Make 5 "f" mode=100600 umask=0 uid=1001 gid=1002 rdev=0 target=""`, body: wantEntry()},
		{name: "mkdir", op: OpMkdir, in: opIn(fuse.MkdirIn{Mode: 0o1755}), data: "d\x00", calls: `Make 5 "d" mode=41755 umask=0 uid=1001 gid=1002 rdev=0 target=""`, body: wantEntry()},
		{name: "create", op: OpCreate, in: opIn(fuse.CreateIn{Mode: syscall.S_IFREG | 0o644}), data: "f\x00", calls: `Make 5 "f" mode=100644 umask=0 uid=1001 gid=1002 rdev=0 target=""`, body: cat(wantEntry(), wantOpen(keepNoflush))},
		{name: "create what is there", op: OpCreate, in: opIn(fuse.CreateIn{Mode: 0o644}), data: "f\x00", setup: fails(metadata.ErrExist), calls: `Make 5 "f" mode=100644 umask=0 uid=1001 gid=1002 rdev=0 target=""`, errno: syscall.EEXIST},
		{name: "tmpfile", op: OpTmpfile, in: opIn(fuse.CreateIn{Mode: syscall.S_IFREG | 0o600}), data: "#1\x00", calls: "Tmpfile 5 mode=100600 umask=0 uid=1001 gid=1002", body: cat(wantEntry(), wantOpen(keepNoflush))},
		{name: "mknod with ACLs", o: HandlerOptions{ACL: true}, op: OpMknod, in: opIn(fuse.MknodIn{Mode: 0o777, Umask: 0o027}), data: "x\x00", calls: `Make 5 "x" mode=100777 umask=27 uid=1001 gid=1002 rdev=0 target=""`, body: wantEntry()},
		{name: "mkdir with ACLs", o: HandlerOptions{ACL: true}, op: OpMkdir, in: opIn(fuse.MkdirIn{Mode: 0o777, Umask: 0o027}), data: "x\x00", calls: `Make 5 "x" mode=40777 umask=27 uid=1001 gid=1002 rdev=0 target=""`, body: wantEntry()},
		{name: "create with ACLs", o: HandlerOptions{ACL: true}, op: OpCreate, in: opIn(fuse.CreateIn{Mode: 0o777, Umask: 0o027}), data: "x\x00", calls: `Make 5 "x" mode=100777 umask=27 uid=1001 gid=1002 rdev=0 target=""`, body: cat(wantEntry(), wantOpen(keepNoflush))},
		{name: "tmpfile with ACLs", o: HandlerOptions{ACL: true}, op: OpTmpfile, in: opIn(fuse.CreateIn{Mode: 0o777, Umask: 0o027}), data: "x\x00", calls: `Tmpfile 5 mode=100777 umask=27 uid=1001 gid=1002`, body: cat(wantEntry(), wantOpen(keepNoflush))},
		{name: "mkdir under the kernel's umask", op: OpMkdir, in: opIn(fuse.MkdirIn{Mode: 0o777, Umask: 0o027}), data: "x\x00", calls: `Make 5 "x" mode=40777 umask=0 uid=1001 gid=1002 rdev=0 target=""`, body: wantEntry()},
		{name: "link", op: OpLink, in: u64(77), data: "n\x00", calls: `Link 77 5 "n"`, body: wantEntry()},
		{name: "unlink", op: OpUnlink, data: "n\x00", calls: `Unlink 5 "n"`},
		{name: "rmdir", op: OpRmdir, data: "n\x00", calls: `Rmdir 5 "n"`},
		{name: "rmdir of a full one", op: OpRmdir, data: "n\x00", setup: fails(metadata.ErrNotEmpty), calls: `Rmdir 5 "n"`, errno: syscall.ENOTEMPTY},
		{name: "rename", op: OpRename, in: u64(6), data: "old\x00new\x00", calls: `Rename 5 "old" 6 "new" 0`},
		{name: "rename2", op: OpRename2, in: opIn(fuse.RenameIn{Newdir: 6, Flags: metadata.RenameExchange}), data: "old\x00new\x00", calls: `Rename 5 "old" 6 "new" 2`},
		{name: "rename to a long name", op: OpRename, in: u64(6), data: "old\x00" + longName + "\x00", errno: syscall.ENAMETOOLONG},

		{name: "open refused", o: noOpen, op: OpOpen, in: opIn(fuse.OpenIn{}), errno: syscall.ENOSYS},
		{name: "opendir refused", o: noOpen, op: OpOpendir, in: opIn(fuse.OpenIn{}), errno: syscall.ENOSYS},
		{name: "open", op: OpOpen, in: opIn(fuse.OpenIn{}), body: wantOpen(keepNoflush)},
		{name: "open under strictatime", o: HandlerOptions{DropCache: true}, op: OpOpen, in: opIn(fuse.OpenIn{}), body: wantOpen(1 << 5)},
		{name: "open to write", op: OpOpen, in: opIn(fuse.OpenIn{Flags: syscall.O_RDWR}), setup: flagged(0), calls: "Getattr 5", body: wantOpen(keepNoflush)},
		{name: "open an immutable file", op: OpOpen, in: opIn(fuse.OpenIn{Flags: syscall.O_WRONLY | syscall.O_APPEND}), setup: flagged(flImmutable), calls: "Getattr 5", errno: syscall.EPERM},
		{name: "open an immutable file to read", op: OpOpen, in: opIn(fuse.OpenIn{}), setup: flagged(flImmutable), body: wantOpen(keepNoflush)},
		{name: "open an append-only file", op: OpOpen, in: opIn(fuse.OpenIn{Flags: syscall.O_WRONLY}), setup: flagged(flAppend), calls: "Getattr 5", errno: syscall.EPERM},
		{name: "open an append-only file to append", op: OpOpen, in: opIn(fuse.OpenIn{Flags: syscall.O_WRONLY | syscall.O_APPEND}), setup: flagged(flAppend), calls: "Getattr 5", body: wantOpen(keepNoflush)},
		{name: "open an append-only file to truncate", op: OpOpen, in: opIn(fuse.OpenIn{Flags: syscall.O_WRONLY | syscall.O_APPEND | syscall.O_TRUNC}), setup: flagged(flAppend), calls: "Getattr 5", errno: syscall.EPERM},
		{name: "open to truncate", op: OpOpen, in: opIn(fuse.OpenIn{Flags: syscall.O_TRUNC | syscall.O_WRONLY, Mode: 1}), setup: flagged(0), calls: "Getattr 5; " + setattrCall(metadata.SetAttr{Mask: metadata.SetSize | metadata.SetKillPriv | metadata.SetMtimeNow}), body: wantOpen(keepNoflush)},
		{name: "open to truncate, read-only", o: HandlerOptions{ReadOnly: true}, op: OpOpen, in: opIn(fuse.OpenIn{Flags: syscall.O_TRUNC | syscall.O_WRONLY}), setup: flagged(0), calls: "Getattr 5", errno: syscall.EROFS},
		{name: "opendir", op: OpOpendir, in: opIn(fuse.OpenIn{}), body: wantOpen(keepDir)},
		{name: "release", op: OpRelease, in: make([]byte, 24)},
		{name: "releasedir", op: OpReleasedir, in: make([]byte, 24)},
		{name: "destroy", op: OpDestroy},

		{name: "read", op: OpRead, in: read(1<<40, 5), setup: holds("hello world"), calls: fmt.Sprintf("Read 5 %d 5", 1<<40), body: []byte("hello")},
		{name: "read short", op: OpRead, in: read(0, 4096), setup: holds("hello"), calls: "Read 5 0 4096", body: []byte("hello")},
		{name: "read damage", op: OpRead, in: read(0, 4096), setup: fails(metadata.ErrCorrupt), calls: "Read 5 0 4096", errno: syscall.EIO},
		{name: "write", op: OpWrite, in: opIn(fuse.WriteIn{Offset: 1 << 40, Size: 5}), data: "hello", calls: fmt.Sprintf(`Write 5 %d "hello" flags=0`, 1<<40), body: out(fuse.WriteOut{Size: 5})},
		{name: "write kill", op: OpWrite, in: opIn(fuse.WriteIn{Size: 5, WriteFlags: 4}), data: "hello", calls: `Write 5 0 "hello" flags=1`, body: out(fuse.WriteOut{Size: 5})},
		{name: "write cached", o: HandlerOptions{Writeback: true}, op: OpWrite, in: opIn(fuse.WriteIn{Size: 5, WriteFlags: 1}), data: "hello", calls: `Write 5 0 "hello" flags=6`, body: out(fuse.WriteOut{Size: 5})},
		{name: "write cached, write-through", op: OpWrite, in: opIn(fuse.WriteIn{Size: 5, WriteFlags: 1}), data: "hello", calls: `Write 5 0 "hello" flags=4`, body: out(fuse.WriteOut{Size: 5})},
		{name: "write O_DSYNC", op: OpWrite, in: opIn(fuse.WriteIn{Size: 5, Flags: syscall.O_DSYNC}), data: "hello", calls: `Write 5 0 "hello" flags=0; SyncAsync`, body: out(fuse.WriteOut{Size: 5})},
		{name: "write O_SYNC, not durable", op: OpWrite, in: opIn(fuse.WriteIn{Size: 5, Flags: syscall.O_SYNC}), data: "hello", setup: func(f *fakeFS) { f.syncErr = errDisk }, calls: `Write 5 0 "hello" flags=0; SyncAsync`, errno: syscall.EIO},
		{name: "write full", op: OpWrite, in: opIn(fuse.WriteIn{Size: 5, Flags: syscall.O_SYNC}), data: "hello", setup: fails(metadata.ErrNoSpace), calls: `Write 5 0 "hello" flags=0`, errno: syscall.ENOSPC},
		{name: "fsync", op: OpFsync, in: opIn(fuse.FsyncIn{FsyncFlags: 1}), calls: "SyncAsync"},
		{name: "fsyncdir", op: OpFsyncdir, in: opIn(fuse.FsyncIn{}), calls: "SyncAsync"},
		{name: "syncfs", op: OpSyncfs, in: make([]byte, 8), calls: "SyncAsync"},
		{name: "fsync of a store turned read-only", op: OpFsync, in: opIn(fuse.FsyncIn{}), setup: func(f *fakeFS) { f.syncErr = fmt.Errorf("%w: %w", metadata.ErrReadOnly, errDisk) }, calls: "SyncAsync", errno: syscall.EIO},
		{name: "fsync full", op: OpFsync, in: opIn(fuse.FsyncIn{}), setup: func(f *fakeFS) { f.syncErr = metadata.ErrNoSpace }, calls: "SyncAsync", errno: syscall.ENOSPC},
		{name: "fallocate", op: OpFallocate, in: opIn(fuse.FallocateIn{Offset: 1 << 40, Length: 1 << 41, Mode: 3}), calls: fmt.Sprintf("Fallocate 5 3 %d %d", 1<<40, 1<<41)},
		{name: "lseek", op: OpLseek, in: opIn(fuse.LseekIn{Offset: 1 << 40, Whence: 3}), calls: fmt.Sprintf("Lseek 5 %d 3", 1<<40), body: u64(1<<40 + 1)},
		{name: "lseek past the end", op: OpLseek, in: opIn(fuse.LseekIn{Whence: 4}), setup: fails(metadata.ErrNoSuchOffset), calls: "Lseek 5 0 4", errno: syscall.ENXIO},
		{name: "lseek else", op: OpLseek, in: opIn(fuse.LseekIn{Whence: 2}), errno: syscall.EINVAL},

		{name: "readdir", op: OpReaddir, in: read(0, 4096), setup: dirents, calls: "Readdir 5 0 false", body: cat(dot, dotdot, eight, zed)},
		{name: "readdir on", op: OpReaddir, in: read(2, 4096), setup: dirents, calls: "Readdir 5 2 false", body: cat(eight, zed)},
		{name: "readdir to the byte", op: OpReaddir, in: read(0, 96), setup: dirents, calls: "Readdir 5 0 false", body: cat(dot, dotdot, eight)},
		{name: "readdir to one byte less", op: OpReaddir, in: read(0, 95), setup: dirents, calls: "Readdir 5 0 false", body: cat(dot, dotdot)},
		{name: "readdir without room", op: OpReaddir, in: read(0, 31), setup: dirents, calls: "Readdir 5 0 false", errno: syscall.EINVAL},
		{name: "readdir at the end", op: OpReaddir, in: read(1<<41, 4096), setup: dirents, calls: fmt.Sprintf("Readdir 5 %d false", 1<<41)},
		{name: "readdir cut short by an error", op: OpReaddir, in: read(2, 4096), setup: func(f *fakeFS) { dirents(f); f.dirErr = metadata.ErrCorrupt }, calls: "Readdir 5 2 false", body: cat(eight, zed)},
		{name: "readdirplus cut short by a wait", op: OpReaddirplus, in: read(2, 4096), setup: func(f *fakeFS) { dirents(f); f.dirErr = metadata.ErrWouldBlock }, calls: "Readdir 5 2 true", body: cat(wantEntry(), eight, wantEntry(), zed)},
		{name: "readdir of damage", op: OpReaddir, in: read(1<<41, 4096), setup: func(f *fakeFS) { dirents(f); f.dirErr = metadata.ErrCorrupt }, calls: fmt.Sprintf("Readdir 5 %d false", 1<<41), errno: syscall.EIO},
		{name: "readdirplus", op: OpReaddirplus, in: read(0, 4096), setup: dirents, calls: "Readdir 5 0 true", body: cat(none, dot, none, dotdot, wantEntry(), eight, wantEntry(), zed)},

		{name: "getxattr", op: OpGetxattr, in: u32(100, 0), data: "user.a\x00", setup: holds("value"), calls: `Getxattr 5 "user.a"`, body: []byte("value")},
		{name: "getxattr exact", op: OpGetxattr, in: u32(5, 0), data: "user.a\x00", setup: holds("value"), calls: `Getxattr 5 "user.a"`, body: []byte("value")},
		{name: "getxattr probe", op: OpGetxattr, in: u32(0, 0), data: "user.a\x00", setup: holds("value"), calls: `Getxattr 5 "user.a"`, body: u32(5, 0)},
		{name: "getxattr empty", op: OpGetxattr, in: u32(9, 0), data: "user.a\x00", calls: `Getxattr 5 "user.a"`},
		{name: "getxattr small", op: OpGetxattr, in: u32(4, 0), data: "user.a\x00", setup: holds("value"), calls: `Getxattr 5 "user.a"`, errno: syscall.ERANGE},
		{name: "getxattr none", op: OpGetxattr, in: u32(4, 0), data: "user.a\x00", setup: fails(metadata.ErrNoData), calls: `Getxattr 5 "user.a"`, errno: syscall.ENODATA},
		{name: "getxattr acl", op: OpGetxattr, in: u32(4, 0), data: "system.posix_acl_access\x00", errno: syscall.EOPNOTSUPP},
		{name: "getxattr acl allowed", o: HandlerOptions{ACL: true}, op: OpGetxattr, in: u32(0, 0), data: "system.posix_acl_access\x00", calls: `Getxattr 5 "system.posix_acl_access"`, body: u32(0, 0)},
		{name: "getxattr namespace", op: OpGetxattr, in: u32(4, 0), data: "foo.bar\x00", errno: syscall.EOPNOTSUPP},
		{name: "getxattr system", o: HandlerOptions{ACL: true}, op: OpGetxattr, in: u32(4, 0), data: "system.other\x00", errno: syscall.EOPNOTSUPP},
		{name: "getxattr bare namespace", op: OpGetxattr, in: u32(4, 0), data: "user.\x00", errno: syscall.EINVAL},
		{name: "getxattr capability", op: OpGetxattr, in: u32(4, 0), data: "security.capability\x00", setup: fails(metadata.ErrNoData), calls: `Getxattr 5 "security.capability"`, errno: syscall.ENODATA},
		{name: "getxattr long", op: OpGetxattr, in: u32(4, 0), data: longName + "\x00", errno: syscall.ERANGE},
		{name: "getxattr empty name", op: OpGetxattr, in: u32(4, 0), data: "\x00", errno: syscall.EINVAL},
		{name: "getxattr off", o: HandlerOptions{NoXattr: true}, op: OpGetxattr, in: u32(4, 0), data: "user.a\x00", errno: syscall.ENOSYS},
		{name: "listxattr off", o: HandlerOptions{NoXattr: true}, op: OpListxattr, in: u32(4, 0), errno: syscall.ENOSYS},
		{name: "listxattr", op: OpListxattr, in: u32(100, 0), setup: holds("user.a\x00user.b\x00"), calls: "Listxattr 5", body: []byte("user.a\x00user.b\x00")},
		{name: "listxattr probe without trusted", op: OpListxattr, in: u32(0, 0), setup: holds("trusted.x\x00user.a\x00trusted.y\x00"), calls: "Listxattr 5", body: u32(7, 0)},
		{name: "listxattr without trusted", op: OpListxattr, in: u32(7, 0), setup: holds("trusted.x\x00user.a\x00trusted.y\x00"), calls: "Listxattr 5", body: []byte("user.a\x00")},
		{name: "setxattr", op: OpSetxattr, in: opIn(fuse.SetXAttrIn{Size: 5, Flags: 1, SetXAttrFlags: 1}), data: "user.a\x00value", calls: `Setxattr 5 "user.a" "value" 257`},
		{name: "setxattr acl", op: OpSetxattr, in: opIn(fuse.SetXAttrIn{Size: 5}), data: "system.posix_acl_default\x00value", errno: syscall.EOPNOTSUPP},
		{name: "removexattr", op: OpRemovexattr, data: "user.a\x00", calls: `Removexattr 5 "user.a"`},

		{name: "statfs", op: OpStatfs, setup: func(f *fakeFS) {
			f.statfs = metadata.Statfs{BlockSize: 4096, Blocks: 1 << 40, Free: 7, Avail: 6, Files: 5, FilesFree: 4, NameMax: 255}
		}, calls: "Statfs", body: out(fuse.StatfsOut{Blocks: 1 << 40, Bfree: 7, Bavail: 6, Files: 5, Ffree: 4, Bsize: 4096, NameLen: 255, Frsize: 4096})},

		{name: "getflags", op: OpIoctl, in: ioctlIn(fsIocGetflags, 0, 4), calls: "Getattr 5", body: cat(make([]byte, 16), u32(sampleAttr.Flags))},
		{name: "getflags of a long", op: OpIoctl, in: ioctlIn(fsIocGetflags, 0, 8), calls: "Getattr 5", body: cat(make([]byte, 16), u32(sampleAttr.Flags, 0))},
		{name: "getflags without room", op: OpIoctl, in: ioctlIn(fsIocGetflags, 0, 3), errno: syscall.EINVAL},
		{name: "getversion", op: OpIoctl, in: ioctlIn(fsIocGetversion, 0, 8), calls: "Getattr 5", body: cat(make([]byte, 16), u32(1, 0))},
		{name: "setflags", op: OpIoctl, in: ioctlIn(fsIocSetflags, 4, 0), data: string(u32(flAppend)), calls: setattrCall(metadata.SetAttr{Mask: metadata.SetFlags, Flags: flAppend}), body: make([]byte, 16)},
		{name: "setflags unknown", op: OpIoctl, in: ioctlIn(fsIocSetflags, 4, 0), data: string(u32(0x1)), errno: syscall.EOPNOTSUPP},
		{name: "setflags short", op: OpIoctl, in: ioctlIn(fsIocSetflags, 3, 0), data: "abc", errno: syscall.EINVAL},
		{name: "setflags read-only", o: HandlerOptions{ReadOnly: true}, op: OpIoctl, in: ioctlIn(fsIocSetflags, 4, 0), data: string(u32(flAppend)), errno: syscall.EROFS},
		{name: "fsgetxattr", op: OpIoctl, in: ioctlIn(fsIocFsgetxattr, 0, 28), calls: "Getattr 5", body: cat(make([]byte, 16), u32(0x88, 0, 0, 9, 0, 0, 0))},
		{name: "fssetxattr", op: OpIoctl, in: ioctlIn(fsIocFssetxattr, 28, 0), data: string(u32(0x10|0x200, 0, 0, 8, 0, 0, 0)),
			calls: "Getattr 5; " + setattrCall(metadata.SetAttr{Mask: metadata.SetFlags | metadata.SetProject, Flags: flAppend | flProjinherit | flDirsync, Project: 8}), body: make([]byte, 16)},
		{name: "fssetxattr unknown", op: OpIoctl, in: ioctlIn(fsIocFssetxattr, 28, 0), data: string(u32(0x8000, 0, 0, 8, 0, 0, 0)), calls: "Getattr 5", errno: syscall.EOPNOTSUPP},
		{name: "fssetxattr short", op: OpIoctl, in: ioctlIn(fsIocFssetxattr, 27, 0), data: strings.Repeat("x", 27), errno: syscall.EINVAL},
		{name: "ioctl of a terminal", op: OpIoctl, in: ioctlIn(0x5401, 0, 60), errno: syscall.ENOTTY},

		{name: "flush", op: OpFlush, in: make([]byte, 24), errno: syscall.ENOSYS},
		{name: "access", op: OpAccess, in: make([]byte, 8), errno: syscall.ENOSYS},
		{name: "getlk", op: OpGetlk, in: make([]byte, 48), errno: syscall.ENOSYS},
		{name: "setlk", op: OpSetlk, in: make([]byte, 48), errno: syscall.ENOSYS},
		{name: "setlkw", op: OpSetlkw, in: make([]byte, 48), errno: syscall.ENOSYS},
		{name: "bmap", op: OpBmap, in: make([]byte, 16), errno: syscall.ENOSYS},
		{name: "poll", op: OpPoll, in: make([]byte, 24), errno: syscall.ENOSYS},
		{name: "copy_file_range", op: OpCopyFileRange, in: u64(0, 7, 6, 0, 9, 3, 0), setup: holds("abc"), calls: `Read 5 7 3; Write 6 9 "abc" flags=0`, body: u64(3)},
		{name: "copy_file_range_64", op: OpCopyFileRange64, in: u64(0, 7, 6, 0, 9, 3, 0), setup: holds("abc"), calls: `Read 5 7 3; Write 6 9 "abc" flags=0`, body: u64(3)},
		{name: "copy_file_range behind the end", op: OpCopyFileRange, in: u64(0, 7, 6, 0, 9, 3, 0), calls: "Read 5 7 3", body: u64(0)},
		{name: "copy_file_range with flags", op: OpCopyFileRange, in: u64(0, 7, 6, 0, 9, 3, 1), errno: syscall.EINVAL},
		{name: "from the future", op: 63, errno: syscall.ENOSYS},
		{name: "from the far future", op: 1 << 20, errno: syscall.ENOSYS},
	}
}

func setattrCall(s metadata.SetAttr) string { return fmt.Sprintf("Setattr 5 %+v", s) }

// TestOperations runs every case in every layout of memory, answered inline
// and from the BlockingIO lane: the reply must be the same to the byte, and the
// store must be asked the same once.
func TestOperations(t *testing.T) {
	f := newFakeFS(t)
	for _, tt := range opTests() {
		for _, l := range []layout{apart, aliased} {
			for _, blocks := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%d/%v", tt.name, l, blocks), func(t *testing.T) {
					*f = fakeFS{lanes: f.lanes, attr: sampleAttr, blocks: blocks}
					if tt.setup != nil {
						tt.setup(f)
					}
					d := NewHandler(f, tt.o)
					a := do(t, d, l, tt.op, 5, tt.in, []byte(tt.data))
					if a.errno != tt.errno || a.quiet != tt.quiet {
						t.Fatalf("errno %v, no reply %v, want %v, %v", a.errno, a.quiet, tt.errno, tt.quiet)
					}
					if !bytes.Equal(a.body, tt.body) {
						t.Fatalf("reply\n%x, want\n%x", a.body, tt.body)
					}
					if got := strings.Join(f.calls, "; "); got != tt.calls {
						t.Fatalf("calls\n%s, want\n%s", got, tt.calls)
					}
					s := d.Stats()
					op := tt.op
					if op >= opSlots {
						op = 0
					}
					if s.Requests[op] != 1 || s.Total() != 1 || (s.Errors == 1) != (tt.errno != 0) {
						t.Fatalf("counts %+v", s)
					}
				})
			}
		}
	}
}

// TestOperationsAreTested makes sure that no opcode is forgotten.
func TestOperationsAreTested(t *testing.T) {
	tested := map[uint32]bool{OpInit: true, OpSetupmapping: true, OpRemovemapping: true}
	for _, tt := range opTests() {
		tested[tt.op] = true
	}
	for op := range uint32(opSlots) {
		_, known := OpLen(op)
		if known != (opNames[op] != "" && op != 0) {
			t.Errorf("%s: known is %v", OpName(op), known)
		}
		if known && !tested[op] {
			t.Errorf("%s has no test", OpName(op))
		}
	}
}

// TestReadOnlyRefusesChanges: whatever asks the store for a change is refused
// before.
func TestReadOnlyRefusesChanges(t *testing.T) {
	f := newFakeFS(t)
	for _, tt := range opTests() {
		*f = fakeFS{lanes: f.lanes, attr: sampleAttr}
		if tt.setup != nil {
			tt.setup(f)
		}
		tt.o.ReadOnly = true
		a := do(t, NewHandler(f, tt.o), apart, tt.op, 5, tt.in, []byte(tt.data))
		for _, c := range f.calls {
			switch verb, _, _ := strings.Cut(c, " "); verb {
			case "Lookup", "LookupIno", "LookupParent", "Forget", "Getattr", "Readlink", "Read", "Lseek", "Readdir", "Getxattr", "Listxattr", "Statfs", "SyncAsync":
			default:
				t.Errorf("%s: asked for %q, answered %v", tt.name, c, a.errno)
			}
		}
	}
}

// TestReaddirWaits: a listing that has handed out no reference is begun anew
// where it may wait, rather than cut short.
func TestReaddirWaits(t *testing.T) {
	f := newFakeFS(t)
	f.dirents = []metadata.Dirent{{Name: []byte("."), Ino: 5, Type: 4, Cookie: 1}, {Name: []byte(".."), Ino: 1, Type: 4, Cookie: 2}}
	f.dirErr = metadata.ErrWouldBlock
	for _, op := range []uint32{OpReaddir, OpReaddirplus} {
		d := NewHandler(f, HandlerOptions{})
		a := do(t, d, apart, op, 5, opIn(fuse.ReadIn{Size: 4096}), nil)
		if len(a.body) == 0 || a.errno != 0 || d.Stats().Parked != 1 {
			t.Errorf("%s: %d bytes, errno %v, counts %+v", OpName(op), len(a.body), a.errno, d.Stats())
		}
	}
}

// TestPlannedRead: a read whose data is on the disk is answered when all
// pieces are there, by whichever way they come.
func TestPlannedRead(t *testing.T) {
	rt := lanes.NewRuntime(lanes.Config{})
	defer rt.Close()
	content := make([]byte, 1<<20)
	rnd := rand.NewChaCha8([32]byte{1})
	rnd.Read(content)
	for _, tt := range []struct {
		name   string
		pieces []int // lengths
		ring   bool
		err    error // of the disk
		refuse error // of submitting
		short  int   // bytes missing from the file
		sim    bool  // no descriptor
		bounce bool  // not read right into the reply
	}{
		{name: "one by the disk", pieces: []int{4096}},
		{name: "one by the ring", pieces: []int{4096}, ring: true},
		{name: "one by the disk without descriptor", pieces: []int{4096}, ring: true, sim: true},
		{name: "one that is not for the ring", pieces: []int{4096}, ring: true, bounce: true},
		{name: "many", pieces: []int{4096, 1, 8192, 100, 4096}},
		{name: "many with a ring", pieces: []int{4096, 1, 8192}, ring: true},
		{name: "more than are kept", pieces: slicesOf(maxKeptPieces+1, 512)},
		{name: "disk error", pieces: []int{4096, 4096}, err: errDisk},
		{name: "ring error", pieces: []int{4096}, ring: true, err: syscall.EIO},
		{name: "refused", pieces: []int{4096, 4096, 4096}, refuse: errDisk},
		{name: "one refused", pieces: []int{4096}, refuse: errDisk},
		{name: "short", pieces: []int{4096, 4096}, short: 1},
		{name: "short on the ring", pieces: []int{4096}, ring: true, short: 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			total := 0
			for _, n := range tt.pieces {
				total += n
			}
			stored := content[:total-tt.short]
			file := &fakeFile{lanes: rt, content: stored, fd: 3, err: tt.err, refuse: tt.refuse}
			if tt.sim {
				file.fd = -1
			}
			f := &fakeFS{lanes: rt, planN: total, bounce: tt.bounce}
			off := int64(0)
			for _, n := range tt.pieces {
				f.pieces = append(f.pieces, metadata.Piece{File: file, Off: off, Buf: make([]byte, n)})
				off += int64(n)
			}
			var mu sync.Mutex
			var log []string
			d := NewHandler(f, HandlerOptions{Logf: func(format string, args ...any) {
				mu.Lock()
				defer mu.Unlock()
				log = append(log, fmt.Sprintf(format, args...))
			}})
			ft := newFakeTransport()
			if tt.ring {
				ft.ring, ft.ringErr = stored, tt.err
			}
			r := &Request{owner: ft}
			for range 3 { // the request's memory is used again
				fill(t, r, apart, OpRead, 5, opIn(fuse.ReadIn{Offset: 7, Size: uint32(total)}), nil)
				d.Handle(r)
				a := ft.only(t)
				if bad := tt.err != nil || tt.refuse != nil || tt.short > 0; bad {
					mu.Lock()
					if a.errno != syscall.EIO || len(log) == 0 || !strings.HasPrefix(log[0], "fs: READ inode 5 offset 7: read data/000001 at ") {
						t.Fatalf("errno %v, log %q", a.errno, log)
					}
					mu.Unlock()
				} else if got := a.body; tt.bounce && a.errno == 0 {
					if got := f.pieces[0].Buf; !bytes.Equal(got, content[:total]) {
						t.Fatal("wrong bytes")
					}
				} else if a.errno != 0 || !bytes.Equal(got, content[:total]) {
					t.Fatalf("errno %v, %d bytes, want the %d of the file", a.errno, len(a.body), total)
				}
			}
			if want := tt.ring && !tt.sim && !tt.bounce && len(tt.pieces) == 1; (ft.reads == 3) != want {
				t.Errorf("%d reads on the ring", ft.reads)
			}
			if s := d.Stats(); s.Async != 3 || s.Parked != 0 {
				t.Errorf("counts %+v", s)
			}
		})
	}
}

func slicesOf(n, v int) (s []int) {
	for range n {
		s = append(s, v)
	}
	return s
}

// TestBigRingReadIsFinishedElsewhere: verifying much data is not for the
// transport's thread.
func TestBigRingReadIsFinishedElsewhere(t *testing.T) {
	rt := lanes.NewRuntime(lanes.Config{})
	defer rt.Close()
	n := inlineFinish + 1
	content := bytes.Repeat([]byte("x"), n)
	f := &fakeFS{lanes: rt, planN: n, pieces: []metadata.Piece{{File: &fakeFile{fd: 3}, Buf: content}}}
	d := NewHandler(f, HandlerOptions{})
	ft := newFakeTransport()
	ft.ring = content
	r := &Request{owner: ft}
	before := rt.CPU.Stats().Completed
	head := make([]byte, inHeaderLen)
	le.PutUint32(head[4:], OpRead)
	if errno := r.take(head, opIn(fuse.ReadIn{Size: uint32(n)}), nil, make([]byte, n)); errno != 0 {
		t.Fatal(errno)
	}
	d.Handle(r)
	if a := ft.only(t); a.errno != 0 || len(a.body) != n {
		t.Fatalf("errno %v, %d bytes", a.errno, len(a.body))
	}
	rt.Close()
	if got := rt.CPU.Stats().Completed - before; got != 1 {
		t.Errorf("%d jobs on the CPU pool, want 1", got)
	}
}

// TestClosedLanes: a request that can't be parked any more is still answered.
func TestClosedLanes(t *testing.T) {
	rt := lanes.NewRuntime(lanes.Config{})
	rt.Close()
	f := &fakeFS{lanes: rt, blocks: true}
	a := do(t, NewHandler(f, HandlerOptions{}), apart, OpGetattr, 5, opIn(fuse.GetAttrIn{}), nil)
	if a.errno != syscall.EIO {
		t.Errorf("errno %v, want EIO", a.errno)
	}
}

// TestBlockedBlockingCall: a store that breaks its promise gets nobody stuck.
func TestBlockedBlockingCall(t *testing.T) {
	f := newFakeFS(t)
	f.err = fmt.Errorf("wrapped: %w", metadata.ErrWouldBlock)
	d := NewHandler(f, HandlerOptions{})
	a := do(t, d, apart, OpGetattr, 5, opIn(fuse.GetAttrIn{}), nil)
	if a.errno != syscall.EIO || d.Stats().Parked != 1 {
		t.Errorf("errno %v, counts %+v", a.errno, d.Stats())
	}
}

func TestErrorsAreLogged(t *testing.T) {
	f := newFakeFS(t)
	var log []string
	now := time.Unix(1000, 0)
	d := NewHandler(f, HandlerOptions{Logf: func(format string, args ...any) { log = append(log, fmt.Sprintf(format, args...)) }})
	d.logGate.now = func() time.Time { return now }

	f.err = fmt.Errorf("metadata: get inode 5: %w", metadata.ErrCorrupt)
	do(t, d, apart, OpGetattr, 5, opIn(fuse.GetAttrIn{}), nil)
	do(t, d, apart, OpRead, 5, opIn(fuse.ReadIn{Offset: 12, Size: 10}), nil)
	do(t, d, aliased, OpMkdir, 5, opIn(fuse.MkdirIn{}), []byte("d\n\x00"))
	f.err = metadata.ErrNotFound
	do(t, d, apart, OpGetattr, 5, opIn(fuse.GetAttrIn{}), nil)
	cause := metadata.ErrCorrupt.Error()
	want := []string{
		"fs: GETATTR inode 5: metadata: get inode 5: " + cause,
		"fs: READ inode 5 offset 12: metadata: get inode 5: " + cause,
		`fs: MKDIR inode 5 name "d\n": metadata: get inode 5: ` + cause,
	}
	if got := strings.Join(log, "\n"); got != strings.Join(want, "\n") {
		t.Fatalf("log:\n%s\nwant:\n%s", got, strings.Join(want, "\n"))
	}

	// A flood is cut, and the log says so.
	f.err = errDisk
	log = nil
	for range 100 {
		do(t, d, apart, OpGetattr, 5, opIn(fuse.GetAttrIn{}), nil)
	}
	if want := maxErrorsPerSecond - 3; len(log) != want {
		t.Fatalf("%d lines in a second, want %d", len(log), want)
	}
	now = now.Add(time.Second)
	log = nil
	do(t, d, apart, OpGetattr, 5, opIn(fuse.GetAttrIn{}), nil)
	if want := "fs: GETATTR inode 5 (83 earlier errors not shown): disk on fire"; len(log) != 1 || log[0] != want {
		t.Fatalf("log %q, want %q", log, want)
	}
}

// TestConcurrentRequests has many requests parked and answered at once, each
// Request used over and over as a transport does.
func TestConcurrentRequests(t *testing.T) {
	f := newFakeFS(t)
	f.quiet, f.blocks = true, true // quiet: GETATTR answers inline, the others park
	d := NewHandler(f, HandlerOptions{})
	const threads, rounds = 8, 500
	var wg sync.WaitGroup
	for i := range threads {
		wg.Go(func() {
			ft := newFakeTransport()
			r := &Request{owner: ft}
			for k := range rounds {
				switch (i + k) % 3 {
				case 0:
					fill(t, r, aliased, OpGetattr, 5, opIn(fuse.GetAttrIn{}), nil)
				case 1:
					fill(t, r, aliased, OpUnlink, 5, nil, []byte("n\x00"))
				case 2:
					fill(t, r, aliased, OpWrite, 5, opIn(fuse.WriteIn{Size: 5, Flags: syscall.O_SYNC}), []byte("hello"))
				}
				d.Handle(r)
				if a := <-ft.answers; a.errno != 0 {
					t.Errorf("errno %v", a.errno)
				}
			}
		})
	}
	wg.Wait()
	if s := d.Stats(); s.Total() != threads*rounds || s.Errors != 0 {
		t.Errorf("counts %+v", s)
	}
}

// TestTwoHandlers: a Request may come to another handler than before.
func TestTwoHandlers(t *testing.T) {
	f1, f2 := newFakeFS(t), newFakeFS(t)
	f2.attr.Size = 5
	f2.blocks = true
	ft := newFakeTransport()
	r := &Request{owner: ft}
	for i, f := range []*fakeFS{f1, f2, f1} {
		fill(t, r, apart, OpGetattr, 5, opIn(fuse.GetAttrIn{}), nil)
		NewHandler(f, HandlerOptions{}).Handle(r)
		want := wantAttr(&f.attr)
		if a := ft.only(t); !bytes.Equal(a.body[16:], out(want)) {
			t.Errorf("answer %d is not of its own store", i)
		}
	}
}

// FuzzHandle: whatever bytes come as a request, the handler doesn't panic and
// answers exactly once.
func FuzzHandle(f *testing.F) {
	for _, tt := range opTests() {
		head := make([]byte, inHeaderLen)
		le.PutUint32(head[4:], tt.op)
		le.PutUint64(head[16:], 5)
		f.Add(cat(head, tt.in, []byte(tt.data)), false)
		f.Add(cat(head, tt.in, []byte(tt.data)), true)
	}
	st := newFakeFS(f)
	st.quiet = true
	st.data = []byte("some\x00bytes\x00")
	st.dirents = []metadata.Dirent{{Name: []byte("."), Ino: 5, Type: 4, Cookie: 1}, {Name: []byte("name"), Ino: 77, Type: 8, Cookie: 1 << 40, Attr: &sampleAttr}}
	d := NewHandler(st, HandlerOptions{Logf: func(format string, args ...any) { _ = fmt.Sprintf(format, args...) }})
	f.Fuzz(func(t *testing.T, b []byte, blocks bool) {
		if len(b) < inHeaderLen {
			return
		}
		st.blocks = blocks
		b = bytes.Clone(b)
		le.PutUint32(b, uint32(len(b)))
		ft := newFakeTransport()
		r := &Request{owner: ft}
		errno, err := r.decode(b, make([]byte, testOut))
		if err != nil || errno != 0 {
			return // never comes to a handler
		}
		if len(r.Data) <= len(r.Out) { // as over io_uring
			r.Data = r.Out[:copy(r.Out, r.Data)]
		}
		op := r.Opcode()
		d.Handle(r)
		if a := ft.only(t); a.quiet == wantsReply(op) {
			t.Fatalf("%s: no reply is %v", OpName(op), a.quiet)
		}
	})
}

// inlineRequest prepares a request that is handled again and again. Its
// transport is the cheapest that there can be.
func inlineRequest(tb testing.TB, op uint32, in, data []byte) *Request {
	r := &Request{owner: nullTransport{}}
	fill(tb, r, apart, op, 5, in, data)
	return r
}

type nullTransport struct{}

func (nullTransport) answered(*Request) {}
func (nullTransport) hasRing() bool     { return false }

func (nullTransport) submitRead(*Request, int, int64, []byte, *lanes.Job) bool {
	return false
}

func inlineCases(tb testing.TB) map[string]*Request {
	return map[string]*Request{
		"getattr": inlineRequest(tb, OpGetattr, opIn(fuse.GetAttrIn{}), nil),
		"lookup":  inlineRequest(tb, OpLookup, nil, []byte("some-file-name.txt\x00")),
		"statfs":  inlineRequest(tb, OpStatfs, nil, nil),
		"forget":  inlineRequest(tb, OpForget, u64(1), nil),
		"setattr": inlineRequest(tb, OpSetattr, setattrIn(func(s *fuse.SetAttrIn) { s.Valid = fuse.FATTR_MODE }), nil),
		"create":  inlineRequest(tb, OpCreate, opIn(fuse.CreateIn{Mode: 0o644}), []byte("some-file-name.txt\x00")),
		"read":    inlineRequest(tb, OpRead, opIn(fuse.ReadIn{Size: 4096}), nil),
		"write":   inlineRequest(tb, OpWrite, opIn(fuse.WriteIn{Size: 5}), []byte("hello")),
		"readdir": inlineRequest(tb, OpReaddirplus, opIn(fuse.ReadIn{Size: 4096}), nil),
	}
}

// quietFS answers everything at once and allocates nothing itself.
type quietFS struct {
	fakeFS
	entry metadata.Dirent
}

func (q *quietFS) Getattr(_ metadata.Wait, _ metadata.Ino, out *metadata.Attr) error {
	*out = q.attr
	return nil
}
func (q *quietFS) Lookup(_ metadata.Wait, _ metadata.Ino, _ []byte, out *metadata.Attr) error {
	*out = q.attr
	return nil
}
func (q *quietFS) Setattr(_ metadata.Wait, _ metadata.Ino, _ *metadata.SetAttr, out *metadata.Attr) error {
	*out = q.attr
	return nil
}
func (q *quietFS) Make(_ metadata.Wait, _ metadata.Ino, _ []byte, _ *metadata.MakeReq, out *metadata.Attr) error {
	*out = q.attr
	return nil
}
func (q *quietFS) Forget(metadata.Ino, uint64)       {}
func (q *quietFS) Statfs(out *metadata.Statfs) error { *out = q.statfs; return nil }
func (q *quietFS) Read(_ metadata.Wait, _ metadata.Ino, _ uint64, dst []byte, _ *metadata.ReadPlan) (int, error) {
	return len(dst), nil
}
func (q *quietFS) Write(metadata.Wait, metadata.Ino, uint64, []byte, metadata.WriteFlags) error {
	return nil
}
func (q *quietFS) Readdir(_ metadata.Wait, _ metadata.Ino, _ uint64, _ bool, fn func(*metadata.Dirent) bool) error {
	for fn(&q.entry) {
	}
	return nil
}

func newQuietFS(tb testing.TB) *quietFS {
	q := &quietFS{fakeFS: *newFakeFS(tb)}
	q.entry = metadata.Dirent{Name: []byte("name"), Ino: 77, Type: 8, Cookie: 9, Attr: &q.attr}
	return q
}

func TestInlineAllocatesNothing(t *testing.T) {
	d := NewHandler(newQuietFS(t), HandlerOptions{})
	for name, r := range inlineCases(t) {
		if n := testing.AllocsPerRun(100, func() { d.Handle(r) }); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

func BenchmarkInline(b *testing.B) {
	d := NewHandler(newQuietFS(b), HandlerOptions{})
	for name, r := range inlineCases(b) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				d.Handle(r)
			}
		})
	}
}

// BenchmarkParked is the price of the BlockingIO lane, there and back.
func BenchmarkParked(b *testing.B) {
	f := newFakeFS(b)
	f.quiet, f.blocks = true, true
	d := NewHandler(f, HandlerOptions{})
	done := make(signalTransport)
	r := &Request{owner: done}
	fill(b, r, apart, OpUnlink, 5, nil, []byte("n\x00"))
	b.ReportAllocs()
	for b.Loop() {
		d.Handle(r)
		<-done
	}
}

type signalTransport chan struct{}

func (s signalTransport) answered(*Request) { s <- struct{}{} }
func (signalTransport) hasRing() bool       { return false }

func (s signalTransport) submitRead(*Request, int, int64, []byte, *lanes.Job) bool {
	return false
}

// TestLongNames: the kernel forwards them, so every operation refuses them, and
// never asks the store.
func TestLongNames(t *testing.T) {
	f := newFakeFS(t)
	d := NewHandler(f, HandlerOptions{})
	for _, tt := range []struct {
		op   uint32
		in   []byte
		rest string
	}{
		{op: OpLookup}, {op: OpUnlink}, {op: OpRmdir},
		{op: OpMknod, in: opIn(fuse.MknodIn{})},
		{op: OpMkdir, in: opIn(fuse.MkdirIn{})},
		{op: OpCreate, in: opIn(fuse.CreateIn{})},
		{op: OpSymlink, rest: "target\x00"},
		{op: OpLink, in: u64(77)},
		{op: OpRename, in: u64(6), rest: "new\x00"},
		{op: OpRename2, in: opIn(fuse.RenameIn{}), rest: "new\x00"},
	} {
		for name, want := range map[string]syscall.Errno{longName: syscall.ENAMETOOLONG, "": syscall.EINVAL} {
			a := do(t, d, aliased, tt.op, 5, tt.in, []byte(name+"\x00"+tt.rest))
			if a.errno != want || len(f.calls) != 0 {
				t.Errorf("%s of %d bytes: errno %v, want %v; calls %q", OpName(tt.op), len(name), a.errno, want, f.calls)
			}
		}
	}
}

func TestFirstOpen(t *testing.T) {
	f := newFakeFS(t)
	f.err = metadata.ErrNotFound
	d := NewHandler(f, HandlerOptions{NoOpen: true})
	lookup := func() uint64 {
		t.Helper()
		a := do(t, d, apart, OpLookup, 1, nil, []byte(FirstOpenName+"\x00"))
		if a.errno != 0 || len(a.body) < 8 {
			t.Fatalf("errno %v, %d bytes", a.errno, len(a.body))
		}
		return le.Uint64(a.body)
	}
	do := func(op uint32, in []byte) syscall.Errno {
		return do(t, d, apart, op, uint64(firstOpenIno), in, nil).errno
	}
	if n := lookup(); n != uint64(firstOpenIno) {
		t.Fatalf("found inode %d", n)
	}
	if e := do(OpGetattr, opIn(fuse.GetAttrIn{})); e != 0 {
		t.Errorf("getattr: %v", e)
	}
	if e := do(OpOpen, opIn(fuse.OpenIn{})); e != syscall.ENOSYS {
		t.Errorf("open: %v", e)
	}
	if n := lookup(); n != 0 {
		t.Errorf("still there after the first open: inode %d", n)
	}
}
