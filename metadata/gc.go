package metadata

import (
	"errors"
	"fmt"
	"slices"

	"prismfs/lanes"
	"prismfs/ordered"
)

// Garbage collection of data-log segments.
//
// A segment is deleted only when no extent refers to it, and only after a
// barrier: the batches that emptied it are durable then, and the log says that
// the segment's data was, so that a replay does not ask for it. A segment of
// which little is alive is emptied first by writing its live extents anew.
// Everything here fails closed: on any error the segment stays.
const (
	gcLiveNum, gcLiveDen = 1, 2 // a sealed segment with less alive than this is emptied
)

// collectGarbage does one round: it empties at most one segment and deletes
// those that are empty. It runs in the commit timer, and where room is needed.
func (s *Store) collectGarbage() {
	if s.writable() != nil {
		return
	}
	if err := s.gcRound(); err != nil && !errors.Is(err, ErrReadOnly) && !errors.Is(err, lanes.ErrStopped) {
		s.logf("garbage collection: %v", err)
	}
}

func (s *Store) gcRound() error {
	s.gcMu.Lock()
	defer s.gcMu.Unlock()
	var worst uint32
	var least int64 = -1
	var empty []uint32
	list := s.dlog.Segments()
	s.counters.mu.Lock()
	for _, info := range list {
		if !info.Sealed {
			continue
		}
		live := s.counters.live[info.Number]
		switch {
		case live == 0:
			empty = append(empty, info.Number)
		case live < 0:
			// More died than lived: the count is wrong, so touch nothing.
		case s.gcBad[info.Number]:
			// It could not be read through; nothing in it is moved again.
		case live*gcLiveDen < info.Size*gcLiveNum && (least < 0 || live < least):
			worst, least = info.Number, live
		}
	}
	s.counters.mu.Unlock()
	if least >= 0 && len(empty) == 0 {
		if err := s.evacuate(worst); err != nil {
			if errors.Is(err, ErrCorrupt) {
				// The others need not wait for this one.
				s.gcBad[worst] = true
			}
			return fmt.Errorf("metadata: empty segment %d: %w", worst, err)
		}
		s.counters.mu.Lock()
		live := s.counters.live[worst]
		s.counters.mu.Unlock()
		if live == 0 {
			empty = append(empty, worst)
		}
	}
	if len(empty) == 0 {
		return nil
	}
	// A write that appended to one of them before it was sealed may not have
	// committed yet: wait for those under way, then count again. Nobody appends
	// to a sealed segment any more.
	s.appendGate.Lock()
	s.appendGate.Unlock()
	s.counters.mu.Lock()
	empty = slices.DeleteFunc(empty, func(seg uint32) bool { return s.counters.live[seg] != 0 })
	s.counters.mu.Unlock()
	if len(empty) == 0 {
		return nil
	}
	if !s.opts.PlantedFreeEarly {
		if err := s.barrierForGC(); err != nil {
			return err
		}
	}
	for _, seg := range empty {
		if err := s.dlog.Remove(seg); err != nil {
			return err
		}
		s.counters.forget(seg)
	}
	return nil
}

// barrierForGC waits for a full barrier: unlike an fsync it also pushes the data
// itself to its segments, since the redo of a deleted segment must not be asked
// for.
func (s *Store) barrierForGC() error {
	if _, err := s.dlog.Sync(); err != nil {
		s.noteFailure(err)
		return err
	}
	return s.Sync()
}

// evacuate writes the live extents of a segment anew.
func (s *Store) evacuate(seg uint32) error {
	stop := s.stop.Token()
	return s.dlog.Scan(seg, func(h ordered.RecordHeader, x ordered.Extent) error {
		// Between two records nothing is half done.
		if err := stop.Err(); err != nil {
			return err
		}
		// What waits for room holds no lock.
		if err := s.needRoom(Block); err != nil {
			return err
		}
		ino, off := Ino(h.Ino), h.FileOff
		n, err := s.wlock(Block, ino)
		if err == ErrStale {
			return nil // the file is gone
		}
		if err != nil {
			return err
		}
		defer s.wunlock(n)
		if !n.attr.isRegular() || n.attr.Inline || n.attr.Blocks == 0 {
			return nil
		}
		return s.moveExtents(n, seg, off, off+uint64(x.Raw))
	})
}

// moveExtents writes those extents of [lo, hi) that lie in a segment anew.
// Times and size stay: nothing has changed for anybody.
func (s *Store) moveExtents(n *inode, seg uint32, lo, hi uint64) error {
	for pos := lo; pos < hi; {
		win, err := s.extents(Block, n, pos, hi)
		if err != nil {
			return err
		}
		i := win.at(pos)
		if i >= len(win.ext) || win.ext[i].off >= hi {
			return nil
		}
		e := win.ext[i]
		pos = e.end()
		if e.kind != extentData || e.seg != seg {
			continue
		}
		buf := make([]byte, e.length)
		x := e.log()
		if err := s.dlog.ReadAt(&x, 0, buf, false); err != nil {
			return s.damage("data", n.ino, e.off, err)
		}
		ext, err := s.appendData(Block, n.ino, e.off, buf)
		if err != nil {
			return err
		}
		t := s.begin()
		win, grown := s.replaceRange(t, n.ino, win, e.off, blockUp(e.end()), ext)
		if grown != 0 {
			t.end()
			return fmt.Errorf("metadata: moving an extent of inode %d at %d changed its space by %d", n.ino, e.off, grown)
		}
		err = t.commit(Block)
		t.end()
		if err != nil {
			return err
		}
		n.ext.store(win)
	}
	return nil
}
