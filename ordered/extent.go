package ordered

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

// Pos is a position in the data log: segment number << 32 | offset. Positions
// grow in the order of appends.
type Pos uint64

// MakePos returns the position off of segment seg.
func MakePos(seg, off uint32) Pos { return Pos(seg)<<32 | Pos(off) }

// Seg is the segment number.
func (p Pos) Seg() uint32 { return uint32(p >> 32) }

// Off is the offset in the segment, in bytes.
func (p Pos) Off() uint32 { return uint32(p) }

func (p Pos) String() string { return fmt.Sprintf("%d:%d", p.Seg(), p.Off()) }

const (
	// SumBlock is the number of payload bytes under one checksum of a raw
	// extent.
	SumBlock = 4096
	// MaxPayload is the largest payload of one record.
	MaxPayload = 512 << 10
)

// Extent is all that is needed to read a record's payload and check it.
type Extent struct {
	Seg    uint32
	Off    uint32 // of the payload in the segment, bytes
	Stored uint32 // bytes in the segment
	Raw    uint32 // bytes of content
	Codec  uint8
	// Sums are little-endian crc32c: one for each SumBlock bytes of a raw
	// payload (the last may be short), one of the stored bytes otherwise.
	Sums []byte
}

// Pos is the position of the payload.
func (e *Extent) Pos() Pos { return MakePos(e.Seg, e.Off) }

func sumCount(codec uint8, raw int) int {
	if codec != CodecRaw {
		return 1
	}
	return (raw + SumBlock - 1) / SumBlock
}

// appendSums appends the checksums of a raw payload.
func appendSums(dst, payload []byte) []byte {
	for len(payload) > 0 {
		n := min(len(payload), SumBlock)
		dst = appendSum(dst, payload[:n])
		payload = payload[n:]
	}
	return dst
}

func appendSum(dst, p []byte) []byte {
	return binary.LittleEndian.AppendUint32(dst, crc32.Checksum(p, castagnoli))
}

// check refuses extents that no Append returned, so that what a damaged key
// holds cannot crash a reader.
func (e *Extent) check() error {
	ok := e.Raw > 0 && e.Raw <= MaxPayload && e.Off >= segmentHeader &&
		len(e.Sums) == 4*sumCount(e.Codec, int(e.Raw))
	if e.Codec == CodecRaw {
		ok = ok && e.Stored == e.Raw
	} else {
		ok = ok && e.Codec < codecs && e.Stored > 0 && e.Stored < e.Raw
	}
	if !ok {
		return fmt.Errorf("ordered: extent %d:%d (raw %d, stored %d, codec %d, %d bytes of sums): %w",
			e.Seg, e.Off, e.Raw, e.Stored, e.Codec, len(e.Sums), ErrCorrupt)
	}
	return nil
}

// VerifyBlocks checks p, which was read from offset off of the payload of a
// raw extent. off is a multiple of SumBlock and p holds whole blocks, except
// that the extent's last may be short. For a compressed extent p is all of the
// stored bytes and off is 0.
func VerifyBlocks(e *Extent, off int, p []byte) error {
	if e.Codec != CodecRaw {
		if off != 0 || len(p) != int(e.Stored) || len(e.Sums) != 4 {
			return fmt.Errorf("ordered: verify %d bytes at %d of extent %d:%d: not the stored bytes: %w", len(p), off, e.Seg, e.Off, ErrCorrupt)
		}
		return verifySum(e, 0, p, 0)
	}
	if off < 0 || off%SumBlock != 0 || off+len(p) > int(e.Raw) ||
		(len(p)%SumBlock != 0 && off+len(p) != int(e.Raw)) || len(e.Sums) != 4*sumCount(CodecRaw, int(e.Raw)) {
		return fmt.Errorf("ordered: verify %d bytes at %d of extent %d:%d: not whole blocks: %w", len(p), off, e.Seg, e.Off, ErrCorrupt)
	}
	for len(p) > 0 {
		n := min(len(p), SumBlock)
		if err := verifySum(e, off/SumBlock, p[:n], off); err != nil {
			return err
		}
		off += n
		p = p[n:]
	}
	return nil
}

func verifySum(e *Extent, i int, p []byte, off int) error {
	want := binary.LittleEndian.Uint32(e.Sums[4*i:])
	if got := crc32.Checksum(p, castagnoli); got != want {
		return fmt.Errorf("ordered: segment %d offset %d: checksum %08x, want %08x: %w",
			e.Seg, int(e.Off)+off, got, want, ErrCorrupt)
	}
	return nil
}
