package fs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"sync/atomic"
	"syscall"

	"prismfs/lanes"
)

var le = binary.LittleEndian

// Opcodes of FUSE protocol 7.45.
//
// Source: linux/fuse.h, enum fuse_opcode.
const (
	OpLookup          = 1
	OpForget          = 2
	OpGetattr         = 3
	OpSetattr         = 4
	OpReadlink        = 5
	OpSymlink         = 6
	OpMknod           = 8
	OpMkdir           = 9
	OpUnlink          = 10
	OpRmdir           = 11
	OpRename          = 12
	OpLink            = 13
	OpOpen            = 14
	OpRead            = 15
	OpWrite           = 16
	OpStatfs          = 17
	OpRelease         = 18
	OpFsync           = 20
	OpSetxattr        = 21
	OpGetxattr        = 22
	OpListxattr       = 23
	OpRemovexattr     = 24
	OpFlush           = 25
	OpInit            = 26
	OpOpendir         = 27
	OpReaddir         = 28
	OpReleasedir      = 29
	OpFsyncdir        = 30
	OpGetlk           = 31
	OpSetlk           = 32
	OpSetlkw          = 33
	OpAccess          = 34
	OpCreate          = 35
	OpInterrupt       = 36
	OpBmap            = 37
	OpDestroy         = 38
	OpIoctl           = 39
	OpPoll            = 40
	OpNotifyReply     = 41
	OpBatchForget     = 42
	OpFallocate       = 43
	OpReaddirplus     = 44
	OpRename2         = 45
	OpLseek           = 46
	OpCopyFileRange   = 47
	OpSetupmapping    = 48
	OpRemovemapping   = 49
	OpSyncfs          = 50
	OpTmpfile         = 51
	OpStatx           = 52
	OpCopyFileRange64 = 53
)

const (
	inHeaderLen  = 40
	outHeaderLen = 16
	// maxOpStruct is the longest operation struct, that of SETATTR.
	maxOpStruct = 88
)

// opLen is the length of the struct that follows the header, by opcode; -1 is
// an opcode this package doesn't know, whose payload is handed on undivided.
var opLen = func() (t [64]int8) {
	for i := range t {
		t[i] = -1
	}
	for _, op := range []int{OpLookup, OpReadlink, OpSymlink, OpUnlink, OpRmdir, OpStatfs, OpRemovexattr, OpDestroy} {
		t[op] = 0
	}
	for op, n := range map[int]int8{
		OpForget: 8, OpGetattr: 16, OpSetattr: 88, OpMknod: 16, OpMkdir: 8, OpRename: 8, OpLink: 8, OpOpen: 8,
		OpRead: 40, OpWrite: 40, OpRelease: 24, OpFsync: 16, OpSetxattr: 16, OpGetxattr: 8, OpListxattr: 8,
		OpFlush: 24, OpInit: 64, OpOpendir: 8, OpReaddir: 40, OpReleasedir: 24, OpFsyncdir: 16, OpGetlk: 48,
		OpSetlk: 48, OpSetlkw: 48, OpAccess: 8, OpCreate: 16, OpInterrupt: 8, OpBmap: 16, OpIoctl: 32, OpPoll: 24,
		OpNotifyReply: 40, OpBatchForget: 8, OpFallocate: 32, OpReaddirplus: 40, OpRename2: 16, OpLseek: 24,
		OpCopyFileRange: 56, OpSetupmapping: 40, OpRemovemapping: 4, OpSyncfs: 8, OpTmpfile: 16, OpStatx: 24,
		OpCopyFileRange64: 56,
	} {
		t[op] = n
	}
	return t
}()

// OpLen is the length of op's struct, and false for an opcode unknown here.
//
//   - Source: linux/fuse.h with FUSE_SETXATTR_EXT in force.
func OpLen(op uint32) (n int, known bool) {
	if op >= uint32(len(opLen)) || opLen[op] < 0 {
		return 0, false
	}
	return int(opLen[op]), true
}

// Request is one FUSE request in wire layout: little-endian host structs of
// linux/fuse.h, which are also those of go-fuse/v2/fuse.
//
//   - Ownership: from Handle until Reply or NoReply the request and its three
//     slices are the handler's; afterwards they are the transport's again and
//     hold the next request.
//   - Concurrency: handed from goroutine to goroutine, never shared.
type Request struct {
	// In is the fuse_in_header and the operation's struct, contiguous, 8-byte
	// aligned, and not overlapping Data or Out. Its length is exactly 40 plus
	// OpLen for a known opcode.
	In []byte
	// Data is what follows the struct: names (checked to end in a NUL), an
	// xattr's value, the bytes of a write (exactly the announced number).
	Data []byte
	// Out is the room for the reply's body. It may alias Data: a handler is
	// done with Data before it writes the first byte of Out. It has room for
	// the size that the operation asks for (checked), at least 4096 bytes.
	Out []byte

	// Job is for whoever parks the request on a lane.
	Job lanes.Job

	// ReadN and ReadErr are the outcome of the last SubmitRead; ReadErr is a
	// syscall.Errno. A read past the end of the file is short, not an error.
	ReadN   int
	ReadErr error

	owner replier
	n     int           // body bytes of the reply
	errno syscall.Errno // its error
	quiet bool          // NoReply
	state atomic.Uint32 // of the hand-over between Handle and Reply, below

	head [(inHeaderLen + maxOpStruct) / 8]uint64 // backs In

	frame []byte // devfuse: the out header and Out, contiguous
	raw   []byte // devfuse: what read(2) is given; nil for a small request
	pool  *requestPool

	next     *Request // io_uring: link of the queue's reply list
	readDone *lanes.Job
}

// A request is handling while its transport's thread is in Handle, and then
// parked unless it is answered. Whoever comes second, the thread leaving
// Handle or the answer, takes it back for the transport.
const (
	stateIdle = iota
	stateHandling
	stateParked
	stateAnswered
)

// replier is a transport as its requests see it.
type replier interface {
	// answered is called by Reply and NoReply with the outcome in the request.
	answered(r *Request)
	// submitRead is SubmitRead.
	submitRead(r *Request, fd int, off int64, dst []byte, done *lanes.Job) bool
	// hasRing is HasRing.
	hasRing() bool
}

// Opcode is the operation, one of the Op constants or something newer.
func (r *Request) Opcode() uint32 { return le.Uint32(r.In[4:]) }

// Unique names the request in an INTERRUPT.
func (r *Request) Unique() uint64 { return le.Uint64(r.In[8:]) }

// Node is the node id that the operation is about.
func (r *Request) Node() uint64 { return le.Uint64(r.In[16:]) }

// Uid is the caller's file system user id.
func (r *Request) Uid() uint32 { return le.Uint32(r.In[24:]) }

// Gid is the caller's file system group id.
func (r *Request) Gid() uint32 { return le.Uint32(r.In[28:]) }

// Pid is the caller's thread id, 0 when the kernel acts on its own.
func (r *Request) Pid() uint32 { return le.Uint32(r.In[32:]) }

// Op is the operation's struct.
func (r *Request) Op() []byte { return r.In[inHeaderLen:] }

// Reply answers the request: n bytes of Out when errno is 0, else the error.
//
//   - Concurrency: exactly once, from any goroutine, during Handle or at any
//     time later; never blocks on anything but the kernel taking the bytes.
//   - The request is no longer the caller's when Reply is called.
func (r *Request) Reply(n int, errno syscall.Errno) {
	if errno != 0 {
		n = 0
	}
	if n < 0 || n > len(r.Out) {
		panic("fs: reply longer than its buffer")
	}
	r.n, r.errno, r.quiet = n, errno, false
	r.owner.answered(r)
}

// NoReply ends a request that the kernel wants no answer to: FORGET,
// BATCH_FORGET, NOTIFY_REPLY, and an INTERRUPT that is ignored.
//
//   - Concurrency: as Reply.
func (r *Request) NoReply() {
	r.n, r.errno, r.quiet = 0, 0, true
	r.owner.answered(r)
}

// SubmitRead reads len(dst) bytes of fd at off into dst, a part of r.Out, on
// the transport thread's own ring, and has done run on that thread when the
// read is over, with ReadN and ReadErr set. It reports false, without effect,
// when the transport or the moment doesn't allow it: then read elsewhere.
//
//   - Concurrency: only inside Handle or inside such a done job, at most one
//     read of a request at a time, and before the request is answered. done
//     must not block.
//   - O_DIRECT: Out starts on a page.
func (r *Request) SubmitRead(fd int, off int64, dst []byte, done *lanes.Job) bool {
	return r.owner.submitRead(r, fd, off, dst, done)
}

// HasRing says whether SubmitRead ever does anything for this request.
func (r *Request) HasRing() bool { return r.owner.hasRing() }

// take makes the request handling, with the given parts, and checks that they
// are what their opcode promises, so that no handler has to: see decode.
func (r *Request) take(head, op, data, out []byte) syscall.Errno {
	b := r.headBytes()
	r.In = b[:inHeaderLen+copy(b[inHeaderLen:], op)]
	copy(b, head)
	r.Data, r.Out = data, out
	r.state.Store(stateHandling)
	return r.check()
}

// check bounds what a handler takes from the request.
func (r *Request) check() syscall.Errno {
	op := r.Opcode()
	if n, known := OpLen(op); known && len(r.In) != inHeaderLen+n {
		return syscall.EINVAL
	}
	ok := true
	switch op {
	case OpLookup, OpMknod, OpMkdir, OpUnlink, OpRmdir, OpLink, OpCreate, OpTmpfile, OpRemovexattr:
		_, _, ok = CutName(r.Data)
	case OpSymlink, OpRename, OpRename2:
		var rest []byte
		if _, rest, ok = CutName(r.Data); ok {
			_, _, ok = CutName(rest)
		}
	case OpWrite:
		if n := le.Uint32(r.In[inHeaderLen+16:]); uint64(n) <= uint64(len(r.Data)) {
			r.Data = r.Data[:n]
		} else {
			ok = false
		}
	case OpGetxattr:
		_, _, ok = CutName(r.Data)
	case OpSetxattr:
		var rest []byte
		if _, rest, ok = CutName(r.Data); ok {
			ok = uint64(le.Uint32(r.In[inHeaderLen:])) <= uint64(len(rest))
		}
	case OpBatchForget:
		ok = uint64(le.Uint32(r.In[inHeaderLen:]))*16 <= uint64(len(r.Data))
	case OpIoctl:
		ok = uint64(le.Uint32(r.In[inHeaderLen+24:])) <= uint64(len(r.Data))
	}
	if !ok || r.replyLen() > len(r.Out) {
		return syscall.EINVAL
	}
	return 0
}

// replyLen bounds the body of the reply to a request with a whole In.
func (r *Request) replyLen() int {
	switch r.Opcode() {
	case OpRead, OpReaddir, OpReaddirplus:
		return int(le.Uint32(r.In[inHeaderLen+16:]))
	case OpGetxattr, OpListxattr:
		return max(8, int(le.Uint32(r.In[inHeaderLen:])))
	case OpIoctl:
		return 16 + int(le.Uint32(r.In[inHeaderLen+28:]))
	}
	return smallOut
}

// wantsReply tells whether the kernel waits for an answer to op.
func wantsReply(op uint32) bool {
	return op != OpForget && op != OpBatchForget && op != OpNotifyReply && op != OpInterrupt
}

// putOutHeader writes a fuse_out_header for the request's outcome.
func (r *Request) putOutHeader(b []byte) {
	le.PutUint32(b, uint32(outHeaderLen+r.n))
	le.PutUint32(b[4:], uint32(-int32(r.errno)))
	le.PutUint64(b[8:], r.Unique())
}

// errTruncated is returned for bytes that can't be a request at all.
var errTruncated = errors.New("fs: request shorter than its header says")

// decode divides what read(2) gave on /dev/fuse. The error means that there is
// nothing to answer to; the errno that the request is to be answered with it.
func (r *Request) decode(b, out []byte) (syscall.Errno, error) {
	if len(b) < inHeaderLen || uint64(le.Uint32(b)) != uint64(len(b)) {
		return 0, errTruncated
	}
	n, _ := OpLen(le.Uint32(b[4:]))
	n = min(n, len(b)-inHeaderLen)
	return r.take(b[:inHeaderLen], b[inHeaderLen:inHeaderLen+n], b[inHeaderLen+n:], out), nil
}

// CutName splits a NUL-terminated name off b; ok is false when b has no NUL.
func CutName(b []byte) (name, rest []byte, ok bool) {
	i := bytes.IndexByte(b, 0)
	if i < 0 {
		return nil, nil, false
	}
	return b[:i], b[i+1:], true
}
