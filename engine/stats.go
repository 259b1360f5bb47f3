package engine

import "time"

// LevelStats counts the tables of a level.
type LevelStats struct {
	Files int
	Bytes int64
}

// Stats is a snapshot of a store's counters.
type Stats struct {
	Levels        [numLevels]LevelStats
	MemTableBytes int64 // in use by the memtables
	Logs          int   // log files that recovery would read
	LogBytes      int64 // in them

	Flushes          int64
	Compactions      int64
	Moves            int64 // tables moved down as they are
	CompactedRead    int64 // bytes
	CompactedWritten int64 // bytes
	// CompactionReadErrors counts compactions that couldn't read their input.
	CompactionReadErrors int64
	Slowdowns            int64 // writes delayed for level 0
	Stalls               int64 // writes that waited for room
	StallTime            time.Duration
	NoSpace              bool // the last flush or preparation failed for want of space
	Low                  bool // see DB.Low

	OpenTables int
	Snapshots  int
	LastSeq    uint64

	CacheHits, CacheMisses  int64 // of the block cache
	CacheBytes, CacheBudget int64
}

// Stats returns the counters. It never waits for the disk.
func (db *DB) Stats() Stats {
	db.mu.Lock()
	s := db.stats
	s.NoSpace = db.spaceErr != nil
	s.Low = db.low.Load()
	s.Snapshots = len(db.snapshots)
	s.Logs = len(db.wals)
	for _, w := range db.wals {
		s.LogBytes += w.log.Size()
	}
	v := db.view.Load()
	db.mu.Unlock()
	if v == nil {
		return s
	}
	for l, files := range v.ver.levels {
		s.Levels[l] = LevelStats{len(files), levelBytes(files)}
	}
	s.MemTableBytes = v.mem.bytes()
	for _, m := range v.imm {
		s.MemTableBytes += m.bytes()
	}
	s.OpenTables = db.tables.len()
	s.LastSeq = db.lastSeq.Load()
	c := db.blocks.stats()
	s.CacheHits, s.CacheMisses, s.CacheBytes, s.CacheBudget = c.hits, c.misses, c.used, c.budget
	return s
}
