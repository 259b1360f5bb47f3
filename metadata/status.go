package metadata

import (
	"context"
	"fmt"
	"time"

	"prismfs/engine"
	"prismfs/lanes"
)

// Status is what `prismfs status` shows of a live store.
type Status struct {
	UUID       string `json:"uuid"`
	Label      string `json:"label,omitempty"`
	Format     uint32 `json:"format"`
	Directory  string `json:"directory"`
	IO         string `json:"io"` // how cold data is read
	ReadOnly   bool   `json:"read_only"`
	Failure    string `json:"failure,omitempty"`
	Inodes     int64  `json:"inodes"`
	Bytes      int64  `json:"bytes"`
	Segments   int    `json:"segments"`
	Cached     int    `json:"cached_inodes"`
	CachedMem  int    `json:"cached_inode_bytes"`
	References int    `json:"kernel_references"`

	Maintenance string `json:"maintenance,omitempty"` // the last gc asked for, and how it stands

	Engine engine.Stats      `json:"engine"`
	Lanes  []lanes.LaneStats `json:"lanes"`
}

// Status reports on the store.
func (s *Store) Status() Status {
	st := Status{
		UUID: s.sb.uuid(), Label: s.sb.Label, Format: s.sb.Version, Directory: s.Dir(),
		IO: s.disk.Mode(), ReadOnly: s.ReadOnly(),
		Segments:   len(s.dlog.Segments()),
		References: s.refs.size(), Engine: s.db.Stats(), Lanes: s.lanes.Stats(),
	}
	if op := s.maintenance.Load(); op != nil {
		state, took, _ := op.Status()
		st.Maintenance = fmt.Sprintf("%s %s, %v", op.Name(), state, took.Round(time.Millisecond))
	}
	if err := s.Failure(); err != nil {
		st.Failure = err.Error()
	}
	st.Cached, st.CachedMem = s.inodes.stats()
	s.counters.mu.Lock()
	st.Inodes, st.Bytes = s.counters.inodes, s.counters.bytes
	s.counters.mu.Unlock()
	return st
}

// maintain runs a maintenance operation on the Compaction lane, shows it in
// Status, and waits for it. Closing the store cancels it.
func (s *Store) maintain(name string, work func(stop lanes.StopToken) error) error {
	op, err := lanes.StartOp(s.lanes.Compaction, name, s.stop.Token(), s.logf, func(op *lanes.Op) error { return work(op.Stop()) })
	if err != nil {
		return fmt.Errorf("metadata: %s: %w", name, err)
	}
	s.maintenance.Store(op)
	return op.Wait(context.Background())
}

// Compact merges the engine's tables as far as they go. The caller only waits:
// the work is the engine's own, on its lane, and ends when the store closes.
func (s *Store) Compact() error { return s.db.CompactRange(nil, nil) }

// CollectGarbage frees data-log segments until no more can be.
func (s *Store) CollectGarbage() error {
	if err := s.writable(); err != nil {
		return err
	}
	s.reclaimer.drain(s)
	return s.maintain("gc", func(stop lanes.StopToken) error {
		for {
			before := len(s.dlog.Segments())
			if err := s.gcRound(); err != nil {
				return err
			}
			if len(s.dlog.Segments()) >= before || stop.Stopped() {
				return stop.Err()
			}
		}
	})
}
