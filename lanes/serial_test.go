package lanes

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
)

func TestSerial(t *testing.T) {
	bubble("Do runs in place on a free lane", t, func(t *testing.T) {
		s := NewSerial("s")
		me := goid()
		must(t, s.Do(&Job{Run: func(*Job) {
			if goid() != me {
				t.Error("ran on another goroutine")
			}
		}}))
		if !s.TryDo(&Job{Run: func(*Job) {
			if goid() != me {
				t.Error("ran on another goroutine")
			}
		}}) {
			t.Error("TryDo refused on a free lane")
		}
		if st := s.Stats(); st.InPlace != 2 || st.Waited != 0 || st.Completed != 2 || st.Handed != 0 {
			t.Errorf("%+v", st)
		}
		s.Close()
	})

	bubble("tickets keep their order over Submit and Do", t, func(t *testing.T) {
		s := NewSerial("s")
		bs := occupy(t, s, 1)
		var r record
		for i := range 30 {
			if i%3 == 0 {
				must(t, s.Submit(r.job(i)))
			} else {
				go s.Do(r.job(i))
			}
			synctest.Wait()
		}
		if s.TryDo(r.job(-1)) {
			t.Error("TryDo on a busy lane")
		}
		releaseAll(bs)
		s.Close()
		if got := r.list(); len(got) != 30 || !slices.IsSorted(got) {
			t.Errorf("ran %v", got)
		}
	})

	bubble("a Do caller drains what queued meanwhile, bounded", t, func(t *testing.T) {
		s := NewSerial("s")
		ids := map[uint64]int{}
		b := newBlocker(nil)
		caller := make(chan uint64, 1)
		go func() {
			s.Do(&b.job)
			caller <- goid()
		}()
		<-b.started
		for range drainLimit + 10 {
			must(t, s.Submit(&Job{Run: func(*Job) { ids[goid()]++ }}))
		}
		close(b.release)
		me := <-caller
		s.Close()
		if ids[me] != drainLimit || ids[s.goid] != 10 {
			t.Errorf("the caller ran %d jobs, the worker %d", ids[me], ids[s.goid])
		}
		if st := s.Stats(); st.Handed != 1 {
			t.Errorf("handed over %d times", st.Handed)
		}
	})

	bubble("a handed lane is the worker's", t, func(t *testing.T) {
		s := NewSerial("s")
		b := newBlocker(nil)
		go s.Do(&b.job)
		<-b.started
		for range drainLimit {
			must(t, s.Submit(&Job{Run: func(*Job) {}}))
		}
		onWorker := newBlocker(nil)
		must(t, s.Submit(&onWorker.job))
		close(b.release)
		<-onWorker.started
		done := closing(s)
		wantClosed(t, "Submit from outside", s.Submit(&Job{Run: func(*Job) { t.Error("ran") }}))
		close(onWorker.release)
		<-done
	})

	bubble("a TryDo caller runs nobody else's job", t, func(t *testing.T) {
		s := NewSerial("s")
		b := newBlocker(nil)
		go s.TryDo(&b.job)
		<-b.started
		var on uint64
		must(t, s.Submit(&Job{Run: func(*Job) { on = goid() }}))
		close(b.release)
		s.Close()
		if on != s.goid {
			t.Error("not run by the worker")
		}
	})

	bubble("Do returns after its own job, not after the queue", t, func(t *testing.T) {
		s := NewSerial("s")
		bs := occupy(t, s, 1)
		returned := make(chan struct{})
		go func() {
			s.Do(&Job{Run: func(*Job) {}})
			close(returned)
		}()
		synctest.Wait()
		later := newBlocker(nil)
		must(t, s.Submit(&later.job))
		releaseAll(bs)
		<-later.started
		synctest.Wait()
		if !isDone(returned) {
			t.Error("Do waits for a job behind its own")
		}
		close(later.release)
		s.Close()
	})

	bubble("a job submits to its own lane", t, func(t *testing.T) {
		s := NewSerial("s")
		var r record
		must(t, s.Do(&Job{Run: func(*Job) {
			must(t, s.Submit(r.job(1)))
			r.add(0)
		}}))
		if got := r.list(); !slices.Equal(got, []int{0, 1}) {
			t.Errorf("ran %v", got)
		}
		s.Close()
	})

	bubble("Do inside a job of the lane", t, func(t *testing.T) {
		if !invariants {
			t.Skip("the check costs a microsecond per job: only with -tags invariants")
		}
		s := NewSerial("s")
		nested := func(*Job) {
			v := panics(func() { s.Do(&Job{Run: func(*Job) {}}) })
			if m, _ := v.(string); !strings.Contains(m, "Do on lane s inside one of its own jobs") {
				t.Errorf("got %v", v)
			}
		}
		must(t, s.Do(&Job{Run: nested}))
		must(t, s.Submit(&Job{Run: nested}))
		s.Close()
	})

	bubble("Do inside a job while closing", t, func(t *testing.T) {
		s := NewSerial("s")
		b := newBlocker(func(*Job) {
			if panics(func() { s.Do(&Job{Run: func(*Job) {}}) }) == nil {
				t.Error("no panic")
			}
		})
		must(t, s.Submit(&b.job))
		<-b.started
		done := closing(s)
		close(b.release)
		<-done
	})
}

func TestHistogram(t *testing.T) {
	var h histogram
	if l := h.latency(); l != (Latency{}) {
		t.Errorf("empty: %+v", l)
	}
	for range 98 {
		h.add(1000)
	}
	h.add(50_000)
	h.add(3_000_000)
	h.add(-5) // a clock that stepped back
	l := h.latency()
	if l.Samples != 101 || l.P50 != 1023 || l.P99 != 65535 || l.Max != 3_000_000 {
		t.Errorf("%+v", l)
	}
	h.add(1 << 62)
	if l := h.latency(); l.Max != 1<<62 {
		t.Errorf("%+v", l)
	}
}

func TestGoid(t *testing.T) {
	me := goid()
	other := make(chan uint64)
	go func() { other <- goid() }()
	if o := <-other; me == 0 || o == 0 || o == me {
		t.Errorf("goid: %d and %d", me, o)
	}
	if me != goid() {
		t.Error("goid changed")
	}
}
