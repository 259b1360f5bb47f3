package lanes

import (
	"math/bits"
	"time"
)

// histogram counts durations by powers of two: bucket i holds [2^(i-1), 2^i) ns.
type histogram struct {
	buckets [48]uint64
	max     int64
}

func (h *histogram) add(ns int64) {
	ns = max(ns, 0)
	h.buckets[min(bits.Len64(uint64(ns)), len(h.buckets)-1)]++
	h.max = max(h.max, ns)
}

func (h *histogram) merge(o *histogram) {
	for i, n := range o.buckets {
		h.buckets[i] += n
	}
	h.max = max(h.max, o.max)
}

// Latency is a distribution of durations. Percentiles are upper bounds of
// power-of-two buckets, capped by Max.
type Latency struct {
	Samples       uint64
	P50, P99, Max time.Duration
}

func (h *histogram) latency() Latency {
	l := Latency{Max: time.Duration(h.max)}
	for _, n := range h.buckets {
		l.Samples += n
	}
	l.P50 = h.quantile(l.Samples, 50)
	l.P99 = h.quantile(l.Samples, 99)
	return l
}

func (h *histogram) quantile(total, percent uint64) time.Duration {
	rank := (total*percent + 99) / 100
	var seen uint64
	for i, n := range h.buckets {
		if seen += n; seen >= rank && n > 0 {
			return time.Duration(min(int64(1)<<i-1, h.max))
		}
	}
	return 0
}

// LaneStats is a snapshot of one lane's counters since its start.
//
// How to read them: Fallback near 0, else the fast path isn't used; Steals a
// few per cent of StealAttempts and CompletedStolen a small part of Completed,
// else submits are spread unevenly; Waited near 0 of Entered, else the lane is
// too narrow for its load; Handed near 0 of InPlace, else the lane has no idle
// moments and wants less work.
type LaneStats struct {
	Name    string
	Workers int

	Fast     uint64 // queued by the direct path
	Affine   uint64 // queued to a named worker
	Fallback uint64 // queued by priority or delay
	InPlace  uint64 // Serial: run by the Do caller itself
	Handed   uint64 // Serial: drains that the worker took over

	StealAttempts   uint64
	Steals          uint64
	Completed       uint64 // jobs that have run
	CompletedStolen uint64
	Depth           int // jobs accepted and not started
	Running         int // jobs being run

	Entered uint64 // Blocking: callers let in
	Inside  int    // Blocking: callers inside now
	Waited  uint64 // Enter or Do that had to wait
	Waiting int    // Blocking: callers waiting now

	Wait     Latency // queue time of jobs; of short lanes one in eight is timed
	Run      Latency // run time of the same jobs
	GateWait Latency // Blocking: of the callers that had to wait
}

func (c *crew) stats() LaneStats {
	s := LaneStats{Name: c.name, Workers: len(c.workers)}
	var wait, run histogram
	for _, w := range c.workers {
		w.mu.Lock()
		s.Fast += w.n.fast
		s.Affine += w.n.affine
		s.StealAttempts += w.n.stealAttempts
		s.Steals += w.n.steals
		s.Completed += w.n.done
		s.CompletedStolen += w.n.doneStolen
		s.Depth += w.q.n
		if w.running != nil {
			s.Running++
		}
		wait.merge(&w.wait)
		run.merge(&w.run)
		w.mu.Unlock()
	}
	if u := c.urgent; u != nil {
		u.mu.Lock()
		s.Fallback = u.nPrio + u.nDelayed
		s.Depth += len(u.prio.jobs) + len(u.delayed.jobs)
		u.mu.Unlock()
	}
	s.Wait, s.Run = wait.latency(), run.latency()
	return s
}

// Stats returns the pool's counters.
func (p *Pool) Stats() LaneStats { return p.c.stats() }

// Stats returns the lane's counters.
func (b *Blocking) Stats() LaneStats {
	s := b.c.stats()
	g := &b.g
	s.Entered = g.entered.Load()
	s.Inside = int(g.slots - g.free.Load())
	s.Waiting = int(g.waiting.Load())
	g.mu.Lock()
	s.Waited = g.waited
	s.GateWait = g.wait.latency()
	g.mu.Unlock()
	return s
}

// Stats returns the lane's counters.
func (s *Serial) Stats() LaneStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := LaneStats{
		Name: s.name, Workers: 1,
		Fast: s.n.queued, InPlace: s.n.inPlace, Waited: s.n.waited, Handed: s.n.handed,
		Completed: s.n.done, Depth: s.q.n,
		Wait: s.wait.latency(), Run: s.run.latency(),
	}
	if s.running != nil {
		st.Running = 1
	}
	return st
}
