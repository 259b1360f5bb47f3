package ordered

import (
	"errors"
	"fmt"

	"prismfs/uring"
)

var (
	// ErrCorrupt: bytes that were durable are not what was written. The text
	// says file and offset. Read errors of the disk are never ErrCorrupt.
	ErrCorrupt = errors.New("ordered: corrupt")
	// ErrFailed: an earlier write or sync failed. What the medium holds is
	// unknown and the kernel may have dropped the bytes, so that a later sync
	// proves nothing: the log refuses everything until it is opened again.
	ErrFailed = errors.New("ordered: log failed")
	// ErrClosed: the log has been closed.
	ErrClosed = errors.New("ordered: closed")
	// ErrTooLarge: a payload above MaxPayload.
	ErrTooLarge = errors.New("ordered: payload too large")
	// ErrInUse: the segment is still written to.
	ErrInUse = errors.New("ordered: segment in use")
	// ErrNoSegment: no such segment.
	ErrNoSegment = errors.New("ordered: no such segment")
)

// failed makes the error of a write or sync final. Whatever it was, it does not
// end when room returns: a sync that says ErrNoSpace, as on a thin device, has
// lost bytes like any other, and nobody may take the log's state for a full disk.
func failed(err error) error {
	if errors.Is(err, uring.ErrNoSpace) {
		return fmt.Errorf("%w: %v", ErrFailed, err)
	}
	return fmt.Errorf("%w: %w", ErrFailed, err)
}
