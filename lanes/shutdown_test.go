package lanes

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// The shutdown contract: what was accepted runs, what running jobs submit runs,
// who comes late from outside is refused, Close returns only then.

func bubble(name string, t *testing.T, f func(t *testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}

func TestShutdownPool(t *testing.T) {
	bubble("idle pool closes", t, func(t *testing.T) {
		NewPool("p", 3).Close()
	})

	bubble("queued jobs run", t, func(t *testing.T) {
		p := NewPool("p", 2)
		bs := occupy(t, p, 2)
		var r record
		for i := range 10 {
			must(t, p.Submit(r.job(i)))
		}
		done := closing(p)
		if isDone(done) || len(r.list()) != 0 {
			t.Fatal("Close did not wait for the running jobs")
		}
		releaseAll(bs)
		<-done
		if n := len(r.list()); n != 10 {
			t.Errorf("%d of 10 jobs ran", n)
		}
	})

	bubble("priority jobs run", t, func(t *testing.T) {
		p := NewPool("p", 1)
		bs := occupy(t, p, 1)
		var r record
		for i := range 5 {
			must(t, p.SubmitPriority(r.job(i), i+1))
		}
		done := closing(p)
		releaseAll(bs)
		<-done
		if got := r.list(); !slices.Equal(got, []int{4, 3, 2, 1, 0}) {
			t.Errorf("ran %v", got)
		}
	})

	bubble("delayed jobs run at once in order of deadline", t, func(t *testing.T) {
		p := NewPool("p", 1)
		var r record
		for i, d := range []time.Duration{3 * time.Hour, time.Hour, 2 * time.Hour} {
			must(t, p.SubmitAfter(d, r.job(i)))
		}
		start := time.Now()
		p.Close()
		if d := time.Since(start); d != 0 {
			t.Errorf("Close took %v", d)
		}
		if got := r.list(); !slices.Equal(got, []int{1, 2, 0}) {
			t.Errorf("ran %v", got)
		}
	})

	for name, submit := range map[string]func(*Pool, *Job, *Job) error{
		"Submit":         func(p *Pool, _, k *Job) error { return p.Submit(k) },
		"SubmitIn":       func(p *Pool, j, k *Job) error { return p.SubmitIn(j.Context(), k) },
		"SubmitPriority": func(p *Pool, _, k *Job) error { return p.SubmitPriority(k, 1) },
	} {
		bubble("running job may "+name, t, func(t *testing.T) {
			p := NewPool("p", 2)
			ran := false
			b := newBlocker(func(j *Job) {
				if err := submit(p, j, &Job{Run: func(*Job) { ran = true }}); err != nil {
					t.Error(err)
				}
			})
			must(t, p.Submit(&b.job))
			<-b.started
			done := closing(p)
			close(b.release)
			<-done
			if !ran {
				t.Error("job submitted while draining was lost")
			}
		})
	}

	bubble("chain of submits drains to the fixed point", t, func(t *testing.T) {
		p := NewPool("p", 3)
		left := 1000
		var again func(*Job)
		again = func(j *Job) {
			if left--; left > 0 {
				j.Run = again
				if err := p.Submit(j); err != nil {
					t.Error(err)
				}
			}
		}
		b := newBlocker(again)
		must(t, p.Submit(&b.job))
		<-b.started
		done := closing(p)
		close(b.release)
		<-done
		if left != 0 {
			t.Errorf("%d links of the chain are missing", left)
		}
	})

	bubble("job that re-arms itself ends", t, func(t *testing.T) {
		p := NewPool("p", 1)
		runs := 0
		j := &Job{}
		var last error
		j.Run = func(j *Job) {
			runs++
			last = p.SubmitAfter(time.Second, j)
		}
		must(t, p.SubmitAfter(time.Second, j))
		time.Sleep(3500 * time.Millisecond) // the bubble's clock
		synctest.Wait()
		p.Close()
		if runs != 4 {
			t.Errorf("%d runs, want 3 ticks and the promoted one", runs)
		}
		wantClosed(t, "re-arming", last)
	})

	bubble("outsiders are refused and keep their job", t, func(t *testing.T) {
		p := NewPool("p", 2)
		bs := occupy(t, p, 1)
		ctx := bs[0].job.Context()
		done := closing(p)
		j := &Job{Run: func(*Job) { t.Error("refused job ran") }}
		check := func() {
			t.Helper()
			wantClosed(t, "Submit", p.Submit(j))
			wantClosed(t, "SubmitIn", p.SubmitIn(ctx, j))
			wantClosed(t, "SubmitPriority", p.SubmitPriority(j, 3))
			wantClosed(t, "SubmitAfter", p.SubmitAfter(time.Second, j))
			wantClosed(t, "SubmitAfter 0", p.SubmitAfter(0, j))
			wantClosed(t, "Go", p.Go(func() {}))
		}
		check() // while draining
		releaseAll(bs)
		<-done
		check() // afterwards
		if j.queued {
			t.Error("refused job still marked as queued")
		}
	})

	bubble("every Close waits", t, func(t *testing.T) {
		p := NewPool("p", 2)
		bs := occupy(t, p, 2)
		first, second := closing(p), closing(p)
		if isDone(first) || isDone(second) {
			t.Fatal("a Close returned while jobs ran")
		}
		releaseAll(bs)
		<-first
		<-second
		p.Close()
	})

	bubble("workers busy at Close all leave", t, func(t *testing.T) {
		p := NewPool("p", 8)
		bs := occupy(t, p, 8)
		done := closing(p)
		for _, b := range bs {
			close(b.release)
			synctest.Wait()
		}
		<-done
	})
}

func TestShutdownFromOwnWorker(t *testing.T) {
	bubble("pool", t, func(t *testing.T) {
		p := NewPool("cpu", 2)
		var v any
		must(t, p.Go(func() { v = panics(p.Close) }))
		synctest.Wait()
		if s, _ := v.(string); !strings.Contains(s, "cpu closed from its own worker") {
			t.Errorf("got %v", v)
		}
		p.Close()
	})
	bubble("blocking", t, func(t *testing.T) {
		b := NewBlocking("io", 2, true)
		var v any
		must(t, b.Go(func() { v = panics(b.Close) }))
		synctest.Wait()
		if v == nil {
			t.Error("no panic")
		}
		b.Close()
	})
	bubble("serial", t, func(t *testing.T) {
		s := NewSerial("write")
		var v any
		must(t, s.Go(func() { v = panics(s.Close) }))
		synctest.Wait()
		if v == nil {
			t.Error("no panic")
		}
		s.Close()
	})
}

func TestShutdownBlocking(t *testing.T) {
	for _, steal := range []bool{true, false} {
		name := map[bool]string{true: "stealing", false: "no stealing"}[steal]
		bubble("queued jobs run, "+name, t, func(t *testing.T) {
			b := NewBlocking("io", 3, steal)
			synctest.Wait() // all are parked: without stealing a job stays with its worker
			bs := occupy(t, b, 3)
			var r record
			for i := range 20 {
				must(t, b.Submit(r.job(i)))
			}
			bs[1].then = func(*Job) {
				if err := b.Submit(r.job(20)); err != nil {
					t.Error(err)
				}
			}
			done := closing(b)
			wantClosed(t, "Submit", b.Submit(r.job(99)))
			releaseAll(bs)
			<-done
			if n := len(r.list()); n != 21 {
				t.Errorf("%d of 21 jobs ran", n)
			}
		})
	}

	bubble("waits for those inside", t, func(t *testing.T) {
		b := NewBlocking("io", 2, true)
		must(t, b.Enter())
		must(t, b.Enter())
		late := make(chan error, 1)
		go func() { late <- b.Enter() }() // waits: the lane is full
		synctest.Wait()
		done := closing(b)
		wantTry := b.TryEnter()
		b.Leave()
		synctest.Wait()
		if isDone(done) {
			t.Error("Close returned while a caller was inside")
		}
		b.Leave()
		<-done
		wantClosed(t, "Enter that waited", <-late)
		wantClosed(t, "Enter after Close", b.Enter())
		if wantTry || b.TryEnter() {
			t.Error("TryEnter succeeded on a closing lane")
		}
	})
}

func TestShutdownSerial(t *testing.T) {
	bubble("queued jobs run in order", t, func(t *testing.T) {
		s := NewSerial("write")
		bs := occupy(t, s, 1)
		var r record
		for i := range 100 {
			must(t, s.Submit(r.job(i)))
		}
		bs[0].then = func(*Job) {
			if err := s.Submit(r.job(100)); err != nil {
				t.Error(err)
			}
		}
		done := closing(s)
		wantClosed(t, "Submit", s.Submit(r.job(-1)))
		wantClosed(t, "Do", s.Do(r.job(-1)))
		if s.TryDo(r.job(-1)) {
			t.Error("TryDo ran on a closing lane")
		}
		releaseAll(bs)
		<-done
		if got := r.list(); len(got) != 101 || !slices.IsSorted(got) {
			t.Errorf("ran %v", got)
		}
		wantClosed(t, "Submit after Close", s.Submit(r.job(-1)))
		s.Close()
	})

	bubble("waits for a caller in place", t, func(t *testing.T) {
		s := NewSerial("write")
		ran := false
		b := newBlocker(func(*Job) {
			if err := s.Submit(&Job{Run: func(*Job) { ran = true }}); err != nil {
				t.Error(err)
			}
		})
		go s.Do(&b.job)
		<-b.started
		done := closing(s)
		if isDone(done) {
			t.Error("Close returned while a job ran in place")
		}
		close(b.release)
		<-done
		if !ran {
			t.Error("job submitted from a job in place was lost")
		}
	})

	bubble("parked Do callers get their turn", t, func(t *testing.T) {
		s := NewSerial("write")
		bs := occupy(t, s, 1)
		var r record
		errs := make(chan error, 5)
		for i := range 5 {
			go func() { errs <- s.Do(r.job(i)) }()
		}
		synctest.Wait()
		done := closing(s)
		releaseAll(bs)
		<-done
		for range 5 {
			must(t, <-errs)
		}
		if len(r.list()) != 5 {
			t.Errorf("ran %v", r.list())
		}
	})
}

func TestShutdownRuntime(t *testing.T) {
	bubble("drains every lane and producers first", t, func(t *testing.T) {
		rt := NewRuntime(Config{})
		var r record
		// A job of each lane submits to the next one of the shutdown order.
		order := []Submitter{rt.Compaction, rt.BlockingIO, rt.DBRead, rt.DBWrite, rt.File, rt.CPU}
		var hop func(i int) *Job
		hop = func(i int) *Job {
			return &Job{Run: func(*Job) {
				r.add(i)
				if i+1 < len(order) {
					if err := order[i+1].Submit(hop(i + 1)); err != nil {
						t.Error(err)
					}
				}
			}}
		}
		b := newBlocker(hop(0).Run)
		must(t, rt.Compaction.Submit(&b.job))
		<-b.started
		done := closing(rt)
		close(b.release)
		<-done
		if got := r.list(); !slices.Equal(got, []int{0, 1, 2, 3, 4, 5}) {
			t.Errorf("ran %v", got)
		}
		for i, l := range order {
			wantClosed(t, rt.Stats()[0].Name, l.Submit(hop(i)))
		}
	})
}
