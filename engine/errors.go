package engine

import (
	"errors"

	"prismfs/ordered"
	"prismfs/uring"
)

// The kinds of failure that callers tell apart. Everything else reaches the
// caller as a wrapped error of the disk.
var (
	// ErrNotFound says that a key has no value in the view that was read.
	ErrNotFound = errors.New("engine: not found")
	// ErrWouldBlock answers a NoWait call that would have had to wait for
	// the disk, a flush or a compaction. The call had no effect.
	ErrWouldBlock = uring.ErrWouldBlock
	// ErrCorrupt is wrapped by every report of bytes that fail their
	// checksum or break the format.
	ErrCorrupt = ordered.ErrCorrupt
	// ErrClosed answers calls after Close.
	ErrClosed = errors.New("engine: closed")
	// ErrReadOnly answers writes of a store opened read-only, and of one
	// that turned read-only after a failed log or manifest write: then it
	// wraps the cause as well, and stays until the store is opened again.
	ErrReadOnly = errors.New("engine: read-only")
	// ErrNoSpace says that the disk is full; it ends when room returns. It
	// is the disk's own sentinel, so that either name matches.
	ErrNoSpace = uring.ErrNoSpace
	// ErrStopReplay is returned by Options.Replay to end the recovery
	// before the batch it was given: that batch and all later ones are
	// dropped for good.
	ErrStopReplay = errors.New("engine: stop replay")
)
