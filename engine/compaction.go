package engine

import (
	"bytes"
	"fmt"
	"runtime"
)

// compactOnce does one compaction if one is due. Background only.
//
// It looks for cancellation at three points: before anything is chosen; between
// entries, where what was written so far is removed again; and not after the
// outputs are complete: those are installed, for they would be orphans
// otherwise.
func (db *DB) compactOnce() (did bool, err error) {
	if db.isClosing() {
		return false, errClosing
	}
	v := db.view.Load().ver
	if c := db.pickCompaction(v); c != nil {
		return true, db.compact(v, c)
	}
	db.mu.Lock()
	var m *manualRequest
	if len(db.manual) > 0 {
		m = db.manual[0]
	}
	db.mu.Unlock()
	if m == nil {
		return false, nil
	}
	return true, db.compactManual(v, m)
}

// compact merges the inputs of c, chosen from v, and installs the result.
func (db *DB) compact(v *version, c *compaction) error {
	edit := &versionEdit{}
	for i, files := range c.inputs {
		for _, f := range files {
			edit.deleted = append(edit.deleted, deletedFile{c.level + i, f.num})
		}
	}
	_, hi := keyRange(c.inputs[0])
	for _, f := range c.inputs[0] {
		if bytes.Equal(userKey(f.largest), hi) {
			edit.pointers = []compactPointer{{c.level, f.largest}}
		}
	}
	if c.trivial(db.opts.TableSize) {
		f := c.inputs[0][0]
		// A table's count of versions is its own; the same fileMeta lives on.
		edit.added = []newFile{{c.level + 1, f}}
		return db.install(edit, func(*view) { db.stats.Moves++ })
	}
	files, read, err := db.mergeTables(v, c)
	if err != nil {
		return err
	}
	var written int64
	for _, f := range files {
		edit.added = append(edit.added, newFile{c.level + 1, f})
		written += f.size
	}
	return db.install(edit, func(*view) {
		db.stats.Compactions++
		db.stats.CompactedRead += read
		db.stats.CompactedWritten += written
	})
}

// inputError is a failed read of an input of a compaction. It is that read's
// alone: nothing has been lost that was there before.
type inputError struct {
	level int
	err   error
}

func (e *inputError) Error() string { return fmt.Sprintf("compact level %d: %v", e.level, e.err) }
func (e *inputError) Unwrap() error { return e.err }

// checkEvery is how many entries a compaction merges between two looks at
// whether it should stop or a flush is due.
const checkEvery = 256

// mergeTables writes the outputs of a compaction; they are durable on return.
func (db *DB) mergeTables(v *version, c *compaction) (files []*fileMeta, read int64, err error) {
	var iters []internalIterator
	for i, files := range c.inputs {
		if c.level+i == 0 {
			for j := range files {
				iters = append(iters, &levelIter{tables: db.tables, files: files[j : j+1], scan: true})
			}
		} else if len(files) > 0 {
			iters = append(iters, &levelIter{tables: db.tables, files: files, scan: true})
		}
		read += levelBytes(files)
	}
	in := newMergingIter(iters)
	defer in.Close()
	it := &compactionIter{in: in, smallest: db.smallestSnapshot(), bottom: c.bottom(v)}
	out := &tableOutput{db: db, limit: db.opts.TableSize}
	below := overlapMeter{files: c.below, limit: 10 * db.opts.TableSize}

	n := 0
	for ok := it.First(); ok; ok = it.Next() {
		if n++; n%checkEvery == 0 {
			runtime.Gosched() // readers and writers first
			if db.isClosing() {
				out.abandon()
				return nil, 0, errClosing
			}
			if db.flushPending() && !db.flushStuck {
				// Writers may be waiting for it. The flush adds to level 0
				// only, which leaves this compaction's inputs alone.
				if err := db.bookStep(db.flushImm()); err != nil {
					out.abandon()
					return nil, 0, err
				}
				if err := db.failure(); err != nil {
					out.abandon()
					return nil, 0, err
				}
			}
		}
		if below.pass(it.Key()) && out.w != nil && !bytes.Equal(userKey(out.w.lastKey), userKey(it.Key())) {
			if err := out.cut(); err != nil {
				out.abandon()
				return nil, 0, fmt.Errorf("compact level %d: %w", c.level, err)
			}
		}
		if err := out.add(it.Key(), it.Value()); err != nil {
			out.abandon()
			return nil, 0, fmt.Errorf("compact level %d: %w", c.level, err)
		}
	}
	if err := it.Err(); err != nil {
		out.abandon()
		return nil, 0, &inputError{c.level, err}
	}
	if files, err = out.finish(); err != nil {
		out.abandon()
		return nil, 0, fmt.Errorf("compact level %d: %w", c.level, err)
	}
	return files, read, nil
}

// overlapMeter counts the bytes of the level below that the current output
// table overlaps.
type overlapMeter struct {
	files []*fileMeta
	limit int64
	bytes int64
}

// pass moves on to ikey and says whether the current table overlaps too much
// and should end; it then starts to count anew.
func (o *overlapMeter) pass(ikey []byte) bool {
	for len(o.files) > 0 && compareInternal(ikey, o.files[0].largest) > 0 {
		o.bytes += o.files[0].size
		o.files = o.files[1:]
	}
	if o.bytes > o.limit {
		o.bytes = 0
		return true
	}
	return false
}

// manualRequest is a CompactRange that waits for its turn.
type manualRequest struct {
	lo, hi []byte // user keys, inclusive; nil is unbounded
	level  int    // the next to be compacted
	done   chan struct{}
	err    error
}

// CompactRange merges all tables with keys in [lo, hi] down to the last level
// that has any; nil is unbounded. It waits for the end.
func (db *DB) CompactRange(lo, hi []byte) error {
	if err := db.Flush(); err != nil {
		return err
	}
	m := &manualRequest{lo: lo, hi: hi, done: make(chan struct{})}
	db.mu.Lock()
	db.manual = append(db.manual, m)
	db.mu.Unlock()
	for {
		ch := db.room()
		signal(db.bgWake)
		select {
		case <-m.done:
			return m.err
		case <-db.closing:
			return ErrClosed
		case <-ch:
		}
		if err := db.failure(); err != nil {
			return err
		}
	}
}

// compactManual does one level of a request.
func (db *DB) compactManual(v *version, m *manualRequest) error {
	bottom := 0
	for l, files := range v.levels {
		for _, f := range files {
			if f.overlaps(m.lo, m.hi) {
				bottom = l
			}
		}
	}
	for ; m.level < max(bottom, 1); m.level++ {
		files := v.overlapping(m.level, m.lo, m.hi)
		if len(files) == 0 {
			continue
		}
		c := &compaction{level: m.level, inputs: [2][]*fileMeta{files}}
		c.expand(v, db.opts.TableSize)
		err := db.compact(v, c)
		if err == nil {
			m.level++
			return nil
		}
		if err == errClosing {
			return err
		}
		m.err = err
		db.finishManual(m)
		return err
	}
	db.finishManual(m)
	return nil
}

func (db *DB) finishManual(m *manualRequest) {
	db.mu.Lock()
	for i, x := range db.manual {
		if x == m {
			db.manual = append(db.manual[:i], db.manual[i+1:]...)
			break
		}
	}
	db.mu.Unlock()
	close(m.done)
}

// Flush writes the memtable to a table and returns when that is installed.
func (db *DB) Flush() error {
	if db.opts.ReadOnly {
		return ErrReadOnly
	}
	r := &commitReq{op: opRotate}
	err := db.onLane(r)
	if err == errNoRoom {
		err = db.retryForRoom(r)
	}
	if err != nil {
		return err
	}
	db.mu.Lock()
	first := db.attempts
	db.mu.Unlock()
	for {
		ch := db.room()
		if err := db.failure(); err != nil {
			return err
		}
		if v := db.view.Load(); v == nil {
			return ErrClosed
		} else if len(v.imm) == 0 {
			return nil
		}
		db.mu.Lock()
		err, n := db.spaceErr, db.attempts
		db.mu.Unlock()
		if err != nil && n >= first+2 {
			return err
		}
		signal(db.bgWake)
		<-ch
	}
}
