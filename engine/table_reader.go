package engine

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"

	"prismfs/ordered"
	"prismfs/uring"
)

// table is an open table: its index and filter stay in memory. Safe for
// concurrent use. Holders count; the last release closes the file.
type table struct {
	f     uring.File
	num   FileNum
	size  int64 // bytes
	opts  tableOptions
	cache *blockCache

	index  block
	filter []byte     // Strict: the filter block, nil if the table has none
	bloom  tableBloom // Default; no lines if the table has none

	refs atomic.Int32
	hot  atomic.Bool // used since the table cache's hand passed
}

// openTable reads the footer, index and filter of table num, which has size
// bytes. The table owns f from then on; after an error f is still the
// caller's. It blocks on the disk.
func openTable(f uring.File, num FileNum, size int64, cache *blockCache, opts tableOptions) (*table, error) {
	t := &table{f: f, num: num, size: size, opts: opts, cache: cache}
	t.refs.Store(1)
	if err := t.open(); err != nil {
		return nil, fmt.Errorf("engine: open table %s: %w", f.Name(), err)
	}
	return t, nil
}

func (t *table) open() error {
	if n, err := t.f.Size(); err != nil {
		return err
	} else if n != t.size {
		return fmt.Errorf("file has %d bytes, wanted %d: %w", n, t.size, ErrCorrupt)
	}
	if t.size < footerLen {
		return fmt.Errorf("file of %d bytes is too short: %w", t.size, ErrCorrupt)
	}
	footer := make([]byte, footerLen)
	if _, err := t.f.ReadAt(footer, t.size-footerLen); err != nil {
		return err
	}
	metaHandle, indexHandle, err := decodeFooter(footer, t.opts.Profile)
	if err != nil {
		return fmt.Errorf("at %d: %w", t.size-footerLen, err)
	}
	index, err := t.readPinned(indexHandle)
	if err != nil {
		return err
	}
	if t.index, err = makeBlock(index); err != nil {
		return fmt.Errorf("index at %d: %w", indexHandle.off, err)
	}
	return t.openMeta(metaHandle)
}

// decodeFooter returns the handles of the metaindex and the index.
func decodeFooter(f []byte, p ordered.Profile) (meta, index blockHandle, err error) {
	if got, want := binary.LittleEndian.Uint64(f[footerHandles:]), tableMagic(p); got != want {
		return meta, index, fmt.Errorf("footer magic wanted %016x found %016x: %w", want, got, ErrCorrupt)
	}
	if p == ordered.Default {
		if got, want := binary.LittleEndian.Uint32(f[footerSum:]), footerChecksum(f); got != want {
			return meta, index, fmt.Errorf("footer checksum wanted %08x found %08x: %w", want, got, ErrCorrupt)
		}
	}
	meta, rest, ok := decodeHandle(f[:footerHandles])
	if ok {
		index, _, ok = decodeHandle(rest)
	}
	if !ok {
		return meta, index, fmt.Errorf("footer handles: %w", ErrCorrupt)
	}
	return meta, index, nil
}

func (t *table) openMeta(h blockHandle) error {
	contents, err := t.readPinned(h)
	if err != nil {
		return err
	}
	b, err := makeBlock(contents)
	if err != nil {
		return fmt.Errorf("metaindex at %d: %w", h.off, err)
	}
	version := uint64(0)
	var it blockIter
	it.initRaw(b)
	for ok := it.First(); ok; ok = it.Next() {
		switch string(it.Key()) {
		case formatName:
			v, n := binary.Uvarint(it.Value())
			if n <= 0 {
				return fmt.Errorf("metaindex at %d: format version: %w", h.off, ErrCorrupt)
			}
			version = v
		case strictFilterName:
			if t.opts.Profile == ordered.Strict {
				if t.filter, err = t.readMeta(it.Value()); err != nil {
					return err
				}
			}
		case tableFilterName:
			if t.opts.Profile == ordered.Default {
				f, err := t.readMeta(it.Value())
				if err != nil {
					return err
				}
				if t.bloom, err = openTableBloom(f); err != nil {
					return err
				}
			}
		}
	}
	if err := it.Err(); err != nil {
		return fmt.Errorf("metaindex at %d: %w", h.off, err)
	}
	if t.opts.Profile == ordered.Default && version != formatVersion {
		return fmt.Errorf("table format %d, this program reads %d", version, formatVersion)
	}
	return nil
}

func (t *table) readMeta(handle []byte) ([]byte, error) {
	h, _, ok := decodeHandle(handle)
	if !ok {
		return nil, fmt.Errorf("metaindex handle: %w", ErrCorrupt)
	}
	return t.readPinned(h)
}

// pinnedBytes is the memory that the open table takes.
func (t *table) pinnedBytes() int64 {
	const record = 512 // the struct, its file and its place in the table cache
	return int64(len(t.index.data)+len(t.filter)+len(t.bloom.bits)) + record
}

// retain and release count the holders of the table.
func (t *table) retain(n int) { t.refs.Add(int32(n)) }

func (t *table) release() {
	switch n := t.refs.Add(-1); {
	case n == 0:
		// Nothing was written through this descriptor, so a failed close
		// loses nothing.
		_ = t.f.Close()
	case n < 0:
		panic("engine: table released twice")
	}
}

// rawBufs holds *[]byte scratch for stored blocks.
var rawBufs = sync.Pool{New: func() any { b := make([]byte, 8<<10); return &b }}

// bounds checks a handle against the file.
func (t *table) bounds(h blockHandle) error {
	limit := uint64(t.size - footerLen)
	if h.length > maxBlockLen || h.off > limit || h.length+blockTrailerLen > limit-h.off {
		return fmt.Errorf("block at %d of %d bytes lies outside of the file: %w", h.off, h.length, ErrCorrupt)
	}
	return nil
}

// readBlock reads, verifies and decompresses a block into what alloc returns.
// Under NoWait it returns uring.ErrWouldBlock for what the page cache lacks.
func (t *table) readBlock(h blockHandle, w Wait, alloc func(n int) []byte) error {
	if err := t.bounds(h); err != nil {
		return err
	}
	bp := rawBufs.Get().(*[]byte)
	defer rawBufs.Put(bp)
	n := int(h.length) + blockTrailerLen
	if cap(*bp) < n {
		*bp = make([]byte, n)
	}
	raw := (*bp)[:n]
	var err error
	if w == NoWait {
		_, err = t.f.ReadAtNoWait(raw, int64(h.off))
	} else {
		_, err = t.readAt(raw, int64(h.off))
	}
	if err != nil {
		return readFault(err)
	}
	return t.decodeBlock(h, raw, alloc)
}

// readFault turns the end of the file into damage: handles were checked
// against the size that the table must have.
func readFault(err error) error {
	if err == io.EOF {
		return fmt.Errorf("file ends early: %w", ErrCorrupt)
	}
	return err
}

// readPinned reads a block that stays in memory with its table.
func (t *table) readPinned(h blockHandle) ([]byte, error) {
	var out []byte
	err := t.readBlock(h, Block, func(n int) []byte {
		out = make([]byte, n)
		return out
	})
	return out, err
}

// readAround is what a read that goes to the disk brings into the page cache,
// aligned: a disk takes hardly longer for it than for one block, and what is
// asked for next often lies beside what was asked for now.
const readAround = 64 << 10

// readAt is a read that may wait for the disk; it passes the gate.
func (t *table) readAt(p []byte, off int64) (int, error) {
	if g := t.opts.DBRead; g != nil {
		if err := g.Enter(); err != nil {
			return 0, err
		}
		defer g.Leave()
	}
	t.f.Prefetch(off&^(readAround-1), readAround)
	return t.f.ReadAt(p, off)
}

// decodeBlock verifies a stored block with its trailer and decompresses it
// into what alloc returns.
func (t *table) decodeBlock(h blockHandle, raw []byte, alloc func(n int) []byte) error {
	n := int(h.length)
	found := binary.LittleEndian.Uint32(raw[n+1:])
	if want := blockChecksum(t.opts.Profile, t.num, h.off, raw[:n+1]); want != found {
		return fmt.Errorf("block at %d of %d bytes: checksum wanted %08x found %08x: %w", h.off, h.length, want, found, ErrCorrupt)
	}
	codec := Codec(raw[n])
	if t.opts.Profile == ordered.Strict && codec > Snappy {
		return fmt.Errorf("block at %d: codec %d: %w", h.off, codec, ErrCorrupt)
	}
	size, err := decodedLen(codec, raw[:n])
	if err == nil {
		err = decompress(codec, alloc(size), raw[:n])
	}
	if err != nil {
		return fmt.Errorf("block at %d: %w", h.off, err)
	}
	return nil
}

// loadBlock reads a data block that the cache lacks; the caller owns the only
// reference.
func (t *table) loadBlock(h blockHandle, w Wait) (*cachedBlock, error) {
	var b *cachedBlock
	err := t.readBlock(h, w, func(n int) []byte {
		b = t.cache.newBlock(blockKey{t.num, h.off}, n)
		return b.buf
	})
	if err == nil {
		if b.blk, err = makeBlock(b.buf); err != nil {
			err = fmt.Errorf("block at %d: %w", h.off, err)
		}
	}
	if err != nil {
		if b != nil {
			b.release()
		}
		return nil, err
	}
	return b, nil
}

// dataBlock returns a data block with a reference for the caller: from the
// cache, else from the page cache, else, unless NoWait, from the disk, joining
// a read of the same block that is under way.
func (t *table) dataBlock(h blockHandle, w Wait) (*cachedBlock, error) {
	k := blockKey{t.num, h.off}
	if b := t.cache.get(k); b != nil {
		return b, nil
	}
	b, err := t.loadBlock(h, NoWait)
	if errors.Is(err, uring.ErrWouldBlock) {
		if w == NoWait {
			return nil, ErrWouldBlock
		}
		b, err = t.cache.flights.do(k, func() (*cachedBlock, error) {
			b, err := t.loadBlock(h, Block)
			if err != nil {
				return nil, err
			}
			return t.cache.add(b), nil
		})
		if err != nil {
			return nil, t.readError(err)
		}
		return b, nil
	}
	if err != nil {
		return nil, t.readError(err)
	}
	return t.cache.add(b), nil
}

func (t *table) readError(err error) error {
	return fmt.Errorf("engine: read table %s: %w", t.f.Name(), err)
}

// getIters holds the iterators of a point lookup, for their key buffers.
type getIters struct{ index, data blockIter }

var getItersPool = sync.Pool{New: func() any { return new(getIters) }}

// get finds the first entry at or behind the search key ikey that has its user
// key. It appends the entry's value to dst and returns its trailer; ok tells
// whether there is one. Under NoWait it returns ErrWouldBlock when the disk
// would have to be read.
func (t *table) get(dst, ikey []byte, w Wait) (value []byte, trail uint64, ok bool, err error) {
	ukey := userKey(ikey)
	if t.bloom.lines != 0 && !t.bloom.mayContain(ukey) {
		return dst, 0, false, nil
	}
	it := getItersPool.Get().(*getIters)
	defer func() {
		it.index.init(block{})
		it.data.init(block{})
		getItersPool.Put(it)
	}()
	it.index.init(t.index)
	if !it.index.SeekGE(ikey) {
		if err := it.index.Err(); err != nil {
			return dst, 0, false, t.readError(fmt.Errorf("index: %w", err))
		}
		return dst, 0, false, nil
	}
	h, _, ok := decodeHandle(it.index.Value())
	if !ok {
		return dst, 0, false, t.readError(fmt.Errorf("index handle: %w", ErrCorrupt))
	}
	if t.filter != nil && !strictMayContain(t.filter, h.off, ukey) {
		return dst, 0, false, nil
	}
	b, err := t.dataBlock(h, w)
	if err != nil {
		return dst, 0, false, err
	}
	defer b.release()
	it.data.init(b.blk)
	if !it.data.SeekGE(ikey) {
		if err := it.data.Err(); err != nil {
			return dst, 0, false, t.readError(fmt.Errorf("block at %d: %w", h.off, err))
		}
		return dst, 0, false, nil
	}
	if !equalUserKey(it.data.Key(), ikey) {
		return dst, 0, false, nil
	}
	return append(dst, it.data.Value()...), trailer(it.data.Key()), true, nil
}

// newIter returns an iterator over the table, which must outlive it.
func (t *table) newIter(w Wait) *tableIter {
	it := &tableIter{t: t, wait: w}
	it.index.init(t.index)
	return it
}

// newScan returns an iterator for one pass over the table: it reads ahead in
// large pieces and leaves the block cache alone.
func (t *table) newScan() *tableIter {
	it := t.newIter(Block)
	it.ahead = new(readAhead)
	return it
}

// scanChunk is how much a scan reads at once.
const scanChunk = 256 << 10

// readAhead holds the stored bytes [off, off+len(buf)) of a table, and the one
// block that its scan stands on.
type readAhead struct {
	off   uint64
	buf   []byte
	block cachedBlock
	spare []byte // the block's memory, for the next one
}

// tableIter walks a table: the index says which block, data where in it.
type tableIter struct {
	t     *table
	wait  Wait
	ahead *readAhead // set in a scan
	owned bool       // the iterator holds a reference to t

	index blockIter
	data  blockIter
	cur   *cachedBlock // the block under data, nil when there is none
	err   error
}

// unload leaves the current block.
func (i *tableIter) unload() {
	if i.cur != nil {
		i.data.init(block{})
		i.cur.release()
		i.cur = nil
	}
}

// fail records err and invalidates the iterator.
func (i *tableIter) fail(err error) bool {
	i.unload()
	i.err = err
	return false
}

// load brings in the block that the index stands on; data is unpositioned.
func (i *tableIter) load() bool {
	h, _, ok := decodeHandle(i.index.Value())
	if !ok {
		return i.fail(i.t.readError(fmt.Errorf("index handle: %w", ErrCorrupt)))
	}
	if i.cur != nil && i.cur.key.off == h.off {
		return true
	}
	i.unload()
	var err error
	if i.ahead != nil {
		i.cur, err = i.scanBlock(h)
	} else {
		i.cur, err = i.t.dataBlock(h, i.wait)
	}
	if err != nil {
		return i.fail(err)
	}
	i.data.init(i.cur.blk)
	return true
}

// scanBlock is dataBlock for a scan.
func (i *tableIter) scanBlock(h blockHandle) (*cachedBlock, error) {
	t, a := i.t, i.ahead
	if err := t.bounds(h); err != nil {
		return nil, t.readError(err)
	}
	n := h.length + blockTrailerLen
	if h.off < a.off || h.off+n > a.off+uint64(len(a.buf)) {
		size := max(n, min(scanChunk, uint64(t.size)-h.off))
		if uint64(cap(a.buf)) < size {
			a.buf = make([]byte, size)
		}
		a.off, a.buf = h.off, a.buf[:size]
		// No gate: a scan runs where background work is admitted already, and
		// must not hold up the gets behind it.
		if _, err := t.f.ReadAt(a.buf, int64(a.off)); err != nil {
			a.buf = a.buf[:0]
			return nil, t.readError(readFault(err))
		}
	}
	// The block before this one has been left, so its memory is free.
	b := &a.block
	err := t.decodeBlock(h, a.buf[h.off-a.off:][:n], func(n int) []byte {
		b.buf = slices.Grow(a.spare[:0], n)[:n]
		a.spare = b.buf
		return b.buf
	})
	if err != nil {
		return nil, t.readError(err)
	}
	if b.blk, err = makeBlock(b.buf); err != nil {
		return nil, t.readError(fmt.Errorf("block at %d: %w", h.off, err))
	}
	b.key = blockKey{t.num, h.off}
	b.refs.Store(1)
	return b, nil
}

// forward returns true on the current entry of data, else moves to the first
// entry of the blocks behind.
func (i *tableIter) forward(ok bool) bool {
	for !ok {
		if err := i.data.Err(); err != nil {
			return i.fail(i.t.readError(fmt.Errorf("block at %d: %w", i.cur.key.off, err)))
		}
		if !i.index.Next() {
			return i.end()
		}
		if !i.load() {
			return false
		}
		ok = i.data.First()
	}
	return true
}

// backward is forward in the other direction.
func (i *tableIter) backward(ok bool) bool {
	for !ok {
		if err := i.data.Err(); err != nil {
			return i.fail(i.t.readError(fmt.Errorf("block at %d: %w", i.cur.key.off, err)))
		}
		if !i.index.Prev() {
			return i.end()
		}
		if !i.load() {
			return false
		}
		ok = i.data.Last()
	}
	return true
}

// end invalidates the iterator because the index has no further entry.
func (i *tableIter) end() bool {
	if err := i.index.Err(); err != nil {
		return i.fail(i.t.readError(fmt.Errorf("index: %w", err)))
	}
	return i.fail(nil)
}

func (i *tableIter) First() bool {
	i.err = nil
	if !i.index.First() {
		return i.end()
	}
	return i.load() && i.forward(i.data.First())
}

func (i *tableIter) Last() bool {
	i.err = nil
	if !i.index.Last() {
		return i.end()
	}
	return i.load() && i.backward(i.data.Last())
}

func (i *tableIter) SeekGE(ikey []byte) bool {
	i.err = nil
	if !i.index.SeekGE(ikey) {
		return i.end()
	}
	return i.load() && i.forward(i.data.SeekGE(ikey))
}

func (i *tableIter) SeekLT(ikey []byte) bool {
	i.err = nil
	// The entries before ikey end in the first block whose separator isn't
	// before ikey, or in the block before that one.
	if !i.index.SeekGE(ikey) {
		if i.index.Err() != nil || !i.index.Last() {
			return i.end()
		}
	}
	return i.load() && i.backward(i.data.SeekLT(ikey))
}

func (i *tableIter) Next() bool { return i.forward(i.data.Next()) }
func (i *tableIter) Prev() bool { return i.backward(i.data.Prev()) }

func (i *tableIter) Valid() bool   { return i.cur != nil && i.data.Valid() }
func (i *tableIter) Key() []byte   { return i.data.Key() }
func (i *tableIter) Value() []byte { return i.data.Value() }
func (i *tableIter) Err() error    { return i.err }

// Close lets go of the block and, if the iterator holds it, of the table.
func (i *tableIter) Close() error {
	i.unload()
	if i.owned {
		i.owned = false
		i.t.release()
	}
	return i.err
}
