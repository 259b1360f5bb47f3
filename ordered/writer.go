package ordered

import (
	"errors"
	"fmt"
	"path"
	"sync"
	"sync/atomic"
	"time"

	"prismfs/uring"
)

const (
	defaultFlushDelay = 10 * time.Millisecond
	// flushBytes buffered bytes are handed to the kernel without waiting.
	flushBytes = 256 << 10
	// logSlack covers what a mark in front of a record adds to its framing, and
	// the zeros behind it.
	logSlack = 4 * maxLogHeader
	// minPreallocate is the least room to start or extend a log with.
	minPreallocate = 128 << 10
)

// LogOptions of CreateLog.
type LogOptions struct {
	Disk uring.Disk
	Name string
	// Number tells this log's records from those of an older use of the file.
	// Its low 32 bits count. Unused in the Strict profile.
	Number  uint64
	Profile Profile
	// Preallocate reserves that many bytes, and a quarter more whenever the log
	// comes near to the end; 0 lets the file grow with every write.
	Preallocate int64
	// Recycle names an old log file to be renamed to Name and overwritten,
	// which saves the file system's journal at each sync. Its content must be
	// needed no more. Default profile only.
	Recycle string
	// FlushDelay is how long a record may stay in our memory; 0 means 10 ms.
	FlushDelay time.Duration
}

// Log is an append-only file of records.
//
//   - Concurrency: one appender at a time; everything else from anywhere.
//   - Errors: a failed write or sync is final (ErrFailed). Running out of space
//     is not: Append reserves the room of its record beforehand, and refuses
//     it without effect; a write that still meets ENOSPC (file systems that
//     copy on write) leaves its bytes buffered, is reported to who flushed,
//     and is repeated at the same place by the next flush. A sync that meets
//     ENOSPC is final, for the kernel may have dropped the pages.
type Log struct {
	f    uring.File
	o    LogOptions
	num  uint32
	ends bool // zeros follow the end, for the file has bytes of its own there

	mu     sync.Mutex
	buf    []byte // guarded by mu; bytes [size-len(buf), size)
	size   int64  // guarded by mu
	room   int64  // guarded by mu; reserved up to here, 0 if unlimited
	marked int64  // guarded by mu; position of the last mark written
	err    error  // guarded by mu; final
	closed bool   // guarded by mu
	armed  bool   // guarded by mu; the flusher is awake and will come by

	inKernel atomic.Int64 // stored under ioMu: [0, inKernel) was written
	durable  atomic.Int64 // stored by the leader of syncs
	nSyncs   atomic.Int64 // stored by the leader of syncs

	ioMu    sync.Mutex // orders writes; taken before mu
	writing []byte     // guarded by ioMu; bytes from inKernel on, empty unless a write found no space
	written int64      // guarded by ioMu; the file's blocks up to here were written once, not only reserved
	allocMu sync.Mutex // orders extensions; taken before mu

	syncs group

	wake chan struct{} // capacity 1: buf became non-empty
	full chan struct{} // capacity 1: buf reached flushBytes
	stop chan struct{}
	done chan struct{}
}

// CreateLog makes an empty log whose name and reserved space are durable.
// uring.ErrNoSpace if not even a small log fits.
func CreateLog(o LogOptions) (*Log, error) {
	if o.FlushDelay == 0 {
		o.FlushDelay = defaultFlushDelay
	}
	if o.Recycle != "" && o.Profile == Strict {
		return nil, fmt.Errorf("ordered: create log %s: the strict profile cannot recycle", o.Name)
	}
	f, room, err := prepareLogFile(o)
	if err != nil {
		return nil, fmt.Errorf("ordered: create log %s: %w", o.Name, err)
	}
	l := &Log{
		f: f, o: o, num: uint32(o.Number), room: room,
		ends: o.Profile == Default && room > 0,
		wake: make(chan struct{}, 1), full: make(chan struct{}, 1),
		stop: make(chan struct{}), done: make(chan struct{}),
	}
	if o.Recycle != "" {
		l.written = room // by its earlier use
	}
	go l.flusher()
	return l, nil
}

// prepareLogFile opens the file and returns the room reserved in it.
func prepareLogFile(o LogOptions) (f uring.File, room int64, err error) {
	if o.Recycle != "" {
		if err := o.Disk.Rename(o.Recycle, o.Name); err != nil {
			return nil, 0, err
		}
		f, err = o.Disk.Open(o.Name)
	} else {
		f, err = o.Disk.Create(o.Name)
	}
	if err != nil {
		return nil, 0, err
	}
	defer func() {
		if err != nil {
			f.Close()
			o.Disk.Remove(o.Name) // holds nothing; a leftover is harmless
		}
	}()
	if o.Recycle != "" {
		if room, err = f.Size(); err != nil {
			return f, 0, err
		}
	}
	if room < o.Preallocate {
		switch got, err := reserve(f, room, o.Preallocate, o.Profile); {
		case err == nil:
			room = got
		case room < minPreallocate || !errors.Is(err, uring.ErrNoSpace):
			return f, 0, err
		}
	}
	// The size must be durable before records rely on it: datasync of an
	// overwrite need not touch it then.
	if err = f.Sync(); err != nil {
		return f, 0, err
	}
	return f, room, o.Disk.SyncDir(path.Dir(o.Name))
}

// reserve allocates [from, to), or less on a nearly full disk, and returns the
// end of what it got.
func reserve(f uring.File, from, to int64, p Profile) (int64, error) {
	for {
		// LevelDB's files end where their records end.
		err := f.Allocate(from, to-from, p == Strict)
		if err == nil {
			return to, nil
		}
		half := (to - from) / 2
		if half < minPreallocate || !errors.Is(err, uring.ErrNoSpace) {
			return from, err
		}
		to = from + half
	}
}

// Append adds a record and returns the position behind it. The record is in
// memory only; see Flush and Sync. It waits for no I/O unless it outruns the
// reserved space.
//
// Errors: ErrFailed, ErrClosed; uring.ErrNoSpace without effect.
func (l *Log) Append(rec []byte) (end int64, err error) {
	l.mu.Lock()
	for {
		if err := l.usableLocked(); err != nil {
			l.mu.Unlock()
			return 0, err
		}
		if l.room == 0 {
			break
		}
		need := l.size + markLen + framedLen(l.o.Profile, l.size, int64(len(rec))) + logSlack
		if need <= l.room {
			break
		}
		l.mu.Unlock()
		if err := l.extend(need); err != nil {
			return 0, err
		}
		l.mu.Lock()
	}
	was := len(l.buf)
	if l.o.Profile == Default {
		if d := l.durable.Load(); d > l.marked && blockSize-l.size%blockSize >= markLen {
			l.buf = appendMark(l.buf, l.num, l.size, d)
			l.marked = d
		}
	}
	markEnd := l.size + int64(len(l.buf)-was)
	l.buf = appendRecord(l.buf, l.o.Profile, l.num, markEnd, rec)
	l.size += int64(len(l.buf) - was)
	end = l.size
	kick := !l.armed
	l.armed = true
	full := was < flushBytes && len(l.buf) >= flushBytes
	l.mu.Unlock()
	if kick {
		signal(l.wake)
	}
	if full {
		signal(l.full)
	}
	return end, nil
}

// signal puts a token into a channel of capacity 1.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (l *Log) usableLocked() error {
	if l.err != nil {
		return l.err
	}
	if l.closed {
		return fmt.Errorf("ordered: log %s: %w", l.o.Name, ErrClosed)
	}
	return nil
}

// extend reserves room up to at least need.
func (l *Log) extend(need int64) error {
	l.allocMu.Lock()
	defer l.allocMu.Unlock()
	l.mu.Lock()
	room := l.room
	l.mu.Unlock()
	if need <= room {
		return nil
	}
	step := max(l.o.Preallocate/4, minPreallocate)
	got, err := reserve(l.f, room, max(need, room+step), l.o.Profile)
	if err != nil {
		err = fmt.Errorf("ordered: extend log %s: %w", l.o.Name, err)
		if !errors.Is(err, uring.ErrNoSpace) {
			err = l.fail(err)
		}
		return err
	}
	l.mu.Lock()
	l.room = got
	l.mu.Unlock()
	if got < need {
		return fmt.Errorf("ordered: extend log %s: %w", l.o.Name, uring.ErrNoSpace)
	}
	return nil
}

// fail makes err final and returns what callers see from now on.
func (l *Log) fail(err error) error {
	l.mu.Lock()
	if l.err == nil {
		l.err = failed(err)
	}
	err = l.err
	l.mu.Unlock()
	l.syncs.fail(err)
	return err
}

// Buffered is the number of bytes not yet handed to the kernel.
func (l *Log) Buffered() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return int(l.size - l.inKernel.Load())
}

// Size is the position behind the last record.
func (l *Log) Size() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.size
}

// Durable is the position up to which Sync has succeeded.
func (l *Log) Durable() int64 { return l.durable.Load() }

// Syncs is the number of syncs of the file so far: fewer than calls of Sync,
// as far as callers shared them.
func (l *Log) Syncs() int64 { return l.nSyncs.Load() }

// Flush hands everything appended before to the kernel.
func (l *Log) Flush() error {
	_, err := l.flush()
	return err
}

// flush returns the position up to which the kernel has the bytes.
func (l *Log) flush() (int64, error) {
	l.ioMu.Lock()
	defer l.ioMu.Unlock()
	l.mu.Lock()
	if err := l.err; err != nil {
		l.mu.Unlock()
		return 0, err
	}
	if len(l.writing) == 0 {
		l.buf, l.writing = l.writing, l.buf
	} else {
		l.writing = append(l.writing, l.buf...)
		l.buf = l.buf[:0]
	}
	l.mu.Unlock()

	off, n := l.inKernel.Load(), len(l.writing)
	if n == 0 {
		return off, nil
	}
	end := off + int64(n)
	if l.ends {
		l.writing = append(l.writing, zeros[:endLen(end)]...)
	}
	if _, err := l.f.WriteAt(l.writing, off); err != nil {
		l.writing = l.writing[:n]
		err = fmt.Errorf("ordered: write log %s at %d: %w", l.o.Name, off, err)
		if !errors.Is(err, uring.ErrNoSpace) {
			err = l.fail(err)
		}
		return off, err
	}
	l.writing = l.writing[:0]
	l.inKernel.Store(end)
	return end, nil
}

// Sync returns once everything up to end is durable. Concurrent callers share
// a flush; Append does not wait for it.
func (l *Log) Sync(end int64) error {
	return l.syncs.wait(end, l.leadSync)
}

func (l *Log) leadSync() (done int64, final bool, err error) {
	end, err := l.flush()
	if err != nil {
		return 0, errors.Is(err, ErrFailed), err
	}
	if end == l.durable.Load() {
		return end, false, nil
	}
	l.writeAhead(end)
	if err := l.f.Datasync(); err != nil {
		return 0, true, l.fail(fmt.Errorf("ordered: sync log %s: %w", l.o.Name, err))
	}
	l.durable.Store(end)
	l.nSyncs.Add(1)
	return end, false, nil
}

// writeAheadBytes is how much is written once ahead of the records.
const writeAheadBytes = 1 << 20

var aheadZeros = make([]byte, writeAheadBytes)

// writeAhead writes zeros over reserved space that synced records will come to
// soon. A sync of blocks that were only reserved makes the file system below
// commit its journal as well, a second flush of the device; so only one sync in
// some hundred does. It costs nothing in logs that are not synced, and nothing
// once files are recycled.
func (l *Log) writeAhead(end int64) {
	if !l.ends {
		return
	}
	l.ioMu.Lock()
	defer l.ioMu.Unlock()
	end = max(end, l.inKernel.Load())
	if end+writeAheadBytes/4 < l.written {
		return
	}
	l.mu.Lock()
	room := l.room
	l.mu.Unlock()
	from := max(end+endLen(end), l.written)
	n := min(room-from, writeAheadBytes)
	if n <= 0 || len(l.writing) > 0 {
		return
	}
	if _, err := l.f.WriteAt(aheadZeros[:n], from); err != nil {
		n = room - from // not again: records will meet the error themselves
	}
	l.written = from + n
}

// flusher hands records to the kernel FlushDelay after they came, or when many
// have come. While it is awake Append need not wake it.
func (l *Log) flusher() {
	defer close(l.done)
	timer := time.NewTimer(l.o.FlushDelay)
	timer.Stop()
	for {
		select {
		case <-l.wake:
		case <-l.stop:
			return
		}
		for l.stayAwake() {
			timer.Reset(l.o.FlushDelay)
			select {
			case <-timer.C:
			case <-l.full:
				timer.Stop()
			case <-l.stop:
				timer.Stop()
				return
			}
			l.flush() // errors are kept: by fail, or as bytes that stay buffered
			l.extendAhead()
		}
	}
}

// stayAwake says whether there is something to flush; if not, the next Append
// wakes the flusher.
func (l *Log) stayAwake() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.armed = l.err == nil && l.size > l.inKernel.Load()
	return l.armed
}

// extendAhead reserves more when less than a sixteenth is left. Failures are
// left to Append, which meets them again if it comes to that.
func (l *Log) extendAhead() {
	l.mu.Lock()
	room, size := l.room, l.size
	l.mu.Unlock()
	if room > 0 && room-size < l.o.Preallocate/16 {
		l.extend(room + 1)
	}
}

// Close makes everything durable and closes the file. After an error the file
// is closed too.
func (l *Log) Close() error { return l.close(l.ends) }

// CloseForReuse is Close of a log whose file another log will recycle: the file
// keeps its size.
func (l *Log) CloseForReuse() error { return l.close(false) }

func (l *Log) close(trim bool) error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return fmt.Errorf("ordered: close log %s: %w", l.o.Name, ErrClosed)
	}
	l.closed = true
	end := l.size
	l.mu.Unlock()
	close(l.stop)
	<-l.done
	err := l.Sync(end)
	if err == nil {
		end, err = l.writeLastMark(end)
	}
	if err == nil && trim {
		// Whoever reads it next need not look through what was reserved. It
		// does not matter if this is lost.
		l.f.Truncate(end)
	}
	if cerr := l.f.Close(); err == nil && cerr != nil {
		err = fmt.Errorf("ordered: close log %s: %w", l.o.Name, cerr)
	}
	return err
}

// writeLastMark states that all is durable, so that damage to the last group is
// told from a torn tail. The mark itself need not be durable.
func (l *Log) writeLastMark(end int64) (int64, error) {
	if l.o.Profile == Strict || end == l.marked || blockSize-end%blockSize < markLen {
		return end, nil
	}
	mark := appendMark(nil, l.num, end, end)
	b := mark
	if l.ends {
		b = append(b, zeros[:endLen(end+markLen)]...)
	}
	if _, err := l.f.WriteAt(b, end); err != nil && !errors.Is(err, uring.ErrNoSpace) {
		return end, fmt.Errorf("ordered: write log %s at %d: %w", l.o.Name, end, err)
	}
	return end + int64(len(mark)), nil
}
