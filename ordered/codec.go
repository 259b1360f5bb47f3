package ordered

import (
	"fmt"
	"sync"

	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
)

// Codecs of a payload.
const (
	CodecRaw  uint8 = 0
	CodecS2   uint8 = 1 // an S2 block: fast, for the foreground
	CodecZstd uint8 = 2 // one Zstandard frame: small, for moved data
	codecs          = 3
)

// compressor holds what zstd needs, made on first use.
type compressor struct {
	enc func() *zstd.Encoder
	dec func() *zstd.Decoder
}

func newCompressor() compressor {
	return compressor{
		enc: sync.OnceValue(func() *zstd.Encoder {
			e, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedDefault), zstd.WithEncoderConcurrency(2),
				zstd.WithWindowSize(MaxPayload), zstd.WithLowerEncoderMem(true), zstd.WithEncoderCRC(false))
			if err != nil {
				panic(err) // the options are constants
			}
			return e
		}),
		dec: sync.OnceValue(func() *zstd.Decoder {
			d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecoderMaxMemory(MaxPayload))
			if err != nil {
				panic(err)
			}
			return d
		}),
	}
}

// compress returns the stored form of payload and its codec: payload itself
// unless compressing saves an eighth. The result may use scratch.
func (c *compressor) compress(codec uint8, payload, scratch []byte) (stored []byte, used uint8) {
	switch codec {
	case CodecS2:
		stored = s2.Encode(scratch[:cap(scratch)], payload)
	case CodecZstd:
		stored = c.enc().EncodeAll(payload, scratch[:0])
	default:
		return payload, CodecRaw
	}
	if len(stored) > len(payload)-len(payload)/8 || len(stored) >= len(payload) {
		return payload, CodecRaw
	}
	return stored, codec
}

// decompress fills dst with the raw bytes of an extent. stored has passed its
// checksum, so that an error is a fault of ours or of memory.
func (c *compressor) decompress(e *Extent, dst, stored []byte) error {
	var out []byte
	var err error
	switch e.Codec {
	case CodecS2:
		var n int
		if n, err = s2.DecodedLen(stored); err == nil && n == len(dst) {
			out, err = s2.Decode(dst, stored)
		}
	case CodecZstd:
		out, err = c.dec().DecodeAll(stored, dst[:0:len(dst)])
	}
	if err != nil {
		return fmt.Errorf("ordered: decompress segment %d offset %d: %w (%w)", e.Seg, e.Off, ErrCorrupt, err)
	}
	if len(out) != len(dst) || &out[0] != &dst[0] {
		return fmt.Errorf("ordered: decompress segment %d offset %d: %d bytes, want %d: %w", e.Seg, e.Off, len(out), len(dst), ErrCorrupt)
	}
	return nil
}

// buffers lends scratch memory.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

// borrow returns a buffer of n bytes; give it back with buffers.Put.
func borrow(n int) *[]byte {
	b := buffers.Get().(*[]byte)
	if cap(*b) < n {
		*b = make([]byte, n)
	}
	*b = (*b)[:n]
	return b
}
