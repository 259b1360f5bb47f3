package ordered

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"prismfs/lanes"
	"prismfs/uring"
)

// span is a range of a chunk.
type span struct {
	c        *chunk
	from, to int
}

// settle calls pick with mu held and waits until every record that was
// reserved by then has been copied into its chunk. Records reserved later
// count in the other phase, so that the wait is short and can't starve.
func (d *DataLog) settle(pick func()) {
	d.settleMu.Lock()
	defer d.settleMu.Unlock()
	d.mu.Lock()
	pick()
	n := &d.copying[d.phase]
	d.phase ^= 1
	d.mu.Unlock()
	if n.Load() == 0 {
		return
	}
	d.waiting.Store(true)
	for n.Load() != 0 {
		<-d.settled
	}
	d.waiting.Store(false)
}

// Flush hands everything appended before to the kernel.
func (d *DataLog) Flush() error {
	_, _, err := d.flush()
	return err
}

// flush returns the position up to which the kernel has the bytes.
func (d *DataLog) flush() (tail Pos, stream int64, err error) {
	d.flushMu.Lock()
	defer d.flushMu.Unlock()
	var spans []span
	d.settle(func() {
		err = d.err
		tail, stream = d.tail, d.tailStream
		d.takenStream = stream
		for _, c := range d.chunks {
			if c.written < c.fill {
				spans = append(spans, span{c, c.written, c.fill})
			}
		}
	})
	if err != nil {
		return 0, 0, err
	}
	for _, sp := range spans {
		err := d.writeSpan(sp)
		if err != nil && !errors.Is(err, uring.ErrNoSpace) {
			return 0, 0, d.fail(err)
		}
		d.mu.Lock()
		d.spaceErr = err
		if err == nil {
			sp.c.written = sp.to
		}
		d.room.Broadcast()
		d.mu.Unlock()
		if err != nil {
			return 0, 0, err
		}
	}
	d.startWriteback()
	return tail, stream, nil
}

// startWriteback asks the kernel to begin with the chunks that are complete,
// so that a sync finds little left to do. Caller holds flushMu.
func (d *DataLog) startWriteback() {
	for {
		d.mu.Lock()
		i := slices.IndexFunc(d.chunks, func(c *chunk) bool { return c.closed && c.written == c.fill && !c.started })
		if i < 0 {
			d.mu.Unlock()
			return
		}
		c := d.chunks[i]
		c.started = true
		off, n := c.off, int64(c.fill)
		d.mu.Unlock()
		if f := c.owner.File(); f != nil {
			f.StartWriteback(off, n)
		}
	}
}

// writeJob is a write on the File lane.
type writeJob struct {
	job lanes.Job
	f   uring.File
	p   []byte
	off int64
	err error
}

func runWrite(j *lanes.Job) {
	w := j.Arg.(*writeJob)
	_, w.err = w.f.WriteAt(w.p, w.off)
}

// writeSpan writes bytes of a chunk. Their segment is pinned by being among
// the unsynced. Caller holds flushMu.
func (d *DataLog) writeSpan(sp span) error {
	w := &d.write
	w.f, w.p, w.off, w.err = sp.c.owner.File(), sp.c.buf[sp.from:sp.to], sp.c.off+int64(sp.from), nil
	var err error
	if d.o.Lane != nil {
		err = d.o.Lane.Do(&w.job)
	} else {
		runWrite(&w.job)
	}
	if err == nil {
		err = w.err
	}
	if err != nil {
		return fmt.Errorf("ordered: write segment %d at %d: %w", sp.c.seg, w.off, err)
	}
	return nil
}

// Sync makes everything appended before durable and returns the position up to
// which that is so. The first one of a session includes the older segments: what
// a replay accepts may stand in the page cache only, left by a daemon that was
// killed. Concurrent callers share the work; appends go on.
func (d *DataLog) Sync() (Pos, error) {
	d.mu.Lock()
	stream := d.tailStream
	d.mu.Unlock()
	if err := d.syncs.wait(stream, d.leadSync); err != nil {
		return 0, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.synced, nil
}

func (d *DataLog) leadSync() (done int64, final bool, err error) {
	tail, stream, err := d.flush()
	if err != nil {
		return 0, errors.Is(err, ErrFailed), err
	}
	if err := d.syncOld(); err != nil {
		return 0, true, d.fail(err)
	}
	type target struct {
		s    *Segment
		f    uring.File
		upto int64
	}
	var targets []target
	d.mu.Lock()
	for _, s := range d.unsynced {
		if upto := min(s.fill, stream-s.base); upto > s.synced {
			targets = append(targets, target{s, s.File(), upto})
		}
	}
	d.mu.Unlock()
	for _, t := range targets {
		if err := t.f.Datasync(); err != nil {
			return 0, true, d.fail(fmt.Errorf("ordered: sync segment %d: %w", t.s.num, err))
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, t := range targets {
		t.s.synced = t.upto
	}
	d.nSyncs++
	d.synced, d.syncedStream = tail, stream
	if stream > d.durableStream || tail > d.durable {
		d.durable, d.durableStream = tail, stream
	}
	keep := d.unsynced[:0]
	for _, s := range d.unsynced {
		if s.sealed && s.synced == s.fill {
			s.Release()
			continue
		}
		keep = append(keep, s)
	}
	clear(d.unsynced[len(keep):])
	d.unsynced = keep
	d.room.Broadcast()
	return stream, false, nil
}

// flusher streams the tail to the kernel: FlushDelay after bytes came, or when
// many have come.
func (d *DataLog) flusher() {
	defer d.wg.Done()
	timer := time.NewTimer(d.o.FlushDelay)
	timer.Stop()
	for {
		select {
		case <-d.wake:
		case <-d.stop:
			return
		}
		for d.stayAwake() {
			timer.Reset(d.o.FlushDelay)
			select {
			case <-timer.C:
			case <-d.full:
				timer.Stop()
			case <-d.stop:
				timer.Stop()
				return
			}
			d.flush() // errors are kept: by fail or in spaceErr
		}
	}
}

// stayAwake says whether there is something to flush; if not, the next Append
// wakes the flusher.
func (d *DataLog) stayAwake() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.armed = false
	if d.err == nil {
		for _, c := range d.chunks {
			if c.written < c.fill {
				d.armed = true
			}
		}
	}
	return d.armed
}

// syncer syncs when much is undurable, so that writers seldom meet the cap.
func (d *DataLog) syncer() {
	defer d.wg.Done()
	for {
		select {
		case <-d.syncWant:
		case <-d.stop:
			return
		}
		d.Sync() // errors are kept
		d.mu.Lock()
		d.syncing = false
		d.room.Broadcast()
		d.mu.Unlock()
	}
}
