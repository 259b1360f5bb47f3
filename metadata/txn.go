package metadata

import (
	"encoding/binary"
	"fmt"
	"sync"

	"prismfs/engine"
)

// txn collects what one operation changes: one engine batch, and the change it
// makes to the counters, which travels with the batch as a note.
//
// A txn is built and committed under the locks of every inode it touches. The
// inodes in memory change only after commit returned nil, so that a failed or
// put-off operation leaves no trace.
type txn struct {
	s     *Store
	b     *engine.Batch
	delta delta
	key   [maxKeyLen]byte
	val   []byte
}

// delta is a change of the counters.
type delta struct {
	inodes, bytes int64
	segs          []segDelta
}

type segDelta struct {
	seg   uint32
	bytes int64
}

func (d *delta) reset() { d.inodes, d.bytes, d.segs = 0, 0, d.segs[:0] }

func (d *delta) empty() bool { return d.inodes == 0 && d.bytes == 0 && len(d.segs) == 0 }

var txnPool = sync.Pool{New: func() any { return &txn{b: engine.NewBatch()} }}

func (s *Store) begin() *txn {
	t := txnPool.Get().(*txn)
	t.s = s
	return t
}

// end gives the txn back; call it once, committed or not.
func (t *txn) end() {
	if t.b.Len() > 1<<20 || cap(t.val) > 64<<10 {
		return // too large to keep
	}
	t.b.Reset()
	t.delta.reset()
	t.s = nil
	txnPool.Put(t)
}

func (t *txn) putInode(a *Attr, target []byte) {
	t.val = appendInode(t.val[:0], a, target)
	t.b.Put(inodeKey(t.key[:0], a.Ino), t.val)
}

func (t *txn) putInline(ino Ino, b []byte) { t.b.Put(inlineKey(t.key[:0], ino), b) }
func (t *txn) deleteInline(ino Ino)        { t.b.Delete(inlineKey(t.key[:0], ino)) }
func (t *txn) deleteExtent(ino Ino, off uint64) {
	t.b.Delete(extentKey(t.key[:0], ino, off))
}

func (t *txn) putExtent(ino Ino, e *extent) {
	t.val = appendExtent(t.val[:0], e)
	t.b.Put(extentKey(t.key[:0], ino, e.off), t.val)
}

func (t *txn) putBucket(dir Ino, hash uint64, b []byte) {
	if b == nil {
		t.b.Delete(direntKey(t.key[:0], dir, hash))
	} else {
		t.b.Put(direntKey(t.key[:0], dir, hash), b)
	}
}

// live notes that a segment's live bytes change.
func (t *txn) live(seg uint32, bytes int64) {
	if bytes == 0 {
		return
	}
	for i := range t.delta.segs {
		if t.delta.segs[i].seg == seg {
			t.delta.segs[i].bytes += bytes
			return
		}
	}
	t.delta.segs = append(t.delta.segs, segDelta{seg, bytes})
}

// commit applies the batch. Its effects are visible and ordered when it returns
// nil, durable after the next barrier.
func (t *txn) commit(w Wait) error {
	if !t.delta.empty() {
		t.val = appendDelta(t.val[:0], &t.delta)
		t.b.Note(t.val)
	}
	t.b.OnCommit, t.b.User = countCommit, t
	err := t.s.db.Apply(t.b, w)
	t.b.OnCommit, t.b.User = nil, nil
	if err != nil && err != ErrWouldBlock {
		t.s.noteFailure(err)
	}
	return err
}

// countCommit runs on the write lane, in commit order, so that the counters and
// a snapshot of them taken there always agree with the batches before it.
func countCommit(b *engine.Batch) {
	t := b.User.(*txn)
	t.s.counters.apply(&t.delta)
}

// Notes in the log; the first byte is the kind.
const (
	noteWatermark = 'W' // position u64: data before it was durable when this was written
	noteRedo      = 'R' // bytes of the data log, see ordered.AppendRedo
	noteDelta     = 'D' // inodes varint, bytes varint, then segment uvarint, bytes varint pairs
)

func appendDelta(dst []byte, d *delta) []byte {
	dst = append(dst, noteDelta)
	dst = binary.AppendVarint(dst, d.inodes)
	dst = binary.AppendVarint(dst, d.bytes)
	for _, sd := range d.segs {
		dst = binary.AppendUvarint(dst, uint64(sd.seg))
		dst = binary.AppendVarint(dst, sd.bytes)
	}
	return dst
}

// decodeDelta parses a delta note without its first byte.
func decodeDelta(b []byte) (d delta, err error) {
	bad := fmt.Errorf("counter note: %w", ErrCorrupt)
	varint := func() int64 {
		v, n := binary.Varint(b)
		if n <= 0 {
			err = bad
			return 0
		}
		b = b[n:]
		return v
	}
	d.inodes, d.bytes = varint(), varint()
	for err == nil && len(b) > 0 {
		seg, n := binary.Uvarint(b)
		if n <= 0 || seg > 1<<32-1 {
			return d, bad
		}
		b = b[n:]
		d.segs = append(d.segs, segDelta{uint32(seg), varint()})
	}
	return d, err
}

// counters are the totals that statfs, garbage collection and quotas need.
// They change on the write lane only; readers take the lock.
type counters struct {
	mu            sync.Mutex
	inodes, bytes int64
	live          map[uint32]int64 // segment -> bytes that extents refer to
	changed       map[uint32]bool  // since the absolute values were last written
}

func (c *counters) apply(d *delta) {
	if d.empty() {
		return
	}
	c.mu.Lock()
	c.inodes += d.inodes
	c.bytes += d.bytes
	for _, sd := range d.segs {
		c.live[sd.seg] += sd.bytes
		c.changed[sd.seg] = true
	}
	c.mu.Unlock()
}

// writeAbsolute adds the counters' values to a batch, so that a log that starts
// after it needs only its own deltas. It runs on the write lane.
func (c *counters) writeAbsolute(b *engine.Batch) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var kb [32]byte
	put := func(key []byte, v int64) {
		b.Put(key, binary.LittleEndian.AppendUint64(nil, uint64(v)))
	}
	put(totalKey(kb[:0], totalInodes), c.inodes)
	put(totalKey(kb[:0], totalBytes), c.bytes)
	for seg := range c.changed {
		if v, ok := c.live[seg]; ok {
			put(segmentKey(kb[:0], seg), v)
		} else {
			b.Delete(segmentKey(kb[:0], seg))
		}
	}
	clear(c.changed)
}

// forget drops a segment that is gone.
func (c *counters) forget(seg uint32) {
	c.mu.Lock()
	delete(c.live, seg)
	c.changed[seg] = true
	c.mu.Unlock()
}
