package metadata

import (
	"errors"
	"math"

	"prismfs/uring"
)

// Write implements FS.
//
// A file of at most inlineMax bytes lives in its inode's record. Larger ones
// have extents of whole blocks: a write that covers part of a block reads the
// rest of it and writes the block anew, so that every block has one checksum and
// the number of extents is bounded by the number of blocks.
//
// When the data log finds no room for a segment, what garbage there is goes
// first: only then is the disk full.
func (s *Store) Write(w Wait, ino Ino, off uint64, data []byte, flags WriteFlags) error {
	err := s.write(w, ino, off, data, flags)
	if err == nil || !errors.Is(err, ErrNoSpace) {
		return err
	}
	if w == NoWait {
		return ErrWouldBlock
	}
	if s.makeRoom() {
		err = s.write(w, ino, off, data, flags)
	}
	return err
}

func (s *Store) write(w Wait, ino Ino, off uint64, data []byte, flags WriteFlags) error {
	if err := s.writable(); err != nil {
		return err
	}
	size := uint64(len(data))
	if off > maxFileSize || size > maxFileSize-off {
		return ErrFileTooBig
	}
	if err := s.needSpace(w, int64(size)+1024); err != nil && (err != ErrNoSpace || !s.isReserved(ino, off, size)) {
		return err
	}
	n, err := s.wlock(w, ino)
	if err != nil {
		return err
	}
	defer s.wunlock(n)
	if !n.attr.isRegular() {
		if n.attr.isDir() {
			return ErrIsDir
		}
		return ErrInvalid
	}
	a := n.attr
	if flags&WriteCached == 0 {
		if err := a.mayWrite(off); err != nil {
			return err
		}
	}
	if flags&WriteKeepTimes == 0 {
		now := s.timeNow()
		a.Mtime, a.Ctime = now, now
	}
	if flags&WriteKillPriv != 0 {
		a.killPriv()
	}
	if err := s.beginAppend(w); err != nil {
		return err
	}
	defer s.appendGate.RUnlock()
	t := s.begin()
	defer t.end()
	if err := s.dropCapability(w, t, n, &a); err != nil {
		return err
	}
	after, err := s.writeRange(w, t, n, &a, off, data)
	if err != nil {
		return err
	}
	t.putInode(&a, n.target)
	if err := t.commit(w); err != nil {
		return err
	}
	n.attr = a
	after()
	return nil
}

// beginAppend lets garbage collection know of appends that are not committed
// yet. The caller releases appendGate after the commit.
func (s *Store) beginAppend(w Wait) error {
	if w == Block {
		s.appendGate.RLock()
	} else if !s.appendGate.TryRLock() {
		return ErrWouldBlock
	}
	return nil
}

// writeRange puts a write of data at off into t and a. after makes the change
// in memory once t is committed.
func (s *Store) writeRange(w Wait, t *txn, n *inode, a *Attr, off uint64, data []byte) (after func(), err error) {
	end := off + uint64(len(data))
	if len(data) == 0 {
		return func() {}, nil
	}
	if (a.Inline || a.Blocks == 0) && end <= inlineMax {
		return s.writeInline(w, t, n, a, off, data)
	}
	// The blocks that the write touches, in full.
	lo, hi := blockDown(off), end
	if end < a.Size && end%BlockSize != 0 {
		hi = min(blockUp(end), a.Size)
	}
	buf := data
	if a.Inline {
		// The file outgrows its record: its bytes become blocks.
		if err := s.loadInline(w, n); err != nil {
			return nil, err
		}
		if lo >= blockUp(uint64(len(n.inline))) {
			win, err := s.placeInline(w, t, n, a)
			if err != nil {
				return nil, err
			}
			return s.writeBlocks(w, t, n, a, win, lo, off, hi, data)
		}
		lo = 0
		hi = max(hi, uint64(len(n.inline)))
		buf = make([]byte, hi-lo)
		copy(buf, n.inline)
		copy(buf[off-lo:], data)
		s.dropInline(t, n.ino, a)
		win, err := s.putBlocks(w, t, n, a, wholeWindow(), lo, buf)
		return func() { n.setExtents(win) }, err
	}
	win := wholeWindow()
	if a.Blocks > 0 {
		if win, err = s.extents(w, n, lo, blockUp(hi)); err != nil {
			return nil, err
		}
	}
	return s.writeBlocks(w, t, n, a, win, lo, off, hi, data)
}

// writeBlocks completes the first and last block of a write and places it.
func (s *Store) writeBlocks(w Wait, t *txn, n *inode, a *Attr, win window, lo, off, hi uint64, data []byte) (func(), error) {
	win, err := s.writeWindow(w, t, n, a, win, lo, off, hi, data)
	if err != nil {
		return nil, err
	}
	return func() { n.setExtents(win) }, nil
}

// writeWindow puts a write of data at off, which changes the blocks [lo, hi),
// into t and a, and returns the window as it will be.
func (s *Store) writeWindow(w Wait, t *txn, n *inode, a *Attr, win window, lo, off, hi uint64, data []byte) (window, error) {
	end := off + uint64(len(data))
	if lo == off && hi == end {
		return s.putBlocks(w, t, n, a, win, lo, data)
	}
	buf := make([]byte, hi-lo)
	read := func(from, to uint64) error {
		if from >= a.Size {
			return nil
		}
		to = min(to, a.Size)
		return s.readWindow(w, n.ino, &win, from, buf[from-lo:to-lo], nil)
	}
	if lo < off {
		if err := read(lo, off); err != nil {
			return win, err
		}
	}
	if hi > end {
		if err := read(end, hi); err != nil {
			return win, err
		}
	}
	copy(buf[off-lo:], data)
	return s.putBlocks(w, t, n, a, win, lo, buf)
}

// placeInline moves the record's bytes of a file into an extent, in t and a.
func (s *Store) placeInline(w Wait, t *txn, n *inode, a *Attr) (window, error) {
	s.dropInline(t, n.ino, a)
	win := wholeWindow()
	ext, err := s.appendData(w, n.ino, 0, n.inline)
	if err != nil {
		return win, err
	}
	win, grown := s.replaceRange(t, n.ino, win, 0, blockUp(uint64(len(n.inline))), ext)
	a.Blocks = uint64(grown) / 512
	t.delta.bytes += grown
	return win, nil
}

// dropInline removes a file's bytes from its record, in t and a.
func (s *Store) dropInline(t *txn, ino Ino, a *Attr) {
	t.deleteInline(ino)
	t.delta.bytes -= int64(a.Blocks) * 512
	a.Inline, a.Blocks = false, 0
}

// appendData puts bytes of a file, from a block boundary on, into the data log.
func (s *Store) appendData(w Wait, ino Ino, off uint64, data []byte) ([]extent, error) {
	ext := make([]extent, 0, len(data)/extentMax+2)
	for len(data) > 0 {
		k := int(min(uint64(len(data)), extentMax-off%extentMax))
		x, _, err := s.dlog.Append(uint64(ino), off, data[:k], w == NoWait)
		if err != nil {
			if errors.Is(err, uring.ErrWouldBlock) {
				return nil, ErrWouldBlock
			}
			s.noteFailure(err)
			return nil, err
		}
		ext = append(ext, extent{off: off, length: uint64(k), kind: extentData, seg: x.Seg, pos: x.Off, payload: x.Raw, sums: x.Sums})
		off += uint64(k)
		data = data[k:]
	}
	return ext, nil
}

// putBlocks places buf at the block boundary lo, replacing what was there.
func (s *Store) putBlocks(w Wait, t *txn, n *inode, a *Attr, win window, lo uint64, buf []byte) (window, error) {
	ext, err := s.appendData(w, n.ino, lo, buf)
	if err != nil {
		return win, err
	}
	end := lo + uint64(len(buf))
	win, grown := s.replaceRange(t, n.ino, win, lo, blockUp(end), ext)
	a.Blocks = uint64(int64(a.Blocks) + grown/512)
	a.Size = max(a.Size, end)
	t.delta.bytes += grown
	return win, nil
}

// setExtents makes win what memory shows of a file with extents.
func (n *inode) setExtents(win window) {
	if len(n.inline) > 0 {
		n.ext.forget()
	}
	n.inline, n.haveInl = nil, true
	n.ext.store(win)
}

// setInline makes b what memory shows of a small file.
func (n *inode) setInline(b []byte) {
	n.inline, n.haveInl = b, true
	n.ext.forget()
}

// writeInline writes into the bytes that live in the inode's record.
func (s *Store) writeInline(w Wait, t *txn, n *inode, a *Attr, off uint64, data []byte) (func(), error) {
	var old []byte
	if a.Inline {
		if err := s.loadInline(w, n); err != nil {
			return nil, err
		}
		old = n.inline
	}
	end := off + uint64(len(data))
	b := make([]byte, max(end, uint64(len(old))))
	copy(b, old)
	copy(b[off:], data)
	t.putInline(n.ino, b)
	s.setInline(t, a, len(b))
	a.Size = max(a.Size, end)
	return func() { n.setInline(b) }, nil
}

// setInline accounts for a small file of k bytes.
func (s *Store) setInline(t *txn, a *Attr, k int) {
	blocks := blockUp(uint64(k)) / 512
	t.delta.bytes += int64(blocks)*512 - int64(a.Blocks)*512
	a.Inline, a.Blocks = k > 0, blocks
}

// resize puts a change of size into t and a (truncate, ftruncate).
func (s *Store) resize(w Wait, t *txn, n *inode, a *Attr, size uint64) (after func(), err error) {
	shrink := size < a.Size
	a.Size = size
	switch {
	case !shrink:
		// Growth is a hole: an extent says how far its bytes go, and bytes
		// behind it are zeros.
		return nil, nil
	case a.Inline:
		if err := s.loadInline(w, n); err != nil {
			return nil, err
		}
		if size >= uint64(len(n.inline)) {
			return nil, nil
		}
		b := append([]byte(nil), n.inline[:size]...)
		if size == 0 {
			t.deleteInline(n.ino)
		} else {
			t.putInline(n.ino, b)
		}
		s.setInline(t, a, len(b))
		return func() { n.inline, n.haveInl = b, true }, nil
	case a.Blocks == 0:
		return nil, nil
	}
	win, err := s.extents(w, n, blockDown(size), noLimit)
	if err != nil {
		return nil, err
	}
	win, grown := s.cutAfter(t, n.ino, win, size)
	a.Blocks = uint64(int64(a.Blocks) + grown/512)
	t.delta.bytes += grown
	return func() { n.ext.store(win) }, nil
}

// cutAfter drops every byte of extents from size on. The window covers
// [blockDown(size), noLimit).
func (s *Store) cutAfter(t *txn, ino Ino, win window, size uint64) (window, int64) {
	var keep []extent
	lo := blockDown(size)
	if i := win.at(lo); size > lo && i < len(win.ext) && win.ext[i].off < size {
		e := win.ext[i]
		if e.off < lo {
			e = e.tail(lo)
		}
		keep = append(keep, e.cut(min(size, e.end())))
	}
	return s.replaceRange(t, ino, win, lo, noLimit, keep)
}

// Fallocate implements FS.
func (s *Store) Fallocate(w Wait, ino Ino, mode uint32, off, size uint64) error {
	if err := s.writable(); err != nil {
		return err
	}
	switch mode {
	case 0, FallocKeepSize, FallocKeepSize | FallocPunchHole, FallocZeroRange, FallocZeroRange | FallocKeepSize:
	default:
		return ErrUnsupported
	}
	if size == 0 || off > math.MaxInt64 || size > math.MaxInt64 {
		return ErrInvalid
	}
	if off > maxFileSize || size > maxFileSize-off {
		return ErrFileTooBig
	}
	punch := mode&FallocPunchHole != 0
	if !punch {
		if err := s.needSpace(w, 4096); err != nil {
			return err
		}
		if mode&FallocZeroRange == 0 {
			if err := s.roomFor(w, blockUp(off+size)-blockDown(off)); err != nil {
				return err
			}
		}
	}
	n, err := s.wlock(w, ino)
	if err != nil {
		return err
	}
	defer s.wunlock(n)
	if !n.attr.isRegular() {
		if n.attr.isDir() {
			return ErrIsDir
		}
		return ErrUnsupported
	}
	a := n.attr
	if a.immutable() || a.kept() && mode&^FallocKeepSize != 0 {
		return ErrPerm
	}
	now := s.timeNow()
	a.Mtime, a.Ctime = now, now
	a.killPriv()
	if err := s.beginAppend(w); err != nil {
		return err
	}
	defer s.appendGate.RUnlock()
	t := s.begin()
	defer t.end()
	if err := s.dropCapability(w, t, n, &a); err != nil {
		return err
	}
	after := func() {}
	end := off + size
	if punch || mode&FallocZeroRange != 0 {
		after, err = s.zeroRange(w, t, n, &a, off, end, !punch)
	} else {
		after, err = s.reserveRange(w, t, n, &a, off, end)
	}
	if err != nil {
		return err
	}
	if mode&FallocKeepSize == 0 {
		a.Size = max(a.Size, end)
	}
	t.putInode(&a, n.target)
	if err := t.commit(w); err != nil {
		return err
	}
	if !punch {
		s.space.expire() // there is less for others
	}
	n.attr = a
	after()
	return nil
}

// toExtents turns a small file into one with extents, in t and a, and returns
// its window; a file that has extents gets its window loaded.
func (s *Store) toExtents(w Wait, t *txn, n *inode, a *Attr, lo, hi uint64) (window, error) {
	if a.Inline {
		if err := s.loadInline(w, n); err != nil {
			return window{}, err
		}
		return s.placeInline(w, t, n, a)
	}
	if a.Blocks == 0 {
		return wholeWindow(), nil
	}
	return s.extents(w, n, lo, hi)
}

// reserveRange makes the holes of a range unwritten extents.
func (s *Store) reserveRange(w Wait, t *txn, n *inode, a *Attr, off, end uint64) (func(), error) {
	lo, hi := blockDown(off), blockUp(end)
	win, err := s.toExtents(w, t, n, a, lo, hi)
	if err != nil {
		return nil, err
	}
	var grown int64
	for pos := lo; pos < hi; {
		i := win.at(pos)
		next := hi
		if i < len(win.ext) {
			if e := &win.ext[i]; e.off <= pos {
				pos = blockUp(e.end())
				continue
			} else {
				next = min(hi, e.off)
			}
		}
		var g int64
		win, g = s.replaceRange(t, n.ino, win, pos, next, []extent{{off: pos, length: next - pos, kind: extentUnwritten}})
		grown += g
		pos = next
	}
	a.Blocks = uint64(int64(a.Blocks) + grown/512)
	t.delta.bytes += grown
	return func() { n.setExtents(win) }, nil
}

// isReserved tells whether a range is all unwritten extents: what fills those
// has its room already.
func (s *Store) isReserved(ino Ino, off, size uint64) bool {
	n, err := s.wlock(Block, ino)
	if err != nil {
		return false
	}
	defer s.wunlock(n)
	if n.attr.Inline || n.attr.Blocks == 0 {
		return false
	}
	pos, end := blockDown(off), blockUp(off+size)
	win, err := s.extents(Block, n, pos, end)
	if err != nil {
		return false
	}
	for i := win.at(pos); i < len(win.ext) && pos < end; i++ {
		e := &win.ext[i]
		if e.kind != extentUnwritten || e.off > pos {
			return false
		}
		pos = e.end()
	}
	return pos >= end
}

// roomFor refuses a reservation that could never be filled. A blocking caller,
// who holds no lock, first waits for deletions under way.
func (s *Store) roomFor(w Wait, bytes uint64) error {
	for waited := false; ; waited = true {
		free, _, err := s.freeSpace()
		switch {
		case err != nil || bytes <= uint64(free):
			return err
		case w == NoWait:
			return ErrWouldBlock
		case waited:
			return ErrNoSpace
		}
		s.reclaimer.drain(s)
	}
}

// zeroRange makes a range read as zeros: whole blocks become a hole or, with
// keep, unwritten extents; parts of blocks are written.
func (s *Store) zeroRange(w Wait, t *txn, n *inode, a *Attr, off, end uint64, keep bool) (func(), error) {
	if a.Inline && (!keep || end <= inlineMax) {
		if err := s.loadInline(w, n); err != nil {
			return nil, err
		}
		if off >= uint64(len(n.inline)) {
			return func() {}, nil
		}
		b := append([]byte(nil), n.inline...)
		clear(b[off:min(end, uint64(len(b)))])
		t.putInline(n.ino, b)
		return func() { n.inline, n.haveInl = b, true }, nil
	}
	if !keep && a.Blocks == 0 {
		return func() {}, nil
	}
	lo, hi := blockDown(off), blockUp(end)
	win, err := s.toExtents(w, t, n, a, lo, hi)
	if err != nil {
		return nil, err
	}
	// The zeros of a block's part are written like any bytes; a block of which
	// nothing is mapped is zeros already.
	edge := func(from, to uint64) error {
		if from >= to || from >= a.Size {
			return nil
		}
		i := win.at(blockDown(from))
		if i >= len(win.ext) || win.ext[i].off > from || win.ext[i].kind == extentUnwritten {
			return nil
		}
		to = min(to, a.Size)
		var err error
		win, err = s.writeZeros(w, t, n, a, win, from, to)
		return err
	}
	whole := [2]uint64{blockUp(off), blockDown(end)}
	if end >= a.Size && !keep {
		whole[1] = hi // nothing of the last block is left
	}
	if whole[0] > whole[1] { // inside one block
		if err := edge(off, end); err != nil {
			return nil, err
		}
	} else {
		if err := edge(off, min(whole[0], end)); err != nil {
			return nil, err
		}
		if whole[1] < end {
			if err := edge(whole[1], end); err != nil {
				return nil, err
			}
		}
		if keep {
			whole = [2]uint64{whole[0], max(whole[0], whole[1])}
		}
		if whole[0] < whole[1] {
			var next []extent
			if keep {
				next = []extent{{off: whole[0], length: whole[1] - whole[0], kind: extentUnwritten}}
			}
			var grown int64
			win, grown = s.replaceRange(t, n.ino, win, whole[0], whole[1], next)
			a.Blocks = uint64(int64(a.Blocks) + grown/512)
			t.delta.bytes += grown
		}
	}
	return func() { n.setExtents(win) }, nil
}

// writeZeros writes zeros into part of one block and returns the window.
func (s *Store) writeZeros(w Wait, t *txn, n *inode, a *Attr, win window, from, to uint64) (window, error) {
	hi := to
	if to < a.Size {
		hi = min(blockUp(to), a.Size)
	}
	return s.writeWindow(w, t, n, a, win, blockDown(from), from, hi, make([]byte, to-from))
}
