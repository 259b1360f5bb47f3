package engine

import (
	"bytes"
	"sort"
	"time"
)

// maxLevelBytes is the size that level (1 or deeper) should not exceed.
func (db *DB) maxLevelBytes(level int) int64 {
	n := db.opts.LevelBase
	for ; level > 1; level-- {
		n *= 10
	}
	return n
}

// score says how badly a level needs compaction; 1 and above is due.
func (db *DB) score(v *version, level int) float64 {
	if level == 0 {
		return float64(len(v.levels[0])) / l0Compact
	}
	return float64(levelBytes(v.levels[level])) / float64(db.maxLevelBytes(level))
}

// worstLevel returns the level with the highest score. The last level has
// nowhere to go.
func (db *DB) worstLevel(v *version) (level int, score float64) {
	for l := range numLevels - 1 {
		if s := db.score(v, l); s > score {
			level, score = l, s
		}
	}
	return level, score
}

// scoreDue says whether the levels call for a compaction now. A pause after a
// failed read ends when level 0 is full.
func (db *DB) scoreDue(v *version) bool {
	if len(v.levels[0]) < l0Stop && time.Now().UnixNano() < db.compactAfter.Load() {
		return false
	}
	_, s := db.worstLevel(v)
	return s >= 1
}

// compactionPending says whether compactOnce would find something to do.
func (db *DB) compactionPending() bool {
	if db.scoreDue(db.view.Load().ver) {
		return true
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	return len(db.manual) > 0
}

// compaction is a choice of tables to be merged into level+1.
type compaction struct {
	level  int
	inputs [2][]*fileMeta // of level and of level+1
	// below are the tables of level+2 in the range: a table that overlaps many
	// of them would be dear to compact later.
	below []*fileMeta
}

// pickCompaction chooses by score, and within the level by where the last
// compaction of the level ended; nil if nothing is due.
func (db *DB) pickCompaction(v *version) *compaction {
	if !db.scoreDue(v) {
		return nil
	}
	level, _ := db.worstLevel(v)
	files := v.levels[level]
	var first *fileMeta
	if level == 0 {
		first = files[len(files)-1] // the oldest
	} else {
		i := sort.Search(len(files), func(i int) bool {
			return db.pointers[level] == nil || compareInternal(files[i].largest, db.pointers[level]) > 0
		})
		first = files[i%len(files)]
	}
	c := &compaction{level: level, inputs: [2][]*fileMeta{{first}}}
	if level == 0 {
		c.inputs[0] = v.overlapping(0, userKey(first.smallest), userKey(first.largest))
	}
	c.expand(v, db.opts.TableSize)
	return c
}

// expand adds the overlapping tables of the next level, then further tables of
// the level itself if that pulls no more of the next one in.
func (c *compaction) expand(v *version, tableSize int64) {
	lo, hi := keyRange(c.inputs[0])
	c.inputs[1] = v.overlapping(c.level+1, lo, hi)
	if len(c.inputs[1]) > 0 {
		lo2, hi2 := keyRange(c.inputs[0], c.inputs[1])
		wider := v.overlapping(c.level, lo2, hi2)
		if len(wider) > len(c.inputs[0]) && levelBytes(wider)+levelBytes(c.inputs[1]) < 25*tableSize {
			wlo, whi := keyRange(wider)
			if len(v.overlapping(c.level+1, wlo, whi)) == len(c.inputs[1]) {
				c.inputs[0] = wider
			}
		}
	}
	if c.level+2 < numLevels {
		lo, hi = keyRange(c.inputs[0], c.inputs[1])
		c.below = v.overlapping(c.level+2, lo, hi)
	}
}

// trivial says whether the tables can just move down: one table that meets
// nothing in the next level and little in the one below.
func (c *compaction) trivial(tableSize int64) bool {
	return len(c.inputs[0]) == 1 && len(c.inputs[1]) == 0 && levelBytes(c.below) <= 10*tableSize
}

// bottom returns a function that says whether a user key can't be in any level
// below the output. Keys must come in ascending order.
func (c *compaction) bottom(v *version) func(ukey []byte) bool {
	var next [numLevels]int
	return func(ukey []byte) bool {
		for l := c.level + 2; l < numLevels; l++ {
			files := v.levels[l]
			for next[l] < len(files) && bytes.Compare(userKey(files[next[l]].largest), ukey) < 0 {
				next[l]++
			}
			if next[l] < len(files) && bytes.Compare(userKey(files[next[l]].smallest), ukey) <= 0 {
				return false
			}
		}
		return true
	}
}
