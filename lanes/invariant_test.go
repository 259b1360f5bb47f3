package lanes

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// checkCrew asserts the invariants of a crew at rest (crew.go, C1-C3).
func checkCrew(t *testing.T, c *crew) {
	t.Helper()
	for _, w := range c.workers {
		w.mu.Lock()
		n := 0
		var prev *Job
		for j := w.q.head; j != nil; j = j.next {
			if j.prev != prev || !j.queued {
				t.Errorf("worker %d: broken links at %d", w.id, n)
			}
			prev = j
			n++
		}
		if w.q.tail != prev || w.q.n != n {
			t.Errorf("worker %d: n = %d, counted %d", w.id, w.q.n, n)
		}
		if (w.load.Load() != 0) != (n > 0) {
			t.Errorf("worker %d: load %d with %d jobs", w.id, w.load.Load(), n)
		}
		idle := c.idle.Load()&w.bit != 0
		if idle != w.parked {
			t.Errorf("worker %d: idle bit %v, parked %v", w.id, idle, w.parked)
		}
		if w.parked && n > 0 {
			t.Errorf("worker %d: parked with %d jobs", w.id, n)
		}
		w.mu.Unlock()
	}
}

func TestInvariants(t *testing.T) {
	bubble("queues, loads and idle bits agree", t, func(t *testing.T) {
		p := NewPool("p", 3)
		synctest.Wait()
		checkCrew(t, p.c)
		bs := occupy(t, p, 3)
		for i := range 10 {
			must(t, p.Submit((&record{}).job(i)))
		}
		synctest.Wait()
		checkCrew(t, p.c)
		if d := p.Stats().Depth; d != 10 {
			t.Errorf("depth %d", d)
		}
		close(bs[0].release) // one worker takes over everything
		synctest.Wait()
		checkCrew(t, p.c)
		if s := p.Stats(); s.Depth != 0 || s.Running != 2 || s.Completed != 11 {
			t.Errorf("%+v", s)
		}
		releaseAll(bs[1:])
		p.Close()
		if !p.c.settled() {
			t.Error("not settled after Close")
		}
	})

	t.Run("theft takes half of the tail, in order, to the front", func(t *testing.T) {
		for n := 1; n <= 9; n++ {
			for own := range 3 {
				var from, to list
				jobs := make([]Job, n+own)
				for i := range n {
					from.pushBack(&jobs[i])
				}
				for i := range own {
					to.pushBack(&jobs[n+i])
				}
				k := max(1, n/2)
				from.stealTail(&to, k)
				var got []int
				for _, l := range []*list{&from, &to} {
					for j := l.popFront(); j != nil; j = l.popFront() {
						for i := range jobs {
							if &jobs[i] == j {
								got = append(got, i)
							}
						}
					}
					if l.n != 0 || l.head != nil || l.tail != nil {
						t.Errorf("n=%d: list not empty: %+v", n, *l)
					}
				}
				want := make([]int, n+own)
				for i := range want {
					want[i] = i
				}
				if !slices.Equal(got, want) {
					t.Errorf("n=%d own=%d: %v", n, own, got)
				}
			}
		}
	})

	bubble("theft halves the victim", t, func(t *testing.T) {
		p := NewPool("p", 2)
		bs := occupy(t, p, 2)
		v, w := bs[0].job.Context().w, bs[1].job.Context().w
		var mine []*blocker
		for range 8 {
			b := newBlocker(nil)
			mine = append(mine, b)
			must(t, p.SubmitIn(Context{v}, &b.job))
		}
		close(bs[1].release)
		synctest.Wait() // w has stolen four and blocks in the first
		if v.q.n != 4 || w.q.n != 3 || isDone(mine[3].started) || !isDone(mine[4].started) {
			t.Errorf("victim %d, thief %d", v.q.n, w.q.n)
		}
		checkCrew(t, p.c)
		releaseAll(mine)
		close(bs[0].release)
		p.Close()
	})

	bubble("double submit is caught", t, func(t *testing.T) {
		s := NewSerial("s")
		bs := occupy(t, s, 1)
		j := &Job{Run: func(*Job) {}}
		must(t, s.Submit(j))
		func() {
			defer s.mu.Unlock() // the panic left the lane locked
			if panics(func() { s.Submit(j) }) == nil {
				t.Error("no panic")
			}
		}()
		releaseAll(bs)
		s.Close()
	})

	bubble("job without Run is caught", t, func(t *testing.T) {
		s := NewSerial("s")
		defer s.Close()
		defer s.mu.Unlock()
		if panics(func() { s.Submit(&Job{}) }) == nil {
			t.Error("no panic")
		}
	})

	bubble("priorities order the fall-back queue, equals keep theirs", t, func(t *testing.T) {
		p := NewPool("p", 1)
		bs := occupy(t, p, 1)
		var r record
		for i, prio := range []int{1, 3, 2, 3, 1, 2} {
			must(t, p.SubmitPriority(r.job(i), prio))
		}
		must(t, p.SubmitPriority(r.job(6), 0)) // an ordinary one
		releaseAll(bs)
		p.Close()
		if got := r.list(); !slices.Equal(got, []int{1, 3, 2, 5, 0, 4, 6}) {
			t.Errorf("ran %v", got)
		}
		if s := p.Stats(); s.Fallback != 6 || s.Fast != 2 {
			t.Errorf("fallback %d, fast %d", s.Fallback, s.Fast)
		}
	})

	bubble("a stream of priority jobs starves nobody", t, func(t *testing.T) {
		p := NewPool("p", 1)
		bs := occupy(t, p, 1)
		var r record
		for i := range 3 * priorityRun {
			must(t, p.SubmitPriority(r.job(i), 1))
		}
		must(t, p.Submit(r.job(-1)))
		must(t, p.Submit(r.job(-2)))
		releaseAll(bs)
		p.Close()
		got := r.list()
		if i := slices.Index(got, -1); i != priorityRun {
			t.Errorf("first ordinary job ran at %d", i)
		}
		if i := slices.Index(got, -2); i != 2*priorityRun+1 {
			t.Errorf("second ordinary job ran at %d", i)
		}
	})

	bubble("delayed jobs run when due, equals in their order", t, func(t *testing.T) {
		p := NewPool("p", 1)
		defer p.Close()
		var r record
		for i, d := range []int{3, 1, 2, 1, 0, -1} {
			must(t, p.SubmitAfter(ms(d), r.job(i)))
		}
		for i, want := range [][]int{{4, 5}, {4, 5, 1, 3}, {4, 5, 1, 3, 2}, {4, 5, 1, 3, 2, 0}} {
			synctest.Wait()
			if got := r.list(); !slices.Equal(got, want) {
				t.Errorf("after %d ms: ran %v, want %v", i, got, want)
			}
			sleep(ms(1))
		}
	})

	bubble("external submits go round, idle workers first", t, func(t *testing.T) {
		p := NewPool("p", 4)
		synctest.Wait()
		bs := occupy(t, p, 4) // needs four different workers
		got := map[*worker]int{}
		for range 8 {
			must(t, p.Submit((&record{}).job(0)))
		}
		for _, w := range p.c.workers {
			got[w] = w.q.n
			if w.q.n != 2 {
				t.Errorf("worker %d has %d of 8 jobs", w.id, w.q.n)
			}
		}
		releaseAll(bs)
		p.Close()
	})

	t.Run("worker counts are clamped", func(t *testing.T) {
		for n, want := range map[int]int{-1: 1, 0: 1, 64: 64, 1000: 64} {
			p := NewPool("p", n)
			if got := len(p.c.workers); got != want {
				t.Errorf("NewPool(%d): %d workers", n, got)
			}
			p.Close()
		}
	})
}

func (w *worker) attempts() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.n.stealAttempts
}

// The liveness contract: nobody waits for good while there is work that it
// could do. Each case leaves a worker without a wake of its own.
func TestPending(t *testing.T) {
	bubble("after a stolen batch the priority queue is looked at", t, func(t *testing.T) {
		// Worker 1 is blocked with three jobs behind it. Worker 0 steals one,
		// and while it runs, a priority job arrives: nobody is idle, nobody is
		// woken. Worker 0 must find it by itself.
		p := NewPool("p", 2)
		bs := occupy(t, p, 2)
		victim := bs[1].job.Context()
		stolen := newBlocker(nil)
		must(t, p.SubmitIn(victim, &stolen.job))
		close(bs[0].release)
		<-stolen.started
		var r record
		must(t, p.SubmitPriority(r.job(1), 1))
		close(stolen.release)
		synctest.Wait()
		if len(r.list()) != 1 {
			t.Error("the priority job waits although a worker is free")
		}
		close(bs[1].release)
		p.Close()
	})

	bubble("after a stolen batch the own queue is looked at", t, func(t *testing.T) {
		p := NewPool("p", 2)
		bs := occupy(t, p, 2)
		thief, victim := bs[0].job.Context(), bs[1].job.Context()
		stolen := newBlocker(nil)
		must(t, p.SubmitIn(victim, &stolen.job))
		close(bs[0].release)
		<-stolen.started
		var r record
		must(t, p.SubmitIn(thief, r.job(1)))
		close(stolen.release)
		synctest.Wait()
		if len(r.list()) != 1 {
			t.Error("the thief forgot its own queue")
		}
		close(bs[1].release)
		p.Close()
	})

	bubble("after a stolen batch more is stolen", t, func(t *testing.T) {
		p := NewPool("p", 2)
		bs := occupy(t, p, 2)
		var r record
		for i := range 33 {
			must(t, p.SubmitIn(bs[1].job.Context(), r.job(i)))
		}
		close(bs[0].release)
		synctest.Wait()
		if n := len(r.list()); n != 33 {
			t.Errorf("%d of 33 jobs ran beside the blocked worker", n)
		}
		if p.Stats().Steals < 5 { // 16, 8, 4, 2, 1, 1, 1
			t.Errorf("%d steals", p.Stats().Steals)
		}
		close(bs[1].release)
		p.Close()
	})

	bubble("work behind a blocked worker wakes an idle one", t, func(t *testing.T) {
		p := NewPool("p", 2)
		bs := occupy(t, p, 1)
		synctest.Wait() // the other one is parked
		var r record
		for i := range 5 {
			must(t, p.SubmitIn(bs[0].job.Context(), r.job(i)))
			synctest.Wait()
		}
		if len(r.list()) != 5 {
			t.Errorf("ran %v", r.list())
		}
		releaseAll(bs)
		p.Close()
	})

	bubble("one wake is enough for many thieves", t, func(t *testing.T) {
		// A job fans out to its own queue and blocks: the first thief must
		// wake the next.
		p := NewPool("p", 8)
		fan := make([]*blocker, 7)
		b := newBlocker(nil)
		b.job.Run = func(j *Job) {
			for i := range fan {
				fan[i] = newBlocker(nil)
				must(t, p.SubmitIn(j.Context(), &fan[i].job))
			}
			close(b.started)
			<-b.release
		}
		must(t, p.Submit(&b.job))
		<-b.started
		for i := range fan {
			<-fan[i].started // all at once, on the seven other workers
		}
		releaseAll(fan)
		close(b.release)
		p.Close()
	})

	bubble("a thief finds the only victim among many", t, func(t *testing.T) {
		// Six workers are blocked, one of them with a job behind it; nobody is
		// idle when it comes. Whoever gets free must find it, without a wake
		// and without waiting.
		for free := range 6 {
			p := NewPool("p", 6)
			bs := occupy(t, p, 6)
			var r record
			must(t, p.SubmitIn(bs[(free+4)%6].job.Context(), r.job(1)))
			close(bs[free].release)
			synctest.Wait()
			if len(r.list()) != 1 {
				t.Error("the job still waits")
			}
			releaseAll(slices.Delete(bs, free, free+1))
			p.Close()
		}
	})

	bubble("a worker that sees work elsewhere looks again, with growing pauses", t, func(t *testing.T) {
		// The state between a lost race at the victim and the next look, set
		// by hand: load says work, the queue has none.
		p := NewPool("p", 2)
		sleep(100 * backoffMax)
		synctest.Wait()
		v, w := p.c.workers[0], p.c.workers[1]
		v.load.Store(1)
		must(t, p.SubmitIn(Context{w}, (&record{}).job(0)))
		synctest.Wait() // w has run it, looked, and pauses
		var pauses []time.Duration
		last, seen := time.Now(), w.attempts()
		for len(pauses) < 6 {
			sleep(backoffMin)
			synctest.Wait()
			if n := w.attempts(); n != seen {
				pauses = append(pauses, time.Since(last))
				last, seen = time.Now(), n
			}
		}
		want := []time.Duration{1, 2, 4, 8, 16, 20}
		for i := range want {
			want[i] *= backoffMin
		}
		if !slices.Equal(pauses, want) {
			t.Errorf("pauses %v, want %v", pauses, want)
		}
		v.load.Store(0)
		p.Close()
	})

	bubble("a priority job wakes an idle worker", t, func(t *testing.T) {
		p := NewPool("p", 3)
		bs := occupy(t, p, 2)
		synctest.Wait()
		var r record
		must(t, p.SubmitPriority(r.job(1), 9))
		synctest.Wait()
		if len(r.list()) != 1 {
			t.Error("the priority job waits although a worker is idle")
		}
		releaseAll(bs)
		p.Close()
	})

	bubble("work that comes while a worker parks is seen", t, func(t *testing.T) {
		// The hook plays a submitter whose look at the idle workers came just
		// before this one announced itself: it publishes and wakes nobody.
		for name, publish := range map[string]func(p *Pool, victim *worker, j *Job){
			"priority": func(p *Pool, _ *worker, j *Job) { must(t, p.u.submit(j, 1)) },
			"behind a busy worker": func(_ *Pool, v *worker, j *Job) {
				v.mu.Lock()
				defer v.mu.Unlock()
				j.enqueued()
				v.accepted++
				v.q.pushBack(j)
				v.load.Store(1)
			},
		} {
			p := NewPool("p", 2)
			bs := occupy(t, p, 2)
			var r record
			hooked := false
			p.c.atPark = func(w *worker) { // only one worker gets here before the end
				if !hooked {
					hooked = true
					publish(p, bs[1].job.Context().w, r.job(1))
				}
			}
			close(bs[0].release)
			sleep(10 * backoffMax)
			synctest.Wait()
			if !hooked || len(r.list()) != 1 {
				t.Errorf("%s: the job still waits", name)
			}
			close(bs[1].release)
			synctest.Wait()
			p.Close()
		}
	})

	bubble("without stealing a job waits for its worker", t, func(t *testing.T) {
		b := NewBlocking("b", 1, false)
		bs := occupy(t, b, 1)
		var r record
		must(t, b.Submit(r.job(1)))
		synctest.Wait()
		if len(r.list()) != 0 {
			t.Error("single flight broken")
		}
		releaseAll(bs)
		synctest.Wait()
		if len(r.list()) != 1 {
			t.Error("the worker forgot its queue")
		}
		b.Close()
	})

	for _, n := range []int{1, 2, 5} {
		bubble(fmt.Sprintf("idle pools of %d don't tick", n), t, func(t *testing.T) {
			p := NewPool("p", n)
			must(t, p.Go(func() {}))
			sleep(100 * backoffMax) // those that saw the job look for a while
			synctest.Wait()
			before := p.Stats().StealAttempts
			sleep(1000 * backoffMax)
			if got := p.Stats().StealAttempts; got != before {
				t.Errorf("%d steal attempts while idle", got-before)
			}
			p.Close()
		})
	}
}
