package fs

import (
	"fmt"
	"syscall"
)

// Codes of notifications, the negative "error" of an unsolicited reply.
//
// Source: linux/fuse.h, enum fuse_notify_code.
const (
	notifyInvalInode = 2
	notifyInvalEntry = 3

	// expireOnly lets an entry's timeout run out instead of dropping it: the
	// next use asks again, and what is mounted or open below it stays.
	expireOnly = 1
)

// InvalInode makes the kernel forget ino's attributes and, unless off is
// negative, its cached pages in [off, off+n); n 0 or less means to the end.
//
//   - Concurrency: never from Handle, nor under a lock that a handler takes:
//     the kernel waits here for folios whose READ or WRITE is with us. With a
//     negative off it waits for nothing, and Handle may call it.
//   - Errors: none when the kernel doesn't know the inode.
func (s *Server) InvalInode(ino uint64, off, n int64) error {
	var b [outHeaderLen + 24]byte
	p := b[outHeaderLen:]
	le.PutUint64(p, ino)
	le.PutUint64(p[8:], uint64(off))
	le.PutUint64(p[16:], uint64(n))
	return s.notify("inode", notifyInvalInode, b[:])
}

// InvalEntry makes the kernel forget that name in directory parent, or the
// absence of it. Concurrency and errors are those of InvalInode; it also waits
// for the directory's lock.
func (s *Server) InvalEntry(parent uint64, name string) error {
	return s.invalEntry(parent, name, 0)
}

// ExpireEntry makes the kernel ask again before it next uses the name; mounts
// below it stay, unlike with InvalEntry. Older kernels treat it as InvalEntry.
func (s *Server) ExpireEntry(parent uint64, name string) error {
	return s.invalEntry(parent, name, expireOnly)
}

func (s *Server) invalEntry(parent uint64, name string, flags uint32) error {
	b := make([]byte, outHeaderLen+16+len(name)+1)
	p := b[outHeaderLen:]
	le.PutUint64(p, parent)
	le.PutUint32(p[8:], uint32(len(name)))
	le.PutUint32(p[12:], flags)
	copy(p[16:], name)
	return s.notify("entry", notifyInvalEntry, b)
}

// notify sends an unsolicited message: b with room for the header in front.
func (s *Server) notify(what string, code int32, b []byte) error {
	le.PutUint32(b, uint32(len(b)))
	le.PutUint32(b[4:], uint32(code))
	s.fdMu.RLock()
	defer s.fdMu.RUnlock()
	if s.fd < 0 {
		return fmt.Errorf("fs: invalidate %s: %w", what, ErrNotMounted)
	}
	_, err := syscall.Write(s.fd, b)
	switch err {
	case nil, syscall.ENOENT: // not cached
		return nil
	case syscall.ENODEV:
		err = ErrNotMounted
	}
	return fmt.Errorf("fs: invalidate %s: %w", what, err)
}
