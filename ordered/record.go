package ordered

import (
	"encoding/binary"
	"hash/crc32"
)

// Profile chooses the framing of a Log.
type Profile int

const (
	// Default has an 11-byte header that carries the log number, so that
	// files can be recycled, and marks in the log that say what was durable.
	Default Profile = iota
	// Strict is LevelDB's format, byte for byte.
	Strict
)

const (
	blockSize      = 32 << 10
	strictHeader   = 7
	defaultHeader  = 11
	maxLogHeader   = defaultHeader
	recycleTypes   = 4 // types 5 to 8 are 1 to 4 with a log number
	markPayloadLen = 16
	markLen        = defaultHeader + markPayloadLen
)

// Types of a fragment.
const (
	typeZero   = 0 // padding and preallocated space
	typeFull   = 1
	typeFirst  = 2
	typeMiddle = 3
	typeLast   = 4
	// typeMark holds a durable mark. The high bit is RocksDB's "may be
	// ignored".
	typeMark = 0xc0
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// maskCRC is LevelDB's: a checksum of data that holds checksums is weak.
func maskCRC(c uint32) uint32 { return (c>>15 | c<<17) + 0xa282ead8 }

func (p Profile) headerLen() int64 {
	if p == Strict {
		return strictHeader
	}
	return defaultHeader
}

// fragmentCRC is the masked checksum of type, log number (Default) and data:
// header is the whole header and data what follows it.
func fragmentCRC(header, data []byte) uint32 {
	return maskCRC(crc32.Update(crc32.Checksum(header[6:], castagnoli), castagnoli, data))
}

// appendFragment frames data as one fragment of type t, which is a typeFull
// to typeLast or typeMark.
func appendFragment(dst []byte, p Profile, number uint32, t byte, data []byte) []byte {
	start := len(dst)
	if p == Default && t <= typeLast {
		t += recycleTypes
	}
	dst = append(dst, 0, 0, 0, 0, byte(len(data)), byte(len(data)>>8), t)
	if p == Default {
		dst = binary.LittleEndian.AppendUint32(dst, number)
	}
	binary.LittleEndian.PutUint32(dst[start:], fragmentCRC(dst[start:], data))
	return append(dst, data...)
}

// appendRecord frames rec, which starts at offset off of the file.
func appendRecord(dst []byte, p Profile, number uint32, off int64, rec []byte) []byte {
	h := p.headerLen()
	first := true
	for {
		left := blockSize - off%blockSize
		if left < h {
			dst = append(dst, zeros[:left]...)
			off += left
			left = blockSize
		}
		n := min(int64(len(rec)), left-h)
		last := n == int64(len(rec))
		t := byte(typeMiddle)
		switch {
		case first && last:
			t = typeFull
		case first:
			t = typeFirst
		case last:
			t = typeLast
		}
		dst = appendFragment(dst, p, number, t, rec[:n])
		off += h + n
		if last {
			return dst
		}
		rec = rec[n:]
		first = false
	}
}

// framedLen is the number of bytes that appendRecord adds.
func framedLen(p Profile, off int64, n int64) int64 {
	h := p.headerLen()
	total := int64(0)
	for {
		left := blockSize - (off+total)%blockSize
		if left < h {
			total += left
			left = blockSize
		}
		part := min(n, left-h)
		total += h + part
		n -= part
		if n == 0 {
			return total
		}
	}
}

// zeros pads blocks and ends a log within preallocated space.
var zeros [2 * maxLogHeader]byte

// endLen is the length of the zeros behind the end of a log that make a
// reader see an end there instead of stale bytes.
func endLen(off int64) int64 {
	if left := blockSize - off%blockSize; left < defaultHeader {
		return left + defaultHeader
	}
	return defaultHeader
}

// A durable mark states that the log was durable up to a position when the
// mark was written. It holds its own offset too: a copy of a log within a
// record's data must not pass as a mark.
func appendMark(dst []byte, number uint32, off, durable int64) []byte {
	var b [markPayloadLen]byte
	binary.LittleEndian.PutUint64(b[:], uint64(durable))
	binary.LittleEndian.PutUint64(b[8:], uint64(off))
	return appendFragment(dst, Default, number, typeMark, b[:])
}

// decodeMark returns what the mark at offset off states.
func decodeMark(data []byte, off int64) (durable int64, ok bool) {
	if len(data) != markPayloadLen || binary.LittleEndian.Uint64(data[8:]) != uint64(off) {
		return 0, false
	}
	durable = int64(binary.LittleEndian.Uint64(data))
	return durable, durable >= 0 && durable <= off
}

// fragment is a decoded fragment; data aliases the block.
type fragment struct {
	typ  byte // typeZero to typeLast, or typeMark
	data []byte
}

// fragmentState is what stands at a position of a log.
type fragmentState int

const (
	fragmentValid fragmentState = iota
	fragmentZero                // a header of zeros
	fragmentStale               // a header of an older log
	fragmentBad                 // anything else
)

// parseFragment decodes the fragment at the start of b, which ends where the
// block (or the file) ends.
func parseFragment(b []byte, p Profile, number uint32) (fragment, fragmentState) {
	h := int(p.headerLen())
	if len(b) < h {
		return fragment{}, fragmentBad
	}
	sum := binary.LittleEndian.Uint32(b)
	n := int(binary.LittleEndian.Uint16(b[4:]))
	t := b[6]
	if p == Default {
		num := binary.LittleEndian.Uint32(b[7:])
		if sum == 0 && n == 0 && t == 0 && num == 0 {
			return fragment{}, fragmentZero
		}
		if t != typeMark {
			if t <= recycleTypes || t > recycleTypes+typeLast {
				return fragment{}, fragmentBad
			}
			t -= recycleTypes
		}
		switch age := number - num; {
		case age == 0:
		case age < 1<<31:
			return fragment{}, fragmentStale
		default:
			return fragment{}, fragmentBad
		}
	} else {
		if sum == 0 && n == 0 && t == 0 {
			return fragment{}, fragmentZero
		}
		if t < typeFull || t > typeLast {
			return fragment{}, fragmentBad
		}
	}
	if h+n > len(b) || fragmentCRC(b[:h], b[h:h+n]) != sum {
		return fragment{}, fragmentBad
	}
	return fragment{typ: t, data: b[h : h+n]}, fragmentValid
}
