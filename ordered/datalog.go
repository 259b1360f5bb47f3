package ordered

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"prismfs/lanes"
	"prismfs/uring"
)

const (
	defaultSegmentSize  = 64 << 20
	maxSegmentSize      = 1 << 30
	minSegmentSize      = 1 << 20
	defaultMaxTail      = 16 << 20
	defaultMaxUndurable = 64 << 20
	// maxUndurable bounds MaxUndurable of every session, so that a recovery
	// knows how far back bytes may never have been synced.
	maxUndurable = 256 << 20
	chunkSize    = 1 << 20
	minChunks    = 3

	defaultDataFlushDelay = 5 * time.Millisecond
)

// DataLogOptions of OpenDataLog. Zero values mean the defaults.
type DataLogOptions struct {
	Disk uring.Disk
	Dir  string // "data"
	// SegmentSize is 64 MiB; 1 MiB to 1 GiB.
	SegmentSize int64
	// MaxTail bounds the memory for bytes on their way to the kernel and for
	// those that went last, 16 MiB.
	MaxTail int64
	// MaxUndurable bounds the bytes appended but not synced, 64 MiB, at most
	// 256 MiB: a sync then is never far behind.
	MaxUndurable int64
	// Codec compresses what Append gets, if that saves an eighth.
	Codec uint8
	// FlushDelay is how long bytes may stay in our memory only, 5 ms.
	FlushDelay time.Duration
	// Lane orders the writes of all logs; without it they are made directly.
	Lane     *lanes.Serial
	ReadOnly bool
	Logf     func(format string, args ...any)
}

// DataLog is the append-only store of file bytes. See the package comment.
//
//   - Concurrency: everything from anywhere, except that Close comes last.
//   - Errors: a failed write or sync is final (ErrFailed). No space for another
//     segment is not, and neither is a read error.
type DataLog struct {
	o         DataLogOptions
	comp      compressor
	maxChunks int

	segMu   sync.Mutex
	segs    map[uint32]*Segment // guarded by segMu
	segTick uint64              // guarded by segMu
	// segsClosed: no file is opened any more. Guarded by segMu.
	segsClosed bool
	// memFrom is the oldest position in memory; stored under mu.
	memFrom atomic.Uint64

	mu sync.Mutex
	// room is signalled when a predicate of Append may have become true: a
	// chunk can be taken, less is undurable, a segment was made or could not
	// be, the log failed or was closed.
	room     sync.Cond
	err      error      // guarded by mu; final
	spaceErr error      // guarded by mu; why the last flush failed, nil once one succeeds
	closed   bool       // guarded by mu
	armed    bool       // guarded by mu; the flusher is awake
	syncing  bool       // guarded by mu; the background sync has been asked for
	active   *Segment   // guarded by mu; nil before the first append
	next     *Segment   // guarded by mu; ready to become active
	rolling  bool       // guarded by mu; next is being made
	rollErr  error      // guarded by mu; why the last attempt failed
	nextNum  uint32     // guarded by mu; number of the next segment to make
	unsynced []*Segment // guarded by mu; with bytes of this opening to sync, each pinned, oldest first
	chunks   []*chunk   // guarded by mu; oldest first, the last is appended to unless closed
	buffers  int        // guarded by mu; buffers in existence
	overlay  []*chunk   // guarded by mu; redo of a read-only store
	old      []*Segment // guarded by mu; of earlier sessions, until the first sync
	redone   map[uint32]*Segment

	// Positions, guarded by mu. A stream position counts the bytes of records
	// of this opening; it is what int64 fields mean here.
	tail          Pos
	tailStream    int64
	takenStream   int64 // the flusher has taken the bytes up to here
	durable       Pos   // synced, or marked durable
	durableStream int64
	synced        Pos
	syncedStream  int64

	nSyncs int64 // guarded by mu
	nWaits int64 // guarded by mu; times that Append had to wait

	phase   int             // guarded by mu; index of the counter for new copies
	copying [2]atomic.Int64 // appends that copy into chunks, by phase
	settled chan struct{}   // capacity 1: a counter fell to 0
	waiting atomic.Bool     // settle waits for that

	settleMu sync.Mutex // one settle at a time; taken before mu
	flushMu  sync.Mutex // one flush at a time; taken before settleMu
	write    writeJob   // guarded by flushMu

	syncs group

	wake     chan struct{} // capacity 1: the flusher has something to do
	full     chan struct{} // capacity 1: enough to do to start at once
	syncWant chan struct{} // capacity 1: too much is undurable
	stop     chan struct{}
	wg       sync.WaitGroup // flusher, syncer, roll
}

// OpenDataLog lists the segments. Nothing is written before the first Append.
func OpenDataLog(o DataLogOptions) (*DataLog, error) {
	if o.Dir == "" {
		o.Dir = "data"
	}
	if o.SegmentSize == 0 {
		o.SegmentSize = defaultSegmentSize
	}
	if o.MaxTail == 0 {
		o.MaxTail = defaultMaxTail
	}
	if o.MaxUndurable == 0 {
		o.MaxUndurable = defaultMaxUndurable
	}
	if o.FlushDelay == 0 {
		o.FlushDelay = defaultDataFlushDelay
	}
	if o.Logf == nil {
		o.Logf = func(string, ...any) {}
	}
	if o.SegmentSize < minSegmentSize || o.SegmentSize > maxSegmentSize || o.MaxUndurable > maxUndurable || o.Codec >= codecs {
		return nil, fmt.Errorf("ordered: open data log: segment size %d, undurable limit %d or codec %d out of range",
			o.SegmentSize, o.MaxUndurable, o.Codec)
	}
	d := &DataLog{
		o: o, comp: newCompressor(), maxChunks: max(int(o.MaxTail/chunkSize), minChunks),
		segs: make(map[uint32]*Segment), redone: make(map[uint32]*Segment),
		settled: make(chan struct{}, 1),
		wake:    make(chan struct{}, 1), full: make(chan struct{}, 1), syncWant: make(chan struct{}, 1),
		stop: make(chan struct{}),
	}
	d.room.L = &d.mu
	d.write.job.Run = runWrite
	d.write.job.Arg = &d.write
	if !o.ReadOnly {
		err := o.Disk.MkdirAll(o.Dir)
		for dir := o.Dir; err == nil && dir != "."; {
			dir = path.Dir(dir)
			err = o.Disk.SyncDir(dir) // where the entry of the directory stands
		}
		if err != nil {
			return nil, fmt.Errorf("ordered: open data log: %w", err)
		}
	}
	names, err := o.Disk.List(o.Dir)
	if err != nil {
		return nil, fmt.Errorf("ordered: open data log: %w", err)
	}
	d.nextNum = 1
	for _, name := range names {
		num, ok := parseSegmentName(name)
		if !ok {
			continue
		}
		full := segmentName(o.Dir, num)
		size, err := o.Disk.Stat(full)
		if err != nil {
			return nil, fmt.Errorf("ordered: open data log: %w", err)
		}
		d.segs[num] = &Segment{d: d, num: num, name: full, size: size, sealed: true}
		d.nextNum = max(d.nextNum, num+1)
	}
	if !o.ReadOnly {
		d.old = d.sortedSegments()
		d.syncs.done = -1 // so that the first Sync comes to syncOld
	}
	d.tail = MakePos(d.nextNum, 0)
	d.durable, d.synced = d.tail, d.tail
	if !o.ReadOnly {
		d.memFrom.Store(uint64(d.tail)) // an overlay may hold any position
	}
	if !o.ReadOnly {
		d.wg.Add(2)
		go d.flusher()
		go d.syncer()
	}
	return d, nil
}

// sortedSegments returns the segments by number.
func (d *DataLog) sortedSegments() []*Segment {
	d.segMu.Lock()
	list := make([]*Segment, 0, len(d.segs))
	for _, s := range d.segs {
		list = append(list, s)
	}
	d.segMu.Unlock()
	slices.SortFunc(list, func(a, b *Segment) int { return int(int64(a.num) - int64(b.num)) })
	return list
}

func (d *DataLog) lookup(num uint32) *Segment {
	d.segMu.Lock()
	defer d.segMu.Unlock()
	return d.segs[num]
}

// Tail is the position behind the last record, and before the first append one
// that is above all older records.
func (d *DataLog) Tail() Pos {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.tail
}

// Durable is the position up to which everything survives a power cut, be it
// by Sync or by MarkDurable. For older segments that is so after the first
// Sync.
func (d *DataLog) Durable() Pos {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.durable
}

// DataLogStats is a snapshot of counters.
type DataLogStats struct {
	Appended  int64 // bytes of records in this opening
	Undurable int64 // bytes not yet synced, be they redone or not
	Memory    int64 // bytes of the tail's buffers
	Syncs     int64 // syncs of Appended so far
	Waits     int64 // times that an append waited for memory, syncs or a segment
}

// Stats returns the counters.
func (d *DataLog) Stats() DataLogStats {
	d.mu.Lock()
	defer d.mu.Unlock()
	return DataLogStats{
		Appended: d.tailStream, Undurable: d.tailStream - d.syncedStream,
		Memory: int64(d.buffers) * chunkSize, Syncs: d.nSyncs, Waits: d.nWaits,
	}
}

// fail makes err final and returns what callers see from now on.
func (d *DataLog) fail(err error) error {
	d.mu.Lock()
	if d.err == nil {
		d.err = failed(err)
	}
	err = d.err
	d.room.Broadcast()
	d.mu.Unlock()
	d.syncs.fail(err)
	return err
}

func (d *DataLog) usableLocked() error {
	if d.err != nil {
		return d.err
	}
	if d.closed {
		return fmt.Errorf("ordered: data log: %w", ErrClosed)
	}
	return nil
}

// Seal ends a recovery: what the replay accepted is made durable, redo
// included, and the next append goes to a new segment.
func (d *DataLog) Seal() error {
	if d.o.ReadOnly {
		return nil
	}
	if _, err := d.Sync(); err != nil {
		return err
	}
	if err := d.FinishRedo(); err != nil {
		return err
	}
	d.mu.Lock()
	if d.active != nil {
		d.retireLocked()
	}
	d.mu.Unlock()
	return nil
}

// syncOld makes durable what earlier sessions may have left in the page cache:
// a daemon that was killed had synced all but its last maxUndurable bytes.
func (d *DataLog) syncOld() error {
	d.mu.Lock()
	list := d.old
	d.old = nil
	d.mu.Unlock()
	recent := int64(0)
	for i := len(list) - 1; i >= 0 && recent <= maxUndurable+maxSegmentSize; i-- {
		s, f, err := d.pin(list[i].num, false)
		if errors.Is(err, ErrNoSegment) {
			continue // removed meanwhile
		}
		if err != nil {
			return err
		}
		recent += list[i].size
		err = f.Datasync()
		s.Release()
		if err != nil {
			return fmt.Errorf("ordered: sync segment %d: %w", s.num, err)
		}
	}
	return nil
}

// Close makes everything durable, gives unused space of the last segment back
// and closes all files. After an error the files are closed too.
func (d *DataLog) Close() error {
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return fmt.Errorf("ordered: close data log: %w", ErrClosed)
	}
	d.closed = true
	d.room.Broadcast()
	d.mu.Unlock()
	close(d.stop)
	d.wg.Wait()
	var err error
	if !d.o.ReadOnly {
		_, err = d.Sync()
		if err == nil {
			err = d.trim()
		}
	}
	d.segMu.Lock()
	d.segsClosed = true
	for _, s := range d.segs {
		s.removed = true // the last pin closes the file
		if s.file != nil && s.pins == 0 {
			s.file.Close()
			s.file = nil
		}
	}
	d.segMu.Unlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.next != nil {
		d.next.Release()
	}
	for _, s := range d.unsynced {
		s.Release()
	}
	return err
}

// trim gives back what was allocated and never used. Nothing depends on it.
func (d *DataLog) trim() error {
	d.mu.Lock()
	active, next := d.active, d.next
	d.mu.Unlock()
	if active != nil {
		if err := active.File().Truncate(active.fill); err != nil && !errors.Is(err, uring.ErrNoSpace) {
			return fmt.Errorf("ordered: trim segment %d: %w", active.num, err)
		}
	}
	// The unused segment may go only if the one before it stays: its number
	// must not come back (I1).
	if next != nil && active != nil && active.num+1 == next.num {
		if err := d.o.Disk.Remove(next.name); err != nil {
			return fmt.Errorf("ordered: remove unused segment %d: %w", next.num, err)
		}
	}
	return nil
}
