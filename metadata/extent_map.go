package metadata

import (
	"encoding/binary"
	"fmt"
	"math"
	"sort"

	"prismfs/engine"
)

// noLimit is a file offset beyond any other.
const noLimit = math.MaxUint64

// window is a stretch [lo, hi) of a file whose extents are known: all that
// intersect it, in order, and each lies in it whole. A window is a value: what
// changes extents makes a new one.
type window struct {
	lo, hi uint64
	ext    []extent
}

// wholeWindow is that of a file without extents.
func wholeWindow() window { return window{lo: 0, hi: noLimit} }

// at returns the index of the first extent that ends after off.
func (w *window) at(off uint64) int {
	return sort.Search(len(w.ext), func(i int) bool { return w.ext[i].end() > off })
}

// extentMap is what memory knows of a file's extents: disjoint windows in
// order. Random access to a large file so keeps the parts it works in.
type extentMap struct {
	wins  []window
	count int // extents in all of them
}

const (
	windowLoad   = 256      // extents read at a time, at least
	windowSplit  = 512      // a window of more is stored as two or more
	extentMapMax = 64 << 10 // extents kept of one file
	extentMem    = 160      // bytes that one takes: itself and, mostly, 32 checksums
)

func (m *extentMap) memory() int { return cap(m.wins)*40 + m.count*extentMem }

// after returns the index of the first window that ends after off.
func (m *extentMap) after(off uint64) int {
	return sort.Search(len(m.wins), func(i int) bool { return m.wins[i].hi > off })
}

// find returns a window that covers [lo, hi), joined from neighbours if need be.
func (m *extentMap) find(lo, hi uint64) (window, bool) {
	i := m.after(lo)
	if i == len(m.wins) || m.wins[i].lo > lo {
		return window{}, false
	}
	w := m.wins[i]
	for joined := false; w.hi < hi; joined = true {
		if i++; i == len(m.wins) || m.wins[i].lo != w.hi {
			return window{}, false
		}
		if !joined {
			w.ext = append([]extent(nil), w.ext...)
		}
		w.ext = append(w.ext, m.wins[i].ext...)
		w.hi = m.wins[i].hi
	}
	return w, true
}

// has says whether [lo, hi) is known, without joining.
func (m *extentMap) has(lo, hi uint64) bool {
	i := m.after(lo)
	if i == len(m.wins) || m.wins[i].lo > lo {
		return false
	}
	for ; m.wins[i].hi < hi; i++ {
		if i+1 == len(m.wins) || m.wins[i+1].lo != m.wins[i].hi {
			return false
		}
	}
	return true
}

// store makes w what is known of its stretch.
func (m *extentMap) store(w window) {
	i := m.after(w.lo)
	j := i
	for j < len(m.wins) && m.wins[j].lo < w.hi {
		j++
	}
	for k := i; k < j; k++ {
		m.count -= len(m.wins[k].ext)
	}
	m.count += len(w.ext)
	if j == i+1 && len(w.ext) <= windowSplit {
		m.wins[i] = w
		return
	}
	var few [2]window
	parts := few[:0]
	for len(w.ext) > windowSplit {
		k := windowSplit / 2
		mid := w.ext[k].off
		parts = append(parts, window{w.lo, mid, append([]extent(nil), w.ext[:k]...)})
		w.lo, w.ext = mid, append([]extent(nil), w.ext[k:]...)
	}
	parts = append(parts, w)
	before, behind := m.wins[:i], m.wins[j:]
	next := make([]window, 0, len(m.wins)+len(parts))
	if m.count > extentMapMax {
		// Half of the others go: every second one, wherever the work is.
		before, behind = everySecond(before), everySecond(behind)
	}
	next = append(next, before...)
	next = append(next, parts...)
	m.wins = append(next, behind...)
	m.count = 0
	for k := range m.wins {
		m.count += len(m.wins[k].ext)
	}
}

func everySecond(w []window) []window {
	var half []window
	for i := 0; i < len(w); i += 2 {
		half = append(half, w[i])
	}
	return half
}

// forget drops everything.
func (m *extentMap) forget() { *m = extentMap{} }

// extents returns a window of n that covers [lo, hi), read from the engine if
// memory does not have it. The caller holds the inode's lock exclusively.
func (s *Store) extents(w Wait, n *inode, lo, hi uint64) (window, error) {
	if win, ok := n.ext.find(lo, hi); ok {
		return win, nil
	}
	var lb, ub, kb [keyPrefixLen + 16]byte
	it := s.db.NewIter(engine.IterOptions{
		Lower: extentKey(lb[:0], n.ino, 0),
		Upper: inoKey(ub[:0], tableExtent, n.ino+1),
		Wait:  w,
	})
	defer it.Close()
	// Windows beside the range bound what is read; those inside it are read anew.
	floor, ceil := uint64(0), uint64(noLimit)
	for i := range n.ext.wins {
		if x := &n.ext.wins[i]; x.hi <= lo {
			floor = x.hi
		} else if x.lo >= hi {
			ceil = x.lo
			break
		}
	}
	win := window{lo: lo, hi: ceil}
	// The extent that begins at or before lo may reach into the range.
	ok := it.SeekLT(extentKey(kb[:0], n.ino, lo+1))
	if !ok {
		if err := it.Err(); err != nil {
			return window{}, err
		}
		win.lo = floor // nothing lies before
		ok = it.First()
	}
	for ; ok; ok = it.Next() {
		off := binary.BigEndian.Uint64(it.Key()[keyPrefixLen+8:])
		if off >= hi && (len(win.ext) >= windowLoad || off >= ceil) {
			win.hi = min(off, ceil)
			break
		}
		e, err := decodeExtent(off, it.Value())
		if err != nil {
			return window{}, s.damage("extent", n.ino, off, err)
		}
		if e.end() <= lo {
			// What lies before the range says only where a hole begins.
			win.lo = max(floor, e.end())
			continue
		}
		if k := len(win.ext); k > 0 && win.ext[k-1].end() > off {
			return window{}, s.damage("extent", n.ino, off, fmt.Errorf("overlaps the one before: %w", ErrCorrupt))
		}
		win.ext = append(win.ext, e)
	}
	if err := it.Err(); err != nil {
		return window{}, err
	}
	if len(win.ext) > 0 && win.ext[0].off < lo {
		win.lo = win.ext[0].off
	}
	n.ext.store(win)
	return win, nil
}

// replaceRange puts into t what makes the extents next (in order, inside
// [lo, hi)) the only ones of [lo, hi), and returns the window that holds once t
// is committed and the change of occupied bytes. lo and hi are multiples of
// BlockSize (hi may be noLimit), and win covers [lo, hi).
func (s *Store) replaceRange(t *txn, ino Ino, win window, lo, hi uint64, next []extent) (window, int64) {
	old := win.ext
	i := win.at(lo)
	j := i
	for j < len(old) && old[j].off < hi {
		j++
	}
	var grown int64
	var few [2]extent
	rest := few[:0] // what is left of an extent before lo and of one behind hi
	before := 0
	for k := i; k < j; k++ {
		e := &old[k]
		grown -= int64(e.space())
		t.live(e.seg, -e.stored())
		if e.off < lo {
			rest = append(rest, e.head(lo))
			before = 1
		} else if !hasOffset(next, e.off) {
			t.deleteExtent(ino, e.off)
		}
		if e.end() > hi {
			rest = append(rest, e.tail(hi))
		}
	}
	for _, part := range [...][]extent{rest[:before], next, rest[before:]} {
		for k := range part {
			grown += int64(part[k].space())
			t.live(part[k].seg, part[k].stored())
			t.putExtent(ino, &part[k])
		}
	}
	if i == j && j == len(old) && len(rest) == 0 {
		win.ext = append(old, next...) // behind len(old): who holds the old window doesn't see it
		return win, grown
	}
	ext := make([]extent, 0, len(old)+len(next)+len(rest)+4)
	ext = append(ext, old[:i]...)
	ext = append(ext, rest[:before]...)
	ext = append(ext, next...)
	ext = append(ext, rest[before:]...)
	win.ext = append(ext, old[j:]...)
	return win, grown
}

func hasOffset(ext []extent, off uint64) bool {
	i := sort.Search(len(ext), func(i int) bool { return ext[i].off >= off })
	return i < len(ext) && ext[i].off == off
}
