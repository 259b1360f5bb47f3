package fs

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// Protocol versions: what this package speaks and the least it can do with.
// 7.33 (Linux 5.12) brought SETXATTR_EXT and HANDLE_KILLPRIV_V2.
const (
	protoMajor    = 7
	protoMinor    = 45
	protoMinMinor = 33

	initInLen  = 64
	initOutLen = 64
)

// capsAlways are the capabilities asked for on every mount, where the kernel
// has them. Never among them: POSIX_LOCKS and FLOCK_LOCKS, so that the kernel
// keeps all locks itself; AUTO_INVAL_DATA, which EXPLICIT_INVAL_DATA excludes;
// HANDLE_KILLPRIV, superseded by V2; PASSTHROUGH.
const capsAlways uint64 = fuse.CAP_ASYNC_READ |
	fuse.CAP_EXPORT_SUPPORT |
	fuse.CAP_BIG_WRITES |
	fuse.CAP_IOCTL_DIR |
	fuse.CAP_READDIRPLUS |
	fuse.CAP_READDIRPLUS_AUTO |
	fuse.CAP_ASYNC_DIO |
	fuse.CAP_NO_OPEN_SUPPORT |
	fuse.CAP_NO_OPENDIR_SUPPORT |
	fuse.CAP_PARALLEL_DIROPS |
	fuse.CAP_ABORT_ERROR | // an abort can be told from an unmount
	fuse.CAP_MAX_PAGES |
	fuse.CAP_CACHE_SYMLINKS |
	fuse.CAP_EXPLICIT_INVAL_DATA |
	fuse.CAP_HANDLE_KILLPRIV_V2 |
	fuse.CAP_SETXATTR_EXT |
	fuse.CAP_HAS_EXPIRE_ONLY

// capsNeeded are those that the wire format of this package relies on.
const capsNeeded uint64 = fuse.CAP_SETXATTR_EXT | fuse.CAP_MAX_PAGES

// ErrKernelTooOld is returned by Mount when the kernel's FUSE lacks what this
// package relies on.
var ErrKernelTooOld = errors.New("fs: the kernel's FUSE is too old (Linux 5.12 or later is needed)")

// Negotiated is what INIT settled.
type Negotiated struct {
	Minor         uint32 // the kernel's protocol minor version
	Offered       uint64 // capabilities the kernel has, fuse.CAP_ bits
	Flags         uint64 // capabilities in force
	MaxWrite      int    // bytes of the largest WRITE and READ
	MaxReadahead  int    // the kernel's own limit, before the bdi's
	MaxBackground int
}

// Has tells whether all of the capabilities are in force.
func (n *Negotiated) Has(caps uint64) bool { return n.Flags&caps == caps }

// negotiate decides about the kernel's INIT. The caller has cleared what it
// can't do from offered, which is the kernel's flags otherwise.
func negotiate(in initIn, o *MountOptions) (Negotiated, error) {
	n := Negotiated{Minor: in.minor, Offered: in.flags, MaxWrite: o.MaxWrite, MaxReadahead: int(in.maxReadahead), MaxBackground: o.MaxBackground}
	if in.major != protoMajor || in.minor < protoMinMinor || in.flags&capsNeeded != capsNeeded {
		return n, fmt.Errorf("%w: protocol %d.%d, flags %#x", ErrKernelTooOld, in.major, in.minor, in.flags)
	}
	want := capsAlways
	if o.Writeback {
		want |= fuse.CAP_WRITEBACK_CACHE
	}
	if o.EnableACL {
		want |= fuse.CAP_POSIX_ACL | fuse.CAP_DONT_MASK
	}
	if o.DefaultPermissions { // else the kernel allows no id-mapped mounts
		want |= fuse.CAP_ALLOW_IDMAP
	}
	if o.AtomicTrunc {
		want |= fuse.CAP_ATOMIC_O_TRUNC
	}
	if o.URing != URingOff {
		want |= fuse.CAP_OVER_IO_URING
	}
	n.Flags = want & in.flags
	return n, nil
}

// initIn is fuse_init_in with the flags joined.
type initIn struct {
	unique       uint64
	major, minor uint32
	maxReadahead uint32
	flags        uint64
}

// parseInit reads an INIT request as read(2) gives it.
func parseInit(b []byte) (initIn, error) {
	if len(b) < inHeaderLen+16 || le.Uint32(b[4:]) != OpInit {
		return initIn{}, errors.New("fs: the kernel's first request is not INIT")
	}
	p := b[inHeaderLen:]
	in := initIn{unique: le.Uint64(b[8:]), major: le.Uint32(p), minor: le.Uint32(p[4:]), maxReadahead: le.Uint32(p[8:]), flags: uint64(le.Uint32(p[12:]))}
	if in.flags&fuse.CAP_INIT_EXT != 0 && len(p) >= initInLen {
		in.flags |= uint64(le.Uint32(p[16:])) << 32
	}
	return in, nil
}

// initReply is the whole reply to INIT.
func initReply(unique uint64, n *Negotiated) []byte {
	b := make([]byte, outHeaderLen+initOutLen)
	le.PutUint32(b, uint32(len(b)))
	le.PutUint64(b[8:], unique)
	p := b[outHeaderLen:]
	le.PutUint32(p, protoMajor)
	le.PutUint32(p[4:], protoMinor)
	le.PutUint32(p[8:], uint32(n.MaxReadahead))
	le.PutUint32(p[12:], uint32(n.Flags)|fuse.CAP_INIT_EXT)
	le.PutUint16(p[16:], uint16(n.MaxBackground))
	le.PutUint16(p[18:], uint16(n.MaxBackground*3/4))
	le.PutUint32(p[20:], uint32(n.MaxWrite))
	le.PutUint32(p[24:], 1) // time_gran: nanoseconds
	le.PutUint16(p[28:], uint16(n.MaxWrite/4096))
	le.PutUint32(p[32:], uint32(n.Flags>>32))
	return b
}

// readInit waits for the INIT that mount(2) has queued.
func readInit(fd int) (initIn, error) {
	b := make([]byte, 8192) // FUSE_MIN_READ_BUFFER
	for {
		n, err := syscall.Read(fd, b)
		if err == syscall.EINTR {
			continue
		}
		if err != nil {
			return initIn{}, fmt.Errorf("fs: read INIT: %w", err)
		}
		return parseInit(b[:n])
	}
}
