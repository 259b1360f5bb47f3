package engine

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"prismfs/lanes"
	"prismfs/ordered"
)

const (
	// Level 0 tables at which compaction starts, writers are slowed down, and
	// memtables are no longer rotated.
	l0Compact  = 4
	l0Slowdown = 8
	l0Stop     = 12

	// slowdownDelay is the longest that a write waits for level 0 to shrink
	// before it goes on.
	slowdownDelay = time.Millisecond
)

// errNoRoom says that the memtable is full and can't be rotated now. Nothing
// was changed.
var errNoRoom = errors.New("engine: no room in the memtable")

type commitOp uint8

const (
	opApply commitOp = iota
	opNote
	opRotate
	opRoom
	opClose
)

// commitReq is one job of the write lane.
type commitReq struct {
	job  lanes.Job
	db   *DB
	op   commitOp
	b    *Batch
	note []byte
	err  error
}

var commitReqs = sync.Pool{New: func() any { return new(commitReq) }}

// onLane runs r on the write lane, in place if the lane is free.
func (db *DB) onLane(r *commitReq) error {
	r.db = db
	r.job.Run, r.job.Arg = runCommit, r
	if err := db.lanes.DBWrite.Do(&r.job); err != nil {
		return fmt.Errorf("%w: %w", ErrClosed, err)
	}
	return r.err
}

func runCommit(j *lanes.Job) {
	r := j.Arg.(*commitReq)
	db := r.db
	switch {
	case r.op == opClose:
		db.w.closed = true
	case db.w.closed:
		r.err = ErrClosed
	case db.failed.Load() != nil:
		r.err = db.failure()
	case r.op == opRotate:
		if db.w.mem.empty() {
			r.err = nil
		} else {
			r.err = db.rotate(0)
		}
	case r.op == opRoom:
		r.err = nil
		if !db.w.mem.room(&roomProbe, true) || db.walFilled() > db.walLimit() {
			r.err = db.rotate(0)
		}
	case r.op == opNote:
		if size := db.walFilled(); size > db.walLimit() {
			// If this can't be now, the log may grow for a while beyond what
			// was reserved.
			if err := db.rotate(0); err != nil && (err != errNoRoom || size > 4*db.walSize()) {
				r.err = err
				return
			}
		}
		r.err = db.write(nil, r.note)
	default:
		r.err = db.commit(r.b)
	}
}

// Apply makes all updates of b visible, after everything applied before. They
// are durable only after a Barrier.
//
//   - Wait: under NoWait ErrWouldBlock, without effect, when room must be made
//     first. A blocking call waits for room outside of the write lane.
//   - Errors: ErrNoSpace when room can't be made for want of disk space, without
//     effect; ErrReadOnly; ErrClosed.
//   - Ownership: b is the caller's again on return.
func (db *DB) Apply(b *Batch, w Wait) error {
	if b.Empty() {
		return nil
	}
	if db.opts.ReadOnly {
		return ErrReadOnly
	}
	if len(b.data) > maxBatchLen {
		return fmt.Errorf("engine: batch of %d bytes, at most %d fit", len(b.data), maxBatchLen)
	}
	if b.notes > 0 && db.opts.Profile == ordered.Strict {
		return errStrictNote
	}
	if v := db.view.Load(); v != nil && len(v.ver.levels[0]) >= l0Slowdown {
		if w == NoWait {
			return ErrWouldBlock
		}
		db.slowDown()
	}
	r := commitReqs.Get().(*commitReq)
	r.op, r.b = opApply, b
	err := db.onLane(r)
	if err == errNoRoom {
		if w == NoWait {
			err = ErrWouldBlock
		} else {
			err = db.retryForRoom(r)
		}
	}
	*r = commitReq{}
	commitReqs.Put(r)
	return err
}

var errStrictNote = errors.New("engine: the strict profile has no notes")

// Note puts a note into the log, after everything applied before. It waits for
// room only when notes have outrun the flushes by far.
func (db *DB) Note(note []byte) error {
	if db.opts.ReadOnly {
		return ErrReadOnly
	}
	if db.opts.Profile == ordered.Strict {
		return errStrictNote
	}
	r := commitReqs.Get().(*commitReq)
	r.op, r.note = opNote, note
	err := db.onLane(r)
	if err == errNoRoom {
		err = db.retryForRoom(r)
	}
	*r = commitReq{}
	commitReqs.Put(r)
	return err
}

// slowDown waits a little, or until a compaction has ended.
func (db *DB) slowDown() {
	ch := db.room()
	t := time.NewTimer(slowdownDelay)
	defer t.Stop()
	select {
	case <-ch:
	case <-t.C:
	}
	db.mu.Lock()
	db.stats.Slowdowns++
	db.mu.Unlock()
}

// roomProbe is a batch of the size that WaitRoom asks for.
var roomProbe = Batch{data: make([]byte, 16<<10), count: 64}

// WaitRoom returns when an ordinary batch will probably be applied without
// waiting. Callers that hold locks while they apply ask first, so that they
// don't wait with them held.
//
//   - Errors: as Apply.
func (db *DB) WaitRoom() error {
	if db.opts.ReadOnly {
		return ErrReadOnly
	}
	if v := db.view.Load(); v != nil && len(v.ver.levels[0]) >= l0Slowdown {
		db.slowDown()
	}
	r := commitReqs.Get().(*commitReq)
	r.op = opRoom
	err := db.onLane(r)
	if err == errNoRoom {
		err = db.retryForRoom(r)
	}
	*r = commitReq{}
	commitReqs.Put(r)
	return err
}

// retryForRoom repeats r until it isn't refused for want of room. It gives up
// with ErrNoSpace when an attempt to make room that began after the call has
// failed for want of disk space.
func (db *DB) retryForRoom(r *commitReq) error {
	start := time.Now()
	db.mu.Lock()
	first := db.attempts
	db.stats.Stalls++
	db.mu.Unlock()
	defer func() {
		db.mu.Lock()
		db.stats.StallTime += time.Since(start)
		db.mu.Unlock()
	}()
	for {
		ch := db.room()
		r.err = nil
		if err := db.onLane(r); err != errNoRoom {
			return err
		}
		db.mu.Lock()
		// The attempt under way when the call came may have begun before room
		// returned; the one after it counts.
		if db.spaceErr != nil && db.attempts >= first+2 {
			err := db.spaceErr
			db.mu.Unlock()
			return err
		}
		failing := db.spaceErr != nil
		db.mu.Unlock()
		if failing {
			signal(db.bgWake)
			signal(db.prepWake)
		}
		<-ch
	}
}

// commit applies a batch. Runs on the write lane.
func (db *DB) commit(b *Batch) error {
	for !db.w.mem.room(b, true) || db.walFilled() > db.walLimit() {
		if err := db.rotate(memTableSizeFor(b)); err != nil {
			return err
		}
	}
	return db.write(b, nil)
}

// walSize is how much is reserved for a log. A rotation comes before it is used
// up: notes don't fill the memtable.
func (db *DB) walSize() int64 { return int64(db.opts.MemTableSize) + int64(db.opts.MemTableSize)/2 }

// walFilled is the size of the log, without what the rotation put there.
func (db *DB) walFilled() int64 { return db.w.wal.log.Size() - db.w.walStart }

func (db *DB) walLimit() int64 { return int64(db.opts.MemTableSize) + int64(db.opts.MemTableSize)/4 }

// write gives a batch that fits (nil: a note) its place in the log and in the
// memtable, and makes it visible. Runs on the write lane.
func (db *DB) write(b *Batch, note []byte) error {
	seq := SeqNum(db.lastSeq.Load()) + 1
	var count uint32
	var records []byte
	if b != nil {
		count, records = b.count, b.data[batchHeaderLen:]
	}
	rec := binary.LittleEndian.AppendUint64(db.w.scratch[:0], uint64(seq))
	rec = binary.LittleEndian.AppendUint32(rec, count)
	if b != nil && db.opts.GroupNote != nil && db.opts.Profile == ordered.Default {
		rec = db.appendGroupNote(rec)
	}
	if b == nil {
		rec = append(rec, byte(KindNote))
		rec = appendString(rec, note)
	}
	rec = append(rec, records...)
	if _, err := db.w.wal.log.Append(rec); err != nil {
		if errors.Is(err, ErrNoSpace) {
			return fmt.Errorf("engine: write log %d: %w", db.w.wal.num, err)
		}
		db.fail(fmt.Errorf("write log %d: %w", db.w.wal.num, err))
		return db.failure()
	}
	if cap(rec) <= 1<<20 {
		db.w.scratch = rec
	}
	r := BatchReader{seq: seq, count: count, rest: records}
	if invariants {
		assert(r.check() == nil, "batch %d is malformed", seq)
		assert(seq > db.w.mem.lastSeq, "batch %d comes after %d", seq, db.w.mem.lastSeq)
	}
	db.w.mem.apply(r, seq)
	last := seq + r.span(db.opts.Profile == ordered.Default) - 1
	db.w.mem.lastSeq = last
	if b != nil && b.OnCommit != nil {
		b.OnCommit(b)
	}
	db.lastSeq.Store(uint64(last))
	return nil
}

// appendGroupNote appends the note of Options.GroupNote as a record; none if it
// is empty.
func (db *DB) appendGroupNote(rec []byte) []byte {
	// The length takes a fixed two bytes, so that the note can be appended in
	// place: a varint may have a redundant continuation byte.
	start := len(rec)
	rec = append(rec, byte(KindNote), 0, 0)
	rec = db.opts.GroupNote(rec)
	n := len(rec) - start - 3
	switch {
	case n == 0:
		return rec[:start]
	case n < 1<<14:
		rec[start+1], rec[start+2] = byte(n)|0x80, byte(n>>7)
		return rec
	}
	note := append([]byte(nil), rec[start+3:]...)
	return appendString(rec[:start+1], note)
}

// rotate replaces the memtable and its log by the prepared ones, which must
// have at least size bytes (0: any). Runs on the write lane.
func (db *DB) rotate(size int) error {
	v := db.view.Load()
	if len(v.imm) > 0 || len(v.ver.levels[0]) >= l0Stop {
		signal(db.bgWake)
		return errNoRoom
	}
	db.mu.Lock()
	next := db.next
	if next == nil || next.mem.size < size {
		db.nextSize = max(db.nextSize, size)
		db.mu.Unlock()
		signal(db.prepWake)
		return errNoRoom
	}
	db.next = nil
	db.mu.Unlock()

	extra := &db.w.rotate
	extra.Reset()
	if db.opts.OnRotate != nil {
		db.opts.OnRotate(extra)
	}
	late := false
	if !extra.Empty() {
		// Where it doesn't fit any more it goes first into the new memtable:
		// replay meets it at the same place of the order.
		late = !db.w.mem.room(extra, false)
		var err error
		switch {
		case !late:
			err = db.write(extra, nil)
		case next.mem.size < size+2*memTableSizeFor(extra):
			// It must leave room for what the rotation is for.
			err = errNoRoom
		}
		if err != nil {
			db.mu.Lock()
			db.next = next
			if err == errNoRoom {
				// More than needed now: the batch may have grown at the next try.
				db.nextSize = max(db.nextSize, size+4*memTableSizeFor(extra))
			}
			db.mu.Unlock()
			signal(db.prepWake)
			return err
		}
	}
	old := db.w.mem
	db.w.mem, db.w.wal = next.mem, next.wal
	db.mu.Lock()
	db.wals = append(db.wals, next.wal)
	db.publishLocked(func(v *view) {
		v.mem = next.mem
		v.imm = []*memTable{old}
	})
	db.idle = false
	db.mu.Unlock()
	signal(db.bgWake)
	signal(db.prepWake)
	db.w.walStart = 0
	if late {
		if err := db.write(extra, nil); err != nil {
			return err
		}
		db.w.walStart = next.wal.log.Size()
	}
	return nil
}

// Barrier returns once everything applied before the call is durable.
// Concurrent callers share the flush.
func (db *DB) Barrier() error {
	if err := db.failure(); err != nil {
		return err
	}
	var few [4]*wal
	db.mu.Lock()
	wals := append(few[:0], db.wals...)
	for _, w := range wals {
		w.refs++
	}
	db.mu.Unlock()
	if len(wals) == 0 {
		if db.opts.ReadOnly {
			return nil
		}
		return ErrClosed
	}
	// Oldest first: what is durable must always be a prefix.
	var err error
	for _, w := range wals {
		if err = w.log.Sync(w.log.Size()); err != nil {
			err = fmt.Errorf("sync log %d: %w", w.num, err)
			break
		}
	}
	db.mu.Lock()
	for _, w := range wals {
		w.refs--
	}
	db.mu.Unlock()
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ErrNoSpace):
		return fmt.Errorf("engine: %w", err)
	case errors.Is(err, ordered.ErrClosed):
		return ErrClosed
	}
	db.fail(err)
	return db.failure()
}

// prepare makes the next log and memtable ahead of each rotation until the
// store closes.
func (db *DB) prepare() {
	defer db.bgDone.Done()
	timer := time.NewTimer(retryDelay)
	defer timer.Stop()
	for {
		if err := db.prepareNext(); err != nil {
			timer.Reset(retryDelay)
		}
		select {
		case <-db.prepWake:
		case <-timer.C:
		case <-db.closing:
			return
		}
	}
}

// prepareNext makes what a rotation needs unless it is there.
func (db *DB) prepareNext() error {
	db.mu.Lock()
	size := max(db.nextSize, db.opts.MemTableSize)
	old := db.next
	if old != nil && old.mem.size >= size || db.failure() != nil {
		db.mu.Unlock()
		return nil
	}
	db.next = nil
	var recycle FileNum
	if old == nil && len(db.spare) > 0 {
		recycle = db.spare[len(db.spare)-1]
		db.spare = db.spare[:len(db.spare)-1]
		db.recycling = recycle
	}
	db.mu.Unlock()

	next := &prepared{}
	var err error
	if old != nil {
		next.wal = old.wal
	} else {
		next.wal, err = db.createWAL(recycle)
	}
	if errors.Is(err, ErrNoSpace) && db.dropBallast() {
		next.wal, err = db.createWAL(0)
	}
	if err == nil {
		next.mem = newMemTable(size)
		next.mem.logNum = next.wal.num
	}
	if err != nil && !errors.Is(err, ErrNoSpace) {
		db.fail(err)
		return nil
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	db.recycling = 0
	if err != nil {
		db.attempts++
		db.spaceErr = err
	} else {
		db.next = next
		db.nextSize = 0
	}
	db.broadcastLocked()
	return err
}

// createWAL makes an empty log, from the file of log recycle unless 0. Its name
// is durable on return.
func (db *DB) createWAL(recycle FileNum) (*wal, error) {
	num := db.newFileNum()
	o := ordered.LogOptions{
		Disk: db.disk, Name: logFileName(db.dir, num), Number: db.logID(num),
		Profile: db.opts.Profile, Preallocate: db.walSize(),
	}
	if recycle != 0 {
		o.Recycle = logFileName(db.dir, recycle)
	}
	log, err := ordered.CreateLog(o)
	if err != nil {
		return nil, fmt.Errorf("engine: create log %d: %w", num, err)
	}
	return &wal{num: num, log: log}, nil
}
