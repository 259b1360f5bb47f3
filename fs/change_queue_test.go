package fs

import (
	"testing"

	"prismfs/metadata"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// stalledFS is a store whose changes wait until they are let go, as they do while
// the engine is behind; everything else that may wait is answered.
type stalledFS struct {
	*fakeFS
	entered chan struct{}
	release chan struct{}
}

func (s *stalledFS) Rmdir(w metadata.Wait, parent metadata.Ino, name []byte) error {
	if w == metadata.NoWait {
		return metadata.ErrWouldBlock
	}
	s.entered <- struct{}{}
	<-s.release
	return nil
}

func (s *stalledFS) Getattr(w metadata.Wait, ino metadata.Ino, out *metadata.Attr) error {
	if w == metadata.NoWait {
		return metadata.ErrWouldBlock
	}
	return nil
}

// TestStalledChangesLeaveRoomForReads: changes that wait must not take every
// worker of the lane that cold lookups need.
func TestStalledChangesLeaveRoomForReads(t *testing.T) {
	f := newFakeFS(t)
	f.quiet = true
	s := &stalledFS{f, make(chan struct{}), make(chan struct{})}
	d := NewHandler(s, HandlerOptions{})
	workers := f.lanes.BlockingIO.Workers()
	ft := newFakeTransport()
	const changes = 20
	for range changes {
		r := &Request{owner: ft}
		fill(t, r, apart, OpRmdir, 5, nil, []byte("name\x00"))
		d.Handle(r)
	}
	for range workers - 1 {
		<-s.entered
	}
	r := &Request{owner: ft}
	fill(t, r, apart, OpGetattr, 5, opIn(fuse.GetAttrIn{}), nil)
	d.Handle(r)
	<-ft.answers // the lookup is answered while all changes wait
	for i := range changes {
		s.release <- struct{}{}
		<-ft.answers
		if workers-1+i < changes {
			<-s.entered // the next in line took its place
		}
	}
}
