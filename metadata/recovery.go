package metadata

import (
	"encoding/binary"
	"errors"
	"fmt"

	"prismfs/engine"
	"prismfs/ordered"
)

// recovery is the state of a replay.
//
// First pass, over every note in the logs: bytes that went durable inside the
// log (redo) are put back in their place, and the last watermark is found, up to
// which data was durable before the crash. Second pass, over every batch: an
// extent that points behind the watermark must verify, else the replay ends
// before that batch, which leaves a prefix of the acknowledged operations. Data
// before the watermark is not looked at: if it fails later, that is damage, and
// the read that meets it says so.
type recovery struct {
	watermark ordered.Pos
	redos     int
	batches   int
	stopped   error // why the replay ended early

	// Counters: values that a batch of the log sets, and changes after them.
	totals map[byte]*counterReplay
	segs   map[uint32]*counterReplay
}

type counterReplay struct {
	absolute bool
	value    int64
}

func (r *recovery) init() {
	*r = recovery{totals: make(map[byte]*counterReplay), segs: make(map[uint32]*counterReplay)}
}

func (r *recovery) seg(n uint32) *counterReplay {
	if r.segs[n] == nil {
		r.segs[n] = new(counterReplay)
	}
	return r.segs[n]
}

func (r *recovery) total(what byte) *counterReplay {
	if r.totals[what] == nil {
		r.totals[what] = new(counterReplay)
	}
	return r.totals[what]
}

func (s *Store) replayNote(note []byte) error {
	if len(note) == 0 {
		return fmt.Errorf("metadata: empty note in the log: %w", ErrCorrupt)
	}
	switch body := note[1:]; note[0] {
	case noteWatermark:
		if len(body) != 8 {
			return fmt.Errorf("metadata: watermark of %d bytes: %w", len(body), ErrCorrupt)
		}
		s.recovered.watermark = max(s.recovered.watermark, ordered.Pos(binary.BigEndian.Uint64(body)))
	case noteRedo:
		redo, err := ordered.DecodeRedo(body)
		if err != nil {
			return fmt.Errorf("metadata: redo in the log: %w", err)
		}
		s.recovered.redos += len(redo)
		return s.dlog.ApplyRedo(redo)
	case noteDelta:
		// Belongs to its batch: second pass.
	default:
		return fmt.Errorf("metadata: unknown note %q in the log: %w", note[0], ErrCorrupt)
	}
	return nil
}

func (s *Store) replayStart() error {
	if s.opts.ReadOnly {
		return nil
	}
	return s.dlog.FinishRedo()
}

func (s *Store) replayBatch(b *engine.BatchReader) error {
	// Verify everything before counting anything: a batch counts whole or not.
	for r := b.Clone(); r.Next(); {
		if r.Kind() != engine.KindSet || len(r.Key()) < keyPrefixLen || r.Key()[4] != tableExtent {
			continue
		}
		k, err := parseKey(r.Key())
		if err != nil {
			return err
		}
		e, err := decodeExtent(binary.BigEndian.Uint64(k.rest), r.Value())
		if err != nil {
			return err
		}
		if e.kind != extentData || e.logEnd() <= s.recovered.watermark {
			continue
		}
		x := e.log()
		if err := s.dlog.Verify(&x); err != nil {
			if !errors.Is(err, ordered.ErrCorrupt) {
				return fmt.Errorf("metadata: replay: %w", err) // a read error is no proof of loss
			}
			s.recovered.stopped = err
			s.logf("recovery: operations from here on were not yet durable and are dropped: inode %d offset %d: %v", k.ino, e.off, err)
			return engine.ErrStopReplay
		}
	}
	s.recovered.batches++
	for r := b; r.Next(); {
		switch {
		case r.Kind() == engine.KindNote && len(r.Value()) > 0 && r.Value()[0] == noteDelta:
			d, err := decodeDelta(r.Value()[1:])
			if err != nil {
				return err
			}
			s.recovered.total(totalInodes).value += d.inodes
			s.recovered.total(totalBytes).value += d.bytes
			for _, sd := range d.segs {
				s.recovered.seg(sd.seg).value += sd.bytes
			}
		case r.Kind() == engine.KindSet || r.Kind() == engine.KindDelete:
			k, err := parseKey(r.Key())
			if err != nil {
				return err
			}
			var c *counterReplay
			switch {
			case k.table == tableSegment && len(k.rest) == 4:
				c = s.recovered.seg(binary.BigEndian.Uint32(k.rest))
			case k.table == tableTotals && len(k.rest) == 1:
				c = s.recovered.total(k.rest[0])
			default:
				continue
			}
			*c = counterReplay{absolute: true}
			if r.Kind() == engine.KindSet {
				if len(r.Value()) != 8 {
					return fmt.Errorf("metadata: counter %q: %w", r.Key(), ErrCorrupt)
				}
				c.value = int64(binary.LittleEndian.Uint64(r.Value()))
			}
		}
	}
	return nil
}

// afterReplay writes the counters as the replay leaves them into the batch that
// closes it; get reads what the tables held before the replay.
func (s *Store) afterReplay(get func(key []byte) ([]byte, error), b *engine.Batch) error {
	resolve := func(key []byte, c *counterReplay) error {
		v := c.value
		if !c.absolute {
			old, err := get(key)
			switch {
			case err == engine.ErrNotFound:
			case err != nil:
				return err
			case len(old) != 8:
				return fmt.Errorf("metadata: counter %q: %w", key, ErrCorrupt)
			default:
				v += int64(binary.LittleEndian.Uint64(old))
			}
		}
		b.Put(key, binary.LittleEndian.AppendUint64(nil, uint64(v)))
		return nil
	}
	for what, c := range s.recovered.totals {
		if err := resolve(totalKey(nil, what), c); err != nil {
			return err
		}
	}
	for seg, c := range s.recovered.segs {
		if err := resolve(segmentKey(nil, seg), c); err != nil {
			return err
		}
	}
	return nil
}
