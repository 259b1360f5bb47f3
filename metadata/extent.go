package metadata

import (
	"encoding/binary"
	"fmt"
	"math"
	"sort"

	"prismfs/engine"
	"prismfs/ordered"
)

// BlockSize is the granularity of extents, checksums, holes and space, in bytes.
const BlockSize = 4096

// extentMax is the longest extent of written data, in bytes: what one checksum
// list covers and one compression or GC step moves.
const extentMax = 128 << 10

// maxFileSize is where EFBIG begins, in bytes.
const maxFileSize = 1 << 62

// Kinds of extents. Ranges of a file that no extent covers are holes.
const (
	extentData      = 1 // bytes in the data log
	extentUnwritten = 2 // reserved by fallocate(2), reads as zeros
)

// extent maps a range of a file. Extents of a file never overlap, begin at
// multiples of BlockSize, and end at one unless they hold the file's last byte.
//
// payload is how many bytes at seg:pos the checksums cover; it exceeds length
// where a truncation cut the extent inside a block, since that block can only be
// verified whole.
//
// Value, version in the high bits of the kind byte, little-endian:
//
//	kind u8, reserved u8 u16, segment u32, position u32, payload u32, length u64, crc32c u32 per block of payload
type extent struct {
	off     uint64
	length  uint64
	seg     uint32
	pos     uint32
	payload uint32
	kind    uint8
	sums    []byte
}

const extentFixedLen = 24

func (e *extent) end() uint64 { return e.off + e.length }

// space is what the extent occupies, in bytes of whole blocks.
func (e *extent) space() uint64 { return blockUp(e.length) }

// stored is what the extent keeps alive in its segment, in bytes.
func (e *extent) stored() int64 {
	if e.kind != extentData {
		return 0
	}
	return int64(e.payload)
}

func blockDown(x uint64) uint64 { return x &^ (BlockSize - 1) }
func blockUp(x uint64) uint64   { return (x + BlockSize - 1) &^ (BlockSize - 1) }

// log returns the extent as the data log knows it.
func (e *extent) log() ordered.Extent {
	return ordered.Extent{Seg: e.seg, Off: e.pos, Stored: e.payload, Raw: e.payload, Sums: e.sums}
}

// logEnd is the position behind the extent's last byte.
func (e *extent) logEnd() ordered.Pos {
	return ordered.Pos(uint64(e.seg)<<32 | uint64(e.pos) + uint64(e.payload))
}

func appendExtent(dst []byte, e *extent) []byte {
	le := binary.LittleEndian
	dst = append(dst, e.kind, 0, 0, 0)
	dst = le.AppendUint32(dst, e.seg)
	dst = le.AppendUint32(dst, e.pos)
	dst = le.AppendUint32(dst, e.payload)
	dst = le.AppendUint64(dst, e.length)
	return append(dst, e.sums...)
}

// decodeExtent parses an extent's value; sums are a copy.
func decodeExtent(off uint64, b []byte) (extent, error) {
	bad := func() (extent, error) {
		return extent{}, fmt.Errorf("extent at offset %d: %w", off, ErrCorrupt)
	}
	if len(b) < extentFixedLen {
		return bad()
	}
	le := binary.LittleEndian
	e := extent{off: off, kind: b[0], seg: le.Uint32(b[4:]), pos: le.Uint32(b[8:]), payload: le.Uint32(b[12:]), length: le.Uint64(b[16:])}
	sums := b[extentFixedLen:]
	blocks := (uint64(e.payload) + BlockSize - 1) / BlockSize
	switch {
	case e.length == 0 || off%BlockSize != 0 || off > maxFileSize || e.length > maxFileSize:
		return bad()
	case e.kind == extentUnwritten && (len(sums) != 0 || e.payload != 0):
		return bad()
	case e.kind == extentData && (uint64(len(sums)) != 4*blocks || e.length > uint64(e.payload) || blockUp(e.length) < blockUp(uint64(e.payload))):
		return bad()
	case e.kind != extentData && e.kind != extentUnwritten:
		return bad()
	}
	e.sums = append([]byte(nil), sums...)
	return e, nil
}

// head returns the part of e before file offset at (a multiple of BlockSize
// inside e); tail the part from at on.
func (e *extent) head(at uint64) extent {
	h := *e
	h.length = at - e.off
	if e.kind == extentData {
		h.payload = uint32(min(uint64(e.payload), blockUp(h.length)))
		h.sums = e.sums[:4*((h.payload+BlockSize-1)/BlockSize)]
	}
	return h
}

func (e *extent) tail(at uint64) extent {
	t := *e
	cut := at - e.off
	t.off, t.length = at, e.length-cut
	if e.kind == extentData {
		t.pos += uint32(cut)
		t.payload -= uint32(cut)
		t.sums = e.sums[cut/BlockSize*4:]
	}
	return t
}

// cut returns e shortened to end at file offset at, which may lie inside a
// block: the block's payload stays, since its checksum covers all of it.
func (e *extent) cut(at uint64) extent {
	h := e.head(blockUp(at))
	if h.length > at-e.off {
		h.length = at - e.off
	}
	return h
}

// window is the part of a file's extents held in memory: all that intersect
// [lo, hi), in order. hi is MaxUint64 when nothing follows.
type window struct {
	lo, hi uint64
	ext    []extent
}

const (
	windowLoad = 256  // extents read at a time
	windowMax  = 1024 // extents kept
)

func (w *window) memory() int {
	n := cap(w.ext) * 64
	for i := range w.ext {
		n += len(w.ext[i].sums)
	}
	return n
}

func (w *window) covers(lo, hi uint64) bool { return lo >= w.lo && hi <= w.hi && w.hi > 0 }

// at returns the index of the first extent that ends after off.
func (w *window) at(off uint64) int {
	return sort.Search(len(w.ext), func(i int) bool { return w.ext[i].end() > off })
}

const noLimit = math.MaxUint64

// wholeWindow is the window of a file that has no extents.
func wholeWindow() window { return window{lo: 0, hi: noLimit} }

// loadWindow makes the inode's window cover [lo, hi). The caller holds the
// inode's lock exclusively.
func (s *Store) loadWindow(w Wait, n *inode, lo, hi uint64) error {
	if n.win.covers(lo, hi) {
		return nil
	}
	var lb, ub, kb [keyPrefixLen + 16]byte
	it := s.db.NewIter(engine.IterOptions{
		Lower: extentKey(lb[:0], n.ino, 0),
		Upper: inoKey(ub[:0], tableExtent, n.ino+1),
		Wait:  w,
	})
	defer it.Close()
	win := window{lo: lo, hi: noLimit}
	// The extent that begins at or before lo may reach into the range.
	ok := it.SeekLT(extentKey(kb[:0], n.ino, lo+1))
	if !ok {
		if err := it.Err(); err != nil {
			return err
		}
		win.lo = 0
		ok = it.First()
	}
	for ; ok; ok = it.Next() {
		off := binary.BigEndian.Uint64(it.Key()[keyPrefixLen+8:])
		if off >= hi && len(win.ext) >= windowLoad {
			win.hi = off
			break
		}
		e, err := decodeExtent(off, it.Value())
		if err != nil {
			return s.damage("extent", n.ino, off, err)
		}
		if len(win.ext) > 0 && win.ext[len(win.ext)-1].end() > off {
			return s.damage("extent", n.ino, off, fmt.Errorf("overlaps the one before: %w", ErrCorrupt))
		}
		win.ext = append(win.ext, e)
	}
	if err := it.Err(); err != nil {
		return err
	}
	if len(win.ext) > 0 && win.ext[0].off < win.lo {
		win.lo = win.ext[0].off
	}
	n.win = win
	return nil
}

// replaceRange puts into t what makes the extents next (in order, inside
// [lo, hi)) the only ones of [lo, hi), and returns the window that holds once t
// is committed and the change of occupied bytes. lo and hi are multiples of
// BlockSize (hi may be noLimit). The caller holds the inode's lock exclusively
// and has loaded the window for [lo, hi).
func (s *Store) replaceRange(t *txn, n *inode, lo, hi uint64, next []extent) (window, int64) {
	old := n.win.ext
	i := n.win.at(lo)
	j := i
	for j < len(old) && old[j].off < hi {
		j++
	}
	var grown int64
	var headPart, tailPart []extent
	for k := i; k < j; k++ {
		e := &old[k]
		grown -= int64(e.space())
		t.live(e.seg, -e.stored())
		if e.off < lo {
			h := e.head(lo)
			headPart = append(headPart, h)
		} else if len(next) == 0 || !hasOffset(next, e.off) {
			t.deleteExtent(n.ino, e.off)
		}
		if e.end() > hi {
			tailPart = append(tailPart, e.tail(hi))
		}
	}
	for _, part := range [...][]extent{headPart, next, tailPart} {
		for k := range part {
			grown += int64(part[k].space())
			t.live(part[k].seg, part[k].stored())
			t.putExtent(n.ino, &part[k])
		}
	}
	win := n.win
	if i == j && j == len(old) && len(headPart) == 0 && len(tailPart) == 0 {
		win.ext = append(old, next...) // beyond len(old): readers of the old window don't see it
	} else {
		ext := make([]extent, 0, len(old)+len(next)+2)
		ext = append(ext, old[:i]...)
		ext = append(ext, headPart...)
		ext = append(ext, next...)
		ext = append(ext, tailPart...)
		win.ext = append(ext, old[j:]...)
	}
	if len(win.ext) > windowMax {
		k := len(win.ext) - windowMax/2
		win.lo = win.ext[k].off
		win.ext = append([]extent(nil), win.ext[k:]...)
	}
	return win, grown
}

func hasOffset(ext []extent, off uint64) bool {
	i := sort.Search(len(ext), func(i int) bool { return ext[i].off >= off })
	return i < len(ext) && ext[i].off == off
}
