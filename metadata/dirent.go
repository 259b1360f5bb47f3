package metadata

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"prismfs/engine"

	"github.com/cespare/xxhash/v2"
)

// Names of one directory that share a 55-bit hash share one record, a bucket,
// so that a lookup is one point get. A name's position in the directory is
// hash<<8 | slot: below 2^63, never 0, 1 or 2 (start, "." and ".."), and stable
// for as long as the name exists, which makes directory streams stateless.
//
// Bucket, version 1: version u8, then for each name in slot order
//
//	slot u8, type u8 (DT_*), ino u64, name length u8, name
const (
	bucketVersion  = 1
	direntFixedLen = 11
	hashBits       = 55
	maxSlots       = 256
	cookieDot      = 1
	cookieDotDot   = 2
	firstSlot0     = 3 // lowest slot of hash 0
)

// NameMax is the longest name, in bytes.
const NameMax = 255

type dirent struct {
	slot uint8
	typ  uint8
	ino  Ino
	name []byte
}

// nameHash is the bucket of a name: xxhash64 of the store's seed and the name.
func (s *Store) nameHash(name []byte) uint64 {
	var d xxhash.Digest
	d.ResetWithSeed(s.sb.HashSeed)
	d.Write(name)
	return d.Sum64() >> (64 - hashBits)
}

// nextDirent takes one entry off b; name aliases b.
func nextDirent(b []byte) (e dirent, rest []byte, err error) {
	if len(b) < direntFixedLen || len(b) < direntFixedLen+int(b[10]) || b[10] == 0 {
		return e, nil, fmt.Errorf("directory bucket: %w", ErrCorrupt)
	}
	n := direntFixedLen + int(b[10])
	return dirent{slot: b[0], typ: b[1], ino: Ino(binary.LittleEndian.Uint64(b[2:])), name: b[direntFixedLen:n]}, b[n:], nil
}

func bucketEntries(b []byte) ([]byte, error) {
	if len(b) == 0 || b[0] != bucketVersion {
		return nil, fmt.Errorf("directory bucket: %w", ErrCorrupt)
	}
	return b[1:], nil
}

func appendDirent(dst []byte, e dirent) []byte {
	dst = append(dst, e.slot, e.typ)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(e.ino))
	dst = append(dst, byte(len(e.name)))
	return append(dst, e.name...)
}

// findDirent looks name up in a bucket's value (nil: no bucket).
func findDirent(bucket, name []byte) (e dirent, ok bool, err error) {
	if bucket == nil {
		return e, false, nil
	}
	b, err := bucketEntries(bucket)
	for err == nil && len(b) > 0 {
		if e, b, err = nextDirent(b); err == nil && bytes.Equal(e.name, name) {
			return e, true, nil
		}
	}
	return dirent{}, false, err
}

// insertDirent returns bucket with a name added in the lowest free slot.
func insertDirent(bucket []byte, hash uint64, name []byte, ino Ino, typ uint8) ([]byte, error) {
	slot := 0
	if hash == 0 {
		slot = firstSlot0
	}
	e := dirent{typ: typ, ino: ino, name: name}
	if bucket == nil {
		e.slot = uint8(slot)
		return appendDirent([]byte{bucketVersion}, e), nil
	}
	b, err := bucketEntries(bucket)
	if err != nil {
		return nil, err
	}
	at := 1 // insert before the first entry whose slot is beyond the free one
	for len(b) > 0 {
		var x dirent
		var rest []byte
		if x, rest, err = nextDirent(b); err != nil {
			return nil, err
		}
		if int(x.slot) != slot {
			break
		}
		slot++
		at += len(b) - len(rest)
		b = rest
	}
	if slot >= maxSlots {
		return nil, fmt.Errorf("directory hash bucket is full: %w", ErrNoSpace)
	}
	e.slot = uint8(slot)
	out := make([]byte, 0, len(bucket)+direntFixedLen+len(name))
	out = append(out, bucket[:at]...)
	out = appendDirent(out, e)
	return append(out, bucket[at:]...), nil
}

// removeDirent returns bucket without name, nil when nothing is left.
func removeDirent(bucket, name []byte) ([]byte, error) {
	b, err := bucketEntries(bucket)
	if err != nil {
		return nil, err
	}
	out := append(make([]byte, 0, len(bucket)), bucketVersion)
	for len(b) > 0 {
		e, rest, err := nextDirent(b)
		if err != nil {
			return nil, err
		}
		if !bytes.Equal(e.name, name) {
			out = append(out, b[:len(b)-len(rest)]...)
		}
		b = rest
	}
	if len(out) == 1 {
		return nil, nil
	}
	return out, nil
}

// replaceDirent returns bucket with the inode and type of name changed; its
// position in the directory stays.
func replaceDirent(bucket, name []byte, ino Ino, typ uint8) ([]byte, error) {
	out := append([]byte(nil), bucket...)
	b, err := bucketEntries(out)
	for err == nil && len(b) > 0 {
		var e dirent
		head := b
		if e, b, err = nextDirent(b); err == nil && bytes.Equal(e.name, name) {
			head[1] = typ
			binary.LittleEndian.PutUint64(head[2:], uint64(ino))
			return out, nil
		}
	}
	if err == nil {
		err = fmt.Errorf("name vanished from its bucket: %w", ErrCorrupt)
	}
	return nil, err
}

// bucket returns the bucket of a hash in a directory, nil if there is none,
// appended to dst. Callers hold the directory's lock.
func (s *Store) bucket(w Wait, dst []byte, dir Ino, hash uint64) ([]byte, error) {
	var kb [keyPrefixLen + 16]byte
	b, err := s.db.Get(dst, direntKey(kb[:0], dir, hash), w)
	if err == engine.ErrNotFound {
		return nil, nil
	}
	return b, err
}

func checkName(name []byte) error {
	switch {
	case len(name) > NameMax:
		return ErrNameTooLong
	case len(name) == 0 || bytes.IndexByte(name, 0) >= 0 || bytes.IndexByte(name, '/') >= 0 || string(name) == "." || string(name) == "..":
		return ErrInvalid
	}
	return nil
}
