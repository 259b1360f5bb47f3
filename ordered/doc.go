// Package ordered keeps logs: bytes with one order, durable up to a known
// position, checked when they are read.
//
// # Terms
//
//   - Log: a file of records, for the engine's write-ahead log and manifest.
//   - DataLog: the files' bytes, in numbered segments of some 64 MiB.
//   - Extent: where a payload lies in the data log, with its checksums. Whoever
//     keeps extents keeps what is needed to find out that bytes are wrong.
//   - Position: an offset in a Log; segment and offset (Pos) in the data log.
//   - Tail: what was appended last, in memory. Handing over is a pwrite: bytes
//     then survive the daemon. Durable bytes survive a power cut.
//   - Redo: copies of undurable bytes of the data log, to travel in the WAL.
//
// # How bytes move
//
//	Append ──reserve under mu──► buffer or chunk ──flusher, pwrite──► page cache ──fdatasync──► medium
//	            │ copy outside         │ reads of fresh bytes             │ writeback started early
//	         position                  └ Undurable ──► redo in the WAL    └ Sync: one leader for all who wait
//
// # Invariants
//
//	I1  Positions are given in the order of appends, and no position is given
//	    twice: segment numbers are never reused, the newest segment is not
//	    removed, and no session appends to a segment of another.
//	I2  Bytes reach the kernel in the order of positions, and what Durable states
//	    was written and fdatasynced before, or can be redone.
//	I3  A failed write or sync is final. The kernel may have marked the pages
//	    clean, so that a second sync proves nothing. Not final: no room for a new
//	    segment or for growing a log, which is refused before any effect, and
//	    read errors, which are the reader's alone.
//	I4  A file is used only after it, its space and its name are durable.
//	I5  Readers never take a read error for an end, and never take damage for a
//	    torn tail if anything proves that the bytes had been durable.
//	I6  A chunk is reused only when the kernel has its bytes and nobody reads it;
//	    a segment's file stays open while it is pinned, and is pinned from its
//	    creation until it is sealed and synced.
//
// # Lock order
//
//	Log:     ioMu, allocMu → mu
//	DataLog: flushMu → settleMu → mu → segMu; Segment.openMu → segMu
//
// No lock of the right side is held across I/O. group.mu is taken alone or
// under nothing but the caller's own locks.
//
// # Log format
//
// As LevelDB's: blocks of 32 KiB hold fragments; a record is one FULL fragment,
// or FIRST, any MIDDLE and LAST. A block's end that is too short for a header is
// zero. Integers are little-endian; checksums are crc32c, masked: rotated right
// by 15, plus 0xa282ead8.
//
//	Strict   checksum 4 | length 2 | type 1 | data              types 1 to 4
//	Default  checksum 4 | length 2 | type 1 | log number 4 | data   types 5 to 8
//
// The checksum covers everything behind the length. The log number, its low 32
// bits, is what keeps records of an older use of a recycled file from being
// replayed. In preallocated files a header of zeros is written behind each
// group, so that a reader finds an end there and no stale bytes.
//
// Default only: a fragment of type 0xc0 is a mark, "all before D was durable
// when this was written at S": D 8 | S 8. It is written in front of the first
// record after a sync, and at Close. Unsynced groups reach the medium in any
// order, so that good records behind a bad spot are no sign of damage; a mark
// behind it with a larger D is. S keeps copies of logs inside data from posing
// as marks.
//
// # Segment format
//
// File data/NNNNNNNNNN.seg, the number in decimal. Page 0 holds the header and is
// never written again; records follow from offset 4096 on, each aligned to 8.
//
//	header   magic "PrismSeg" 8 | version 4 | number 4 | crc32c of these 4
//	record    0  magic "PRec"
//	          4  version 1 | codec 1 | zero 2
//	          8  inode 8
//	         16  file offset 8
//	         24  raw length 4 | stored length 4
//	         32  number of checksums 4
//	         36  crc32c of bytes 0 to 35 and the checksums, starting from
//	             offset + number * 0x9e3779b1 mod 2^32 instead of 0
//	         40  checksums 4 each: raw, one per 4096 bytes; else one
//	             zeros to a multiple of 8, stored bytes, zeros to a multiple of 8
//
// Payloads are not aligned to pages: a 4 KiB payload would take 8 KiB then, and
// reads go through the page cache, which does not mind. Codecs: 0 raw, 1 S2
// block, 2 Zstandard frame. After a crash what was not synced may be anything;
// nothing in a segment says where its records end, the extents that others keep
// do. A page of zeros instead of the header: a crash interrupted the creation.
//
// A redo is a list of segment 4 | offset 4 | length 4 | bytes; what carries it
// has a checksum.
package ordered
