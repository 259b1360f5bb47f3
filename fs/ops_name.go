package fs

import (
	"syscall"

	"prismfs/metadata"
)

const (
	nameMax   = 255
	targetMax = 4095 // bytes of a symlink's target: PATH_MAX without its NUL

	permBits = 0o7777

	openOutLen = 16 // fuse_open_out

	// flags of fuse_open_out
	fopenKeepCache = 1 << 1
	fopenCacheDir  = 1 << 3
	fopenNoflush   = 1 << 5

	openKillSuidgid = 1 << 0 // fuse_open_in.open_flags
)

// umask is what the store is to take from the mode of a new inode. The kernel
// has applied the umask, unless there are ACLs: a default ACL replaces it.
func (d *Dispatcher) umask(umask uint32) uint32 {
	if !d.o.ACL {
		return 0
	}
	return umask
}

// makeInode makes an inode with the caller as its owner. What a set-group-id
// directory passes on is the store's to know.
func (d *Dispatcher) makeInode(c *call, w metadata.Wait, name []byte, mode, umask, rdev uint32, target []byte) (int, error) {
	c.mk = metadata.MakeReq{Mode: mode, Uid: c.r.Uid(), Gid: c.r.Gid(), Rdev: rdev, Target: target, Umask: d.umask(umask)}
	err := d.st.Make(w, metadata.Ino(c.r.Node()), name, &c.mk, &c.attr)
	c.mk.Target = nil
	if err != nil {
		return 0, err
	}
	d.putEntry(c.r.Out, &c.attr)
	return entryLen, nil
}

func (d *Dispatcher) opMknod(c *call, w metadata.Wait) (int, error) {
	name, _, err := fileName(c.r.Data)
	if err != nil {
		return 0, err
	}
	in := c.r.Op()
	mode := le.Uint32(in)
	if mode&syscall.S_IFMT == 0 { // as mknod(2)
		mode |= syscall.S_IFREG
	}
	return d.makeInode(c, w, name, mode&(syscall.S_IFMT|permBits), le.Uint32(in[8:]), le.Uint32(in[4:]), nil)
}

func (d *Dispatcher) opMkdir(c *call, w metadata.Wait) (int, error) {
	name, _, err := fileName(c.r.Data)
	if err != nil {
		return 0, err
	}
	in := c.r.Op()
	return d.makeInode(c, w, name, syscall.S_IFDIR|le.Uint32(in)&permBits, le.Uint32(in[4:]), 0, nil)
}

func (d *Dispatcher) opSymlink(c *call, w metadata.Wait) (int, error) {
	name, rest, err := fileName(c.r.Data)
	if err != nil {
		return 0, err
	}
	target, _, ok := CutName(rest)
	if !ok || len(target) == 0 {
		return 0, metadata.ErrInvalid
	}
	if len(target) > targetMax {
		return 0, metadata.ErrNameTooLong
	}
	return d.makeInode(c, w, name, syscall.S_IFLNK|0o777, 0, 0, target)
}

// opCreate makes a file and opens it. A name that is taken stays EEXIST even
// without O_EXCL: the kernel takes a CREATE that succeeds for a new file, and
// would neither check permissions nor truncate. It looks the name up instead.
func (d *Dispatcher) opCreate(c *call, w metadata.Wait) (int, error) {
	name, _, err := fileName(c.r.Data)
	if err != nil {
		return 0, err
	}
	in := c.r.Op()
	n, err := d.makeInode(c, w, name, syscall.S_IFREG|le.Uint32(in[4:])&permBits, le.Uint32(in[8:]), 0, nil)
	if err != nil {
		return 0, err
	}
	return n + putOpen(c.r.Out[n:], fopenKeepCache|fopenNoflush), nil
}

// opTmpfile is CREATE without a name; the one in the request means nothing.
func (d *Dispatcher) opTmpfile(c *call, w metadata.Wait) (int, error) {
	in := c.r.Op()
	mode := syscall.S_IFREG | le.Uint32(in[4:])&permBits
	c.mk = metadata.MakeReq{Mode: mode, Uid: c.r.Uid(), Gid: c.r.Gid(), Umask: d.umask(le.Uint32(in[8:]))}
	if err := d.st.Tmpfile(w, metadata.Ino(c.r.Node()), &c.mk, &c.attr); err != nil {
		return 0, err
	}
	d.putEntry(c.r.Out, &c.attr)
	return entryLen + putOpen(c.r.Out[entryLen:], fopenKeepCache|fopenNoflush), nil
}

// putOpen writes a fuse_open_out. Handles are always 0: nothing is kept by
// handle, as the kernel stops announcing their end once an OPEN was refused.
func putOpen(b []byte, flags uint32) int {
	le.PutUint64(b, 0)
	le.PutUint32(b[8:], flags)
	le.PutUint32(b[12:], 0)
	return openOutLen
}

// opOpen has nothing to open, but to refuse what chattr(1) forbids. O_TRUNC
// arrives only from a kernel that was told that it is heeded.
//
//   - Source: do_open_permission, may_open in the kernel's fs/namei.c.
func (d *Dispatcher) opOpen(c *call, w metadata.Wait) (int, error) {
	if d.o.NoOpen {
		d.opened.Store(true)
		return 0, errNoSys
	}
	in := c.r.Op()
	how := le.Uint32(in)
	if how&(syscall.O_ACCMODE|syscall.O_TRUNC) != syscall.O_RDONLY {
		if err := d.st.Getattr(w, metadata.Ino(c.r.Node()), &c.attr); err != nil {
			return 0, err
		}
		fl := c.attr.Flags
		if fl&flImmutable != 0 || fl&flAppend != 0 && how&(syscall.O_APPEND|syscall.O_TRUNC) != syscall.O_APPEND {
			return 0, metadata.ErrPerm
		}
	}
	if how&syscall.O_TRUNC != 0 {
		if d.o.ReadOnly {
			return 0, metadata.ErrReadOnly
		}
		c.set = metadata.SetAttr{Mask: metadata.SetSize | metadata.SetMtimeNow}
		if le.Uint32(in[4:])&openKillSuidgid != 0 {
			c.set.Mask |= metadata.SetKillPriv
		}
		if err := d.st.Setattr(w, metadata.Ino(c.r.Node()), &c.set, &c.attr); err != nil {
			return 0, err
		}
	}
	flags := uint32(fopenKeepCache | fopenNoflush)
	if d.o.DropCache {
		flags &^= fopenKeepCache
	}
	return putOpen(c.r.Out, flags), nil
}

func (d *Dispatcher) opOpendir(c *call, _ metadata.Wait) (int, error) {
	if d.o.NoOpen {
		return 0, errNoSys
	}
	return putOpen(c.r.Out, fopenKeepCache|fopenCacheDir), nil
}

// opLink gives an inode another name; the request's node is the new parent.
func (d *Dispatcher) opLink(c *call, w metadata.Wait) (int, error) {
	name, _, err := fileName(c.r.Data)
	if err != nil {
		return 0, err
	}
	ino := metadata.Ino(le.Uint64(c.r.Op()))
	if err := d.st.Link(w, ino, metadata.Ino(c.r.Node()), name, &c.attr); err != nil {
		return 0, err
	}
	d.putEntry(c.r.Out, &c.attr)
	return entryLen, nil
}

func (d *Dispatcher) opUnlink(c *call, w metadata.Wait) (int, error) {
	name, _, err := fileName(c.r.Data)
	if err != nil {
		return 0, err
	}
	return 0, d.st.Unlink(w, metadata.Ino(c.r.Node()), name)
}

func (d *Dispatcher) opRmdir(c *call, w metadata.Wait) (int, error) {
	name, _, err := fileName(c.r.Data)
	if err != nil {
		return 0, err
	}
	return 0, d.st.Rmdir(w, metadata.Ino(c.r.Node()), name)
}

func (d *Dispatcher) opRename(c *call, w metadata.Wait) (int, error) {
	return d.rename(c, w, 0)
}

func (d *Dispatcher) opRename2(c *call, w metadata.Wait) (int, error) {
	return d.rename(c, w, le.Uint32(c.r.Op()[8:]))
}

func (d *Dispatcher) rename(c *call, w metadata.Wait, flags uint32) (int, error) {
	oldName, rest, err := fileName(c.r.Data)
	if err != nil {
		return 0, err
	}
	newName, _, err := fileName(rest)
	if err != nil {
		return 0, err
	}
	newParent := metadata.Ino(le.Uint64(c.r.Op()))
	return 0, d.st.Rename(w, metadata.Ino(c.r.Node()), oldName, newParent, newName, flags)
}

// opReadlink answers with at most what the kernel has room for, a page less one.
func (d *Dispatcher) opReadlink(c *call, w metadata.Wait) (int, error) {
	return d.st.Readlink(w, metadata.Ino(c.r.Node()), c.r.Out[:targetMax])
}
