package fs

import (
	"context"
	"errors"
	"fmt"
	"io"
	iofs "io/fs"
	"syscall"
	"testing"

	"prismfs/engine"
	"prismfs/lanes"
	"prismfs/metadata"
	"prismfs/uring"
)

func TestErrno(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want syscall.Errno
	}{
		{metadata.ErrNotFound, syscall.ENOENT},
		{metadata.ErrExist, syscall.EEXIST},
		{metadata.ErrNotDir, syscall.ENOTDIR},
		{metadata.ErrIsDir, syscall.EISDIR},
		{metadata.ErrNotEmpty, syscall.ENOTEMPTY},
		{metadata.ErrNameTooLong, syscall.ENAMETOOLONG},
		{metadata.ErrInvalid, syscall.EINVAL},
		{metadata.ErrPerm, syscall.EPERM},
		{metadata.ErrNoData, syscall.ENODATA},
		{metadata.ErrRange, syscall.ERANGE},
		{metadata.ErrTooBig, syscall.E2BIG},
		{metadata.ErrNoSuchOffset, syscall.ENXIO},
		{metadata.ErrFileTooBig, syscall.EFBIG},
		{metadata.ErrMaxLinks, syscall.EMLINK},
		{metadata.ErrStale, syscall.ESTALE},
		{metadata.ErrUnsupported, syscall.EOPNOTSUPP},
		{metadata.ErrReadOnly, syscall.EROFS},
		{metadata.ErrNoSpace, syscall.ENOSPC},
		{engine.ErrNoSpace, syscall.ENOSPC},
		{uring.ErrNoSpace, syscall.ENOSPC},
		{errNoSys, syscall.ENOSYS},
		{errNotTTY, syscall.ENOTTY},

		// Everything that only this program is to blame for.
		{metadata.ErrWouldBlock, syscall.EIO},
		{metadata.ErrCorrupt, syscall.EIO},
		{metadata.ErrLocked, syscall.EIO},
		{metadata.ErrNotAStore, syscall.EIO},
		{engine.ErrNotFound, syscall.EIO},
		{uring.ErrNotExist, syscall.EIO},
		{uring.ErrClosed, syscall.EIO},
		{lanes.ErrClosed, syscall.EIO},
		{io.EOF, syscall.EIO},
		{iofs.ErrNotExist, syscall.EIO},
		{context.Canceled, syscall.EIO},
		{syscall.ENOSYS, syscall.EIO},
		{syscall.EINTR, syscall.EIO},
		{syscall.EAGAIN, syscall.EIO},
		{syscall.ENOENT, syscall.EIO},
		{errors.New("anything"), syscall.EIO},
	} {
		for _, err := range []error{
			tt.err,
			fmt.Errorf("metadata: do something: %w", tt.err),
			fmt.Errorf("a: %w", fmt.Errorf("b: %w", tt.err)),
			fmt.Errorf("with another: %w (%w)", tt.err, errDisk),
			errors.Join(errDisk, tt.err),
		} {
			if got := errnoOf(err); got != tt.want {
				t.Errorf("errnoOf(%v) = %v, want %v", err, got, tt.want)
			}
		}
	}
	if got := errnoOf(nil); got != 0 {
		t.Errorf("errnoOf(nil) = %v", got)
	}
	// A store that turned read-only carries its reason along.
	for _, cause := range []error{metadata.ErrNoSpace, metadata.ErrCorrupt, syscall.EIO} {
		err := fmt.Errorf("engine: %w: %w", metadata.ErrReadOnly, cause)
		if got := errnoOf(err); got != syscall.EROFS {
			t.Errorf("errnoOf(%v) = %v, want EROFS", err, got)
		}
		if got := syncErrno(err); got != syscall.EIO {
			t.Errorf("syncErrno(%v) = %v, want EIO", err, got)
		}
	}
}

// TestErrnosAreUnique fails when a kind of error is mapped twice.
func TestErrnosAreUnique(t *testing.T) {
	seen := map[error]bool{}
	for _, e := range errnos {
		if seen[e.err] {
			t.Errorf("%v is mapped twice", e.err)
		}
		seen[e.err] = true
	}
}
