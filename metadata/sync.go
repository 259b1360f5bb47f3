package metadata

import (
	"sync"

	"prismfs/engine"
	"prismfs/lanes"
	"prismfs/ordered"
)

// syncer runs barriers: one at a time, each for everyone who asked before it
// began. A waiter is a job, so that nobody's worker sleeps through a flush.
type syncer struct {
	mu      sync.Mutex
	head    *SyncWait
	tail    *SyncWait
	closed  bool
	wake    chan struct{}
	stopped chan struct{}

	// Owned by the syncer's goroutine: what the last barrier covered.
	clean  bool
	seq    uint64
	pos    ordered.Pos
	marked ordered.Pos // watermark last noted by a barrier
}

func (y *syncer) init() {
	y.wake = make(chan struct{}, 1)
	y.stopped = make(chan struct{})
}

func (y *syncer) start(s *Store) {
	go func() {
		defer close(y.stopped)
		for range y.wake {
			y.mu.Lock()
			list, closed := y.head, y.closed
			y.head, y.tail = nil, nil
			y.mu.Unlock()
			if list != nil {
				err := s.barrier()
				for list != nil {
					w := list
					list = w.next
					w.next, w.Err = nil, err
					w.Job.Run(&w.Job)
				}
			}
			if closed {
				return
			}
		}
	}()
}

// halt ends the syncer after the barriers already asked for.
func (y *syncer) halt() {
	y.mu.Lock()
	y.closed = true
	y.mu.Unlock()
	y.kick()
	<-y.stopped
}

func (y *syncer) kick() {
	select {
	case y.wake <- struct{}{}:
	default:
	}
}

// SyncAsync implements FS.
func (s *Store) SyncAsync(w *SyncWait) {
	y := &s.syncer
	w.next = nil
	y.mu.Lock()
	if y.closed {
		y.mu.Unlock()
		w.Err = engine.ErrClosed
		w.Job.Run(&w.Job)
		return
	}
	if y.tail == nil {
		y.head = w
	} else {
		y.tail.next = w
	}
	y.tail = w
	y.mu.Unlock()
	y.kick()
}

// Sync makes everything acknowledged before the call durable.
//
//   - Errors: the sticky failure of the store; ErrNoSpace.
func (s *Store) Sync() error {
	var w SyncWait
	done := make(chan struct{})
	w.Job.Run = func(*lanes.Job) { close(done) }
	s.SyncAsync(&w)
	<-done
	return w.Err
}

// barrier makes everything applied so far durable. What is not yet durable in
// the data log rides in the engine's log if it is small, so that one flush of
// the device does; else the data goes first, then the log that names it. In
// both cases the log says up to where data is durable, so that recovery need
// not look before that point.
func (s *Store) barrier() error {
	if err := s.Failure(); err != nil {
		return err
	}
	if s.opts.ReadOnly {
		return nil
	}
	y := &s.syncer
	seq, pos := s.db.LastSeq(), s.dlog.Tail()
	if y.clean && seq == y.seq && pos == y.pos {
		return nil
	}
	notes, err := s.barrierOnce()
	if err != nil {
		s.noteFailure(err)
		return err
	}
	// Each note took a sequence number: with nothing else applied meanwhile,
	// the engine now stands exactly that far on.
	y.clean, y.seq, y.pos = true, seq+notes, pos
	return nil
}

func (s *Store) barrierOnce() (notes uint64, err error) {
	redo, upto, inLog := s.dlog.Undurable(redoMax)
	if !inLog {
		if upto, err = s.dlog.Sync(); err != nil {
			return 0, err
		}
	} else if len(redo) > 0 {
		if err := s.db.Note(ordered.AppendRedo([]byte{noteRedo}, redo)); err != nil {
			return 0, err
		}
		notes++
	}
	if upto != s.syncer.marked {
		if err := s.db.Note(appendWatermark(nil, upto)); err != nil {
			return 0, err
		}
		notes++
	}
	if err := s.db.Barrier(); err != nil {
		return 0, err
	}
	if inLog {
		s.dlog.MarkDurable(upto)
	}
	s.syncer.marked = upto
	return notes, nil
}

// commitBeat bounds how long an acknowledged change can be lost to a power cut.
// It only asks: the barrier runs where all barriers run, whatever the lanes are
// busy with.
func (s *Store) commitBeat(lanes.Beat) {
	if s.commitBusy.CompareAndSwap(false, true) {
		s.SyncAsync(&s.commitWait)
	}
}

// committed is the end of a commit beat's barrier, which lets the next one begin.
func (s *Store) committed(*lanes.Job) {
	if err := s.commitWait.Err; err != nil && s.Failure() == nil {
		s.logf("commit: %v", err)
	}
	s.commitBusy.Store(false)
}
