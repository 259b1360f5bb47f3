package lanes

import (
	"fmt"
	"sync"
)

// drainLimit bounds how many queued jobs a Do caller runs for others before it
// hands the lane over to its worker.
const drainLimit = 64

// Serial runs its jobs one at a time in the order of their tickets, which is
// the order in which Submit and Do were admitted. It protects an order, not a
// resource: the single writer's, the log's.
//
//		free ──Do──► busy(caller) ──queue empty──► free
//		  │              │ 64 jobs drained
//		  └──Submit──► busy(worker) ──queue empty──► free
//
//	  - Concurrency: every method is safe for concurrent use. Exactly one
//	    goroutine, the one that made the lane busy, runs jobs.
//	  - Re-entry: inside a job of the lane, call k.Run(k) instead of Do(k): Do
//	    would wait for the job that calls it. Do panics where it can tell (always
//	    in builds with the tag invariants, and while closing on the worker);
//	    otherwise the Watchdog names the job. Submit is fine, it only queues.
//	  - Shutdown, errors: as Pool.
type Serial struct {
	name string

	_        [cacheLine]byte
	mu       sync.Mutex
	q        list          // guarded by mu
	busy     bool          // guarded by mu; someone runs jobs
	closing  bool          // guarded by mu
	idle     chan struct{} // guarded by mu; closed when free while closing
	owner    uint64        // guarded by mu; goid of the runner, 0 = a Do caller
	running  func(*Job)    // guarded by mu; label of the running job
	accepted uint64        // guarded by mu
	n        serialCounts  // guarded by mu
	wait     histogram     // guarded by mu
	run      histogram     // guarded by mu
	_        [cacheLine]byte

	token   chan struct{} // capacity 1: the worker is handed a busy lane
	goid    uint64        // the worker's; written before NewSerial returns
	waiters sync.Pool     // *waiter
	end     closer
	wg      sync.WaitGroup
}

type serialCounts struct {
	queued  uint64 // Submit
	inPlace uint64 // Do, TryDo: run at once by the caller
	waited  uint64 // Do: queued behind others
	handed  uint64 // drains handed over to the worker
	done    uint64
}

// waiter parks a Do caller. The token can't be lost: one job, one token.
type waiter struct{ token chan struct{} }

// NewSerial starts a serial lane.
func NewSerial(name string) *Serial {
	s := &Serial{name: name, token: make(chan struct{}, 1)}
	s.waiters.New = func() any { return &waiter{token: make(chan struct{}, 1)} }
	started := make(chan struct{})
	s.wg.Add(1)
	go func() {
		defer s.wg.Done()
		s.goid = goid()
		close(started)
		for range s.token {
			s.mu.Lock()
			s.drainLocked(-1)
		}
	}()
	<-started
	return s
}

// Submit queues j; it runs after everything admitted before.
func (s *Serial) Submit(j *Job) error {
	s.mu.Lock()
	if s.closing && !s.ownLocked() {
		s.mu.Unlock()
		return ErrClosed
	}
	s.n.queued++
	j.wait = nil
	s.pushLocked(j)
	wake := !s.busy
	if wake {
		s.busy = true
		s.owner = s.goid
	}
	s.mu.Unlock()
	if wake {
		s.token <- struct{}{}
	}
	return nil
}

// Do runs j at its place in the order and returns when it has run. On a free
// lane the caller runs it in place, and then what was queued meanwhile, at most
// drainLimit jobs; so a caller of Do must be fit to run the lane's jobs.
func (s *Serial) Do(j *Job) error {
	s.mu.Lock()
	if s.closing {
		return s.refuseDo()
	}
	if s.busy {
		s.checkReentryLocked()
		w := s.waiters.Get().(*waiter)
		j.wait = w
		s.n.waited++
		s.pushLocked(j)
		s.mu.Unlock()
		<-w.token
		s.waiters.Put(w)
		return nil
	}
	s.takeLocked(j)
	s.mu.Unlock()
	r := s.exec(j)
	s.mu.Lock()
	s.bookLocked(r)
	s.drainLocked(drainLimit)
	return nil
}

// TryDo runs j in place if the lane is free right now and reports whether it
// did. It runs nobody else's job: what was queued meanwhile goes to the worker.
// For callers that must stay short.
func (s *Serial) TryDo(j *Job) bool {
	if !s.mu.TryLock() {
		return false
	}
	if s.busy || s.closing {
		s.mu.Unlock()
		return false
	}
	s.takeLocked(j)
	s.mu.Unlock()
	r := s.exec(j)
	s.mu.Lock()
	s.bookLocked(r)
	s.drainLocked(0)
	return true
}

// Go runs f on the lane. It allocates; for cold callers.
func (s *Serial) Go(f func()) error { return s.Submit(&Job{Run: goFunc, Arg: f}) }

// Close refuses new work from outside, waits until everything accepted has run
// and joins the worker. It panics when called from the lane's worker.
func (s *Serial) Close() {
	if id := goid(); id != 0 && id == s.goid {
		panic(fmt.Sprintf("lanes: lane %s closed from its own worker", s.name))
	}
	s.end.do(func() {
		s.mu.Lock()
		s.closing = true
		var idle chan struct{}
		if s.busy {
			idle = make(chan struct{})
			s.idle = idle
		}
		s.mu.Unlock()
		if idle != nil {
			<-idle
		}
		close(s.token)
		s.wg.Wait()
	})
}

// takeLocked makes the lane busy with j for its caller.
func (s *Serial) takeLocked(j *Job) {
	j.enqueued()
	j.queued = false
	j.on, j.wait = nil, nil
	s.busy = true
	s.owner = callerID()
	s.running = j.Run
	s.accepted++
	s.n.inPlace++
	j.at = 0
	if s.accepted%sampleShort == 0 {
		j.at = now()
	}
}

// exec runs j, wakes who waits for it and returns what to book.
func (s *Serial) exec(j *Job) (r ran) {
	w, at := j.wait, j.at
	if at == 0 {
		call(s.name, j)
	} else {
		start := now()
		call(s.name, j)
		r = ran{timed: true, wait: start - at, run: now() - start}
	}
	if w != nil {
		w.token <- struct{}{}
	}
	return r
}

// ran is what the runner of a job books when it next holds mu.
type ran struct {
	timed     bool
	wait, run int64
}

func (s *Serial) bookLocked(r ran) {
	s.n.done++
	s.running = nil
	if r.timed {
		s.wait.add(r.wait)
		s.run.add(r.run)
	}
}

func (s *Serial) pushLocked(j *Job) {
	j.enqueued()
	j.on = nil
	j.at = 0
	s.accepted++
	if s.accepted%sampleShort == 0 {
		j.at = now()
	}
	s.q.pushBack(j)
}

// drainLocked runs queued jobs until the queue is empty, which frees the lane,
// or until limit of them have run (-1 = all), which hands it to the worker. It
// returns with mu released.
func (s *Serial) drainLocked(limit int) {
	for n := 0; n != limit && s.q.n > 0; n++ {
		j := s.q.popFront()
		s.running = j.Run
		s.mu.Unlock()
		r := s.exec(j)
		s.mu.Lock()
		s.bookLocked(r)
	}
	if s.q.n > 0 {
		s.n.handed++
		s.owner = s.goid
		s.mu.Unlock()
		s.token <- struct{}{}
		return
	}
	s.busy = false
	if s.idle != nil {
		close(s.idle)
		s.idle = nil
	}
	s.mu.Unlock()
}

// ownLocked tells, on a closing lane, whether the caller may be the running
// job. A Do caller that was inside when Close began has left no identity, so
// until it is through everyone is believed.
func (s *Serial) ownLocked() bool {
	return s.busy && (s.owner == 0 || s.owner == goid())
}

func (s *Serial) refuseDo() error {
	own := s.busy && s.owner != 0 && s.owner == goid()
	s.mu.Unlock()
	if own {
		panicReentry(s.name)
	}
	return ErrClosed
}

func (s *Serial) checkReentryLocked() {
	if invariants && s.owner == goid() {
		s.mu.Unlock()
		panicReentry(s.name)
	}
}

func panicReentry(lane string) {
	panic(fmt.Sprintf("lanes: Do on lane %s inside one of its own jobs; call Run directly", lane))
}

// callerID identifies a Do caller where the build can afford it.
func callerID() uint64 {
	if invariants {
		return goid()
	}
	return 0
}
