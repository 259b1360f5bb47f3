package metadata

import (
	"encoding/binary"
	"fmt"

	"prismfs/ordered"
)

// BlockSize is the granularity of extents, checksums, holes and space, in bytes.
const BlockSize = 4096

// extentMax is the longest extent of written data, in bytes: what one checksum
// list covers and one compression or GC step moves.
const extentMax = 128 << 10

// maxFileSize is where EFBIG begins, in bytes.
const maxFileSize = 1<<63 - 1

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

// noSegment stands in for the segment of unwritten extents: there is none yet,
// and segments are numbered from 1. What it is said to keep alive is the room
// that they have been promised.
const noSegment = 0

// stored is what the extent keeps alive in its segment, in bytes.
func (e *extent) stored() int64 {
	if e.kind != extentData {
		return int64(e.space())
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
