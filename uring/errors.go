package uring

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"
)

// The error kinds that callers act upon. Everything else is a wrapped
// syscall.Errno.
var (
	// ErrWouldBlock: the bytes are not all in memory. Returned bare, with no
	// effect; retry with a blocking or asynchronous call.
	ErrWouldBlock = errors.New("uring: would block")
	// ErrNoSpace: ENOSPC or EDQUOT. Ends when room returns.
	ErrNoSpace = errors.New("uring: no space left on disk")
	// ErrReadOnly: the disk was opened read-only, or its file system is.
	ErrReadOnly = errors.New("uring: read-only disk")
	// ErrNotExist wraps fs.ErrNotExist.
	ErrNotExist = fmt.Errorf("uring: %w", fs.ErrNotExist)
	// ErrLocked: somebody else holds the lock.
	ErrLocked = errors.New("uring: locked by another user")
	// ErrClosed: the file, disk or ring has been closed.
	ErrClosed = errors.New("uring: closed")
)

// WrapError names the operation and object of err, and adds the sentinel that
// its errno stands for. Shared by all implementations of Disk, so that they
// cannot classify differently.
func WrapError(op, name string, err error) error {
	if err == nil {
		return nil
	}
	var errno syscall.Errno
	if errors.As(err, &errno) {
		switch errno {
		case syscall.ENOSPC, syscall.EDQUOT:
			return fmt.Errorf("uring: %s %s: %w (%w)", op, name, ErrNoSpace, errno)
		case syscall.EROFS:
			err = ErrReadOnly
		case syscall.ENOENT:
			err = ErrNotExist
		}
	}
	return fmt.Errorf("uring: %s %s: %w", op, name, err)
}
