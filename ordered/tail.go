package ordered

import (
	"fmt"

	"github.com/klauspost/compress/s2"

	"prismfs/uring"
)

// chunk is a piece of the log in memory: bytes on their way to the kernel, and
// after that a cache of what was written last. A record never crosses chunks.
type chunk struct {
	buf     []byte
	seg     uint32
	off     int64    // segment offset of buf[0]
	owner   *Segment // nil in an overlay
	fill    int      // guarded by DataLog.mu; bytes reserved
	written int      // guarded by DataLog.mu; bytes the kernel has
	closed  bool     // guarded by DataLog.mu; no more reservations
	readers int      // guarded by DataLog.mu
	started bool     // guarded by DataLog.mu; writeback of all of it was started
}

// Append adds a record with a copy of payload and returns where it is and the
// position behind it. Records have positions in the order of the calls; the
// bytes are in memory only, see Flush and Sync.
//
//   - Shape: 1 to MaxPayload bytes.
//   - Waits: for the disk when MaxTail is full, MaxUndurable bytes are not
//     synced, or a new segment must be made; with nowait ErrWouldBlock instead.
//   - Errors: uring.ErrNoSpace without effect; ErrFailed, ErrClosed.
func (d *DataLog) Append(ino, fileOff uint64, payload []byte, nowait bool) (Extent, Pos, error) {
	return d.AppendCodec(d.o.Codec, ino, fileOff, payload, nowait)
}

// AppendCodec is Append with a codec of its own.
func (d *DataLog) AppendCodec(codec uint8, ino, fileOff uint64, payload []byte, nowait bool) (Extent, Pos, error) {
	if len(payload) == 0 || len(payload) > MaxPayload {
		return Extent{}, 0, fmt.Errorf("ordered: append %d bytes: %w", len(payload), ErrTooLarge)
	}
	if codec >= codecs {
		return Extent{}, 0, fmt.Errorf("ordered: append with codec %d: unknown", codec)
	}
	stored, used := payload, CodecRaw
	if codec != CodecRaw {
		if nowait {
			// Compressing is wasted if there is no room even now.
			d.mu.Lock()
			err := d.admitLocked(recordLen(4, len(payload)), true)
			d.mu.Unlock()
			if err != nil {
				return Extent{}, 0, err
			}
		}
		scratch := borrow(s2.MaxEncodedLen(len(payload)))
		defer buffers.Put(scratch)
		stored, used = d.comp.compress(codec, payload, *scratch)
	}
	h := RecordHeader{Ino: ino, FileOff: fileOff, Raw: uint32(len(payload)), Stored: uint32(len(stored)), Codec: used}
	sums := make([]byte, 0, 4*sumCount(used, len(payload)))
	if used == CodecRaw {
		sums = appendSums(sums, stored)
	} else {
		sums = appendSum(sums, stored)
	}
	need := recordLen(len(sums), len(stored))

	d.mu.Lock()
	if err := d.admitLocked(need, nowait); err != nil {
		d.mu.Unlock()
		return Extent{}, 0, err
	}
	s := d.active
	c := d.chunks[len(d.chunks)-1]
	start := MakePos(s.num, uint32(s.fill))
	dst := c.buf[c.fill : c.fill+need]
	c.fill += need
	s.fill += int64(need)
	d.tail = MakePos(s.num, uint32(s.fill))
	d.tailStream += int64(need)
	end := d.tail
	phase := d.phase
	d.copying[phase].Add(1)
	kick := !d.armed
	d.armed = true
	pending := d.tailStream - d.takenStream
	full := pending >= flushBytes && pending-int64(need) < flushBytes
	d.askSyncLocked(d.o.MaxUndurable / 2)
	if s.fill > s.size/4*3 && d.next == nil && !d.rolling && d.rollErr == nil {
		d.rollLocked()
	}
	d.mu.Unlock()

	at := payloadOffset(len(sums))
	putRecordHeader(dst[:at], start, &h, sums)
	clear(dst[at+copy(dst[at:], stored):])
	if d.copying[phase].Add(-1) == 0 && d.waiting.Load() {
		signal(d.settled)
	}
	if kick {
		signal(d.wake)
	}
	if full {
		signal(d.full)
	}
	return Extent{
		Seg: s.num, Off: start.Off() + uint32(at), Stored: h.Stored, Raw: h.Raw, Codec: used, Sums: sums,
	}, end, nil
}

// admitLocked waits until need bytes can be appended to the active segment and
// the last chunk. Caller holds mu, which is released while waiting.
func (d *DataLog) admitLocked(need int, nowait bool) error {
	tried := false // an attempt to make a segment was started for us
	for waited := false; ; waited = true {
		if err := d.usableLocked(); err != nil {
			return err
		}
		if waited && d.spaceErr != nil {
			return d.spaceErr
		}
		if d.o.ReadOnly {
			return fmt.Errorf("ordered: append: %w", uring.ErrReadOnly)
		}
		switch {
		case d.tailStream > d.syncedStream && d.tailStream+int64(need)-d.syncedStream > d.o.MaxUndurable:
			d.askSyncLocked(0)
		case d.active == nil || d.active.fill+int64(need) > d.active.size:
			if d.next != nil {
				d.activateLocked()
				continue
			}
			if tried && !d.rolling && d.rollErr != nil {
				return d.rollErr
			}
			if !d.rolling {
				d.rollLocked()
			}
			tried = true
		case d.chunkLocked(need):
			return nil
		default:
			signal(d.full)
			if !d.armed {
				d.armed = true
				signal(d.wake)
			}
		}
		if nowait {
			return uring.ErrWouldBlock
		}
		d.nWaits++
		d.room.Wait()
	}
}

// askSyncLocked starts the background sync if more than limit bytes are not
// synced.
func (d *DataLog) askSyncLocked(limit int64) {
	if !d.syncing && d.tailStream-d.syncedStream > limit {
		d.syncing = true
		signal(d.syncWant)
	}
}

// activateLocked makes next the active segment.
func (d *DataLog) activateLocked() {
	if d.active != nil {
		d.retireLocked()
	}
	s := d.next
	d.next = nil
	s.base = d.tailStream - s.fill
	d.active = s
	d.tail = MakePos(s.num, uint32(s.fill))
	d.unsynced = append(d.unsynced, s) // with the pin of its creation
}

// retireLocked seals the active segment.
func (d *DataLog) retireLocked() {
	d.active.sealed = true
	d.active = nil
	d.closeChunkLocked()
}

func (d *DataLog) closeChunkLocked() {
	if n := len(d.chunks); n > 0 {
		d.chunks[n-1].closed = true
	}
}

// chunkLocked makes the last chunk one with need bytes of room in the active
// segment, if memory allows.
func (d *DataLog) chunkLocked(need int) bool {
	if n := len(d.chunks); n > 0 {
		if c := d.chunks[n-1]; !c.closed && c.fill+need <= len(c.buf) {
			return true
		}
		d.closeChunkLocked()
	}
	buf := d.bufferLocked()
	if buf == nil {
		return false
	}
	d.chunks = append(d.chunks, &chunk{buf: buf, seg: d.active.num, off: d.active.fill, owner: d.active})
	d.memFrom.Store(uint64(MakePos(d.chunks[0].seg, uint32(d.chunks[0].off))))
	return true
}

// bufferLocked returns a free buffer, a new one, or that of the oldest chunk
// whose bytes the kernel has and nobody reads.
func (d *DataLog) bufferLocked() []byte {
	if d.buffers < d.maxChunks {
		d.buffers++
		return make([]byte, chunkSize)
	}
	for i, c := range d.chunks {
		if c.closed && c.written == c.fill && c.readers == 0 {
			d.chunks = append(d.chunks[:i], d.chunks[i+1:]...)
			return c.buf
		}
	}
	return nil
}

// findLocked returns the chunk that holds n bytes at off of segment seg.
func (d *DataLog) findLocked(seg uint32, off int64, n int) *chunk {
	for i := len(d.chunks) - 1; i >= 0; i-- {
		if c := d.chunks[i]; c.holds(seg, off, n) {
			return c
		}
	}
	for i := len(d.overlay) - 1; i >= 0; i-- {
		if c := d.overlay[i]; c.holds(seg, off, n) {
			return c
		}
	}
	return nil
}

func (c *chunk) holds(seg uint32, off int64, n int) bool {
	return c.seg == seg && off >= c.off && off+int64(n) <= c.off+int64(c.fill)
}

// rollLocked starts to make the next segment.
func (d *DataLog) rollLocked() {
	if d.closed {
		return
	}
	d.rolling, d.rollErr = true, nil
	num := d.nextNum
	d.wg.Add(1)
	go func() {
		defer d.wg.Done()
		s, err := d.createSegment(num)
		d.mu.Lock()
		d.rolling = false
		if err != nil {
			d.rollErr = err
		} else {
			d.next = s
			d.nextNum = num + 1
		}
		d.room.Broadcast()
		d.mu.Unlock()
	}()
}
