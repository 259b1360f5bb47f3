package uring

import (
	"io"
	"io/fs"
	"syscall"

	"prismfs/lanes"
)

// Disk is one directory tree. Names are relative and slash-separated as in
// fs.ValidPath; "" and "." name the root. All methods are safe for concurrent
// use and may block on the disk.
type Disk interface {
	// Create makes or truncates a file and opens it for reading and writing.
	// The name is durable only after SyncDir of its directory.
	Create(name string) (File, error)
	// Open opens an existing file, for writing too if the disk is writable.
	Open(name string) (File, error)
	// Remove unlinks a file or an empty directory. Open files keep their data.
	Remove(name string) error
	// Rename replaces newName if it exists.
	Rename(oldName, newName string) error
	// MkdirAll makes a directory and its missing parents.
	MkdirAll(name string) error
	// List returns the sorted names of all entries of a directory.
	List(dir string) ([]string, error)
	Stat(name string) (size int64, err error)
	// Exists is false on any error: use Stat where the difference matters.
	Exists(name string) bool
	// SyncDir makes the entries of one directory durable.
	SyncDir(dir string) error
	Free() (Space, error)
	ReadOnly() bool
	// Mode says how asynchronous reads run: "io_uring", "pread" or "sim".
	Mode() string
	// Lock takes an exclusive lock on name, creating it if need be, and
	// returns ErrLocked at once if it is taken, be it by this process.
	Lock(name string) (io.Closer, error)
	// Close waits for asynchronous reads in flight. Open files stay usable
	// except for ReadAsync, and must be closed by their owners.
	Close() error
}

// Space is the room on the file system below a Disk.
type Space struct {
	BlockSize int64 // bytes
	Total     int64 // bytes
	Free      int64 // bytes available to us
	Files     int64 // inodes in all
	FilesFree int64 // inodes left
}

// File is an open file. All methods are safe for concurrent use; after Close
// they return ErrClosed. Close does not wait: operations under way finish on
// the still open descriptor.
type File interface {
	Name() string
	Size() (int64, error)
	// ReadAt blocks; it fills p or returns an error, io.EOF past the end.
	ReadAt(p []byte, off int64) (int, error)
	// ReadAtNoWait reads what memory holds: ErrWouldBlock unless all of the
	// range (up to the end of the file) is in the page cache.
	ReadAtNoWait(p []byte, off int64) (int, error)
	// ReadAsync starts a read and never blocks. After nil, r and r.P belong to
	// the disk until r.Done runs on the CPU pool; after an error Done won't run.
	ReadAsync(r *Read) error
	// WriteAt writes all of p or returns an error; n bytes may then be written.
	WriteAt(p []byte, off int64) (int, error)
	// Datasync makes the data and the size durable, not the name.
	Datasync() error
	// Sync makes data, size and attributes durable, not the name.
	Sync() error
	// StartWriteback asks the kernel to begin writing a range. Only a hint.
	StartWriteback(off, n int64)
	// Prefetch asks the kernel to begin reading a range into the page cache.
	// Only a hint.
	Prefetch(off, n int64)
	// Allocate reserves space. keepSize leaves the size alone; otherwise the
	// file grows to off+n and reads as zeros there. On file systems without
	// fallocate, zeros are written beyond the size, and keepSize only checks
	// that the room is there.
	Allocate(off, n int64, keepSize bool) error
	Truncate(n int64) error
	// Fd is the descriptor, -1 for a simulated file. It is valid until Close.
	Fd() int
	Close() error
}

// Read is one asynchronous read. It is reusable once Done has run.
type Read struct {
	P    []byte // never on a stack: the kernel writes here while we run
	Off  int64
	N    int   // result: bytes read
	Err  error // result: nil, io.EOF when N < len(P), or the error
	Done *lanes.Job

	job     lanes.Job // carries the read to the BlockingIO lane
	file    *file
	next    *Read // reactor's queue
	shallow bool  // counted in the reactor's shallow
}

// CheckName returns the cleaned name, "." for the root, or EINVAL for what
// could leave the tree.
func CheckName(name string) (string, error) {
	if name == "" {
		return ".", nil
	}
	if !fs.ValidPath(name) {
		return "", syscall.EINVAL
	}
	return name, nil
}
