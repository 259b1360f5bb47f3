package engine

import (
	"bytes"
	"sync"
)

// IterOptions bound an iterator and say what it sees.
type IterOptions struct {
	Lower    []byte // first key, inclusive; nil is unbounded
	Upper    []byte // end, exclusive; nil is unbounded
	Wait     Wait
	Snapshot *Snapshot // nil: the state at NewIter
}

// Iter walks the keys of one state of the store in both directions.
//
//   - The moving methods return Valid(). After false, Err tells the end (nil)
//     from a failure, ErrWouldBlock under NoWait; a failed iterator may be
//     positioned anew.
//   - Key and Value are valid until the next move or Close.
//   - Next and Prev require Valid.
//   - Not safe for concurrent use. Close it before the DB.
type Iter struct {
	db    *DB
	ver   *version
	seq   SeqNum
	lower []byte
	upper []byte

	merge  mergingIter
	valid  bool
	err    error
	seek   []byte // search keys
	closed bool

	// Forward, merge stands on the current entry. In reverse it stands before
	// all versions of the current key, which is in key and value.
	reverse    bool
	key, value []byte

	mems   [2]skiplistIter
	levels []levelIter
}

var iterPool = sync.Pool{New: func() any { return new(Iter) }}

// NewIter returns an iterator, unpositioned. It never blocks: tables are opened
// when they are reached.
func (db *DB) NewIter(o IterOptions) *Iter {
	it := iterPool.Get().(*Iter)
	*it = Iter{
		db: db, merge: mergingIter{iters: it.merge.iters[:0], heap: it.merge.heap[:0], keyBuf: it.merge.keyBuf},
		seek: it.seek, key: it.key[:0], value: it.value[:0], levels: it.levels[:0],
		lower: o.Lower, upper: o.Upper,
	}
	g := db.epochs.enter()
	var v *view
	for {
		v = db.view.Load()
		if v == nil {
			g.Add(-1)
			it.err = ErrClosed
			return it
		}
		if v.ver.tryRef() {
			break
		}
	}
	g.Add(-1)
	it.ver = v.ver
	// The sequence is read after the view: see view.
	it.seq = SeqNum(db.lastSeq.Load())
	if o.Snapshot != nil {
		it.seq = o.Snapshot.seq
	}

	iters := it.merge.iters
	if len(v.imm) < len(it.mems) {
		it.mems[0] = skiplistIter{s: v.mem.list}
		iters = append(iters, &it.mems[0])
		for i, m := range v.imm {
			it.mems[1+i] = skiplistIter{s: m.list}
			iters = append(iters, &it.mems[1+i])
		}
	} else {
		iters = append(iters, v.mem.newIter())
		for _, m := range v.imm {
			iters = append(iters, m.newIter())
		}
	}
	// Pointers into levels are taken once it has its final size.
	for i := range v.ver.levels[0] {
		if v.ver.levels[0][i].overlapsBounds(o.Lower, o.Upper) {
			it.levels = append(it.levels, levelIter{tables: db.tables, files: v.ver.levels[0][i : i+1], wait: o.Wait, lower: o.Lower, upper: o.Upper})
		}
	}
	for _, files := range v.ver.levels[1:] {
		if len(files) > 0 {
			it.levels = append(it.levels, levelIter{tables: db.tables, files: files, wait: o.Wait, lower: o.Lower, upper: o.Upper})
		}
	}
	for i := range it.levels {
		iters = append(iters, &it.levels[i])
	}
	it.merge.iters = iters
	return it
}

// overlapsBounds says whether f holds user keys in [lower, upper).
func (f *fileMeta) overlapsBounds(lower, upper []byte) bool {
	return (upper == nil || bytes.Compare(userKey(f.smallest), upper) < 0) &&
		(lower == nil || bytes.Compare(lower, userKey(f.largest)) <= 0)
}

// Close releases what the iterator holds. The iterator must not be used after.
func (it *Iter) Close() error {
	if it.closed {
		return nil
	}
	err := it.err
	for _, s := range it.merge.iters {
		_ = s.Close() // errors of reads were reported by Err
	}
	clear(it.merge.iters)
	clear(it.merge.heap[:cap(it.merge.heap)])
	clear(it.levels)
	it.mems = [2]skiplistIter{}
	if it.ver != nil {
		it.db.releaseVersion(it.ver)
	}
	it.ver, it.db, it.lower, it.upper = nil, nil, nil, nil
	it.valid, it.closed = false, true
	iterPool.Put(it)
	return err
}

// Valid says whether the iterator stands on an entry.
func (it *Iter) Valid() bool { return it.valid }

// Err is what stopped the iterator, nil at the end of the keys.
func (it *Iter) Err() error { return it.err }

// Key is the current key.
func (it *Iter) Key() []byte {
	if it.reverse {
		return it.key
	}
	return userKey(it.merge.Key())
}

// Value is the current value.
func (it *Iter) Value() []byte {
	if it.reverse {
		return it.value
	}
	return it.merge.Value()
}

// usable starts a positioning: it forgets an earlier error unless the iterator
// never came to life.
func (it *Iter) usable() bool {
	it.valid = false
	if it.ver == nil {
		return false
	}
	it.err = nil
	return true
}

// First moves to the first key.
func (it *Iter) First() bool {
	if !it.usable() {
		return false
	}
	it.reverse = false
	if it.lower != nil {
		it.merge.SeekGE(it.searchKey(it.lower))
	} else {
		it.merge.First()
	}
	return it.findNext(false)
}

// Last moves to the last key.
func (it *Iter) Last() bool {
	if !it.usable() {
		return false
	}
	it.reverse = true
	if it.upper != nil {
		it.merge.SeekLT(it.firstOf(it.upper))
	} else {
		it.merge.Last()
	}
	return it.findPrev()
}

// SeekGE moves to the first key at or after key.
func (it *Iter) SeekGE(key []byte) bool {
	if !it.usable() {
		return false
	}
	it.reverse = false
	if it.lower != nil && bytes.Compare(key, it.lower) < 0 {
		key = it.lower
	}
	it.merge.SeekGE(it.searchKey(key))
	return it.findNext(false)
}

// SeekLT moves to the last key before key.
func (it *Iter) SeekLT(key []byte) bool {
	if !it.usable() {
		return false
	}
	it.reverse = true
	if it.upper != nil && bytes.Compare(key, it.upper) > 0 {
		key = it.upper
	}
	it.merge.SeekLT(it.firstOf(key))
	return it.findPrev()
}

// searchKey is where the visible versions of key start.
func (it *Iter) searchKey(key []byte) []byte {
	it.seek = makeInternal(it.seek[:0], key, it.seq, kindSeek)
	return it.seek
}

// firstOf is where all versions of key start.
func (it *Iter) firstOf(key []byte) []byte {
	it.seek = makeInternal(it.seek[:0], key, maxSeqNum, kindSeek)
	return it.seek
}

// Next moves to the next key.
func (it *Iter) Next() bool {
	if it.reverse {
		it.reverse = false
		// merge stands before the versions of key, or off the front.
		if it.merge.Valid() {
			it.merge.Next()
		} else {
			it.merge.First()
		}
		return it.findNext(true) // past key
	}
	it.key = append(it.key[:0], userKey(it.merge.Key())...)
	it.merge.Next()
	return it.findNext(true)
}

// findNext finds the first visible entry at or after merge's position; if skip
// it passes over the versions of it.key.
func (it *Iter) findNext(skip bool) bool {
	it.valid = false
	for it.merge.Valid() {
		ik := it.merge.Key()
		ukey, t := userKey(ik), trailer(ik)
		if it.upper != nil && bytes.Compare(ukey, it.upper) >= 0 {
			return false
		}
		if trailerSeq(t) <= it.seq && !(skip && bytes.Equal(ukey, it.key)) {
			if trailerKind(t) == KindSet {
				it.valid = true
				return true
			}
			it.key = append(it.key[:0], ukey...)
			skip = true
		}
		it.merge.Next()
	}
	it.err = it.merge.Err()
	return false
}

// Prev moves to the key before.
func (it *Iter) Prev() bool {
	if !it.reverse {
		// Go to before all versions of the current key.
		it.key = append(it.key[:0], userKey(it.merge.Key())...)
		it.reverse = true
		it.valid = false
		for {
			if !it.merge.Prev() {
				if it.err = it.merge.Err(); it.err != nil {
					return false
				}
				break
			}
			if !bytes.Equal(userKey(it.merge.Key()), it.key) {
				break
			}
		}
	}
	return it.findPrev()
}

// findPrev finds the last user key with a visible value at or before merge's
// position, and leaves merge before all its versions.
func (it *Iter) findPrev() bool {
	it.valid = false
	found := false // key and value hold a visible value of the key under scrutiny
	for it.merge.Valid() {
		ik := it.merge.Key()
		ukey, t := userKey(ik), trailer(ik)
		if found && !bytes.Equal(ukey, it.key) {
			break
		}
		if it.lower != nil && bytes.Compare(ukey, it.lower) < 0 {
			break
		}
		// Versions come oldest first: the last visible one counts.
		if trailerSeq(t) <= it.seq {
			if trailerKind(t) == KindSet {
				it.key = append(it.key[:0], ukey...)
				it.value = append(it.value[:0], it.merge.Value()...)
				found = true
			} else {
				found = false
			}
		}
		it.merge.Prev()
	}
	if it.err = it.merge.Err(); it.err != nil {
		return false
	}
	it.valid = found
	return found
}
