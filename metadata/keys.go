package metadata

import (
	"encoding/binary"
	"fmt"
)

// Keys are big-endian, so that byte order is the order of numbers:
//
//	tree u32 | table u8 | ...
//
// Tree 1 is the live file system; tree 0 holds what belongs to no tree.
const (
	treeGlobal = 0
	treeLive   = 1
)

// Tables.
const (
	tableInode   = 'I' // ino u64                  -> attributes, symlink target
	tableInline  = 'B' // ino u64                  -> bytes of a small file
	tableDirent  = 'D' // dir u64, hash u64        -> all names of that hash
	tableExtent  = 'E' // ino u64, file offset u64 -> extent
	tableXattr   = 'X' // ino u64, name            -> value
	tableOrphan  = 'O' // ino u64                  -> what is left to do for it
	tableSegment = 'S' // segment u32 (tree 0)     -> live bytes
	tableTotals  = 'U' // what u8 (tree 0)         -> counter
)

// Counters of table U.
const (
	totalInodes = 1 // inodes that exist
	totalBytes  = 2 // bytes of file data that exist
	totalLease  = 3 // first inode number not yet leased
)

const (
	keyPrefixLen = 5
	maxKeyLen    = keyPrefixLen + 8 + 255
)

func appendPrefix(dst []byte, tree uint32, table byte) []byte {
	dst = binary.BigEndian.AppendUint32(dst, tree)
	return append(dst, table)
}

func inoKey(dst []byte, table byte, ino Ino) []byte {
	return binary.BigEndian.AppendUint64(appendPrefix(dst, treeLive, table), uint64(ino))
}

func inodeKey(dst []byte, ino Ino) []byte  { return inoKey(dst, tableInode, ino) }
func inlineKey(dst []byte, ino Ino) []byte { return inoKey(dst, tableInline, ino) }
func orphanKey(dst []byte, ino Ino) []byte { return inoKey(dst, tableOrphan, ino) }

func direntKey(dst []byte, dir Ino, hash uint64) []byte {
	return binary.BigEndian.AppendUint64(inoKey(dst, tableDirent, dir), hash)
}

func extentKey(dst []byte, ino Ino, off uint64) []byte {
	return binary.BigEndian.AppendUint64(inoKey(dst, tableExtent, ino), off)
}

func xattrKey(dst []byte, ino Ino, name []byte) []byte {
	return append(inoKey(dst, tableXattr, ino), name...)
}

func segmentKey(dst []byte, seg uint32) []byte {
	return binary.BigEndian.AppendUint32(appendPrefix(dst, treeGlobal, tableSegment), seg)
}

func totalKey(dst []byte, what byte) []byte {
	return append(appendPrefix(dst, treeGlobal, tableTotals), what)
}

// parsedKey is a key taken apart; rest is what follows the inode number.
type parsedKey struct {
	tree  uint32
	table byte
	ino   Ino
	rest  []byte
}

func parseKey(k []byte) (parsedKey, error) {
	if len(k) < keyPrefixLen {
		return parsedKey{}, fmt.Errorf("key of %d bytes: %w", len(k), ErrCorrupt)
	}
	p := parsedKey{tree: binary.BigEndian.Uint32(k), table: k[4], rest: k[5:]}
	switch p.table {
	case tableSegment, tableTotals:
		return p, nil
	case tableInode, tableInline, tableDirent, tableExtent, tableXattr, tableOrphan:
		if len(p.rest) < 8 {
			return p, fmt.Errorf("key %q: %w", k, ErrCorrupt)
		}
		p.ino, p.rest = Ino(binary.BigEndian.Uint64(p.rest)), p.rest[8:]
		want := map[byte]int{tableDirent: 8, tableExtent: 8}[p.table]
		if p.table != tableXattr && len(p.rest) != want {
			return p, fmt.Errorf("key %q: %w", k, ErrCorrupt)
		}
		return p, nil
	}
	return p, fmt.Errorf("key %q: unknown table: %w", k, ErrCorrupt)
}
