package lanes

import (
	"container/heap"
	"sync"
	"sync/atomic"
	"time"
)

// Pool is the CPU lane: short jobs that never block.
//
//   - Order: none between jobs, except that one worker's own submits keep theirs
//     as long as nobody steals. A priority decides only who is taken first from
//     the fall-back queue; it preempts nothing.
//   - Concurrency: every method is safe for concurrent use.
//   - Shutdown: Close runs everything accepted, including what running jobs
//     submit meanwhile; delayed jobs run at once. Submits from outside get
//     ErrClosed from then on.
//   - Errors: a panic in a job is fatal. Its lane, function and stack go to
//     standard error and the process ends with exit code 2.
type Pool struct {
	c *crew
	u *urgent
}

// NewPool starts a pool of 1 to 64 workers.
func NewPool(name string, workers int) *Pool {
	u := &urgent{}
	p := &Pool{u: u}
	p.c = newCrew(name, workers, true, sampleShort, u)
	u.mu.Lock()
	u.c = p.c
	u.mu.Unlock()
	return p
}

// Submit queues j to a worker: round-robin, an idle one first. One lock, no
// allocation, no goroutine switch.
func (p *Pool) Submit(j *Job) error { return p.c.submit(p.c.pick(), j, submitFast) }

// SubmitIn queues j to the worker of ctx. Inside a job, with ctx from
// Job.Context, that is the own queue. Affinity is best effort: another worker
// may steal j, for a blocked worker must not hold up what is bound to it. A
// zero or foreign ctx is an ordinary Submit.
func (p *Pool) SubmitIn(ctx Context, j *Job) error {
	if ctx.w == nil || ctx.w.c != p.c {
		return p.Submit(j)
	}
	return p.c.submit(ctx.w, j, submitAffine)
}

// SubmitPriority queues j before everything of lower prio; prio <= 0 is Submit.
func (p *Pool) SubmitPriority(j *Job, prio int) error {
	if prio <= 0 {
		return p.Submit(j)
	}
	if err := p.u.submit(j, prio); err != nil {
		return err
	}
	p.c.wakeThief(nil)
	return nil
}

// SubmitAfter queues j once d has passed, or at once when the pool closes. A
// closing pool refuses it, also from its own jobs: a job that re-arms itself
// would otherwise keep the drain from ending.
func (p *Pool) SubmitAfter(d time.Duration, j *Job) error {
	if d <= 0 {
		return p.Submit(j)
	}
	return p.u.submitAfter(d, j)
}

// Current returns the calling goroutine's worker, if it is one of this pool's.
// It costs microseconds; inside a job, Job.Context is free.
func (p *Pool) Current() (Context, bool) {
	w := p.c.current()
	return Context{w}, w != nil
}

// Go runs f on the pool. It allocates; for cold callers.
func (p *Pool) Go(f func()) error { return p.Submit(&Job{Run: goFunc, Arg: f}) }

// Close drains the pool and joins its workers. Called from one of them it
// panics: a worker can't wait for itself.
func (p *Pool) Close() { p.c.close() }

// urgent holds a Pool's fall-back queues: priority jobs, which the workers take
// from here, and delayed jobs, which a timer moves to a worker's queue.
type urgent struct {
	ready atomic.Int64 // len(prio); read by workers without mu

	mu       sync.Mutex
	c        *crew
	prio     jobHeap // guarded by mu; highest prio, then oldest first
	delayed  jobHeap // guarded by mu; earliest deadline, then oldest first
	timer    *time.Timer
	closing  bool
	seq      uint64
	accepted uint64
	nPrio    uint64
	nDelayed uint64
}

func (u *urgent) submit(j *Job, prio int) error {
	u.mu.Lock()
	if u.closing {
		u.mu.Unlock()
		if !u.c.onWorker() {
			return ErrClosed
		}
		u.mu.Lock()
	}
	defer u.mu.Unlock()
	j.enqueued()
	j.prio = int32(min(prio, 1<<30))
	j.at = now()
	u.seq++
	j.seq = u.seq
	u.accepted++
	u.nPrio++
	u.prio.byPrio = true
	heap.Push(&u.prio, j)
	u.ready.Add(1)
	return nil
}

func (u *urgent) take() *Job {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.prio.jobs) == 0 {
		return nil
	}
	j := heap.Pop(&u.prio).(*Job)
	u.ready.Add(-1)
	j.queued = false
	return j
}

func (u *urgent) submitAfter(d time.Duration, j *Job) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.closing {
		return ErrClosed
	}
	j.enqueued()
	j.at = now() + int64(d)
	u.seq++
	j.seq = u.seq
	u.accepted++
	u.nDelayed++
	heap.Push(&u.delayed, j)
	if u.delayed.jobs[0] == j {
		u.arm(d)
	}
	return nil
}

// arm sets the timer for the earliest deadline. Called with mu held.
func (u *urgent) arm(d time.Duration) {
	if u.timer == nil {
		u.timer = time.AfterFunc(d, u.fire)
	} else {
		u.timer.Reset(d)
	}
}

// fire moves the expired jobs to the workers.
func (u *urgent) fire() {
	u.mu.Lock()
	t := now()
	var due []*Job
	for len(u.delayed.jobs) > 0 && u.delayed.jobs[0].at <= t {
		due = append(due, u.popDelayed())
	}
	if len(u.delayed.jobs) > 0 {
		u.arm(time.Duration(u.delayed.jobs[0].at - t))
	}
	u.mu.Unlock()
	for _, j := range due {
		u.c.submitMoved(j)
	}
}

func (u *urgent) popDelayed() *Job {
	j := heap.Pop(&u.delayed).(*Job)
	j.queued = false
	return j
}

func (u *urgent) refuse() {
	u.mu.Lock()
	u.closing = true
	u.mu.Unlock()
}

// promoteAll takes all delayed jobs in the order of their deadlines.
func (u *urgent) promoteAll() []*Job {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.timer != nil {
		u.timer.Stop()
	}
	var jobs []*Job
	for len(u.delayed.jobs) > 0 {
		jobs = append(jobs, u.popDelayed())
	}
	return jobs
}

func (u *urgent) acceptedTotal() uint64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.accepted
}

// jobHeap implements heap.Interface by priority or by deadline.
type jobHeap struct {
	jobs   []*Job
	byPrio bool
}

func (h *jobHeap) Len() int { return len(h.jobs) }
func (h *jobHeap) Less(a, b int) bool {
	x, y := h.jobs[a], h.jobs[b]
	if h.byPrio {
		if x.prio != y.prio {
			return x.prio > y.prio
		}
	} else if x.at != y.at {
		return x.at < y.at
	}
	return x.seq < y.seq
}
func (h *jobHeap) Swap(a, b int) { h.jobs[a], h.jobs[b] = h.jobs[b], h.jobs[a] }
func (h *jobHeap) Push(x any)    { h.jobs = append(h.jobs, x.(*Job)) }
func (h *jobHeap) Pop() any {
	n := len(h.jobs) - 1
	j := h.jobs[n]
	h.jobs[n] = nil
	h.jobs = h.jobs[:n]
	return j
}
