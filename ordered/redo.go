package ordered

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Redo is a copy of bytes of the data log that were not durable there.
type Redo struct {
	Seg, Off uint32
	Data     []byte
}

const redoHeader = 12

// AppendRedo appends the encoding of r.
func AppendRedo(dst []byte, r []Redo) []byte {
	le := binary.LittleEndian
	for _, x := range r {
		dst = le.AppendUint32(dst, x.Seg)
		dst = le.AppendUint32(dst, x.Off)
		dst = le.AppendUint32(dst, uint32(len(x.Data)))
		dst = append(dst, x.Data...)
	}
	return dst
}

// DecodeRedo is the inverse of AppendRedo. The data aliases b.
func DecodeRedo(b []byte) ([]Redo, error) {
	le := binary.LittleEndian
	var list []Redo
	for len(b) > 0 {
		if len(b) < redoHeader {
			return nil, fmt.Errorf("ordered: redo of %d bytes: %w", len(b), ErrCorrupt)
		}
		r := Redo{Seg: le.Uint32(b), Off: le.Uint32(b[4:])}
		n := le.Uint32(b[8:])
		b = b[redoHeader:]
		if r.Seg == 0 || r.Off < segmentHeader || uint64(n) > uint64(len(b)) || uint64(r.Off)+uint64(n) > maxSegmentSize {
			return nil, fmt.Errorf("ordered: redo of %d bytes at %d:%d: %w", n, r.Seg, r.Off, ErrCorrupt)
		}
		r.Data = b[:n:n]
		b = b[n:]
		list = append(list, r)
	}
	return list, nil
}

// Undurable returns copies of all bytes up to upto that are not durable, if
// they are at most max. Once they are durable elsewhere, MarkDurable(upto) says
// so. It never waits for the disk.
func (d *DataLog) Undurable(max int) (redo []Redo, upto Pos, ok bool) {
	var spans []span
	d.settle(func() {
		upto = d.tail
		if d.err != nil || d.tailStream-d.durableStream > int64(max) {
			return
		}
		at := d.durableStream
		for _, c := range d.chunks {
			start := c.owner.base + c.off
			end := start + int64(c.fill)
			if end <= at {
				continue
			}
			if start > at {
				break
			}
			c.readers++
			spans = append(spans, span{c, int(at - start), c.fill})
			at = end
		}
		ok = at == d.tailStream
	})
	for _, sp := range spans {
		if ok {
			redo = append(redo, Redo{
				Seg: sp.c.seg, Off: uint32(sp.c.off + int64(sp.from)),
				Data: append([]byte(nil), sp.c.buf[sp.from:sp.to]...),
			})
		}
	}
	if len(spans) > 0 {
		d.mu.Lock()
		for _, sp := range spans {
			sp.c.readers--
		}
		d.room.Broadcast()
		d.mu.Unlock()
	}
	return redo, upto, ok
}

// MarkDurable states that everything up to p, which Undurable returned, can be
// recovered by redo. The bytes are still synced by the next Sync, which must
// come before the redo is dropped.
func (d *DataLog) MarkDurable(p Pos) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if p <= d.durable || p > d.tail {
		return
	}
	if s := d.lookup(p.Seg()); s != nil {
		d.durable, d.durableStream = p, s.base+int64(p.Off())
	}
}

// ApplyRedo writes bytes back where they belong. What lies in a segment that
// has been removed, or behind the end of its file, is skipped. The bytes are
// durable after FinishRedo. A read-only log keeps them in memory.
func (d *DataLog) ApplyRedo(r []Redo) error {
	for _, x := range r {
		if len(x.Data) == 0 {
			continue
		}
		if d.o.ReadOnly {
			d.mu.Lock()
			d.overlay = append(d.overlay, &chunk{
				buf: append([]byte(nil), x.Data...), seg: x.Seg, off: int64(x.Off),
				fill: len(x.Data), written: len(x.Data), closed: true,
			})
			d.mu.Unlock()
			continue
		}
		if err := d.applyRedo(x); err != nil {
			return err
		}
	}
	return nil
}

func (d *DataLog) applyRedo(x Redo) error {
	s, f, err := d.pin(x.Seg, false)
	if errors.Is(err, ErrNoSegment) {
		return nil
	}
	if err != nil {
		return err
	}
	defer s.Release()
	d.mu.Lock()
	inside := int64(x.Off)+int64(len(x.Data)) <= s.size
	if inside {
		d.redone[x.Seg] = s
	}
	d.mu.Unlock()
	if !inside {
		d.o.Logf("ordered: redo of %d bytes at %d:%d lies outside the segment's %d bytes, skipped", len(x.Data), x.Seg, x.Off, s.size)
		return nil
	}
	if _, err := f.WriteAt(x.Data, int64(x.Off)); err != nil {
		return d.fail(fmt.Errorf("ordered: redo segment %d at %d: %w", x.Seg, x.Off, err))
	}
	return nil
}

// FinishRedo makes what ApplyRedo wrote durable.
func (d *DataLog) FinishRedo() error {
	d.mu.Lock()
	redone := d.redone
	d.redone = make(map[uint32]*Segment)
	d.mu.Unlock()
	for num := range redone {
		s, f, err := d.pin(num, false)
		if err != nil {
			return err
		}
		err = f.Datasync()
		s.Release()
		if err != nil {
			return d.fail(fmt.Errorf("ordered: sync segment %d: %w", num, err))
		}
	}
	return nil
}
