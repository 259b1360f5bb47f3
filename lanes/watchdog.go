package lanes

import (
	"fmt"
	"sync"
	"time"
)

// Watchdog names work that is stuck, for the daemon's log: the lane, the job's
// function and how long it has been seen. It costs the lanes nothing: it looks
// at their counters a few times per limit, and a worker that shows the same
// unfinished job in each look is stuck. Ages are lower bounds.
type Watchdog struct {
	limit time.Duration
	logf  func(format string, args ...any)
	lanes []interface{ observe(see func(sight)) }
	seen  map[sightKey]*sighting // owned by the watching goroutine

	stop chan struct{}
	end  closer
	wg   sync.WaitGroup
}

// sight is what one look at one place where work runs shows.
type sight struct {
	sightKey
	count uint64 // jobs finished there so far: moves when work moves
	busy  bool
	what  string
}

type sightKey struct {
	lane string
	slot int // worker, or -1 for the callers inside a Blocking lane
}

type sighting struct {
	sight
	since    time.Time
	reported bool
}

// looksPerLimit is how often the watchdog looks within its limit.
const looksPerLimit = 4

// StartWatchdog watches r's lanes and reports what takes longer than limit, once
// when it is noticed and once when it moves again.
func StartWatchdog(r *Runtime, limit time.Duration, logf func(format string, args ...any)) *Watchdog {
	w := &Watchdog{
		limit: limit, logf: logf,
		seen: map[sightKey]*sighting{},
		stop: make(chan struct{}),
	}
	w.lanes = append(w.lanes, r.CPU.c, r.BlockingIO, r.DBRead, r.Compaction, r.DBWrite, r.File)
	// A goroutine of its own: a stuck lane must not stop its watchdog.
	w.wg.Go(func() {
		t := time.NewTicker(max(limit/looksPerLimit, time.Millisecond))
		defer t.Stop()
		for {
			select {
			case now := <-t.C:
				w.look(now)
			case <-w.stop:
				return
			}
		}
	})
	return w
}

// Close stops watching.
func (w *Watchdog) Close() {
	w.end.do(func() {
		close(w.stop)
		w.wg.Wait()
	})
}

func (w *Watchdog) look(now time.Time) {
	for _, l := range w.lanes {
		l.observe(func(s sight) {
			old := w.seen[s.sightKey]
			if old != nil && old.busy && s.busy && old.count == s.count {
				if age := now.Sub(old.since); age >= w.limit && !old.reported {
					old.reported = true
					w.logf("lane %s: %s for at least %v", s.lane, s.what, age.Round(time.Millisecond))
				}
				return
			}
			if old != nil && old.reported {
				w.logf("lane %s: moves again after at least %v: %s", s.lane, now.Sub(old.since).Round(time.Millisecond), old.what)
			}
			w.seen[s.sightKey] = &sighting{sight: s, since: now}
		})
	}
}

func (c *crew) observe(see func(sight)) {
	for i, w := range c.workers {
		w.mu.Lock()
		run, done, depth := w.running, w.n.done, w.q.n
		w.mu.Unlock()
		s := sight{sightKey: sightKey{c.name, i}, count: done, busy: run != nil}
		if s.busy {
			s.what = fmt.Sprintf("worker %d in job %s, %d behind it,", i, funcName(run), depth)
		}
		see(s)
	}
}

func (b *Blocking) observe(see func(sight)) {
	b.c.observe(see)
	// Inside is read first: if nobody leaves between, entered-inside is the
	// number of callers that have left, and one that leaves is progress anyway.
	inside := b.g.slots - b.g.free.Load()
	left := b.g.entered.Load() - uint64(inside)
	see(sight{
		sightKey: sightKey{b.c.name, -1}, count: left, busy: inside > 0,
		what: fmt.Sprintf("nobody of %d inside has left, %d wait,", inside, b.g.waiting.Load()),
	})
}

func (s *Serial) observe(see func(sight)) {
	s.mu.Lock()
	run, done, depth := s.running, s.n.done, s.q.n
	s.mu.Unlock()
	o := sight{sightKey: sightKey{s.name, 0}, count: done, busy: run != nil}
	if o.busy {
		o.what = fmt.Sprintf("in job %s, %d behind it,", funcName(run), depth)
	}
	see(o)
}
