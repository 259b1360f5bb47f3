package engine

import "slices"

// Snapshot pins a state of the store: iterators over it see what was applied
// before, and compactions keep it.
type Snapshot struct {
	db  *DB
	seq SeqNum
}

// NewSnapshot pins the current state. It must be released.
func (db *DB) NewSnapshot() *Snapshot {
	s := &Snapshot{db: db}
	db.mu.Lock()
	// Under mu, so that smallestSnapshot can't pass it by in between.
	s.seq = SeqNum(db.lastSeq.Load())
	db.snapshots = append(db.snapshots, s.seq)
	db.mu.Unlock()
	return s
}

// Seq is the sequence number of the last update that the snapshot shows.
func (s *Snapshot) Seq() uint64 { return uint64(s.seq) }

// Release lets compactions drop what only the snapshot showed. Iterators over
// it stay good.
func (s *Snapshot) Release() {
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	// In order of creation, hence of sequence; equal ones are alike.
	i, ok := slices.BinarySearch(s.db.snapshots, s.seq)
	if !ok {
		panic("engine: snapshot released twice")
	}
	s.db.snapshots = slices.Delete(s.db.snapshots, i, i+1)
}

// smallestSnapshot is the oldest state that somebody may still ask for. Of the
// versions of a key at or below it only the newest is needed.
func (db *DB) smallestSnapshot() SeqNum {
	db.mu.Lock()
	defer db.mu.Unlock()
	if len(db.snapshots) > 0 {
		return db.snapshots[0]
	}
	return SeqNum(db.lastSeq.Load())
}
