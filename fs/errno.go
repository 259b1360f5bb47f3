package fs

import (
	"errors"
	"syscall"

	"prismfs/metadata"
)

// Answers that this package itself gives. The first two are not errors but say
// that end has nothing to answer.
var (
	errAsync   = errors.New("answered later")
	errNoReply = errors.New("no answer wanted")

	// errNoSys makes the kernel stop asking for the operation and do without
	// it: for good, so it is only ever returned on purpose.
	errNoSys   = errors.New("operation left to the kernel")
	errNotTTY  = errors.New("unknown ioctl")
	errRefused = errors.New("store is being closed")
	errBlocked = errors.New("a blocking call would have blocked")
)

// errnos maps the kinds of error to what the kernel is told. Everything else
// is EIO: above all, ENOSYS and EINTR out of the store never leave, the one
// because the kernel would take every later fsync for a success, the other
// because no call here can be interrupted.
//
// ErrReadOnly comes first because it wraps the cause for which a store turned
// read-only.
var errnos = [...]struct {
	err   error
	errno syscall.Errno
}{
	{metadata.ErrReadOnly, syscall.EROFS},
	{metadata.ErrNotFound, syscall.ENOENT},
	{metadata.ErrExist, syscall.EEXIST},
	{metadata.ErrNoData, syscall.ENODATA},
	{metadata.ErrNotDir, syscall.ENOTDIR},
	{metadata.ErrIsDir, syscall.EISDIR},
	{metadata.ErrNotEmpty, syscall.ENOTEMPTY},
	{metadata.ErrNameTooLong, syscall.ENAMETOOLONG},
	{metadata.ErrInvalid, syscall.EINVAL},
	{metadata.ErrPerm, syscall.EPERM},
	{metadata.ErrRange, syscall.ERANGE},
	{metadata.ErrTooBig, syscall.E2BIG},
	{metadata.ErrNoSuchOffset, syscall.ENXIO},
	{metadata.ErrFileTooBig, syscall.EFBIG},
	{metadata.ErrMaxLinks, syscall.EMLINK},
	{metadata.ErrStale, syscall.ESTALE},
	{metadata.ErrUnsupported, syscall.EOPNOTSUPP},
	{metadata.ErrNoSpace, syscall.ENOSPC},
	{errNoSys, syscall.ENOSYS},
	{errNotTTY, syscall.ENOTTY},
}

// errnoOf is the only place where an error becomes an errno.
func errnoOf(err error) syscall.Errno {
	if err == nil {
		return 0
	}
	for i := range errnos { // nearly always bare, and then without errors.Is
		if errnos[i].err == err {
			return errnos[i].errno
		}
	}
	for i := range errnos {
		if errors.Is(err, errnos[i].err) {
			return errnos[i].errno
		}
	}
	return syscall.EIO
}

// syncErrno is errnoOf for the operations that promise durability. A store that
// turned read-only lost something that was acknowledged before: fsync(2)
// reports that as EIO and knows no EROFS.
func syncErrno(err error) syscall.Errno {
	if errno := errnoOf(err); errno != syscall.EROFS {
		return errno
	}
	return syscall.EIO
}
