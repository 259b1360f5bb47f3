package ordered

import (
	"errors"
	"fmt"
	"io"

	"prismfs/uring"
)

// ReadAt fills p with the bytes from off on of the extent's content. Every
// SumBlock that is touched is checked, or the whole of a compressed extent;
// bytes still in memory are copied.
//
// Errors: ErrCorrupt with segment and offset when the bytes are there and
// wrong, or missing; uring.ErrWouldBlock with nowait; else the disk's.
func (d *DataLog) ReadAt(e *Extent, off int, p []byte, nowait bool) error {
	if err := e.check(); err != nil {
		return err
	}
	if off < 0 || len(p) > int(e.Raw)-off {
		return errRange(e, off, len(p))
	}
	if len(p) == 0 {
		return nil
	}
	if e.Codec != CodecRaw {
		return d.readCompressed(e, off, p, nowait)
	}
	if d.copyFromMemory(e.Seg, int64(e.Off)+int64(off), p) {
		return nil
	}
	from := off &^ (SumBlock - 1)
	to := min((off+len(p)+SumBlock-1)&^(SumBlock-1), int(e.Raw))
	whole := p
	if to-from != len(p) {
		b := borrow(to - from)
		defer buffers.Put(b)
		whole = *b
	}
	if err := d.readFile(e, from, whole, nowait); err != nil {
		return err
	}
	if err := VerifyBlocks(e, from, whole); err != nil {
		return err
	}
	if to-from != len(p) {
		copy(p, whole[off-from:])
	}
	return nil
}

func (d *DataLog) readCompressed(e *Extent, off int, p []byte, nowait bool) error {
	stored := borrow(int(e.Stored))
	defer buffers.Put(stored)
	if !d.copyFromMemory(e.Seg, int64(e.Off), *stored) {
		if err := d.readFile(e, 0, *stored, nowait); err != nil {
			return err
		}
		if err := VerifyBlocks(e, 0, *stored); err != nil {
			return err
		}
	}
	return d.Decompress(e, off, p, *stored)
}

// Decompress fills p from off on of the content of a compressed extent whose
// stored bytes have been read and verified.
func (d *DataLog) Decompress(e *Extent, off int, p, stored []byte) error {
	if err := e.check(); err != nil {
		return err
	}
	if off < 0 || len(p) > int(e.Raw)-off {
		return errRange(e, off, len(p))
	}
	if off == 0 && len(p) == int(e.Raw) {
		return d.comp.decompress(e, p, stored)
	}
	raw := borrow(int(e.Raw))
	defer buffers.Put(raw)
	if err := d.comp.decompress(e, *raw, stored); err != nil {
		return err
	}
	copy(p, (*raw)[off:])
	return nil
}

func errRange(e *Extent, off, n int) error {
	return fmt.Errorf("ordered: read %d bytes at %d of extent %d:%d of %d bytes: out of range", n, off, e.Seg, e.Off, e.Raw)
}

// copyFromMemory fills p if a chunk holds all of it.
func (d *DataLog) copyFromMemory(seg uint32, off int64, p []byte) bool {
	if MakePos(seg, uint32(off)) < Pos(d.memFrom.Load()) {
		return false
	}
	d.mu.Lock()
	c := d.findLocked(seg, off, len(p))
	if c == nil {
		d.mu.Unlock()
		return false
	}
	c.readers++
	d.mu.Unlock()
	copy(p, c.buf[off-c.off:])
	d.mu.Lock()
	c.readers--
	if c.readers == 0 {
		d.room.Broadcast()
	}
	d.mu.Unlock()
	return true
}

// readFile fills p from the payload's stored bytes at off.
func (d *DataLog) readFile(e *Extent, off int, p []byte, nowait bool) error {
	s, f, err := d.pin(e.Seg, nowait)
	if err != nil {
		if errors.Is(err, ErrNoSegment) {
			err = fmt.Errorf("%w (%w)", err, ErrCorrupt)
		}
		return err
	}
	defer s.Release()
	at := int64(e.Off) + int64(off)
	var n int
	if nowait {
		n, err = f.ReadAtNoWait(p, at)
	} else {
		n, err = f.ReadAt(p, at)
	}
	switch {
	case n == len(p):
		return nil
	case errors.Is(err, uring.ErrWouldBlock):
		return uring.ErrWouldBlock
	case err == nil || errors.Is(err, io.EOF):
		return fmt.Errorf("ordered: segment %d offset %d: %d bytes of %d: %w", e.Seg, at, n, len(p), ErrCorrupt)
	}
	return fmt.Errorf("ordered: read segment %d at %d: %w", e.Seg, at, err)
}

// Locate pins the segment of e for a read of the caller's own, at e.Off of
// Segment.File, to be checked with VerifyBlocks. inMemory says that ReadAt
// would not touch the disk; the file may not have the bytes yet then.
func (d *DataLog) Locate(e *Extent, nowait bool) (s *Segment, inMemory bool, err error) {
	if err := e.check(); err != nil {
		return nil, false, err
	}
	s, _, err = d.pin(e.Seg, nowait)
	if err != nil {
		if errors.Is(err, ErrNoSegment) {
			err = fmt.Errorf("%w (%w)", err, ErrCorrupt)
		}
		return nil, false, err
	}
	d.mu.Lock()
	inMemory = d.findLocked(e.Seg, int64(e.Off), int(e.Stored)) != nil
	d.mu.Unlock()
	return s, inMemory, nil
}

// Verify reads all of an extent. ErrCorrupt says that the bytes are not there;
// any other error says nothing about them.
func (d *DataLog) Verify(e *Extent) error {
	if err := e.check(); err != nil {
		return err
	}
	b := borrow(int(e.Raw))
	defer buffers.Put(b)
	return d.ReadAt(e, 0, *b, false)
}
