package ordered

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

const (
	segmentMagic   = 0x6765536d73697250 // "PrismSeg"
	segmentVersion = 1
	segmentHeader  = 4096 // the header's own page: it is never written again

	recordMagic   = 0x63655250 // "PRec"
	recordVersion = 1
	recordHeader  = 40 // without the checksums
	recordAlign   = 8

	maxRecordHeader = recordHeader + 4*MaxPayload/SumBlock
)

// RecordHeader is what a record of the data log says about itself.
type RecordHeader struct {
	Ino     uint64
	FileOff uint64 // bytes
	Raw     uint32
	Stored  uint32
	Codec   uint8
}

func alignUp(n int) int { return (n + recordAlign - 1) &^ (recordAlign - 1) }

// payloadOffset is the distance from a record's start to its payload.
func payloadOffset(sums int) int { return alignUp(recordHeader + sums) }

// recordLen is the length of a record in the segment, sums in bytes.
func recordLen(sums, stored int) int { return payloadOffset(sums) + alignUp(stored) }

// putRecordHeader writes header and checksums to the start of dst, whose
// length is payloadOffset(len(sums)), for a record at pos.
func putRecordHeader(dst []byte, pos Pos, h *RecordHeader, sums []byte) {
	le := binary.LittleEndian
	le.PutUint32(dst, recordMagic)
	dst[4], dst[5], dst[6], dst[7] = recordVersion, h.Codec, 0, 0
	le.PutUint64(dst[8:], h.Ino)
	le.PutUint64(dst[16:], h.FileOff)
	le.PutUint32(dst[24:], h.Raw)
	le.PutUint32(dst[28:], h.Stored)
	le.PutUint32(dst[32:], uint32(len(sums)/4))
	n := copy(dst[recordHeader:], sums)
	clear(dst[recordHeader+n:])
	le.PutUint32(dst[36:], recordCRC(dst[:recordHeader+n], pos))
}

// recordCRC covers the header without itself and the checksums, and starts from
// the position: a record that stands where it was not written is not one.
func recordCRC(b []byte, pos Pos) uint32 {
	c := pos.Off() + pos.Seg()*0x9e3779b1
	c = crc32.Update(c, castagnoli, b[:36])
	return crc32.Update(c, castagnoli, b[recordHeader:])
}

// decodeRecordHeader reads the header and checksums at the start of b for a
// record at pos. n is the length of the whole record; the payload need not be
// in b.
func decodeRecordHeader(b []byte, pos Pos) (h RecordHeader, e Extent, n int, err error) {
	bad := func(what string) error {
		return fmt.Errorf("ordered: segment %d offset %d: %s: %w", pos.Seg(), pos.Off(), what, ErrCorrupt)
	}
	if len(b) < recordHeader {
		return h, e, 0, bad("record cut off")
	}
	le := binary.LittleEndian
	if le.Uint32(b) != recordMagic {
		return h, e, 0, bad("no record")
	}
	if b[4] != recordVersion || b[6] != 0 || b[7] != 0 {
		return h, e, 0, bad("unknown record version")
	}
	raw, sums := le.Uint32(b[24:]), le.Uint32(b[32:])
	if raw > MaxPayload || int(sums) != sumCount(b[5], int(raw)) {
		return h, e, 0, bad("record header out of range")
	}
	end := recordHeader + 4*int(sums)
	if len(b) < end {
		return h, e, 0, bad("record cut off")
	}
	if recordCRC(b[:end], pos) != le.Uint32(b[36:]) {
		return h, e, 0, bad("record header checksum")
	}
	e = Extent{
		Seg: pos.Seg(), Off: pos.Off() + uint32(payloadOffset(4*int(sums))),
		Stored: le.Uint32(b[28:]), Raw: raw, Codec: b[5],
		Sums: append([]byte(nil), b[recordHeader:end]...),
	}
	if err := e.check(); err != nil {
		return h, Extent{}, 0, err
	}
	h = RecordHeader{Ino: le.Uint64(b[8:]), FileOff: le.Uint64(b[16:]), Raw: e.Raw, Stored: e.Stored, Codec: e.Codec}
	return h, e, recordLen(4*int(sums), int(e.Stored)), nil
}

// appendSegmentHeader appends the header page of a segment.
func appendSegmentHeader(dst []byte, seg uint32) []byte {
	b := make([]byte, segmentHeader)
	binary.LittleEndian.PutUint64(b, segmentMagic)
	binary.LittleEndian.PutUint32(b[8:], segmentVersion)
	binary.LittleEndian.PutUint32(b[12:], seg)
	binary.LittleEndian.PutUint32(b[16:], crc32.Checksum(b[:16], castagnoli))
	return append(dst, b...)
}

// decodeSegmentHeader checks the first bytes of a segment.
func decodeSegmentHeader(b []byte, seg uint32) error {
	if len(b) < 20 || binary.LittleEndian.Uint64(b) != segmentMagic ||
		crc32.Checksum(b[:16], castagnoli) != binary.LittleEndian.Uint32(b[16:]) {
		return fmt.Errorf("ordered: segment %d: bad header: %w", seg, ErrCorrupt)
	}
	if v := binary.LittleEndian.Uint32(b[8:]); v != segmentVersion {
		return fmt.Errorf("ordered: segment %d: format version %d, want %d: %w", seg, v, segmentVersion, ErrCorrupt)
	}
	if n := binary.LittleEndian.Uint32(b[12:]); n != seg {
		return fmt.Errorf("ordered: segment %d: header says %d: %w", seg, n, ErrCorrupt)
	}
	return nil
}
