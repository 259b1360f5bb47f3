package engine

import (
	"encoding/binary"
	"fmt"

	"github.com/cespare/xxhash/v2"
)

// Two Bloom filters over user keys, both with bloomBits bits a key.
//
// Strict: LevelDB's filter block, one small filter for each 2 KiB of file
// offset at which data blocks start. A probe needs the block's offset, so the
// index is searched first.
//
// Default: one filter for the whole table, of 64-byte lines; a key sets all its
// bits in one line, so that a probe costs one cache miss. It is asked before
// the index.
const (
	bloomBits   = 10
	bloomProbes = 6 // bloomBits * ln 2, rounded down as LevelDB does

	filterBaseLg = 11 // LevelDB: a filter for each 2 KiB

	strictFilterName = "filter.leveldb.BuiltinBloomFilter2"
	tableFilterName  = "filter.prismfs.bloom1"

	bloomLineLen    = 64
	bloomTrailerLen = 5 // fixed32 number of lines, one byte of probes
)

// bloomHash is LevelDB's Hash with the Bloom filter's seed.
func bloomHash(b []byte) uint32 {
	const (
		seed = 0xbc9f1d34
		m    = 0xc6a4a793
	)
	h := uint32(seed) ^ uint32(len(b))*m
	for ; len(b) >= 4; b = b[4:] {
		h += binary.LittleEndian.Uint32(b)
		h *= m
		h ^= h >> 16
	}
	switch len(b) {
	case 3:
		h += uint32(b[2]) << 16
		fallthrough
	case 2:
		h += uint32(b[1]) << 8
		fallthrough
	case 1:
		h += uint32(b[0])
		h *= m
		h ^= h >> 24
	}
	return h
}

// strictFilterBuilder builds LevelDB's filter block.
type strictFilterBuilder struct {
	out     []byte
	offsets []uint32
	hashes  []uint32 // of the keys of the filter under construction
}

// startBlock says that the keys to come lie in a data block at offset off.
func (b *strictFilterBuilder) startBlock(off uint64) {
	for off>>filterBaseLg > uint64(len(b.offsets)) {
		b.generate()
	}
}

func (b *strictFilterBuilder) add(ukey []byte) { b.hashes = append(b.hashes, bloomHash(ukey)) }

func (b *strictFilterBuilder) generate() {
	b.offsets = append(b.offsets, uint32(len(b.out)))
	if len(b.hashes) == 0 {
		return
	}
	bytes := (max(len(b.hashes)*bloomBits, 64) + 7) / 8
	bits := uint32(bytes * 8)
	start := len(b.out)
	b.out = append(b.out, make([]byte, bytes)...)
	array := b.out[start:]
	for _, h := range b.hashes {
		delta := h>>17 | h<<15
		for range bloomProbes {
			pos := h % bits
			array[pos/8] |= 1 << (pos % 8)
			h += delta
		}
	}
	b.out = append(b.out, bloomProbes)
	b.hashes = b.hashes[:0]
}

func (b *strictFilterBuilder) finish() []byte {
	if len(b.hashes) > 0 {
		b.generate()
	}
	array := uint32(len(b.out))
	for _, o := range b.offsets {
		b.out = binary.LittleEndian.AppendUint32(b.out, o)
	}
	b.out = binary.LittleEndian.AppendUint32(b.out, array)
	return append(b.out, filterBaseLg)
}

// strictMayContain probes a filter block for a key of the data block at off.
// Whatever can't be decoded may contain everything, as in LevelDB.
func strictMayContain(filter []byte, off uint64, ukey []byte) bool {
	n := len(filter)
	if n < 5 {
		return true
	}
	array := uint64(binary.LittleEndian.Uint32(filter[n-5:]))
	if array > uint64(n-5) {
		return true
	}
	count := (uint64(n-5) - array) / 4
	i := off >> (filter[n-1] & 63)
	if i >= count {
		return true
	}
	// The entry behind the last filter is the array offset itself.
	start := uint64(binary.LittleEndian.Uint32(filter[array+4*i:]))
	limit := uint64(binary.LittleEndian.Uint32(filter[array+4*i+4:]))
	if start > limit || limit > array {
		return true
	}
	if limit-start < 2 {
		return limit-start == 1 // no keys, no filter
	}
	bits := uint32(limit-start-1) * 8
	probes := filter[limit-1]
	if probes > 30 {
		return true // reserved for other encodings
	}
	h := bloomHash(ukey)
	delta := h>>17 | h<<15
	for range probes {
		pos := h % bits
		if filter[start+uint64(pos/8)]&(1<<(pos%8)) == 0 {
			return false
		}
		h += delta
	}
	return true
}

func tableBloomHash(ukey []byte) uint64 { return xxhash.Sum64(ukey) }

// bloomLine picks the line of a hash: its high half scaled to the number of
// lines.
func bloomLine(h uint64, lines uint32) uint32 { return uint32((h >> 32) * uint64(lines) >> 32) }

// buildTableBloom makes the filter block of the default profile from the
// hashes of all user keys.
func buildTableBloom(hashes []uint64) []byte {
	lines := uint32((len(hashes)*bloomBits + 8*bloomLineLen - 1) / (8 * bloomLineLen))
	lines = max(lines, 1)
	out := make([]byte, int(lines)*bloomLineLen, int(lines)*bloomLineLen+bloomTrailerLen)
	for _, h := range hashes {
		line := out[int(bloomLine(h, lines))*bloomLineLen:][:bloomLineLen]
		// Each probe takes the top 9 bits of a multiplicative sequence that
		// starts from the low half of the hash.
		x := uint32(h)
		for range bloomProbes {
			pos := x >> (32 - 9)
			line[pos/8] |= 1 << (pos % 8)
			x *= 0x9e3779b9
		}
	}
	out = binary.LittleEndian.AppendUint32(out, lines)
	return append(out, bloomProbes)
}

// tableBloom is an opened filter block of the default profile.
type tableBloom struct {
	bits   []byte
	lines  uint32
	probes uint8
}

func openTableBloom(b []byte) (tableBloom, error) {
	if len(b) < bloomTrailerLen {
		return tableBloom{}, fmt.Errorf("filter of %d bytes: %w", len(b), ErrCorrupt)
	}
	t := tableBloom{bits: b[:len(b)-bloomTrailerLen], probes: b[len(b)-1]}
	t.lines = binary.LittleEndian.Uint32(b[len(t.bits):])
	if t.lines == 0 || uint64(t.lines)*bloomLineLen != uint64(len(t.bits)) {
		return tableBloom{}, fmt.Errorf("filter of %d bytes claims %d lines: %w", len(b), t.lines, ErrCorrupt)
	}
	return t, nil
}

func (t *tableBloom) mayContain(ukey []byte) bool {
	h := tableBloomHash(ukey)
	line := (*[bloomLineLen]byte)(t.bits[int(bloomLine(h, t.lines))*bloomLineLen:])
	x := uint32(h)
	for range t.probes {
		pos := x >> (32 - 9)
		if line[pos/8]&(1<<(pos%8)) == 0 {
			return false
		}
		x *= 0x9e3779b9
	}
	return true
}
