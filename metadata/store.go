package metadata

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"prismfs/engine"
	"prismfs/lanes"
	"prismfs/ordered"
	"prismfs/uring"
)

// Directories and files of a store.
const (
	engineDir = "db"
	dataDir   = "data"
	lockName  = "lock"
)

// DefaultMemory is the budget for caches and buffers, in bytes, where none is given.
const DefaultMemory = 256 << 20

// Options configure an opened store. Zero values take the defaults.
type Options struct {
	Dir      string        // the store's directory; ignored when Disk is given
	Disk     uring.Disk    // the store's disk, for tests
	IO       uring.Mode    // how the disk is driven when Disk is nil
	ReadOnly bool          // nothing is written
	Commit   time.Duration // longest time an acknowledged change stays only in memory (1 s); 0 for the default
	Memory   int64         // budget in bytes for caches and buffers (256 MiB)
	Lanes    *lanes.Runtime
	NoAtime  bool // reads leave the access time alone
	// StrictAtime has every read that comes here note its time, and not only
	// the first one after a change or in a day.
	StrictAtime bool
	Salvage     bool // open in spite of a log damaged in its middle
	Logf        func(format string, args ...any)
	Now         func() time.Time // the clock, for tests
	NoTimer     bool             // no commit timer and no background reclaim, for tests that count operations

	MemTableSize int   // bytes; 0: from the size of the disk
	SegmentSize  int64 // bytes; 0: from the size of the disk

	// PlantedFreeEarly deletes segments without the barrier that must come
	// first: a fault for the crash tests, which must notice it.
	PlantedFreeEarly bool
	// PlantedStaleLog accepts records of an earlier use of a recycled log file,
	// another fault for the crash tests.
	PlantedStaleLog bool

	create bool
}

const (
	defaultCommit = time.Second
	leaseSize     = 1 << 20
	redoMax       = 64 << 10
	garbagePeriod = time.Second
	stuckAfter    = time.Minute // work on a lane that takes longer is named in the log
)

// Store is an open prismfs store: the file system of *FS over an engine and a
// data log.
//
// Lock order, outermost first: inode locks (by number when a call needs two and
// may block; any order under NoWait, where none is waited for), the shards of
// the inode cache and of the reference table, the engine's write lane, counters.
type Store struct {
	opts      Options
	disk      uring.Disk
	ownDisk   bool
	lanes     *lanes.Runtime
	ownLanes  bool
	lock      io.Closer
	sb        superblock
	db        *engine.DB
	dlog      *ordered.DataLog
	logf      func(format string, args ...any)
	now       func() time.Time
	inodes    inodeCache
	refs      refTable
	counters  counters
	space     space
	syncer    syncer
	reclaimer reclaimer

	nextIno  atomic.Uint64
	leaseEnd atomic.Uint64
	leaseMu  sync.Mutex

	gcMu       sync.Mutex      // one round of garbage collection at a time
	gcBad      map[uint32]bool // guarded by gcMu; segments found damaged since the store was opened
	appendGate sync.RWMutex    // shared from the first append of an operation to its commit

	failure atomic.Pointer[error] // first error that turned the store read-only

	// Used on the engine's write lane only.
	noteDue   bool        // the log has just begun: repeat the watermark
	noted     ordered.Pos // last watermark in the log
	recovered recovery

	stop    *lanes.StopSource // the root of what background work looks at
	commits *lanes.Periodic   // nil without a timer
	garbage *lanes.Periodic   // nil without a timer

	commitWait SyncWait // of the commit beat
	commitBusy atomic.Bool
	watchdog   *lanes.Watchdog

	maintenance atomic.Pointer[lanes.Op] // the last one started
}

var _ FS = (*Store)(nil)

// Open opens a store, recovering what a crash left, and takes its lock. A store
// opened for reading is recovered in memory only.
//
//   - Errors: ErrNotAStore, ErrNewerFormat, ErrCorrupt, ErrLocked; a transient
//     read error refuses the open and changes nothing.
func Open(o Options) (_ *Store, err error) {
	s := newStore(o)
	defer func() {
		if err != nil {
			s.release()
		}
	}()
	if err := s.attach(); err != nil {
		return nil, err
	}
	if s.sb, err = readSuperblock(s.disk); err != nil {
		return nil, err
	}
	if s.sb.ROCompat&^uint64(knownROCompat) != 0 && !s.opts.ReadOnly {
		return nil, fmt.Errorf("features %#x allow reading only: %w", s.sb.ROCompat, ErrNewerFormat)
	}
	if err := s.start(false); err != nil {
		return nil, err
	}
	return s, nil
}

func newStore(o Options) *Store {
	s := &Store{opts: o, logf: o.Logf, now: o.Now, stop: lanes.NewStopSource(lanes.StopToken{})}
	if s.logf == nil {
		s.logf = func(string, ...any) {}
	}
	if s.now == nil {
		s.now = time.Now
	}
	if s.opts.Memory <= 0 {
		s.opts.Memory = DefaultMemory
	}
	if s.opts.Commit <= 0 {
		s.opts.Commit = defaultCommit
	}
	s.counters.live = make(map[uint32]int64)
	s.counters.changed = make(map[uint32]bool)
	s.gcBad = make(map[uint32]bool)
	s.syncer.init()
	s.reclaimer.init()
	return s
}

// attach opens the disk and takes the lock.
func (s *Store) attach() error {
	s.lanes, s.disk = s.opts.Lanes, s.opts.Disk
	if s.lanes == nil {
		s.lanes, s.ownLanes = lanes.NewRuntime(lanes.Config{}), true
	}
	if s.disk == nil {
		d, err := uring.Open(s.opts.Dir, uring.Options{Mode: s.opts.IO, Lanes: s.lanes, ReadOnly: s.opts.ReadOnly})
		if err != nil {
			return fmt.Errorf("metadata: open %s: %w", s.opts.Dir, err)
		}
		s.disk, s.ownDisk = d, true
	}
	if !s.opts.create && !s.disk.Exists(superblockName) && !s.disk.Exists(engineDir) {
		return ErrNotAStore
	}
	if s.disk.ReadOnly() {
		s.opts.ReadOnly = true
	}
	l, err := s.disk.Lock(lockName)
	if err != nil && !(s.opts.ReadOnly && errors.Is(err, uring.ErrReadOnly)) {
		return fmt.Errorf("metadata: lock %s: %w", s.opts.Dir, err)
	}
	s.lock = l
	return nil
}

// start opens the logs and the engine, replays, and begins background work.
func (s *Store) start(create bool) (err error) {
	if err := s.space.init(s.disk); err != nil {
		return err
	}
	mem := s.opts.MemTableSize
	if mem <= 0 {
		mem = int(clamp(s.space.total/128, 1<<20, 16<<20))
	}
	seg := s.opts.SegmentSize
	if seg <= 0 {
		seg = clamp(s.space.total/64, 1<<20, 64<<20)
	}
	s.space.reserve = 4*int64(mem) + clamp(s.space.total/64, 1<<20, 64<<20)
	s.inodes.init(s.opts.Memory / 4)
	s.dlog, err = ordered.OpenDataLog(ordered.DataLogOptions{
		Disk: s.disk, Dir: dataDir, SegmentSize: seg, ReadOnly: s.opts.ReadOnly, Lane: s.lanes.File, Logf: s.logf,
	})
	if err != nil {
		return fmt.Errorf("metadata: open the data log: %w", err)
	}
	s.noteDue = true
	s.recovered.init()
	s.db, err = engine.Open(engine.Options{
		Disk: s.disk, Dir: engineDir, Lanes: s.lanes,
		MemTableSize: mem, BlockCache: s.opts.Memory / 4, Codec: engine.Snappy,
		ReadOnly: s.opts.ReadOnly, CreateIfMissing: create, Salvage: s.opts.Salvage, Logf: s.logf,
		GroupNote:     s.groupNote,
		BeforeInstall: s.beforeInstall,
		OnRotate:      s.onRotate,
		ReplayNote:    s.replayNote,
		ReplayStart:   s.replayStart,
		Replay:        s.replayBatch,
		AfterReplay:   s.afterReplay,

		PlantedStaleLog: s.opts.PlantedStaleLog,
	})
	if err != nil {
		if errors.Is(err, uring.ErrNotExist) {
			err = fmt.Errorf("%w: %w", ErrCorrupt, err)
		}
		return fmt.Errorf("metadata: open the engine: %w", err)
	}
	if err := s.loadCounters(); err != nil {
		return err
	}
	if !s.opts.ReadOnly && !create {
		if err := s.lease(); err != nil {
			return err
		}
		if err := s.collectOrphans(); err != nil {
			return err
		}
	}
	s.syncer.start(s)
	if !s.opts.NoTimer {
		s.watchdog = lanes.StartWatchdog(s.lanes, stuckAfter, s.logf)
	}
	if !s.opts.ReadOnly {
		s.reclaimer.start(s)
		if !s.opts.NoTimer {
			s.commitWait.Job.Run = s.committed
			s.commits = lanes.StartPeriodic(s.lanes.CPU, s.opts.Commit, 0, s.commitBeat)
			s.garbage = lanes.StartPeriodic(s.lanes.Compaction, garbagePeriod, 0, func(lanes.Beat) { s.collectGarbage() })
		}
	}
	return nil
}

// release gives back what attach and start took, as far as they came.
func (s *Store) release() {
	if s.db != nil {
		s.db.Close()
	}
	if s.dlog != nil {
		s.dlog.Close()
	}
	if s.lock != nil {
		s.lock.Close()
	}
	if s.ownDisk && s.disk != nil {
		s.disk.Close()
	}
	if s.ownLanes {
		s.lanes.Close()
	}
}

// Close makes everything durable and releases the store. Its error is that of
// the last barrier.
func (s *Store) Close() error {
	s.stop.Stop()
	if s.commits != nil {
		s.commits.Close()
		s.garbage.Close()
	}
	s.reclaimer.halt()
	err := s.Sync()
	s.syncer.halt()
	if cerr := s.db.Close(); err == nil {
		err = cerr
	}
	if cerr := s.dlog.Close(); err == nil {
		err = cerr
	}
	// db and dlog stay: a control command that is late finds them closed.
	if s.watchdog != nil {
		s.watchdog.Close()
	}
	s.release()
	return err
}

// Lanes returns the lanes that the store's work runs on.
func (s *Store) Lanes() *lanes.Runtime { return s.lanes }

// ReadOnly says that the store takes no changes: it was opened so, or an error
// made it so.
func (s *Store) ReadOnly() bool { return s.opts.ReadOnly || s.failure.Load() != nil }

// Failure returns the error that turned the store read-only, nil if none did.
func (s *Store) Failure() error {
	if p := s.failure.Load(); p != nil {
		return *p
	}
	return nil
}

// noteFailure turns the store read-only if err says that what is on disk is no
// longer known. Errors that end by themselves (no space) are not sticky.
func (s *Store) noteFailure(err error) {
	if err == nil || errors.Is(err, uring.ErrNoSpace) || errors.Is(err, ErrWouldBlock) || s.opts.ReadOnly || errors.Is(err, engine.ErrClosed) {
		return
	}
	if s.failure.CompareAndSwap(nil, &err) {
		s.logf("the store is read-only until it is mounted again: %v", err)
	}
}

// writable is asked first by every operation that changes something.
func (s *Store) writable() error {
	if s.opts.ReadOnly || s.failure.Load() != nil {
		return ErrReadOnly
	}
	return nil
}

// damage is the error for a record or byte range that fails its checks. Who ends
// the operation reports it, once.
func (s *Store) damage(what string, ino Ino, off uint64, err error) error {
	return fmt.Errorf("metadata: damaged %s of inode %d at %d: %w", what, ino, off, err)
}

func (s *Store) timeNow() Time {
	t := s.now()
	return Time{t.Unix(), uint32(t.Nanosecond())}
}

func clamp(x, lo, hi int64) int64 { return max(lo, min(x, hi)) }

// --- inode numbers ---

// allocIno returns a number never used before. Numbers come from ranges leased
// durably before use, so that not even a create lost in a crash gives its
// number away twice.
func (s *Store) allocIno(w Wait) (Ino, error) {
	for {
		end := s.leaseEnd.Load()
		n := s.nextIno.Load()
		if n >= end {
			if w == NoWait {
				return 0, ErrWouldBlock
			}
			if err := s.lease(); err != nil {
				return 0, err
			}
			continue
		}
		if s.nextIno.CompareAndSwap(n, n+1) {
			return Ino(n), nil
		}
	}
}

// lease makes a further range of inode numbers usable.
func (s *Store) lease() error {
	s.leaseMu.Lock()
	defer s.leaseMu.Unlock()
	if s.nextIno.Load() < s.leaseEnd.Load() {
		return nil
	}
	end := s.leaseEnd.Load() + leaseSize
	t := s.begin()
	defer t.end()
	t.b.Put(totalKey(t.key[:0], totalLease), binary.LittleEndian.AppendUint64(nil, end))
	if err := t.commit(Block); err != nil {
		return err
	}
	if err := s.db.Barrier(); err != nil {
		s.noteFailure(err)
		return err
	}
	s.leaseEnd.Store(end)
	return nil
}

// loadCounters reads what the engine holds of the counters after recovery.
func (s *Store) loadCounters() error {
	read := func(key []byte) (int64, error) {
		b, err := s.db.Get(nil, key, Block)
		if err == engine.ErrNotFound {
			return 0, nil
		}
		if err == nil && len(b) != 8 {
			err = fmt.Errorf("counter %q: %w", key, ErrCorrupt)
		}
		if err != nil {
			return 0, err
		}
		return int64(binary.LittleEndian.Uint64(b)), nil
	}
	lease, err := read(totalKey(nil, totalLease))
	if err != nil {
		return err
	}
	lease = max(lease, int64(RootIno)+1)
	s.nextIno.Store(uint64(lease))
	s.leaseEnd.Store(uint64(lease))
	c := &s.counters
	if c.inodes, err = read(totalKey(nil, totalInodes)); err != nil {
		return err
	}
	if c.bytes, err = read(totalKey(nil, totalBytes)); err != nil {
		return err
	}
	it := s.db.NewIter(engine.IterOptions{Lower: appendPrefix(nil, treeGlobal, tableSegment), Upper: appendPrefix(nil, treeGlobal, tableSegment+1)})
	defer it.Close()
	for ok := it.First(); ok; ok = it.Next() {
		if len(it.Key()) != keyPrefixLen+4 || len(it.Value()) != 8 {
			return fmt.Errorf("counter %q: %w", it.Key(), ErrCorrupt)
		}
		c.live[binary.BigEndian.Uint32(it.Key()[keyPrefixLen:])] = int64(binary.LittleEndian.Uint64(it.Value()))
	}
	return it.Err()
}

// --- hooks of the engine ---

// groupNote states, at the head of a batch in the log, up to where data is
// durable, whenever that changed or a new log began. Runs on the write lane.
func (s *Store) groupNote(dst []byte) []byte {
	d := s.dlog.Durable()
	if d == s.noted && !s.noteDue {
		return dst
	}
	s.noted, s.noteDue = d, false
	return appendWatermark(dst, d)
}

func appendWatermark(dst []byte, p ordered.Pos) []byte {
	return binary.BigEndian.AppendUint64(append(dst, noteWatermark), uint64(p))
}

func (s *Store) onRotate(b *engine.Batch) {
	s.counters.writeAbsolute(b)
	s.noteDue = true
}

// beforeInstall: a table that goes into the manifest makes its extents durable
// for good, so their data must be.
func (s *Store) beforeInstall() error {
	if _, err := s.dlog.Sync(); err != nil {
		s.noteFailure(err)
		return err
	}
	return nil
}

// Dir returns the store's directory as an absolute path.
func (s *Store) Dir() string {
	if p, err := filepath.Abs(s.opts.Dir); err == nil {
		return p
	}
	return s.opts.Dir
}
