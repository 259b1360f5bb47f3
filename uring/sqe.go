package uring

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// SQE is a submission queue entry, struct io_uring_sqe of
// include/uapi/linux/io_uring.h. On a ring with SetupSQE128 another 64 bytes
// follow; see Ring.Cmd.
type SQE struct {
	Opcode      uint8
	Flags       uint8
	IoPrio      uint16
	Fd          int32
	Off         uint64 // uring_cmd: cmd_op in the low half
	Addr        uint64
	Len         uint32
	OpFlags     uint32
	UserData    uint64
	BufIndex    uint16
	Personality uint16
	FileIndex   int32
	Addr3       uint64 // uring_cmd: the command area begins here, at byte 48
	pad         uint64
}

// CQE is a completion queue entry: Res is a count or a negative errno.
type CQE struct {
	UserData uint64
	Res      int32
	Flags    uint32
}

const (
	sqeSize = 64
	cqeSize = 16
	cmdAt   = 48
	cmdSize = 2*sqeSize - cmdAt
)

// The kernel's layouts, checked by the compiler: each array length is zero.
var (
	_ [unsafe.Sizeof(SQE{}) - sqeSize]struct{}
	_ [sqeSize - unsafe.Sizeof(SQE{})]struct{}
	_ [unsafe.Sizeof(CQE{}) - cqeSize]struct{}
	_ [cqeSize - unsafe.Sizeof(CQE{})]struct{}
	_ [unsafe.Offsetof(SQE{}.UserData) - 32]struct{}
	_ [unsafe.Offsetof(SQE{}.Addr3) - cmdAt]struct{}
	_ [unsafe.Sizeof(setupParams{}) - 120]struct{}
	_ [120 - unsafe.Sizeof(setupParams{})]struct{}
)

const (
	opNop      = 0
	opRead     = 22
	opUringCmd = 46
)

// PrepNop only completes.
func (s *SQE) PrepNop(userData uint64) {
	s.Opcode, s.Fd, s.UserData = opNop, -1, userData
}

// PrepRead reads into p at off. The caller keeps p alive, and off every stack,
// until the completion.
func (s *SQE) PrepRead(fd int, p []byte, off int64, userData uint64) {
	s.Opcode, s.Fd, s.Off = opRead, int32(fd), uint64(off)
	s.Addr, s.Len = uint64(uintptr(unsafe.Pointer(unsafe.SliceData(p)))), uint32(len(p))
	s.UserData = userData
}

// PrepUringCmd sends a command to the driver behind fd. addr and n are the
// command's own, such as a vector from PutIovecs; the rest goes to Ring.Cmd.
func (s *SQE) PrepUringCmd(fd int, cmdOp uint32, addr uint64, n uint32, userData uint64) {
	s.Opcode, s.Fd, s.Off = opUringCmd, int32(fd), uint64(cmdOp)
	s.Addr, s.Len, s.UserData = addr, n, userData
}

// PutIovecs writes a vector of bufs into mem and returns its address. Both mem
// and the bufs come from Alloc: the vector hides the pointers from the
// collector, and the kernel reads it later.
func PutIovecs(mem []byte, bufs ...[]byte) uint64 {
	const size = int(unsafe.Sizeof(unix.Iovec{}))
	_ = mem[:len(bufs)*size]
	for i, b := range bufs {
		v := (*unix.Iovec)(unsafe.Pointer(&mem[i*size]))
		v.Base = unsafe.SliceData(b)
		v.SetLen(len(b))
	}
	return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mem))))
}
