package metadata

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"time"

	"prismfs/uring"
)

// Superblock, one block, little-endian:
//
//	0    magic "PRISMFS\n"
//	8    format version u32, minor u32
//	16   features that a program must know: to mount at all (incompatible) u64,
//	     to write (read-only compatible) u64, and that it may ignore u64
//	40   UUID, 16 bytes
//	56   creation time, seconds i64
//	64   seed of name hashes u64
//	72   label, 64 bytes, zero padded
//	4092 crc32c of all before, u32
const (
	superblockName  = "superblock"
	superblockSize  = 4096
	superblockMagic = "PRISMFS\n"
	// FormatVersion is the newest store format this program knows.
	FormatVersion = 1
	// Features this program knows, by class.
	knownIncompat = 0
	knownROCompat = 0

	labelMax = 64
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// superblock is the identity of a store.
type superblock struct {
	Version                    uint32
	Incompat, ROCompat, Compat uint64
	UUID                       [16]byte
	Created                    int64
	HashSeed                   uint64
	Label                      string
}

func newSuperblock(label string, now time.Time) (superblock, error) {
	if len(label) > labelMax {
		return superblock{}, fmt.Errorf("label of %d bytes, at most %d: %w", len(label), labelMax, ErrInvalid)
	}
	sb := superblock{Version: FormatVersion, Created: now.Unix(), Label: label}
	var seed [8]byte
	if _, err := rand.Read(sb.UUID[:]); err != nil {
		return sb, fmt.Errorf("metadata: make a UUID: %w", err)
	}
	if _, err := rand.Read(seed[:]); err != nil {
		return sb, fmt.Errorf("metadata: make a hash seed: %w", err)
	}
	sb.UUID[6] = sb.UUID[6]&0x0f | 0x40 // version 4
	sb.UUID[8] = sb.UUID[8]&0x3f | 0x80 // variant 1
	sb.HashSeed = binary.LittleEndian.Uint64(seed[:])
	return sb, nil
}

func (sb *superblock) encode() []byte {
	b := make([]byte, superblockSize)
	le := binary.LittleEndian
	copy(b, superblockMagic)
	le.PutUint32(b[8:], sb.Version)
	le.PutUint64(b[16:], sb.Incompat)
	le.PutUint64(b[24:], sb.ROCompat)
	le.PutUint64(b[32:], sb.Compat)
	copy(b[40:56], sb.UUID[:])
	le.PutUint64(b[56:], uint64(sb.Created))
	le.PutUint64(b[64:], sb.HashSeed)
	copy(b[72:72+labelMax], sb.Label)
	le.PutUint32(b[superblockSize-4:], crc32.Checksum(b[:superblockSize-4], castagnoli))
	return b
}

// decodeSuperblock parses a superblock. The version is judged before the
// checksum covers anything newer: a newer format may be laid out otherwise.
func decodeSuperblock(b []byte) (superblock, error) {
	var sb superblock
	if len(b) < 16 || string(b[:8]) != superblockMagic {
		return sb, ErrNotAStore
	}
	le := binary.LittleEndian
	sb.Version = le.Uint32(b[8:])
	if len(b) != superblockSize || le.Uint32(b[superblockSize-4:]) != crc32.Checksum(b[:superblockSize-4], castagnoli) {
		return sb, fmt.Errorf("superblock checksum: %w", ErrCorrupt)
	}
	if sb.Version > FormatVersion {
		return sb, fmt.Errorf("format %d, this program knows up to %d: %w", sb.Version, FormatVersion, ErrNewerFormat)
	}
	sb.Incompat, sb.ROCompat, sb.Compat = le.Uint64(b[16:]), le.Uint64(b[24:]), le.Uint64(b[32:])
	if x := sb.Incompat &^ knownIncompat; x != 0 {
		return sb, fmt.Errorf("unknown features %#x: %w", x, ErrNewerFormat)
	}
	copy(sb.UUID[:], b[40:56])
	sb.Created = int64(le.Uint64(b[56:]))
	sb.HashSeed = le.Uint64(b[64:])
	sb.Label = string(bytes.TrimRight(b[72:72+labelMax], "\x00"))
	return sb, nil
}

func (sb *superblock) uuid() string {
	u := sb.UUID
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[0:4], u[4:6], u[6:8], u[8:10], u[10:])
}

func readSuperblock(disk uring.Disk) (superblock, error) {
	f, err := disk.Open(superblockName)
	if errors.Is(err, uring.ErrNotExist) {
		if disk.Exists(engineDir) && disk.Exists(dataDir) {
			return superblock{}, fmt.Errorf("the superblock is missing: %w", ErrCorrupt)
		}
		return superblock{}, ErrNotAStore
	}
	if err != nil {
		return superblock{}, fmt.Errorf("metadata: open superblock: %w", err)
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		return superblock{}, fmt.Errorf("metadata: read superblock: %w", err)
	}
	b := make([]byte, min(size, superblockSize))
	if _, err := f.ReadAt(b, 0); err != nil {
		return superblock{}, fmt.Errorf("metadata: read superblock: %w", err)
	}
	if size > superblockSize {
		return superblock{}, ErrNotAStore
	}
	sb, err := decodeSuperblock(b)
	if errors.Is(err, ErrNotAStore) && disk.Exists(engineDir) && disk.Exists(dataDir) {
		err = fmt.Errorf("superblock magic: %w", ErrCorrupt)
	}
	return sb, err
}

// writeSuperblock puts the superblock in place whole or not at all: write and
// sync a file beside it, rename it over, sync the directory.
func writeSuperblock(disk uring.Disk, sb *superblock) error {
	const tmp = superblockName + ".tmp"
	f, err := disk.Create(tmp)
	if err != nil {
		return fmt.Errorf("metadata: write superblock: %w", err)
	}
	_, err = f.WriteAt(sb.encode(), 0)
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = disk.Rename(tmp, superblockName)
	}
	if err == nil {
		err = disk.SyncDir("")
	}
	if err != nil {
		return fmt.Errorf("metadata: write superblock: %w", err)
	}
	return nil
}
