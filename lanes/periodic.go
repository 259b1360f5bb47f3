package lanes

import (
	"sync"
	"time"
)

// Periodic runs a beat on a lane at a fixed period: the commit tick, statistics
// lines, a slice of segment GC.
//
//   - Order: beats never overlap. When one is late or long, the beats it misses
//     are skipped and counted, not caught up, and the grid of the period stays.
//   - Budget: a beat that has more to do than fits looks at Beat.Left and leaves
//     the rest for the next one.
//   - Shutdown: Close waits for a running beat. A lane that closes first ends
//     the beats.
type Periodic struct {
	lane   Submitter
	period time.Duration
	budget time.Duration
	beat   func(Beat)
	job    Job

	mu      sync.Mutex
	timer   *time.Timer   // guarded by mu
	due     time.Time     // guarded by mu; of the beat armed or running
	skipped int           // guarded by mu; since the last beat
	busy    bool          // guarded by mu; a beat is queued or runs
	closed  bool          // guarded by mu
	idle    chan struct{} // guarded by mu; closed by the beat that Close waits for
	on      uint64        // guarded by mu; goid of the running beat
	stats   PeriodicStats // guarded by mu
}

// PeriodicStats counts beats.
type PeriodicStats struct {
	Beats   uint64
	Skipped uint64 // beats left out because an earlier one was late or long
	Over    uint64 // beats that took longer than the budget
	Longest time.Duration
}

// Beat is what a beat is told.
type Beat struct {
	Due     time.Time // when it should have started
	Skipped int       // beats left out just before this one
	end     time.Time
}

// Left is what remains of the budget; never positive once it is used up.
func (b Beat) Left() time.Duration { return time.Until(b.end) }

// StartPeriodic runs beat on lane every period, first after one period. budget
// 0 means the period itself.
func StartPeriodic(lane Submitter, period, budget time.Duration, beat func(Beat)) *Periodic {
	if period <= 0 {
		panic("lanes: period must be positive")
	}
	if budget <= 0 {
		budget = period
	}
	p := &Periodic{lane: lane, period: period, budget: budget, beat: beat}
	p.job.Run = func(*Job) { p.run() }
	p.mu.Lock()
	p.due = time.Now().Add(period)
	p.timer = time.AfterFunc(period, p.fire)
	p.mu.Unlock()
	return p
}

// fire queues the beat that is due.
func (p *Periodic) fire() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.lane.Submit(&p.job) != nil {
		return // a closed lane: no more beats
	}
	p.busy = true
}

func (p *Periodic) run() {
	id := goid()
	start := time.Now()
	p.mu.Lock()
	b := Beat{Due: p.due, Skipped: p.skipped, end: start.Add(p.budget)}
	p.skipped = 0
	p.on = id
	closed := p.closed
	p.mu.Unlock()
	if !closed {
		p.beat(b)
	}
	end := time.Now()

	p.mu.Lock()
	defer p.mu.Unlock()
	p.busy, p.on = false, 0
	if !closed {
		p.stats.Beats++
		p.stats.Longest = max(p.stats.Longest, end.Sub(start))
		if end.Sub(start) > p.budget {
			p.stats.Over++
		}
	}
	if p.closed {
		if p.idle != nil {
			close(p.idle)
			p.idle = nil
		}
		return
	}
	// The next point of the grid that is still ahead.
	p.skipped = int(end.Sub(p.due) / p.period)
	p.stats.Skipped += uint64(p.skipped)
	p.due = p.due.Add(time.Duration(p.skipped+1) * p.period)
	p.timer.Reset(p.due.Sub(end))
}

// Stats returns the counters.
func (p *Periodic) Stats() PeriodicStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stats
}

// Close ends the beats and waits for a running one. It may be called again; it
// panics when called from the beat itself.
func (p *Periodic) Close() {
	p.mu.Lock()
	if p.on != 0 && p.on == goid() {
		p.mu.Unlock()
		panic("lanes: Periodic closed from its own beat")
	}
	p.closed = true
	p.timer.Stop()
	if !p.busy {
		p.mu.Unlock()
		return
	}
	if p.idle == nil {
		p.idle = make(chan struct{})
	}
	idle := p.idle
	p.mu.Unlock()
	<-idle
}
