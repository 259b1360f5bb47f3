package lanes

import (
	"slices"
	"testing"
	"testing/synctest"
)

// The context contract: a worker's identity travels with the job, knows its
// pool, and gives affinity as far as liveness allows.

func TestContext(t *testing.T) {
	bubble("none outside", t, func(t *testing.T) {
		p := NewPool("p", 2)
		defer p.Close()
		if _, ok := p.Current(); ok {
			t.Error("Current outside the pool")
		}
		if ctx := (&Job{}).Context(); ctx != (Context{}) {
			t.Error("a job that never ran has a context")
		}
	})

	bubble("inside a job", t, func(t *testing.T) {
		p := NewPool("p", 2)
		defer p.Close()
		b := newBlocker(func(j *Job) {
			ctx, ok := p.Current()
			if !ok || ctx != j.Context() || ctx.w.c != p.c {
				t.Errorf("Current = %v, %v; Context = %v", ctx, ok, j.Context())
			}
		})
		close(b.release)
		must(t, p.Submit(&b.job))
	})

	bubble("not another pool's", t, func(t *testing.T) {
		p, q := NewPool("p", 2), NewPool("q", 2)
		defer p.Close()
		defer q.Close()
		must(t, p.Go(func() {
			if _, ok := q.Current(); ok {
				t.Error("a worker of p is taken for one of q")
			}
		}))
		synctest.Wait()
	})

	bubble("own submits keep their order", t, func(t *testing.T) {
		p := NewPool("p", 1)
		var r record
		b := newBlocker(func(j *Job) {
			for i := range 10 {
				must(t, p.SubmitIn(j.Context(), r.job(i)))
			}
			if len(r.list()) != 0 {
				t.Error("an own submit ran inside its submitter")
			}
		})
		close(b.release)
		must(t, p.Submit(&b.job))
		p.Close()
		if got := r.list(); !slices.Equal(got, []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}) {
			t.Errorf("ran %v", got)
		}
	})

	bubble("an idle worker gets what is bound to it", t, func(t *testing.T) {
		p := NewPool("p", 4)
		defer p.Close()
		for _, w := range p.c.workers {
			for range 5 {
				synctest.Wait()
				j := &Job{Run: func(j *Job) {
					if j.Context().w != w {
						t.Errorf("bound to worker %d, ran on %d", w.id, j.Context().w.id)
					}
				}}
				must(t, p.SubmitIn(Context{w}, j))
			}
		}
		synctest.Wait()
		if s := p.Stats(); s.Affine != 20 || s.Fast != 0 {
			t.Errorf("affine %d, fast %d", s.Affine, s.Fast)
		}
	})

	bubble("a blocked worker doesn't hold up what is bound to it", t, func(t *testing.T) {
		p := NewPool("p", 2)
		bs := occupy(t, p, 1)
		before := p.Stats()
		ran := make(chan Context, 1)
		j := &Job{Run: func(j *Job) { ran <- j.Context() }}
		must(t, p.SubmitIn(bs[0].job.Context(), j))
		if ctx := <-ran; ctx == bs[0].job.Context() {
			t.Error("ran on the blocked worker")
		}
		releaseAll(bs)
		p.Close()
		if s := p.Stats(); s.Steals != before.Steals+1 {
			t.Errorf("steals %d, before %d", s.Steals, before.Steals)
		}
	})

	bubble("a foreign context takes the ordinary path", t, func(t *testing.T) {
		p, q := NewPool("p", 2), NewPool("q", 2)
		var r record
		must(t, p.SubmitIn(Context{q.c.workers[1]}, r.job(1)))
		must(t, p.SubmitIn(Context{}, r.job(2)))
		p.Close()
		q.Close()
		if len(r.list()) != 2 {
			t.Errorf("ran %v", r.list())
		}
		if s := p.Stats(); s.Fast != 2 || s.Affine != 0 || s.Completed != 2 {
			t.Errorf("p: %+v", s)
		}
		if s := q.Stats(); s.Completed != 0 {
			t.Errorf("q ran %d jobs of p", s.Completed)
		}
	})

	bubble("a context outlives its job", t, func(t *testing.T) {
		p := NewPool("p", 2)
		defer p.Close()
		ctxs := make(chan Context, 1)
		must(t, p.Submit(&Job{Run: func(j *Job) { ctxs <- j.Context() }}))
		ctx := <-ctxs
		synctest.Wait()
		must(t, p.SubmitIn(ctx, &Job{Run: func(j *Job) { ctxs <- j.Context() }}))
		if again := <-ctxs; again != ctx {
			t.Error("another worker ran it although the bound one was idle")
		}
	})

	bubble("of a closed pool", t, func(t *testing.T) {
		p := NewPool("p", 2)
		ctx := Context{p.c.workers[0]}
		p.Close()
		wantClosed(t, "SubmitIn", p.SubmitIn(ctx, &Job{Run: func(*Job) {}}))
	})

	bubble("a job may submit itself anew", t, func(t *testing.T) {
		p := NewPool("p", 3)
		runs := 0
		j := &Job{}
		j.Run = func(j *Job) {
			if runs++; runs < 100 {
				must(t, p.SubmitIn(j.Context(), j))
			}
		}
		must(t, p.Submit(j))
		p.Close()
		if runs != 100 {
			t.Errorf("%d runs", runs)
		}
	})

	bubble("serial and blocking lanes lend none to a pool", t, func(t *testing.T) {
		p := NewPool("p", 1)
		s := NewSerial("s")
		b := NewBlocking("b", 1, false)
		var r record
		must(t, p.Submit(r.job(0)))
		synctest.Wait()
		j := &Job{Run: func(j *Job) {
			if j.Context() != (Context{}) {
				t.Error("context on a serial lane")
			}
		}}
		j.on = p.c.workers[0] // as left over from a run on the pool
		must(t, s.Submit(j))
		synctest.Wait()
		j.on = p.c.workers[0]
		must(t, s.Do(j))
		must(t, b.Submit(&Job{Run: func(j *Job) { must(t, p.SubmitIn(j.Context(), r.job(1))) }}))
		b.Close()
		s.Close()
		p.Close()
		if st := p.Stats(); st.Affine != 0 || st.Fast != 2 {
			t.Errorf("%+v", st)
		}
	})

	bubble("after a theft names the thief", t, func(t *testing.T) {
		p := NewPool("p", 2)
		bs := occupy(t, p, 2)
		ran := make(chan Context, 1)
		must(t, p.SubmitIn(bs[0].job.Context(), &Job{Run: func(j *Job) { ran <- j.Context() }}))
		close(bs[1].release)
		if ctx := <-ran; ctx != bs[1].job.Context() {
			t.Error("the context isn't the thief's")
		}
		close(bs[0].release)
		p.Close()
	})
}
