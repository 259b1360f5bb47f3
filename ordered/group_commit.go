package ordered

import "sync"

// group joins concurrent barriers: one caller leads and works for all that
// wait, the others sleep until their position is reached or one of them is
// made the next leader.
//
// Positions are int64 and grow. A failure is final for the group.
type group struct {
	mu      sync.Mutex
	done    int64
	err     error
	leading bool
	queue   []*groupWaiter // in order of arrival
}

type groupWaiter struct {
	pos  int64
	wake chan struct{} // capacity 1; a token means: look again
	lead bool          // the token hands the lead over; guarded by group.mu
}

var groupWaiters = sync.Pool{New: func() any { return &groupWaiter{wake: make(chan struct{}, 1)} }}

// wait returns when pos is done. lead does the work without the group's lock
// and returns the position reached. A final error is the group's for ever; any
// other is the leader's alone, and the next waiter tries for itself.
func (g *group) wait(pos int64, lead func() (done int64, final bool, err error)) error {
	g.mu.Lock()
	for {
		if g.err != nil || g.done >= pos {
			err := g.err // even if pos is done: nothing succeeds on a failed log
			g.mu.Unlock()
			return err
		}
		if !g.leading {
			break
		}
		w := groupWaiters.Get().(*groupWaiter)
		w.pos, w.lead = pos, false
		g.queue = append(g.queue, w)
		g.mu.Unlock()
		<-w.wake
		g.mu.Lock()
		mine := w.lead
		groupWaiters.Put(w)
		if mine {
			break
		}
	}
	g.leading = true
	g.mu.Unlock()

	done, final, err := lead()

	g.mu.Lock()
	g.done = max(g.done, done)
	if final {
		g.err = err
	}
	if g.done >= pos {
		err = nil
	}
	g.handOver()
	g.mu.Unlock()
	return err
}

// handOver wakes all waiters that are done and makes the first of the others
// the leader. Caller holds g.mu and leads.
func (g *group) handOver() {
	keep := g.queue[:0]
	var next *groupWaiter
	for _, w := range g.queue {
		switch {
		case g.err != nil || w.pos <= g.done:
			w.wake <- struct{}{}
		case next == nil:
			next = w
		default:
			keep = append(keep, w)
		}
	}
	clear(g.queue[len(keep):])
	g.queue = keep
	g.leading = next != nil
	if next != nil {
		next.lead = true
		next.wake <- struct{}{}
	}
}

// fail makes err final from outside.
func (g *group) fail(err error) {
	g.mu.Lock()
	if g.err == nil {
		g.err = err
	}
	g.mu.Unlock()
}

// state returns the position reached and the final error.
func (g *group) state() (done int64, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.done, g.err
}
