package engine

import (
	"errors"
	"fmt"
	"io"
	"path"
	"sync"
	"sync/atomic"
	"time"

	"prismfs/lanes"
	"prismfs/ordered"
	"prismfs/uring"
)

// view is what readers see; immutable once published.
//
// W1: whatever a view's tables lack, its memtables have: a flush publishes the
// table and drops the memtable in one step.
// W2: a reader loads the view before the sequence number that it reads at. Then
// everything up to that number is in the view, or came to a memtable that the
// view lacks and counts as later; and no compaction that the view shows has
// dropped a version that is the newest at that number.
type view struct {
	mem *memTable
	imm []*memTable // newest first; more than one only in a store opened read-only
	ver *version
}

// wal is a log file in use. The list of wals is guarded by DB.mu.
type wal struct {
	num  FileNum
	log  *ordered.Log
	refs int // barriers that are syncing it; guarded by DB.mu
}

// prepared is what a rotation needs, made ahead so that the write lane never
// waits for the disk.
type prepared struct {
	wal *wal
	mem *memTable
}

// DB is an open store. Safe for concurrent use.
type DB struct {
	opts  Options
	disk  uring.Disk
	dir   string
	lanes *lanes.Runtime
	lock  io.Closer

	tables *tableCache
	blocks *blockCache
	topts  tableOptions
	epochs epochs

	view    atomic.Pointer[view]  // stored under mu; nil once closed
	lastSeq atomic.Uint64         // newest visible update; stored on the write lane
	failed  atomic.Pointer[error] // sticky; what writes return from then on
	low     atomic.Bool           // the ballast is missing

	// compactAfter is when compactions go on after one couldn't read its
	// input, in ns since 1970. Stored by the background.
	compactAfter atomic.Int64

	// Owned by the write lane.
	w struct {
		mem      *memTable
		wal      *wal
		walStart int64 // bytes of wal that its rotation wrote
		scratch  []byte
		rotate   Batch
		closed   bool
	}

	nextFile atomic.Uint64 // the next unused file number

	mu        sync.Mutex
	wals      []*wal    // guarded by mu; oldest first, the last one is written to
	deadWals  []*wal    // guarded by mu; not needed any more, maybe still syncing
	spare     []FileNum // guarded by mu; log files free to be recycled
	recycling FileNum   // guarded by mu; the one that is being renamed, or 0
	next      *prepared // guarded by mu; nil until made
	nextSize  int       // guarded by mu; least memtable size asked for
	spaceErr  error     // guarded by mu; the last flush or preparation ended so, for want of space
	attempts  uint64    // guarded by mu; flushes and preparations that ended
	roomCh    chan struct{}
	snapshots []SeqNum         // guarded by mu; ascending
	manual    []*manualRequest // guarded by mu
	retired   []retiredTable   // guarded by mu
	limbo     []FileNum        // guarded by mu; tables that the manifest may name, but no version
	live      map[FileNum]bool // guarded by mu; tables that some version names
	idle      bool             // guarded by mu; the background found nothing to do
	stats     Stats            // guarded by mu; the counters of it

	// stepMu is held over each flush, compaction and deletion, and by a check
	// that looks at the files. It guards what only the background changes, as
	// Open does before it starts.
	stepMu     sync.Mutex
	manifest   manifest
	replayed   []FileNum // logs whose records are in the memtables; ReadOnly only
	logNumber  FileNum   // as the manifest states
	flushedSeq SeqNum    // as the manifest states
	pointers   [numLevels][]byte
	flushStuck bool // the flush that is due has just failed for want of space

	bgWake   chan struct{} // capacity 1
	prepWake chan struct{} // capacity 1
	closing  chan struct{}
	closed   atomic.Bool
	bgDone   sync.WaitGroup
}

type retiredTable struct {
	num   FileNum
	epoch uint64
}

// Close makes everything applied durable and closes the store. Iterators must
// have been closed before.
func (db *DB) Close() error {
	if db.closed.Swap(true) {
		return ErrClosed
	}
	// Writers on the lane are done when this job runs, later ones are refused.
	err := db.onLane(&commitReq{op: opClose})
	close(db.closing)
	db.bgDone.Wait()

	db.mu.Lock()
	db.view.Store(nil)
	wals, dead, next := db.wals, db.deadWals, db.next
	db.wals, db.deadWals, db.next = nil, nil, nil
	db.broadcastLocked()
	db.mu.Unlock()

	keep := func(e error) {
		if err == nil && e != nil {
			err = fmt.Errorf("engine: close: %w", e)
		}
	}
	for _, w := range wals {
		keep(w.log.Close())
	}
	for _, w := range dead {
		w.log.Close() // needed no more
	}
	if next != nil {
		next.wal.log.Close() // empty
	}
	keep(db.manifest.close())
	db.tables.close()
	if db.lock != nil {
		keep(db.lock.Close())
	}
	if f := db.failed.Load(); f != nil && err == nil {
		err = *f
	}
	return err
}

// Get appends the value of key to dst.
//
//   - Wait: under NoWait ErrWouldBlock when a table must be read from the disk.
//   - Errors: ErrNotFound, ErrCorrupt, ErrClosed, errors of the disk.
func (db *DB) Get(dst, key []byte, w Wait) ([]byte, error) {
	g := db.epochs.enter()
	defer g.Add(-1)
	v := db.view.Load()
	if v == nil {
		return dst, ErrClosed
	}
	seq := SeqNum(db.lastSeq.Load())
	value, kind, ok := v.mem.get(key, seq)
	for i := 0; !ok && i < len(v.imm); i++ {
		value, kind, ok = v.imm[i].get(key, seq)
	}
	if !ok {
		return db.getTables(v.ver, dst, key, seq, w)
	}
	if kind == KindDelete {
		return dst, ErrNotFound
	}
	return append(dst, value...), nil
}

// getTables looks key up in the tables of ver, newest first.
func (db *DB) getTables(ver *version, dst, key []byte, seq SeqNum, w Wait) ([]byte, error) {
	bp := keyBufs.Get().(*[]byte)
	defer keyBufs.Put(bp)
	*bp = makeInternal((*bp)[:0], key, seq, kindSeek)
	for _, f := range ver.levels[0] {
		if !f.mayHold(key) {
			continue
		}
		if out, done, err := db.getTable(f, dst, *bp, w); done {
			return out, err
		}
	}
	for _, files := range ver.levels[1:] {
		i := findFile(files, key)
		if i == len(files) || !files[i].mayHold(key) {
			continue
		}
		if out, done, err := db.getTable(files[i], dst, *bp, w); done {
			return out, err
		}
	}
	return dst, ErrNotFound
}

func (db *DB) getTable(f *fileMeta, dst, ikey []byte, w Wait) (out []byte, done bool, err error) {
	value, t, ok, err := db.tables.get(dst, f.num, f.size, ikey, w)
	switch {
	case err != nil:
		return dst, true, err
	case !ok:
		return dst, false, nil
	case trailerKind(t) == KindDelete:
		return dst, true, ErrNotFound
	}
	return value, true, nil
}

var keyBufs = sync.Pool{New: func() any { b := make([]byte, 0, 128); return &b }}

// LastSeq is the sequence number of the newest visible update.
func (db *DB) LastSeq() uint64 { return db.lastSeq.Load() }

// fail makes err sticky: the store is read-only from now on.
func (db *DB) fail(err error) {
	e := fmt.Errorf("%w after a failure: %w", ErrReadOnly, err)
	if !db.failed.CompareAndSwap(nil, &e) {
		return
	}
	db.opts.Logf("%v", e)
	db.mu.Lock()
	db.broadcastLocked()
	db.mu.Unlock()
}

// failure returns what fail recorded.
func (db *DB) failure() error {
	if p := db.failed.Load(); p != nil {
		return *p
	}
	return nil
}

// room returns a channel that is closed at the next event that may make room
// for a writer or end a wait: take it before looking at the state.
func (db *DB) room() <-chan struct{} {
	db.mu.Lock()
	defer db.mu.Unlock()
	if db.roomCh == nil {
		db.roomCh = make(chan struct{})
	}
	return db.roomCh
}

func (db *DB) broadcastLocked() {
	if db.roomCh != nil {
		close(db.roomCh)
		db.roomCh = nil
	}
}

// signal puts a token into a channel of capacity 1.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (db *DB) newFileNum() FileNum { return FileNum(db.nextFile.Add(1) - 1) }

// publishLocked changes the view.
func (db *DB) publishLocked(change func(v *view)) {
	v := *db.view.Load()
	change(&v)
	db.view.Store(&v)
}

// releaseVersion drops a reference of a version and retires its tables if it
// was the last.
func (db *DB) releaseVersion(v *version) {
	dead := v.unref()
	if len(dead) == 0 {
		return
	}
	db.mu.Lock()
	db.retireLocked(dead)
	db.mu.Unlock()
	signal(db.bgWake)
}

// retireLocked lets the background delete tables that no version names, once no
// reader can be using them.
func (db *DB) retireLocked(dead []*fileMeta) {
	e := db.epochs.cur.Load()
	for _, f := range dead {
		delete(db.live, f.num)
		db.retired = append(db.retired, retiredTable{f.num, e})
	}
}

// heldByReader says whether some version names the table.
func (db *DB) heldByReader(num FileNum) bool {
	db.mu.Lock()
	defer db.mu.Unlock()
	return db.live[num]
}

// retryDelay is how long background work waits after it ran out of space.
const retryDelay = time.Second

// inputRetryDelay is how long compactions pause after one couldn't read its
// input.
const inputRetryDelay = time.Minute

// graceDelay is how long the background waits before it looks again whether
// readers have left retired tables, or others the lane.
const graceDelay = 10 * time.Millisecond

// background flushes, compacts and deletes until the store closes. It is the
// only one to change versions, hence flushes and compactions never overlap.
func (db *DB) background() {
	defer db.bgDone.Done()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-db.bgWake:
		case <-timer.C:
		case <-db.closing:
			return
		}
		if d := db.work(); d > 0 {
			timer.Reset(d)
		}
	}
}

// work does what there is to do and returns how long to wait until there is
// more, 0 if only an event can tell.
func (db *DB) work() time.Duration {
	for {
		db.setIdle(false)
		db.stepMu.Lock()
		again, err := db.step()
		waiting := db.clean()
		if errors.Is(err, ErrNoSpace) && db.dropBallast() {
			again, err = true, nil
		}
		if !again && err == nil && db.failure() == nil {
			if err := db.layBallast(); err != nil {
				db.opts.Logf("%v", err)
			}
		}
		db.stepMu.Unlock()
		switch {
		case errors.Is(err, errClosing):
			return 0
		case errors.Is(err, errLaneBusy):
			return graceDelay
		case err != nil:
			return retryDelay
		case again:
			continue
		case waiting:
			return graceDelay
		}
		if db.setIdle(true) {
			if db.low.Load() && db.failure() == nil {
				return retryDelay
			}
			return 0
		}
	}
}

var (
	// errClosing ends background work because the store closes.
	errClosing = errors.New("engine: closing")
	// errLaneBusy puts a compaction off until the Compaction lane is free.
	errLaneBusy = errors.New("engine: compaction lane busy")
)

// step does one flush or compaction inside the Compaction lane. An error other
// than errClosing and errLaneBusy means: try again later.
func (db *DB) step() (again bool, err error) {
	if db.failure() != nil {
		return false, nil
	}
	if !db.flushPending() && !db.compactionPending() {
		return false, nil
	}
	// Who holds the lane may itself be waiting for room in the memtable: what
	// writers wait for goes on without the lane if it isn't free.
	urgent := db.flushPending() || len(db.view.Load().ver.levels[0]) >= l0Slowdown
	if entered := db.lanes.Compaction.TryEnter(); entered {
		defer db.lanes.Compaction.Leave()
	} else if !urgent {
		return false, errLaneBusy // not waited for: a flush may become due
	}
	if db.isClosing() {
		return false, errClosing
	}
	var stuck error
	if db.flushPending() {
		stuck = db.bookStep(db.flushImm())
		if stuck == nil || !db.low.Load() {
			return true, stuck
		}
		// A compaction may free what the flush lacks.
		if !db.compactionPending() {
			return false, stuck
		}
	}
	db.flushStuck = stuck != nil
	did, err := db.compactOnce()
	db.flushStuck = false
	if err = db.bookStep(err); err == nil && !did {
		err = stuck
	}
	return did, err
}

// bookStep books the end of a flush or compaction. ErrNoSpace is for a later
// try; other failures are final.
func (db *DB) bookStep(err error) error {
	if errors.Is(err, errClosing) {
		return err
	}
	if in := (*inputError)(nil); errors.As(err, &in) && len(db.view.Load().ver.levels[0]) < l0Stop {
		// Goes on without compactions for a while. Once level 0 is full this
		// can't be any more, and the failure is final.
		db.opts.Logf("engine: %v", err)
		db.compactAfter.Store(time.Now().Add(inputRetryDelay).UnixNano())
		db.mu.Lock()
		db.stats.CompactionReadErrors++
		db.mu.Unlock()
		return nil
	}
	if err != nil && !errors.Is(err, ErrNoSpace) {
		db.fail(err)
		return nil
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	if err != nil && !db.low.Load() {
		return err // to be tried again at once, with the ballast's room
	}
	if err != nil || db.spaceErr != nil {
		db.attempts++
		db.spaceErr = err
	}
	db.broadcastLocked()
	return err
}

func (db *DB) isClosing() bool {
	select {
	case <-db.closing:
		return true
	default:
		return false
	}
}

func (db *DB) flushPending() bool { return len(db.view.Load().imm) > 0 }

// setIdle records that the background has nothing to do, unless something came
// up meanwhile, and tells those who wait for that.
func (db *DB) setIdle(idle bool) bool {
	db.mu.Lock()
	defer db.mu.Unlock()
	if idle && (len(db.manual) > 0 || len(db.retired) > 0) && db.failure() == nil {
		return false
	}
	db.idle = idle
	if idle {
		db.broadcastLocked()
	}
	return true
}

// WaitIdle returns when no flush, compaction or deletion is due, or when the
// store has failed or is closed.
func (db *DB) WaitIdle() {
	for {
		ch := db.room()
		db.mu.Lock()
		v := db.view.Load()
		done := v == nil || db.opts.ReadOnly || db.failure() != nil ||
			db.idle && len(v.imm) == 0 && len(db.retired) == 0 && len(db.manual) == 0 && !db.scoreDue(v.ver)
		db.mu.Unlock()
		if done {
			return
		}
		signal(db.bgWake)
		<-ch
	}
}

// clean deletes files that nobody needs and says whether some still wait for
// readers.
func (db *DB) clean() (waiting bool) {
	db.mu.Lock()
	pending := len(db.retired) > 0
	db.mu.Unlock()
	cur := db.epochs.cur.Load()
	if pending {
		// Twice, for a table is free two epochs after it was retired.
		db.epochs.advance()
		cur = db.epochs.advance()
	}

	var tables []FileNum
	var logs []*wal
	db.mu.Lock()
	keep := db.retired[:0]
	for _, r := range db.retired {
		if r.epoch+2 <= cur {
			tables = append(tables, r.num)
		} else {
			keep = append(keep, r)
		}
	}
	db.retired = keep
	waiting = len(keep) > 0
	keepWals := db.deadWals[:0]
	for _, w := range db.deadWals {
		if w.refs == 0 {
			logs = append(logs, w)
		} else {
			keepWals = append(keepWals, w)
		}
	}
	db.deadWals = keepWals
	db.mu.Unlock()

	for _, num := range tables {
		db.tables.evict(num)
		db.remove(tableFileName(db.dir, num))
	}
	for _, w := range logs {
		// What it holds is in tables by now, so a failure loses nothing.
		err := w.log.CloseForReuse()
		db.mu.Lock()
		recycle := err == nil && db.opts.Profile == ordered.Default && len(db.spare) == 0
		if recycle {
			db.spare = append(db.spare, w.num)
		}
		db.mu.Unlock()
		if !recycle {
			db.remove(logFileName(db.dir, w.num))
		}
	}
	if len(logs) > 0 {
		signal(db.prepWake)
	}
	return waiting
}

// remove deletes a file that nothing refers to. It comes back at worst after a
// crash, and then the next open removes it.
func (db *DB) remove(name string) {
	if err := db.disk.Remove(name); err != nil && !errors.Is(err, uring.ErrNotExist) {
		db.opts.Logf("engine: remove %s: %v", path.Base(name), err)
	}
}
