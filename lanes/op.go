package lanes

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// OpState is where an Op is. Running leads to exactly one of the others.
type OpState int

const (
	OpRunning OpState = iota // accepted: queued or being run
	OpSucceeded
	OpFailed
	OpCanceled
)

func (s OpState) String() string {
	return [...]string{"running", "succeeded", "failed", "canceled"}[s]
}

// Op is a handle for one piece of background work that somebody may watch:
// the control commands gc and compact. It costs allocations; requests of the
// file system use jobs.
type Op struct {
	name    string
	started time.Time
	lane    Submitter
	stop    *StopSource
	logf    func(format string, args ...any)

	progress, total atomic.Uint64

	done chan struct{} // closed after the fields below are final

	mu       sync.Mutex
	state    OpState       // guarded by mu
	err      error         // guarded by mu
	took     time.Duration // guarded by mu
	watchers int           // guarded by mu; callers inside Wait
}

// StartOp queues work to lane and returns its handle, or the lane's error
// when it was not accepted. work looks at op.Stop for being canceled; parent
// cancels it too. A failure that nobody waits for when it happens goes to logf,
// so that it cannot get lost with its handle.
func StartOp(lane Submitter, name string, parent StopToken, logf func(format string, args ...any), work func(*Op) error) (*Op, error) {
	o := &Op{
		name: name, started: time.Now(), lane: lane,
		stop: NewStopSource(parent), logf: logf,
		done: make(chan struct{}),
	}
	run := func() {
		// A canceled operation that has not started has no effect to finish.
		err := o.stop.Token().Err()
		if err == nil {
			err = work(o)
		}
		o.finish(err)
	}
	if err := lane.Submit(&Job{Run: goFunc, Arg: run}); err != nil {
		return nil, fmt.Errorf("lanes: start %s: %w", name, err)
	}
	return o, nil
}

func (o *Op) finish(err error) {
	o.mu.Lock()
	switch {
	case err == nil:
		o.state = OpSucceeded // also when the cancel came too late
	case errors.Is(err, ErrStopped) && o.stop.Token().Stopped():
		o.state = OpCanceled
	default:
		o.state = OpFailed
	}
	o.err = err
	o.took = time.Since(o.started)
	unobserved := o.state == OpFailed && o.watchers == 0
	o.mu.Unlock()
	close(o.done)
	if unobserved && o.logf != nil {
		o.logf("%s failed after %v: %v", o.name, o.took.Round(time.Millisecond), err)
	}
}

// Name returns the name given at the start.
func (o *Op) Name() string { return o.name }

// Stop is the token that work looks at.
func (o *Op) Stop() StopToken { return o.stop.Token() }

// Cancel asks the operation to stop. What it has done stays done.
func (o *Op) Cancel() { o.stop.Stop() }

// SetProgress is work's report of how far it is; total 0 = not known.
func (o *Op) SetProgress(done, total uint64) {
	o.total.Store(total)
	o.progress.Store(done)
}

// Progress returns the last report.
func (o *Op) Progress() (done, total uint64) { return o.progress.Load(), o.total.Load() }

// Status returns the state, the operation's age or, when it has ended, how long
// it took, and the error that ended it.
func (o *Op) Status() (OpState, time.Duration, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.state == OpRunning {
		return OpRunning, time.Since(o.started), nil
	}
	return o.state, o.took, o.err
}

// Done is closed when the operation has ended.
func (o *Op) Done() <-chan struct{} { return o.done }

// Wait waits until the operation has ended, and returns its error, or until ctx
// ends, and returns that one's. It refuses a job of the operation's own lane
// with ErrOwnLane: with every worker waiting like that nothing would run.
func (o *Op) Wait(ctx context.Context) error {
	if l, ok := o.lane.(interface{ own() bool }); ok && l.own() {
		return ErrOwnLane
	}
	o.mu.Lock()
	o.watchers++
	o.mu.Unlock()
	defer func() {
		o.mu.Lock()
		o.watchers--
		o.mu.Unlock()
	}()
	select {
	case <-o.done:
	default:
		select {
		case <-o.done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	_, _, err := o.Status()
	return err
}

// own tells whether the caller runs on one of the lane's workers. Slow.
func (p *Pool) own() bool     { return p.c.onWorker() }
func (b *Blocking) own() bool { return b.c.onWorker() }
func (s *Serial) own() bool   { return goid() == s.goid }
