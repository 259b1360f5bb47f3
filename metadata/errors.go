package metadata

import (
	"errors"

	"prismfs/engine"
	"prismfs/ordered"
	"prismfs/uring"
)

// Error kinds of the file system. Each names what a caller would do differently;
// the front end maps them to errno in one place.
var (
	ErrNotFound     = errors.New("no such file or directory")
	ErrExist        = errors.New("file exists")
	ErrNotDir       = errors.New("not a directory")
	ErrIsDir        = errors.New("is a directory")
	ErrNotEmpty     = errors.New("directory not empty")
	ErrNameTooLong  = errors.New("file name too long")
	ErrInvalid      = errors.New("invalid argument")
	ErrPerm         = errors.New("operation not permitted")
	ErrNoData       = errors.New("no data available")         // absent xattr
	ErrRange        = errors.New("result too large")          // value does not fit the buffer
	ErrTooBig       = errors.New("argument too long")         // xattr value or list over the limit
	ErrNoSuchOffset = errors.New("no such device or address") // SEEK_DATA past the end
	ErrFileTooBig   = errors.New("file too large")
	ErrMaxLinks     = errors.New("too many links")
	ErrStale        = errors.New("stale file handle")
	ErrUnsupported  = errors.New("operation not supported")

	ErrWouldBlock = engine.ErrWouldBlock
	ErrReadOnly   = engine.ErrReadOnly // the store is read-only, or became so after an error
	ErrNoSpace    = uring.ErrNoSpace
	ErrCorrupt    = ordered.ErrCorrupt
	ErrLocked     = uring.ErrLocked
)

// Errors of opening a store.
var (
	ErrNotAStore   = errors.New("not a prismfs store")
	ErrNewerFormat = errors.New("store format is newer than this program")
	ErrNotEmptyDir = errors.New("directory is not empty")
)
