package engine

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"sync"

	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"

	"prismfs/ordered"
)

// maxBlockLen bounds the contents of one block, so that a damaged length can't
// claim all memory. Values are smaller than that by far.
const maxBlockLen = 256 << 20

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// maskCRC is LevelDB's masking: a checksum of bytes that hold checksums is
// weak, so stored ones are rotated and shifted.
func maskCRC(c uint32) uint32 { return (c>>15 | c<<17) + 0xa282ead8 }

// blockChecksum is the stored checksum of a block. stored is the contents as
// stored plus the type byte. The default profile adds the table's number and
// the block's place: a sector that still holds an older table's block, or one
// that was written elsewhere, has valid contents but the wrong place.
func blockChecksum(p ordered.Profile, num FileNum, off uint64, stored []byte) uint32 {
	c := crc32.Update(0, castagnoli, stored)
	if p == ordered.Default {
		var place [16]byte
		binary.LittleEndian.PutUint64(place[:8], uint64(num))
		binary.LittleEndian.PutUint64(place[8:], off)
		c = crc32.Update(c, castagnoli, place[:])
	}
	return maskCRC(c)
}

// zstdEncoder and zstdDecoder are shared: EncodeAll and DecodeAll are safe for
// concurrent use. Stores without zstd never pay for them.
var (
	zstdEncoder = sync.OnceValue(func() *zstd.Encoder {
		e, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest),
			zstd.WithWindowSize(64<<10), zstd.WithEncoderCRC(false), zstd.WithSingleSegment(true))
		if err != nil {
			panic(err) // constant options
		}
		return e
	})
	zstdDecoder = sync.OnceValue(func() *zstd.Decoder {
		d, err := zstd.NewReader(nil, zstd.WithDecoderMaxMemory(maxBlockLen), zstd.WithDecoderConcurrency(0))
		if err != nil {
			panic(err) // constant options
		}
		return d
	})
)

// compress returns raw in the form to store and its codec. The result is raw
// itself unless that saves an eighth; otherwise it lives in buf, grown.
func compress(c Codec, buf, raw []byte) (stored, newBuf []byte, used Codec) {
	switch c {
	case Snappy:
		if n := snappy.MaxEncodedLen(len(raw)); n >= 0 && cap(buf) < n {
			buf = make([]byte, n)
		}
		stored = s2.EncodeSnappy(buf[:cap(buf)], raw) // the fast one: snappy.Encode is not
	case Zstd:
		stored = zstdEncoder().EncodeAll(raw, buf[:0])
		buf = stored
	default:
		return raw, buf, None
	}
	if len(stored) >= len(raw)-len(raw)/8 {
		return raw, buf, None
	}
	return stored, buf, c
}

// decodedLen returns the length of stored's contents.
func decodedLen(c Codec, stored []byte) (int, error) {
	var n uint64
	switch c {
	case None:
		n = uint64(len(stored))
	case Snappy:
		d, err := snappy.DecodedLen(stored)
		if err != nil {
			return 0, fmt.Errorf("snappy block: %w (%w)", err, ErrCorrupt)
		}
		// No snappy element makes more than 64 bytes from 3.
		if n = uint64(d); n > uint64(len(stored))*64/3 {
			return 0, fmt.Errorf("snappy block of %d bytes claims %d: %w", len(stored), d, ErrCorrupt)
		}
	case Zstd:
		var h zstd.Header
		if err := h.Decode(stored); err != nil {
			return 0, fmt.Errorf("zstd block: %w (%w)", err, ErrCorrupt)
		}
		if !h.HasFCS {
			return 0, fmt.Errorf("zstd block without a content size: %w", ErrCorrupt)
		}
		n = h.FrameContentSize
	default:
		return 0, fmt.Errorf("unknown block type %d: %w", c, ErrCorrupt)
	}
	if n > maxBlockLen {
		return 0, fmt.Errorf("block claims %d bytes: %w", n, ErrCorrupt)
	}
	return int(n), nil
}

// decompress fills dst, whose length decodedLen gave, from stored.
func decompress(c Codec, dst, stored []byte) error {
	var out []byte
	var err error
	switch c {
	case None:
		copy(dst, stored)
		return nil
	case Snappy:
		out, err = snappy.Decode(dst, stored)
	case Zstd:
		// The full slice expression keeps a lying frame from growing in place.
		out, err = zstdDecoder().DecodeAll(stored, dst[:0:len(dst)])
	}
	if err != nil {
		return fmt.Errorf("decompress block: %w (%w)", err, ErrCorrupt)
	}
	if len(out) != len(dst) || (len(dst) > 0 && &out[0] != &dst[0]) {
		return fmt.Errorf("block of %d bytes decompressed to %d: %w", len(dst), len(out), ErrCorrupt)
	}
	return nil
}
