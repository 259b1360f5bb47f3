package engine

import (
	"errors"
	"fmt"
	"path"
	"slices"

	"prismfs/ordered"
	"prismfs/uring"
)

// Open opens the store in o.Dir and recovers what its logs hold.
//
// R1: what is recovered is a prefix of what was applied: the replay ends for
// good at the first record that is missing, or that Options.Replay refuses.
// R2: when Open returns, a manifest is durable that names none of the logs that
// were replayed, so that nothing behind the end of the replay comes back.
// R3: an error of the disk, or damage to what was durable, refuses the open;
// nothing on the disk has changed then that matters to a later open.
func Open(o Options) (*DB, error) {
	db, err := newDB(o)
	if err != nil {
		return nil, err
	}
	if err := db.recover(); err != nil {
		db.abandon()
		return nil, err
	}
	if err := db.layBallast(); err != nil {
		db.opts.Logf("%v", err)
	}
	if !o.ReadOnly {
		db.bgDone.Add(2)
		go db.background()
		go db.prepare()
	}
	return db, nil
}

// newDB locks the store and readies what recovery needs.
func newDB(o Options) (*DB, error) {
	o = o.withDefaults()
	if o.CreateIfMissing && !o.ReadOnly && o.Dir != "" {
		if err := o.Disk.MkdirAll(o.Dir); err != nil {
			return nil, fmt.Errorf("engine: open %s: %w", o.Dir, err)
		}
		if err := o.Disk.SyncDir(path.Dir(o.Dir)); err != nil {
			return nil, fmt.Errorf("engine: open %s: %w", o.Dir, err)
		}
	}
	lock, err := o.Disk.Lock(lockFileName(o.Dir))
	if err != nil {
		return nil, fmt.Errorf("engine: open %s: %w", o.Dir, err)
	}
	db := &DB{
		opts: o, disk: o.Disk, dir: o.Dir, lanes: o.Lanes, lock: lock, live: map[FileNum]bool{},
		bgWake: make(chan struct{}, 1), prepWake: make(chan struct{}, 1), closing: make(chan struct{}),
	}
	db.topts = tableOptions{Profile: o.Profile, BlockSize: o.BlockSize, Codec: o.Codec, DBRead: o.Lanes.DBRead}
	db.blocks = newBlockCache(o.BlockCache)
	db.tables = newTableCache(o.Disk, o.Dir, o.MaxOpenTables, db.blocks, db.topts)
	db.manifest = manifest{disk: o.Disk, dir: o.Dir, opts: ordered.LogOptions{
		Disk: o.Disk, Profile: o.Profile, Preallocate: manifestReserve,
	}}
	db.low.Store(!o.ReadOnly) // until the ballast was seen
	return db, nil
}

// abandon lets go of everything after a recovery that failed.
func (db *DB) abandon() {
	for _, w := range db.wals {
		w.log.Close() // empty
	}
	db.manifest.close()
	db.tables.close()
	db.lock.Close()
}

// manifestReserve is reserved for a manifest, so that a full disk doesn't stop
// the edits that make room.
const manifestReserve = 256 << 10

// recovery is the state of an Open.
type recovery struct {
	db    *DB
	names []string // of the directory
	state *manifestState
	logs  []FileNum // ascending, all at or after the manifest's log number

	end     logPosition // where the replay ends
	lastSeq SeqNum      // of the last record before end
	mem     *memTable
	full    []*memTable // ReadOnly: filled memtables, oldest first
	tables  []*fileMeta // flushed on the way, not installed yet
}

// logPosition is a record of a log: records of older logs, and of this one at
// smaller offsets, come before it.
type logPosition struct {
	log int // index into recovery.logs
	off int64
}

func (p logPosition) before(q logPosition) bool {
	return p.log < q.log || p.log == q.log && p.off < q.off
}

func (db *DB) recover() error {
	r := &recovery{db: db}
	if err := r.readManifest(); err != nil {
		return err
	}
	if !db.opts.ReadOnly {
		if err := db.roomForOpen(); err != nil {
			return err
		}
	}
	if err := r.findLogs(); err != nil {
		return err
	}
	if err := r.scan(); err != nil {
		return err
	}
	if start := db.opts.ReplayStart; start != nil {
		if err := start(); err != nil {
			return fmt.Errorf("engine: start of replay: %w", err)
		}
	}
	if err := r.replay(); err != nil {
		r.removeTables()
		return err
	}
	if db.opts.ReadOnly {
		return r.finishReadOnly()
	}
	err := r.afterReplay()
	if err == nil {
		err = r.spill()
	}
	if err != nil {
		r.removeTables()
		return err
	}
	return r.finish()
}

// readManifest finds and reads the manifest, or creates the store.
func (r *recovery) readManifest() error {
	db := r.db
	var err error
	if r.names, err = db.disk.List(dirName(db.dir)); err != nil {
		return fmt.Errorf("engine: open %s: %w", db.dir, err)
	}
	num, err := readCurrent(db.disk, db.dir)
	if errors.Is(err, uring.ErrNotExist) {
		// A store gets its first log after CURRENT, so that a crash while it
		// was made leaves neither logs nor tables.
		for _, name := range r.names {
			if kind, _ := parseFileName(name); kind == logFile || kind == tableFile {
				return fmt.Errorf("engine: %s is missing, but there is %s: %w", currentFileName(db.dir), name, ErrCorrupt)
			}
		}
		if !db.opts.CreateIfMissing || db.opts.ReadOnly {
			return fmt.Errorf("engine: no store here: %w", err)
		}
		return r.create()
	}
	if err != nil {
		return err
	}
	if r.state, err = readManifest(db.disk, db.dir, num, db.opts.Profile); errors.Is(err, uring.ErrNotExist) {
		return fmt.Errorf("%w, but %s names it: %w", err, currentFileName(db.dir), ErrCorrupt)
	} else if err != nil {
		return err
	}
	if got, want := r.state.comparator, comparatorName(db.opts.Profile); got != want {
		return fmt.Errorf("engine: the store's comparator is %q, this profile's is %q", got, want)
	}
	present := map[FileNum]bool{}
	for _, name := range r.names {
		if kind, n := parseFileName(name); kind == tableFile {
			present[n] = true
		}
	}
	for _, files := range r.state.version.levels {
		for _, f := range files {
			if !present[f.num] {
				return fmt.Errorf("engine: table %s is missing: %w", tableFileName(db.dir, f.num), ErrCorrupt)
			}
			db.live[f.num] = true
		}
	}
	db.manifest.num = num
	r.useNumbers()
	return nil
}

// create starts an empty store in memory; finish makes it durable.
func (r *recovery) create() error {
	v, err := newVersion(nil, &versionEdit{})
	if err != nil {
		return err
	}
	r.state = &manifestState{version: v, nextFile: 1}
	r.useNumbers()
	// CURRENT comes before the first log.
	r.db.logNumber = 0
	return r.db.startManifest(v, &versionEdit{})
}

// useNumbers takes over the manifest's numbers and avoids those of all files
// there are, known to the manifest or not.
func (r *recovery) useNumbers() {
	db, next := r.db, r.state.nextFile
	for _, name := range r.names {
		if kind, n := parseFileName(name); kind != unknownFile {
			next = max(next, n+1)
		}
	}
	db.nextFile.Store(uint64(max(next, 1)))
	db.logNumber, db.flushedSeq, db.pointers = r.state.logNumber, r.state.lastSeq, r.state.pointers
}

// findLogs lists the logs to be replayed.
func (r *recovery) findLogs() error {
	min := r.state.logNumber
	found := min == 0
	for _, name := range r.names {
		kind, n := parseFileName(name)
		if kind != logFile {
			continue
		}
		if n >= min || n == r.state.prevLog && n != 0 {
			r.logs = append(r.logs, n)
		}
		found = found || n == min
	}
	slices.Sort(r.logs)
	if !found {
		// The log was made before the manifest named it.
		err := fmt.Errorf("engine: log %s is missing: %w", logFileName(r.db.dir, min), ErrCorrupt)
		if !r.db.opts.Salvage {
			return err
		}
		r.db.opts.Logf("%v", err)
	}
	return nil
}

// scan is the first pass: it finds the end of the replay and shows all notes
// before it.
func (r *recovery) scan() error {
	db := r.db
	r.lastSeq = db.flushedSeq
	r.end = logPosition{len(r.logs), 0}
	for i, num := range r.logs {
		name := logFileName(db.dir, num)
		gap, records := false, 0
		_, err := ordered.ReadLog(db.disk, name, db.logID(num), db.opts.Profile, func(rec []byte, off int64) error {
			b, err := decodeBatch(rec)
			if err == nil {
				err = b.check()
			}
			if err != nil {
				return fmt.Errorf("at %d: %w", off, err)
			}
			// LevelDB's manifests may be ahead of the logs; ours state just
			// what the tables hold.
			first := r.lastSeq == db.flushedSeq && db.opts.Profile == ordered.Strict && b.seq <= r.lastSeq+1
			if b.seq != r.lastSeq+1 && !first {
				if records == 0 && i > 0 {
					// The end of the log before never reached the disk, as
					// can be after a crash. What follows it is void.
					gap = true
					r.end = logPosition{i, off}
					return errStopScan
				}
				return fmt.Errorf("at %d: record has sequence number %d, expected %d: %w", off, b.seq, r.lastSeq+1, ErrCorrupt)
			}
			records++
			r.lastSeq = max(r.lastSeq, b.seq+b.span(db.opts.Profile == ordered.Default)-1)
			return r.showNotes(b)
		})
		if gap {
			db.opts.Logf("engine: %s does not continue the log before it: the replay ends there", name)
			return nil
		}
		if err != nil {
			err = fmt.Errorf("engine: replay %s: %w", name, err)
			if !db.opts.Salvage || !errors.Is(err, ErrCorrupt) {
				return err
			}
			db.opts.Logf("%v: salvaging what comes before", err)
			r.end = logPosition{i + 1, 0}
			r.logs = r.logs[:i+1]
			return nil
		}
	}
	return nil
}

// errStopScan ends the reading of a log; it never leaves this file.
var errStopScan = errors.New("engine: stop scan")

func (r *recovery) showNotes(b BatchReader) error {
	if r.db.opts.ReplayNote == nil {
		return nil
	}
	for b.Next() {
		if b.kind == KindNote {
			if err := r.db.opts.ReplayNote(b.value); err != nil {
				return fmt.Errorf("replay note: %w", err)
			}
		}
	}
	return nil
}

// replay is the second pass: it applies the batches before the end.
func (r *recovery) replay() error {
	db := r.db
	r.mem = newMemTable(db.opts.MemTableSize)
	last := db.flushedSeq
	for i, num := range r.logs {
		name := logFileName(db.dir, num)
		stop := false
		_, err := ordered.ReadLog(db.disk, name, db.logID(num), db.opts.Profile, func(rec []byte, off int64) error {
			if !(logPosition{i, off}).before(r.end) {
				stop = true
				return errStopScan
			}
			b, err := decodeBatch(rec)
			if err == nil {
				// The file has been read before; it can't have changed
				// unless the disk errs.
				err = b.check()
			}
			if err != nil {
				return fmt.Errorf("at %d: %w", off, err)
			}
			if db.opts.Salvage && b.seq > r.lastSeq {
				stop = true
				return errStopScan
			}
			if db.opts.Replay != nil {
				shown := b
				if err := db.opts.Replay(&shown); errors.Is(err, ErrStopReplay) {
					db.opts.Logf("engine: replay ends in %s at %d, before %d", name, off, b.seq)
					stop = true
					return errStopScan
				} else if err != nil {
					return fmt.Errorf("at %d: %w", off, err)
				}
			}
			if err := r.apply(b, len(rec)); err != nil {
				return err
			}
			last = max(last, b.seq+b.span(db.opts.Profile == ordered.Default)-1)
			return nil
		})
		if stop {
			break
		}
		if err != nil && !(db.opts.Salvage && errors.Is(err, ordered.ErrCorrupt)) {
			return fmt.Errorf("engine: replay %s: %w", name, err)
		}
	}
	r.lastSeq = last
	return nil
}

func (r *recovery) apply(b BatchReader, size int) error {
	n := b.Count()
	if !r.mem.list.room(n, size) {
		if err := r.spill(); err != nil {
			return err
		}
		need := memTableSizeFor(&Batch{data: make([]byte, 0), count: b.count}) + size*2
		r.mem = newMemTable(max(r.db.opts.MemTableSize, need))
	}
	r.mem.apply(b, b.seq)
	return nil
}

// spill puts a full memtable away.
func (r *recovery) spill() error {
	if r.mem.empty() {
		return nil
	}
	if r.db.opts.ReadOnly {
		r.full = append(r.full, r.mem)
		return nil
	}
	files, err := r.db.writeTables(r.mem.newIter(), maxSeqNum-1)
	if err != nil {
		return fmt.Errorf("engine: flush after replay: %w", err)
	}
	r.tables = append(r.tables, files...)
	return nil
}

// removeTables removes what spill wrote, which no manifest names.
func (r *recovery) removeTables() { r.db.removeOutputs(r.tables) }

func (r *recovery) finishReadOnly() error {
	db := r.db
	if err := r.afterReplay(); err != nil {
		return err
	}
	imm := slices.Clone(r.full)
	slices.Reverse(imm)
	db.view.Store(&view{mem: r.mem, imm: imm, ver: r.state.version})
	db.replayed = r.logs
	db.lastSeq.Store(uint64(r.lastSeq))
	return nil
}

// afterReplay applies what Options.AfterReplay adds.
func (r *recovery) afterReplay() error {
	db := r.db
	if db.opts.AfterReplay == nil || len(r.logs) == 0 {
		return nil
	}
	get := func(key []byte) ([]byte, error) {
		return db.getTables(r.state.version, nil, key, maxSeqNum, Block)
	}
	var b Batch
	if err := db.opts.AfterReplay(get, &b); err != nil {
		return fmt.Errorf("engine: after replay: %w", err)
	}
	if b.count == 0 {
		return nil
	}
	br := BatchReader{seq: r.lastSeq + 1, count: b.count, rest: b.data[batchHeaderLen:]}
	if err := r.apply(br, b.Len()); err != nil {
		return err
	}
	r.lastSeq += SeqNum(b.count)
	return nil
}

// finish installs r.tables, makes the outcome durable and removes what it
// replaces.
func (r *recovery) finish() error {
	db := r.db
	if len(r.tables) > 0 {
		if err := db.beforeInstall(); err != nil {
			r.removeTables()
			return fmt.Errorf("engine: %w", err)
		}
	}
	w, err := db.createWAL(0)
	if err != nil {
		r.removeTables()
		return err
	}
	db.wals = []*wal{w}
	mem := newMemTable(db.opts.MemTableSize)
	mem.logNum = w.num
	db.w.mem, db.w.wal = mem, w
	db.lastSeq.Store(uint64(r.lastSeq))
	db.view.Store(&view{mem: mem, ver: r.state.version})

	edit := &versionEdit{logNumber: &w.num, lastSeq: &r.lastSeq}
	for _, f := range r.tables {
		edit.added = append(edit.added, newFile{0, f})
	}
	// In any case a new manifest: the old one may have a torn end.
	if err := db.manifest.close(); err != nil {
		return fmt.Errorf("engine: close manifest: %w", err)
	}
	if err := db.install(edit, nil); err != nil {
		return err
	}
	return r.removeOrphans()
}

// removeOrphans deletes every file of ours that the new manifest doesn't need.
func (r *recovery) removeOrphans() error {
	db := r.db
	live := map[FileNum]bool{}
	for _, files := range db.view.Load().ver.levels {
		for _, f := range files {
			live[f.num] = true
		}
	}
	names, err := db.disk.List(dirName(db.dir))
	if err != nil {
		return fmt.Errorf("engine: open %s: %w", db.dir, err)
	}
	for _, name := range names {
		kind, n := parseFileName(name)
		keep := true
		switch kind {
		case logFile:
			keep = n >= db.logNumber
		case tableFile:
			keep = live[n]
		case manifestFile:
			keep = n == db.manifest.num
		case tempFile:
			keep = false
		}
		if !keep {
			db.remove(path.Join(db.dir, name))
		}
	}
	return nil
}
