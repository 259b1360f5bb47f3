package engine

import (
	"bytes"
	"fmt"
	"slices"
	"sort"
	"sync/atomic"
)

// fileMeta describes a table of some version. All but refs is immutable.
type fileMeta struct {
	num      FileNum
	size     int64
	smallest []byte // internal keys
	largest  []byte

	refs atomic.Int32 // versions alive that name it
}

// version is an immutable set of tables.
//
// V1: level 0 is sorted by file number, newest first, and may overlap.
// V2: every other level is sorted by key and no two of its tables share a user
// key.
//
// The current version holds one reference, each iterator one more. With the
// last one gone it can't be revived, and tables named by no other version are
// retired.
type version struct {
	levels [numLevels][]*fileMeta
	refs   atomic.Int32
}

// tryRef adds a reference unless the version is dead.
func (v *version) tryRef() bool {
	for {
		n := v.refs.Load()
		if n == 0 {
			return false
		}
		if v.refs.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// unref drops a reference and returns the tables that no version names any more.
func (v *version) unref() (dead []*fileMeta) {
	if v.refs.Add(-1) != 0 {
		return nil
	}
	for _, files := range v.levels {
		for _, f := range files {
			if f.refs.Add(-1) == 0 {
				dead = append(dead, f)
			}
		}
	}
	return dead
}

// newVersion applies an edit to base (nil: nothing) and checks V1 and V2. The
// result has one reference.
func newVersion(base *version, edit *versionEdit) (*version, error) {
	v := &version{}
	if base != nil {
		v.levels = base.levels
	}
	var touched [numLevels]bool
	own := func(level int) {
		if !touched[level] {
			touched[level] = true
			v.levels[level] = slices.Clone(v.levels[level])
		}
	}
	for _, d := range edit.deleted {
		own(d.level)
		i := slices.IndexFunc(v.levels[d.level], func(f *fileMeta) bool { return f.num == d.num })
		if i < 0 {
			return nil, fmt.Errorf("engine: edit deletes table %d, not in level %d: %w", d.num, d.level, ErrCorrupt)
		}
		v.levels[d.level] = slices.Delete(v.levels[d.level], i, i+1)
	}
	for _, a := range edit.added {
		own(a.level)
		v.levels[a.level] = append(v.levels[a.level], a.meta)
	}
	for level, files := range v.levels {
		if !touched[level] {
			continue
		}
		if level == 0 {
			slices.SortFunc(files, func(a, b *fileMeta) int {
				switch {
				case a.num > b.num:
					return -1
				case a.num < b.num:
					return 1
				}
				return 0
			})
		} else {
			slices.SortFunc(files, func(a, b *fileMeta) int { return compareInternal(a.smallest, b.smallest) })
		}
		for i := 1; i < len(files); i++ {
			a, b := files[i-1], files[i]
			if level == 0 && a.num == b.num {
				return nil, fmt.Errorf("engine: table %d twice in level 0: %w", a.num, ErrCorrupt)
			}
			if level > 0 && bytes.Compare(userKey(a.largest), userKey(b.smallest)) >= 0 {
				return nil, fmt.Errorf("engine: tables %d and %d overlap in level %d: %w", a.num, b.num, level, ErrCorrupt)
			}
		}
	}
	v.refs.Store(1)
	for _, files := range v.levels {
		for _, f := range files {
			f.refs.Add(1)
		}
	}
	return v, nil
}

// levelBytes is the size of the tables of a level.
func levelBytes(files []*fileMeta) (n int64) {
	for _, f := range files {
		n += f.size
	}
	return n
}

// findFile returns the index of the first table whose largest user key is at or
// after ukey. files must obey V2.
func findFile(files []*fileMeta, ukey []byte) int {
	return sort.Search(len(files), func(i int) bool {
		return bytes.Compare(userKey(files[i].largest), ukey) >= 0
	})
}

// mayHold says whether ukey lies within the bounds of f.
func (f *fileMeta) mayHold(ukey []byte) bool {
	return bytes.Compare(userKey(f.smallest), ukey) <= 0 && bytes.Compare(ukey, userKey(f.largest)) <= 0
}

// overlaps says whether f holds user keys within [lo, hi]; nil is unbounded.
func (f *fileMeta) overlaps(lo, hi []byte) bool {
	return (hi == nil || bytes.Compare(userKey(f.smallest), hi) <= 0) &&
		(lo == nil || bytes.Compare(lo, userKey(f.largest)) <= 0)
}

// overlapping returns the tables of a level with user keys in [lo, hi]. In level
// 0, whose tables overlap each other, the range grows until it is closed: what
// it returns then holds all versions of all keys that it holds.
func (v *version) overlapping(level int, lo, hi []byte) []*fileMeta {
	var out []*fileMeta
	for {
		out = out[:0]
		grown := false
		for _, f := range v.levels[level] {
			if !f.overlaps(lo, hi) {
				continue
			}
			out = append(out, f)
			if level > 0 {
				continue
			}
			if lo != nil && bytes.Compare(userKey(f.smallest), lo) < 0 {
				lo, grown = userKey(f.smallest), true
			}
			if hi != nil && bytes.Compare(userKey(f.largest), hi) > 0 {
				hi, grown = userKey(f.largest), true
			}
		}
		if !grown {
			return out
		}
	}
}

// keyRange returns the smallest and largest user key of files, which must not
// be empty.
func keyRange(sets ...[]*fileMeta) (lo, hi []byte) {
	for _, files := range sets {
		for _, f := range files {
			if s := userKey(f.smallest); lo == nil || bytes.Compare(s, lo) < 0 {
				lo = s
			}
			if l := userKey(f.largest); hi == nil || bytes.Compare(l, hi) > 0 {
				hi = l
			}
		}
	}
	return lo, hi
}
