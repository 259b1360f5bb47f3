package engine

import (
	"bytes"
	"sort"
)

// levelIter walks tables that follow each other without overlap, opening each
// when it is reached: a level, or a single table of level 0.
type levelIter struct {
	tables *tableCache
	files  []*fileMeta
	wait   Wait
	scan   bool // one pass forward that leaves the block cache alone

	// Tables wholly outside of [lower, upper) are not opened: on the way to the
	// bounds they are passed over, behind them the walk ends. nil is unbounded.
	lower, upper []byte

	i   int // files[i] is open in cur
	cur *tableIter
	err error
}

func (l *levelIter) unload() {
	if l.cur != nil {
		// Only reading went on here, and a failed read was reported.
		_ = l.cur.Close()
		l.cur = nil
	}
}

// openForward makes files[i], or the next one that reaches into the bounds, the
// current table. It is false behind the bounds and on an error.
func (l *levelIter) openForward(i int) bool {
	for i < len(l.files) && l.lower != nil && bytes.Compare(userKey(l.files[i].largest), l.lower) < 0 {
		i++
	}
	if i < len(l.files) && l.upper != nil && bytes.Compare(userKey(l.files[i].smallest), l.upper) >= 0 {
		i = len(l.files)
	}
	return l.open(i)
}

// openBackward is openForward in the other direction.
func (l *levelIter) openBackward(i int) bool {
	for i >= 0 && l.upper != nil && bytes.Compare(userKey(l.files[i].smallest), l.upper) >= 0 {
		i--
	}
	if i >= 0 && l.lower != nil && bytes.Compare(userKey(l.files[i].largest), l.lower) < 0 {
		i = -1
	}
	return l.open(i)
}

func (l *levelIter) open(i int) bool {
	if l.cur != nil && l.i == i {
		return true
	}
	l.unload()
	l.i = i
	if i < 0 || i >= len(l.files) {
		return false
	}
	f := l.files[i]
	if l.scan {
		l.cur, l.err = l.tables.newScan(f.num, f.size)
	} else {
		l.cur, l.err = l.tables.newIter(f.num, f.size, l.wait)
	}
	if l.err != nil {
		l.cur = nil
		return false
	}
	return true
}

// forward returns true on an entry, else goes on with the tables behind.
func (l *levelIter) forward(ok bool) bool {
	for !ok {
		if l.cur == nil {
			return false
		}
		if l.err = l.cur.Err(); l.err != nil {
			l.unload()
			return false
		}
		if !l.openForward(l.i + 1) {
			return false
		}
		ok = l.cur.First()
	}
	return true
}

func (l *levelIter) backward(ok bool) bool {
	for !ok {
		if l.cur == nil {
			return false
		}
		if l.err = l.cur.Err(); l.err != nil {
			l.unload()
			return false
		}
		if !l.openBackward(l.i - 1) {
			return false
		}
		ok = l.cur.Last()
	}
	return true
}

func (l *levelIter) First() bool {
	l.err = nil
	return l.openForward(0) && l.forward(l.cur.First())
}

func (l *levelIter) Last() bool {
	l.err = nil
	return l.openBackward(len(l.files)-1) && l.backward(l.cur.Last())
}

func (l *levelIter) SeekGE(ikey []byte) bool {
	l.err = nil
	i := sort.Search(len(l.files), func(i int) bool { return compareInternal(l.files[i].largest, ikey) >= 0 })
	return l.openForward(i) && l.forward(l.cur.SeekGE(ikey))
}

func (l *levelIter) SeekLT(ikey []byte) bool {
	l.err = nil
	i := sort.Search(len(l.files), func(i int) bool { return compareInternal(l.files[i].smallest, ikey) >= 0 })
	return l.openBackward(i-1) && l.backward(l.cur.SeekLT(ikey))
}

func (l *levelIter) Next() bool    { return l.forward(l.cur.Next()) }
func (l *levelIter) Prev() bool    { return l.backward(l.cur.Prev()) }
func (l *levelIter) Valid() bool   { return l.cur != nil && l.cur.Valid() }
func (l *levelIter) Key() []byte   { return l.cur.Key() }
func (l *levelIter) Value() []byte { return l.cur.Value() }
func (l *levelIter) Err() error    { return l.err }

func (l *levelIter) Close() error {
	l.unload()
	return nil
}
