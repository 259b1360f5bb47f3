package engine

import (
	"errors"
	"fmt"

	"prismfs/ordered"
	"prismfs/uring"
)

// Repair rebuilds a store whose CURRENT, manifest, tables or logs are damaged
// from the tables and logs that can be read. It is the last resort:
//
//   - What a damaged table or log holds behind the first bad spot is lost, and
//     keys may show older values for it.
//   - A log may hold batches behind a gap, which Open would not have replayed.
//   - After a power cut, tables may be left whose removal was not durable: keys
//     that were deleted since may come back from them.
//   - The old files go only when the new ones are durable, so that a repair
//     that fails or is interrupted has changed nothing.
//
// It rewrites all data, and returns what was lost as text for people.
func Repair(o Options) (lost []string, err error) {
	o.CreateIfMissing, o.ReadOnly = false, false
	db, err := newDB(o)
	if err != nil {
		return nil, err
	}
	r := &recovery{db: db}
	if err := r.rebuild(&lost); err != nil {
		db.abandon()
		return lost, err
	}
	db.wals[0].log.Close() // empty
	err = db.manifest.close()
	db.tables.close()
	if cerr := db.lock.Close(); err == nil {
		err = cerr
	}
	return lost, err
}

func (r *recovery) rebuild(lost *[]string) error {
	db := r.db
	var err error
	if r.names, err = db.disk.List(dirName(db.dir)); err != nil {
		return fmt.Errorf("engine: repair %s: %w", db.dir, err)
	}
	v, err := newVersion(nil, &versionEdit{})
	if err != nil {
		return err
	}
	r.state = &manifestState{version: v, nextFile: 1}
	r.useNumbers()

	var sources []internalIterator
	defer func() {
		for _, it := range sources {
			it.Close()
		}
	}()
	for _, name := range r.names {
		switch kind, num := parseFileName(name); kind {
		case tableFile:
			size, err := db.disk.Stat(tableFileName(db.dir, num))
			if err != nil {
				return fmt.Errorf("engine: repair: %w", err)
			}
			it := &salvageIter{name: name, levelIter: levelIter{tables: db.tables, files: []*fileMeta{{num: num, size: size}}, scan: true}, lost: lost}
			sources = append(sources, it)
		case logFile:
			mems, err := r.readAny(num, lost)
			if err != nil {
				return err
			}
			for _, m := range mems {
				sources = append(sources, m.newIter())
			}
		}
	}

	// The same record may be in a log and in a table: compactionIter keeps one.
	// It keeps tombstones, lest a second repair, after an interruption while
	// old files were being removed, finds what they hide and not them.
	c := &compactionIter{in: newMergingIter(sources), smallest: maxSeqNum - 1}
	out := &tableOutput{db: db, limit: db.opts.TableSize}
	for ok := c.First(); ok; ok = c.Next() {
		r.lastSeq = max(r.lastSeq, trailerSeq(trailer(c.Key())))
		if err := out.add(c.Key(), c.Value()); err != nil {
			out.abandon()
			return err
		}
	}
	if err := c.Err(); err != nil {
		out.abandon()
		return fmt.Errorf("engine: repair: %w", err)
	}
	if r.tables, err = out.finish(); err != nil {
		out.abandon()
		return err
	}
	return r.finish()
}

// readAny reads what can be read of a log, whatever its sequence numbers.
func (r *recovery) readAny(num FileNum, lost *[]string) (mems []*memTable, err error) {
	db := r.db
	name := logFileName(db.dir, num)
	m := newMemTable(db.opts.MemTableSize)
	last := SeqNum(0)
	_, err = ordered.ReadLog(db.disk, name, uint64(num), db.opts.Profile, func(rec []byte, off int64) error {
		b, err := decodeBatch(rec)
		if err == nil {
			err = b.check()
		}
		if err != nil {
			return fmt.Errorf("at %d: %w", off, err)
		}
		if b.seq <= last {
			return fmt.Errorf("at %d: sequence number %d after %d: %w", off, b.seq, last, ErrCorrupt)
		}
		if !m.list.room(b.Count(), len(rec)) {
			mems = append(mems, m)
			m = newMemTable(max(db.opts.MemTableSize, memTableSizeFor(&Batch{data: rec, count: b.count})))
		}
		m.apply(b, b.seq)
		last = b.seq + b.span(true) - 1
		r.lastSeq = max(r.lastSeq, last)
		return nil
	})
	if err != nil {
		if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ordered.ErrCorrupt) {
			return nil, fmt.Errorf("engine: repair: %w", err)
		}
		*lost = append(*lost, fmt.Sprintf("%s: %v", name, err))
	}
	return append(mems, m), nil
}

// salvageIter reads a table forward and takes damage for its end. Errors of the
// disk are errors.
type salvageIter struct {
	levelIter
	name string
	lost *[]string
}

func (s *salvageIter) First() bool { return s.levelIter.First() || s.end() }
func (s *salvageIter) Next() bool  { return s.levelIter.Next() || s.end() }

func (s *salvageIter) end() bool {
	if err := s.levelIter.err; err != nil && (errors.Is(err, ErrCorrupt) || errors.Is(err, uring.ErrNotExist)) {
		*s.lost = append(*s.lost, fmt.Sprintf("%s: %v", s.name, err))
		s.levelIter.err = nil
	}
	return false
}
