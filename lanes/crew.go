package lanes

import (
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"
)

const (
	cacheLine  = 128 // two lines: the adjacent-line prefetcher pairs them
	maxWorkers = 64  // width of crew.idle

	backoffMin = 100 * time.Microsecond
	backoffMax = 2 * time.Millisecond

	// priorityRun bounds how many priority jobs a worker takes in a row while
	// its own queue waits, so that a stream of them starves nobody.
	priorityRun = 8

	sampleAll   = 1 // lanes whose jobs block: time every job
	sampleShort = 8 // lanes of short jobs: time one in eight
)

// crew is the common part of Pool and Blocking: workers with a queue each.
//
//	Submit ──► worker 0: queue ──► run      idle worker: steal half of a
//	   (idle   worker 1: queue ──► run        random victim's tail;
//	   first)  worker 2: queue ──► run        nobody has any: park
//
// Invariants:
//
//	C1 A job is in exactly one queue from acceptance until it is taken.
//	C2 A parked worker has an empty queue; whoever fills the queue un-parks it
//	   (worker.parked flips under worker.mu, the one who flips sends the token).
//	C3 With stealing, no job waits behind a running one while a worker is parked
//	   for good: the submitter looks at crew.idle after publishing the job, the
//	   parking worker looks at every load after publishing itself in crew.idle.
//	C4 While closing, a worker leaves only when done == accepted over all queues.
type crew struct {
	name    string
	steal   bool
	sample  uint64
	workers []*worker
	urgent  *urgent // Pool's fall-back queues, nil for Blocking

	_       [cacheLine]byte
	cursor  atomic.Uint64 // round-robin of external submits
	_       [cacheLine - 8]byte
	idle    atomic.Uint64 // bit i: workers[i].parked; written under that worker's mu
	_       [cacheLine - 8]byte
	closing atomic.Bool

	end closer
	wg  sync.WaitGroup

	atPark func(*worker) // test hook: between announcing and looking once more
}

// worker is one goroutine and its queue. Padded so that two workers never
// share a cache line.
type worker struct {
	_   [cacheLine]byte
	c   *crew
	id  int
	bit uint64

	mu       sync.Mutex
	q        list          // guarded by mu
	parked   bool          // guarded by mu; C2
	closing  bool          // guarded by mu; refuse outsiders
	hint     *worker       // guarded by mu; whom to steal from after a wake, nil = random
	running  func(*Job)    // guarded by mu; label of the job being run, nil when none
	accepted uint64        // guarded by mu; jobs accepted into q, not counting stolen ones
	n        workerCounts  // guarded by mu
	wait     histogram     // guarded by mu; queue time of sampled jobs
	run      histogram     // guarded by mu; run time of sampled jobs
	load     atomic.Int32  // q.n > 0; written under mu, read by thieves without
	token    chan struct{} // capacity 1; one per un-park

	// Owned by the worker's goroutine.
	rng     uint64
	urgents int // priority jobs taken in a row
	last    lastRun
	timer   *time.Timer
	backoff time.Duration
	goid    atomic.Uint64
	_       [cacheLine]byte
}

// workerCounts are a worker's counters; see LaneStats for how to read them.
type workerCounts struct {
	fast, affine  uint64
	stealAttempts uint64
	steals        uint64
	done          uint64
	doneStolen    uint64
}

// lastRun is what the worker has to book for the job it ran last; it does so
// under the lock that it takes for the next one.
type lastRun struct {
	valid, timed, stolen bool
	wait, run            int64
}

func newCrew(name string, n int, steal bool, sample uint64, u *urgent) *crew {
	n = min(max(n, 1), maxWorkers)
	c := &crew{name: name, steal: steal && n > 1, sample: sample, urgent: u}
	for i := range n {
		c.workers = append(c.workers, &worker{
			c: c, id: i, bit: 1 << i,
			token:   make(chan struct{}, 1),
			rng:     uint64(i+1) * 0x9e3779b97f4a7c15,
			backoff: backoffMin,
		})
	}
	c.wg.Add(n)
	for _, w := range c.workers {
		go w.loop()
	}
	return c
}

type submitKind uint8

const (
	submitFast   submitKind = iota // round-robin
	submitAffine                   // to a named worker
	submitMoved                    // promoted from the delay heap: accepted and counted there
)

// pick chooses the worker for an external submit: round-robin, but an idle one
// rather than a busy one, so that nothing waits behind blocked work.
func (c *crew) pick() *worker {
	if len(c.workers) == 1 {
		return c.workers[0]
	}
	i := int(c.cursor.Add(1) % uint64(len(c.workers)))
	if idle := c.idle.Load(); idle != 0 && idle&(1<<i) == 0 {
		above := idle &^ (1<<i - 1)
		if above == 0 {
			above = idle
		}
		i = bits.TrailingZeros64(above)
	}
	return c.workers[i]
}

// submit appends j to w's queue: one lock, no allocation, no goroutine switch.
func (c *crew) submit(w *worker, j *Job, kind submitKind) error {
	w.mu.Lock()
	if w.closing && kind != submitMoved {
		// Own jobs may still submit while the lane drains (C4 keeps w alive:
		// the job that calls us isn't done). Others come too late.
		w.mu.Unlock()
		if !c.onWorker() {
			return ErrClosed
		}
		w.mu.Lock()
	}
	j.enqueued()
	switch kind {
	case submitFast:
		w.accepted++
		w.n.fast++
	case submitAffine:
		w.accepted++
		w.n.affine++
	}
	j.at = 0
	if w.accepted%c.sample == 0 {
		j.at = now()
	}
	w.q.pushBack(j)
	if w.q.n == 1 {
		w.load.Store(1)
	}
	wake := w.parked
	if wake {
		w.unparkLocked()
	}
	w.mu.Unlock()
	if wake {
		w.token <- struct{}{}
	} else if c.steal {
		c.wakeThief(w)
	}
	return nil
}

// unparkLocked flips parked; the caller sends the token after unlocking.
func (w *worker) unparkLocked() {
	w.parked = false
	w.c.idle.And(^w.bit)
}

// wakeThief wakes one parked worker, if there is any, to take work that waits
// behind a busy one. victim is where to look first; nil = only the urgent queue.
func (c *crew) wakeThief(victim *worker) {
	for {
		idle := c.idle.Load()
		if victim != nil {
			idle &^= victim.bit
		}
		if idle == 0 {
			return
		}
		w := c.workers[bits.TrailingZeros64(idle)]
		w.mu.Lock()
		if !w.parked {
			w.mu.Unlock() // woken by someone else; its bit is gone, try the next
			continue
		}
		w.unparkLocked()
		w.hint = victim
		w.mu.Unlock()
		w.token <- struct{}{}
		return
	}
}

// onWorker tells whether the caller runs on one of c's workers. Slow.
func (c *crew) onWorker() bool { return c.current() != nil }

func (c *crew) current() *worker {
	id := goid()
	if id == 0 {
		return nil
	}
	for _, w := range c.workers {
		if w.goid.Load() == id {
			return w
		}
	}
	return nil
}

func (w *worker) loop() {
	defer w.c.wg.Done()
	w.goid.Store(goid())
	for {
		if j := w.take(); j != nil {
			w.exec(j)
		} else if w.park() {
			return
		}
	}
}

// take books the last job and returns the next one: an urgent one, the own
// queue's front, or a stolen one. If there is nothing to be found it returns
// nil with w announced as parked, for park to wait.
func (w *worker) take() *Job {
	c := w.c
	w.mu.Lock()
	w.bookLocked()
	for {
		if j := w.popLocked(); j != nil {
			w.running = j.Run
			w.mu.Unlock()
			return j
		}
		v := w.victimLocked()
		if v == nil {
			break
		}
		w.mu.Unlock()
		got := w.stealFrom(v)
		w.mu.Lock()
		if !got && w.q.n == 0 {
			break
		}
	}
	w.parked = true
	c.idle.Or(w.bit)
	w.mu.Unlock()
	return nil
}

func (w *worker) bookLocked() {
	if w.last.valid {
		w.n.done++
		if w.last.stolen {
			w.n.doneStolen++
		}
		if w.last.timed {
			w.wait.add(w.last.wait)
			w.run.add(w.last.run)
		}
		w.last = lastRun{}
	}
	w.running = nil
}

func (w *worker) popLocked() *Job {
	if u := w.c.urgent; u != nil && u.ready.Load() > 0 && (w.urgents < priorityRun || w.q.n == 0) {
		if j := u.take(); j != nil {
			w.urgents++
			return j
		}
	}
	w.urgents = 0
	j := w.q.popFront()
	if j != nil && w.q.n == 0 {
		w.load.Store(0)
	}
	return j
}

// exec runs j. From the call on, j belongs to its owner again.
func (w *worker) exec(j *Job) {
	w.backoff = backoffMin
	w.last = lastRun{valid: true, stolen: j.stolen}
	at := j.at
	j.on = w
	if at == 0 {
		call(w.c.name, j)
		return
	}
	start := now()
	call(w.c.name, j)
	w.last.timed = true
	w.last.wait = start - at
	w.last.run = now() - start
}

// victimLocked chooses whom to steal from: the worker that a waker pointed at,
// else a random other one (xorshift64, uniform), else the next after it that
// has something queued. It looks without locking anyone. Nil = nobody has.
func (w *worker) victimLocked() *worker {
	if !w.c.steal {
		return nil
	}
	w.n.stealAttempts++
	if v := w.hint; v != nil {
		w.hint = nil
		if v.load.Load() != 0 {
			return v
		}
	}
	w.rng ^= w.rng << 13
	w.rng ^= w.rng >> 7
	w.rng ^= w.rng << 17
	n := len(w.c.workers)
	i := int(w.rng % uint64(n))
	for range n {
		if v := w.c.workers[i]; v != w && v.load.Load() != 0 {
			return v
		}
		if i++; i == n {
			i = 0
		}
	}
	return nil
}

// stealFrom moves half of v's queue, from its tail, to the front of w's own.
// It reports whether w has work now.
func (w *worker) stealFrom(v *worker) bool {
	// Both locks, lower worker first, so that mutual thieves can't deadlock.
	a, b := w, v
	if v.id < w.id {
		a, b = v, w
	}
	a.mu.Lock()
	b.mu.Lock()
	// Look again: meanwhile w may have been given work and v have lost it.
	if w.q.n == 0 && v.q.n > 0 {
		v.q.stealTail(&w.q, max(1, v.q.n/2))
		w.n.steals++
		w.load.Store(1)
		if v.q.n == 0 {
			v.load.Store(0)
		}
	}
	got := w.q.n > 0
	b.mu.Unlock()
	a.mu.Unlock()
	return got
}

// park waits for work, after take has announced w as parked: from there on
// every submitter sees it (C3), so it looks once more. It reports true when the
// lane is drained and w shall leave. A worker that sees work elsewhere (others
// were faster at its victim, or it came just now) waits with a growing bound and
// looks again; one that sees none waits for a wake.
func (w *worker) park() (leave bool) {
	c := w.c
	if c.atPark != nil {
		c.atPark(w)
	}
	if u := c.urgent; u != nil && u.ready.Load() > 0 {
		w.unpark()
		return false
	}
	if c.closing.Load() && c.settled() {
		w.unpark()
		c.wakeAll()
		return true
	}
	if c.steal && c.workElsewhere(w) {
		if w.timer == nil {
			w.timer = time.NewTimer(w.backoff)
		} else {
			w.timer.Reset(w.backoff)
		}
		w.backoff = min(2*w.backoff, backoffMax)
		select {
		case <-w.token:
			w.timer.Stop()
		case <-w.timer.C:
			w.unpark()
		}
		return false
	}
	<-w.token
	return false
}

// unpark undoes park's announcement from w's own goroutine.
func (w *worker) unpark() {
	w.mu.Lock()
	mine := w.parked
	if mine {
		w.unparkLocked()
	}
	w.mu.Unlock()
	if !mine {
		<-w.token // a waker flipped parked; its token is under way
	}
}

func (c *crew) workElsewhere(w *worker) bool {
	for _, v := range c.workers {
		if v != w && v.load.Load() != 0 {
			return true
		}
	}
	return false
}

// settled reports that every accepted job has run. It reads the done counts
// first: done <= accepted holds at every moment, so equal sums mean that they
// were equal at one moment, and a closing lane with nothing running gets
// nothing new.
func (c *crew) settled() bool {
	var done, accepted uint64
	for _, w := range c.workers {
		w.mu.Lock()
		done += w.n.done
		w.mu.Unlock()
	}
	if c.urgent != nil {
		accepted += c.urgent.acceptedTotal()
	}
	for _, w := range c.workers {
		w.mu.Lock()
		accepted += w.accepted
		w.mu.Unlock()
	}
	return done == accepted
}

func (c *crew) wakeAll() {
	for _, w := range c.workers {
		w.mu.Lock()
		wake := w.parked
		if wake {
			w.unparkLocked()
		}
		w.mu.Unlock()
		if wake {
			w.token <- struct{}{}
		}
	}
}

// close drains the crew in four stages: refuse outsiders, promote delayed
// jobs, let the workers run everything, including what those jobs submit, to
// the fixed point done == accepted, and join them.
func (c *crew) close() {
	if c.onWorker() {
		panic(fmt.Sprintf("lanes: lane %s closed from its own worker", c.name))
	}
	c.end.do(func() {
		for _, w := range c.workers {
			w.mu.Lock()
			w.closing = true
			w.mu.Unlock()
		}
		if c.urgent != nil {
			c.urgent.refuse()
		}
		c.closing.Store(true)
		if c.urgent != nil {
			for _, j := range c.urgent.promoteAll() {
				c.submitMoved(j)
			}
		}
		c.wakeAll()
		c.wg.Wait()
	})
}

func (c *crew) submitMoved(j *Job) {
	if err := c.submit(c.pick(), j, submitMoved); err != nil {
		panic("lanes: promoted job refused") // cannot happen: moved jobs bypass the closing check
	}
}

// closer runs a shutdown once; every caller returns when it is complete. Other
// than with sync.Once the others wait on a channel, which a test can see.
type closer struct {
	mu   sync.Mutex
	done chan struct{} // guarded by mu; nil until the first call
}

func (c *closer) do(f func()) {
	c.mu.Lock()
	first := c.done == nil
	if first {
		c.done = make(chan struct{})
	}
	done := c.done
	c.mu.Unlock()
	if first {
		f()
		close(done)
	}
	<-done
}
