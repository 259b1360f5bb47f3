package lanes

import "sync/atomic"

// StopSource asks work to stop. Stopping is cooperative: the work looks at the
// token where it has no side effect that would be left half done (compaction:
// before it picks its inputs and before it installs its outputs; scrub and GC:
// between records; shutdown: the root of all of them).
type StopSource struct {
	stopped atomic.Bool
	parent  *StopSource
}

// NewStopSource makes a source that is also stopped when parent is. The zero
// StopToken is a parent that never stops.
func NewStopSource(parent StopToken) *StopSource { return &StopSource{parent: parent.s} }

// Stop asks everyone who holds this source's token or a descendant's to stop.
// It may be called any number of times.
func (s *StopSource) Stop() { s.stopped.Store(true) }

// Token returns the observing end.
func (s *StopSource) Token() StopToken { return StopToken{s} }

// StopToken observes a StopSource and its ancestors. Looking costs one load
// per generation; no one is registered anywhere.
type StopToken struct{ s *StopSource }

// Stopped tells whether the source or one of its ancestors was stopped.
func (t StopToken) Stopped() bool {
	for s := t.s; s != nil; s = s.parent {
		if s.stopped.Load() {
			return true
		}
	}
	return false
}

// Err returns ErrStopped once Stopped, else nil.
func (t StopToken) Err() error {
	if t.Stopped() {
		return ErrStopped
	}
	return nil
}
