package metadata

import (
	"errors"
	"fmt"
	"time"

	"prismfs/engine"
	"prismfs/ordered"
	"prismfs/uring"
)

// inlineMax is the largest file kept in its inode's record, in bytes.
const inlineMax = 4096

// pieceFix says what to do with a piece once its bytes have arrived.
type pieceFix struct {
	seg  *ordered.Segment
	ext  ordered.Extent
	off  int    // of the piece in the extent's payload, block aligned
	dst  []byte // where the wanted bytes go, nil if they were read in place
	skip int    // offset of the wanted bytes in the piece
	ino  Ino
	at   uint64 // file offset, for reports
	s    *Store
}

// Finish verifies the pieces, puts them in place and unpins their segments.
//
//   - Errors: ErrCorrupt; after an error the destination's content is undefined.
func (p *ReadPlan) Finish() error {
	var first error
	for i := range p.fix {
		f := &p.fix[i]
		buf := p.Pieces[i].Buf
		if err := ordered.VerifyBlocks(&f.ext, f.off, buf); err != nil {
			err = f.s.damage("data", f.ino, f.at, err)
			if first == nil {
				first = err
			}
		} else if f.dst != nil {
			copy(f.dst, buf[f.skip:])
		}
	}
	p.Abort()
	return first
}

// Abort unpins the segments of a plan that is not to be finished.
func (p *ReadPlan) Abort() {
	for i := range p.fix {
		p.fix[i].seg.Release()
		p.fix[i] = pieceFix{}
		p.Pieces[i] = Piece{}
	}
	p.Pieces, p.fix = p.Pieces[:0], p.fix[:0]
}

// Read implements FS. It notes the access as relatime does.
func (s *Store) Read(w Wait, ino Ino, off uint64, dst []byte, plan *ReadPlan) (int, error) {
	k, touch, err := s.read(w, ino, off, dst, plan)
	if touch && err == nil {
		s.touch(ino)
	}
	return k, err
}

func (s *Store) read(w Wait, ino Ino, off uint64, dst []byte, plan *ReadPlan) (k int, touch bool, err error) {
	n, err := s.rlock(w, ino)
	if err != nil {
		return 0, false, err
	}
	if !n.readable(off, uint64(len(dst))) {
		// What is missing in memory is loaded under the exclusive lock.
		s.runlock(n)
		if n, err = s.wlock(w, ino); err != nil {
			return 0, false, err
		}
		defer s.wunlock(n)
		if err := s.loadForRead(w, n, off, uint64(len(dst))); err != nil {
			return 0, false, err
		}
	} else {
		defer s.runlock(n)
	}
	if n.attr.isDir() {
		return 0, false, ErrIsDir
	}
	if off >= n.attr.Size {
		return 0, false, nil
	}
	touch = !s.opts.NoAtime && !s.opts.ReadOnly && n.attr.atimeDue(s.timeNow(), s.opts.StrictAtime)
	if left := n.attr.Size - off; uint64(len(dst)) > left {
		dst = dst[:left]
	}
	if plan != nil {
		plan.want = len(dst)
	}
	var win window
	if !n.attr.Inline && n.attr.Blocks > 0 {
		var ok bool
		if win, ok = n.ext.find(off, off+uint64(len(dst))); !ok {
			// What is not known must not read as a hole.
			return 0, false, fmt.Errorf("metadata: extents of inode %d at %d were loaded and are not there", n.ino, off)
		}
	}
	err = s.readLocked(w, n, &win, off, dst, plan)
	if err != nil {
		if plan != nil {
			plan.Abort()
		}
		return 0, false, err
	}
	if plan != nil && len(plan.Pieces) > 0 {
		plan.N = len(dst)
		return 0, touch, nil
	}
	return len(dst), touch, nil
}

// readable says that memory holds what a read of a range needs to find its bytes.
func (n *inode) readable(off, size uint64) bool {
	if n.attr.Inline {
		return n.haveInl
	}
	if off >= n.attr.Size || n.attr.Blocks == 0 {
		return true
	}
	return n.ext.has(off, min(off+size, n.attr.Size))
}

func (s *Store) loadForRead(w Wait, n *inode, off, size uint64) error {
	if n.attr.Inline {
		return s.loadInline(w, n)
	}
	if off >= n.attr.Size || n.attr.Blocks == 0 {
		return nil
	}
	_, err := s.extents(w, n, off, min(off+size, n.attr.Size))
	return err
}

// loadInline brings a small file's bytes into memory.
func (s *Store) loadInline(w Wait, n *inode) error {
	if n.haveInl {
		return nil
	}
	var kb [keyPrefixLen + 8]byte
	b, err := s.db.Get(nil, inlineKey(kb[:0], n.ino), w)
	if err == engine.ErrNotFound {
		return s.damage("small file", n.ino, 0, fmt.Errorf("its bytes are missing: %w", ErrCorrupt))
	}
	if err != nil {
		return err
	}
	n.inline, n.haveInl = b, true
	return nil
}

// readLocked fills dst from off on; bytes that nothing covers are zeros. The
// range lies in the file and in win (a small file: its bytes are in memory), and
// the inode is locked. With a plan, pieces that are not in memory are left to it.
func (s *Store) readLocked(w Wait, n *inode, win *window, off uint64, dst []byte, plan *ReadPlan) error {
	if n.attr.Inline {
		k := 0
		if off < uint64(len(n.inline)) {
			k = copy(dst, n.inline[off:])
		}
		clear(dst[k:])
		return nil
	}
	return s.readWindow(w, n.ino, win, off, dst, plan)
}

func (s *Store) readWindow(w Wait, ino Ino, win *window, off uint64, dst []byte, plan *ReadPlan) error {
	end := off + uint64(len(dst))
	pos := off
	for i := win.at(off); i < len(win.ext) && pos < end; i++ {
		e := &win.ext[i]
		if e.off >= end {
			break
		}
		if e.off > pos {
			clear(dst[pos-off : e.off-off])
			pos = e.off
		}
		stop := min(e.end(), end)
		part := dst[pos-off : stop-off]
		if e.kind == extentUnwritten {
			clear(part)
		} else if err := s.readExtent(w, ino, e, pos, part, plan); err != nil {
			return err
		}
		pos = stop
	}
	clear(dst[pos-off:])
	return nil
}

// readExtent reads the bytes of one extent from file offset pos on.
func (s *Store) readExtent(w Wait, ino Ino, e *extent, pos uint64, dst []byte, plan *ReadPlan) error {
	x := e.log()
	skip := int(pos - e.off)
	toRing := plan != nil && plan.Ring && len(dst) == plan.want
	for {
		if !toRing {
			err := s.dlog.ReadAt(&x, skip, dst, w == NoWait || plan != nil)
			if err == nil {
				return nil
			}
			if !errors.Is(err, uring.ErrWouldBlock) {
				return s.damage("data", ino, pos, err)
			}
			if plan == nil {
				return ErrWouldBlock
			}
		}
		seg, inMemory, err := s.dlog.Locate(&x, w == NoWait)
		if errors.Is(err, uring.ErrWouldBlock) {
			return ErrWouldBlock
		}
		if err != nil {
			return s.damage("data", ino, pos, err)
		}
		if inMemory {
			seg.Release()
			toRing = false
			continue
		}
		lo := skip &^ (BlockSize - 1)
		hi := min(int(blockUp(uint64(skip+len(dst)))), int(e.payload))
		f := pieceFix{seg: seg, ext: x, off: lo, ino: ino, at: pos, s: s}
		buf := dst
		if lo != skip || hi != skip+len(dst) {
			buf = make([]byte, hi-lo)
			f.dst, f.skip = dst, skip-lo
		}
		plan.Pieces = append(plan.Pieces, Piece{File: seg.File(), Off: int64(e.pos) + int64(lo), Buf: buf})
		plan.fix = append(plan.fix, f)
		return nil
	}
}

// touch records a read in the access time. It never waits, and an access time
// that could not be noted is not an error.
func (s *Store) touch(ino Ino) {
	if s.writable() != nil {
		return
	}
	n, err := s.wlock(NoWait, ino)
	if err != nil {
		return
	}
	defer s.wunlock(n)
	a := n.attr
	a.Atime = s.timeNow()
	t := s.begin()
	defer t.end()
	t.putInode(&a, n.target)
	if t.commit(NoWait) == nil {
		n.attr = a
	}
}

const noatimeFlag = 0x80 // FS_NOATIME_FL

// atimeDue is relatime unless strict: the access time moves if it is not later
// than the last change, or a day old. Source: relatime_need_update in the kernel.
func (a *Attr) atimeDue(now Time, strict bool) bool {
	if a.Flags&noatimeFlag != 0 {
		return false
	}
	return strict || !a.Atime.after(a.Mtime) || !a.Atime.after(a.Ctime) || now.Sec-a.Atime.Sec > int64(24*time.Hour/time.Second)
}

func (t Time) after(u Time) bool { return t.Sec > u.Sec || t.Sec == u.Sec && t.Nsec > u.Nsec }

// Lseek implements FS.
func (s *Store) Lseek(w Wait, ino Ino, off uint64, whence uint32) (uint64, error) {
	n, err := s.wlock(w, ino)
	if err != nil {
		return 0, err
	}
	defer s.wunlock(n)
	if whence != SeekData && whence != SeekHole {
		return 0, ErrInvalid
	}
	size := n.attr.Size
	if off >= size {
		return 0, ErrNoSuchOffset
	}
	if n.attr.Inline {
		if err := s.loadInline(w, n); err != nil {
			return 0, err
		}
		end := min(blockUp(uint64(len(n.inline))), size)
		switch {
		case whence == SeekData && off < end, whence == SeekHole && off >= end:
			return off, nil
		case whence == SeekHole:
			return end, nil
		}
		return 0, ErrNoSuchOffset
	}
	if n.attr.Blocks == 0 {
		if whence == SeekHole {
			return off, nil
		}
		return 0, ErrNoSuchOffset
	}
	for pos := off; pos < size; {
		win, err := s.extents(w, n, pos, pos+1)
		if err != nil {
			return 0, err
		}
		for i := win.at(pos); i < len(win.ext) && pos < size; i++ {
			e := &win.ext[i]
			if e.kind == extentUnwritten {
				continue
			}
			if e.off > pos && whence == SeekHole {
				return pos, nil
			}
			if whence == SeekData {
				if p := max(pos, e.off); p < size {
					return p, nil
				}
				return 0, ErrNoSuchOffset
			}
			pos = min(blockUp(e.end()), size)
		}
		if win.hi >= size {
			if whence == SeekHole {
				return min(pos, size), nil
			}
			return 0, ErrNoSuchOffset
		}
		if whence == SeekHole && pos < win.hi {
			return pos, nil
		}
		pos = max(pos, win.hi)
	}
	if whence == SeekHole {
		return size, nil
	}
	return 0, ErrNoSuchOffset
}
