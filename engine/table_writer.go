package engine

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"prismfs/lanes"
	"prismfs/ordered"
	"prismfs/uring"
)

const (
	dataRestartInterval  = 16
	indexRestartInterval = 1

	blockTrailerLen = 5 // codec byte, masked crc32c
	footerLen       = 48
	footerHandles   = 40 // bytes for the two handles; the magic follows
	// The default profile keeps a masked crc32c of the rest of the footer in
	// the last four bytes of the handles' space, which LevelDB pads with zeros.
	footerSum = footerHandles - 4

	strictMagic  = 0xdb4775248b80fb57
	defaultMagic = 0x316274736d737270 // "prsmstb1"

	formatName    = "prismfs.format" // metaindex key of the default profile
	formatVersion = 1

	// writeChunk is how much a table writer collects before it hands it to
	// the kernel.
	writeChunk = 512 << 10
)

// tableOptions say how tables are written and read. Both sides must agree on
// Profile.
type tableOptions struct {
	Profile   ordered.Profile
	BlockSize int // bytes of data block before compression
	Codec     Codec
	// DBRead, if set, is the gate that a blocking read from the disk enters.
	DBRead *lanes.Blocking
}

// blockHandle is the place of a block in its table; length leaves the trailer
// out.
type blockHandle struct{ off, length uint64 }

func (h blockHandle) append(dst []byte) []byte {
	return binary.AppendUvarint(binary.AppendUvarint(dst, h.off), h.length)
}

func decodeHandle(b []byte) (h blockHandle, rest []byte, ok bool) {
	var n int
	if h.off, n = binary.Uvarint(b); n <= 0 {
		return h, nil, false
	}
	b = b[n:]
	if h.length, n = binary.Uvarint(b); n <= 0 {
		return h, nil, false
	}
	return h, b[n:], true
}

func tableMagic(p ordered.Profile) uint64 {
	if p == ordered.Strict {
		return strictMagic
	}
	return defaultMagic
}

func appendFooter(dst []byte, p ordered.Profile, meta, index blockHandle) []byte {
	start := len(dst)
	dst = meta.append(dst)
	dst = index.append(dst)
	dst = append(dst, make([]byte, start+footerHandles-len(dst))...)
	dst = binary.LittleEndian.AppendUint64(dst, tableMagic(p))
	if p == ordered.Default {
		f := dst[start:]
		binary.LittleEndian.PutUint32(f[footerSum:], footerChecksum(f))
	}
	return dst
}

func footerChecksum(f []byte) uint32 {
	c := crc32.Update(0, castagnoli, f[:footerSum])
	return maskCRC(crc32.Update(c, castagnoli, f[footerHandles:footerLen]))
}

// tableMeta describes a finished table.
type tableMeta struct {
	num      FileNum
	size     int64  // bytes
	entries  uint64 // versions, deletes included
	smallest []byte // internal keys
	largest  []byte
}

// tableWriter writes one table. Not safe for concurrent use. It neither syncs
// nor closes the file: that is the caller's, who knows when the table must be
// durable.
type tableWriter struct {
	f    uring.File
	opts tableOptions
	meta tableMeta
	err  error // the first failure; the writer is dead from then on

	data, index blockBuilder
	lastKey     []byte
	sepBuf      []byte
	pending     blockHandle // the block before, whose index entry waits for the next key
	hasPending  bool

	strict strictFilterBuilder // Strict
	hashes []uint64            // Default

	off     uint64 // end of what was put into buf or written
	written int64  // bytes handed to f
	buf     []byte
	zbuf    []byte
}

// newTableWriter starts table num in f, an empty file.
func newTableWriter(f uring.File, num FileNum, opts tableOptions) *tableWriter {
	w := &tableWriter{f: f, opts: opts}
	w.meta.num = num
	w.data.reset(dataRestartInterval)
	w.index.reset(indexRestartInterval)
	return w
}

// add appends an entry. Internal keys must come in strictly ascending order.
func (w *tableWriter) add(ikey, value []byte) error {
	if w.err != nil {
		return w.err
	}
	if len(ikey) < trailerLen {
		return w.fail(errors.New("internal key without a trailer"))
	}
	if w.meta.entries > 0 && compareInternal(w.lastKey, ikey) >= 0 {
		return w.fail(fmt.Errorf("key %q is not behind %q", ikey, w.lastKey))
	}
	if len(ikey) > maxBlockLen/4 || len(value) > maxBlockLen/2 {
		return w.fail(fmt.Errorf("entry of %d and %d bytes is too large", len(ikey), len(value)))
	}
	if w.hasPending {
		w.sepBuf = separator(w.sepBuf[:0], w.lastKey, ikey)
		w.addIndex()
	}
	if w.meta.entries == 0 {
		w.meta.smallest = append([]byte(nil), ikey...)
	}
	ukey := userKey(ikey)
	if w.opts.Profile == ordered.Strict {
		w.strict.add(ukey)
	} else if w.meta.entries == 0 || !equalUserKey(w.lastKey, ikey) {
		w.hashes = append(w.hashes, tableBloomHash(ukey))
	}
	w.lastKey = append(w.lastKey[:0], ikey...)
	w.meta.entries++
	w.data.add(ikey, value)
	if w.data.estimatedSize() >= w.opts.BlockSize {
		return w.flushBlock()
	}
	return nil
}

// addIndex adds the pending block under sepBuf.
func (w *tableWriter) addIndex() {
	var h [2 * binary.MaxVarintLen64]byte
	w.index.add(w.sepBuf, w.pending.append(h[:0]))
	w.hasPending = false
}

func (w *tableWriter) flushBlock() error {
	if w.data.empty() {
		return nil
	}
	h, err := w.writeBlock(w.data.finish(), w.opts.Codec)
	if err != nil {
		return err
	}
	w.data.reset(dataRestartInterval)
	w.pending, w.hasPending = h, true
	if w.opts.Profile == ordered.Strict {
		w.strict.startBlock(w.off)
	}
	return nil
}

// writeBlock stores a block with its trailer.
func (w *tableWriter) writeBlock(raw []byte, c Codec) (blockHandle, error) {
	var stored []byte
	stored, w.zbuf, c = compress(c, w.zbuf, raw)
	h := blockHandle{w.off, uint64(len(stored))}
	start := len(w.buf)
	w.buf = append(w.buf, stored...)
	w.buf = append(w.buf, byte(c))
	sum := blockChecksum(w.opts.Profile, w.meta.num, h.off, w.buf[start:])
	w.buf = binary.LittleEndian.AppendUint32(w.buf, sum)
	w.off += uint64(len(stored)) + blockTrailerLen
	if len(w.buf) >= writeChunk {
		return h, w.flushBuf()
	}
	return h, nil
}

// flushBuf hands the buffer to the kernel and lets it start writing back, so
// that the sync at the end finds little left.
func (w *tableWriter) flushBuf() error {
	if len(w.buf) == 0 {
		return nil
	}
	if _, err := w.f.WriteAt(w.buf, w.written); err != nil {
		return w.fail(err)
	}
	w.f.StartWriteback(w.written, int64(len(w.buf)))
	w.written += int64(len(w.buf))
	w.buf = w.buf[:0]
	return nil
}

func (w *tableWriter) fail(err error) error {
	if errors.Is(err, uring.ErrNoSpace) {
		err = fmt.Errorf("%w (%w)", ErrNoSpace, err)
	}
	w.err = fmt.Errorf("engine: write table %s: %w", w.f.Name(), err)
	return w.err
}

// estimatedSize is the size of the file so far, compression of the open block
// left out.
func (w *tableWriter) estimatedSize() int64 {
	n := int64(w.off)
	if !w.data.empty() {
		n += int64(w.data.estimatedSize())
	}
	return n
}

// finish writes what closes a table and hands all to the kernel. A table
// without entries is valid, with empty bounds.
func (w *tableWriter) finish() (tableMeta, error) {
	if w.err != nil {
		return tableMeta{}, w.err
	}
	if err := w.flushBlock(); err != nil {
		return tableMeta{}, err
	}
	filterName, filter := tableFilterName, []byte(nil)
	if w.opts.Profile == ordered.Strict {
		filterName, filter = strictFilterName, w.strict.finish()
	} else {
		filter = buildTableBloom(w.hashes)
	}
	fh, err := w.writeBlock(filter, None)
	if err != nil {
		return tableMeta{}, err
	}
	var meta blockBuilder
	meta.reset(dataRestartInterval)
	meta.add([]byte(filterName), fh.append(nil))
	if w.opts.Profile == ordered.Default {
		meta.add([]byte(formatName), binary.AppendUvarint(nil, formatVersion))
	}
	mh, err := w.writeBlock(meta.finish(), None)
	if err != nil {
		return tableMeta{}, err
	}
	if w.hasPending {
		w.sepBuf = successor(w.sepBuf[:0], w.lastKey)
		w.addIndex()
	}
	ih, err := w.writeBlock(w.index.finish(), w.opts.Codec)
	if err != nil {
		return tableMeta{}, err
	}
	w.buf = appendFooter(w.buf, w.opts.Profile, mh, ih)
	w.off += footerLen
	if err := w.flushBuf(); err != nil {
		return tableMeta{}, err
	}
	w.meta.size = int64(w.off)
	w.meta.largest = append([]byte(nil), w.lastKey...)
	return w.meta, nil
}
