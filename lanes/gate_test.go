package lanes

import (
	"testing"
	"testing/synctest"
)

func TestGate(t *testing.T) {
	bubble("bounds those inside", t, func(t *testing.T) {
		b := NewBlocking("b", 3, true)
		for range 3 {
			if !b.TryEnter() {
				t.Fatal("slot missing")
			}
		}
		if b.TryEnter() {
			t.Error("a fourth caller in a lane of three")
		}
		in := make(chan error)
		go func() { in <- b.Enter() }()
		synctest.Wait()
		if s := b.Stats(); s.Inside != 3 || s.Waiting != 1 || s.Waited != 1 || s.Entered != 3 {
			t.Errorf("%+v", s)
		}
		b.Leave()
		must(t, <-in)
		for range 3 {
			b.Leave()
		}
		if s := b.Stats(); s.Inside != 0 || s.Waiting != 0 || s.Entered != 4 || s.GateWait.Samples != 1 {
			t.Errorf("%+v", s)
		}
		b.Close()
	})

	bubble("waiters get in by turn", t, func(t *testing.T) {
		b := NewBlocking("b", 1, true)
		must(t, b.Enter())
		var r record
		for i := range 5 {
			go func() {
				b.Enter()
				r.add(i)
				b.Leave()
			}()
			synctest.Wait()
		}
		b.Leave()
		synctest.Wait()
		for i, got := range r.list() {
			if got != i {
				t.Errorf("order %v", r.list())
			}
		}
		b.Close()
	})

	t.Run("a waiter loses at most once", func(t *testing.T) {
		// Played step by step on the gate's own parts: a woken waiter finds
		// its slot taken, queues at the front, and is handed the next one.
		var g gate
		g.init(1)
		must(t, g.enter())
		w := &gateWaiter{token: make(chan struct{}, 1)}
		other := &gateWaiter{token: make(chan struct{}, 1)}
		g.mu.Lock()
		g.waiting.Add(2)
		g.enqueueLocked(w)
		g.enqueueLocked(other)
		g.mu.Unlock()
		g.leave()
		<-w.token
		if !g.tryEnter() {
			t.Fatal("the slot isn't up for grabs")
		}
		g.mu.Lock()
		w.lost = true
		g.enqueueLocked(w)
		g.mu.Unlock()
		if g.head != w {
			t.Error("the loser queues behind others")
		}
		g.leave()
		<-w.token
		if !w.granted || g.tryEnter() {
			t.Error("the loser was passed again")
		}
		g.leave() // w's
		<-other.token
	})

	bubble("a job of the lane may enter it", t, func(t *testing.T) {
		b := NewBlocking("b", 1, false)
		must(t, b.Go(func() {
			must(t, b.Enter())
			b.Leave()
		}))
		b.Close()
	})

	t.Run("Leave without Enter is caught", func(t *testing.T) {
		b := NewBlocking("b", 2, true)
		if panics(b.Leave) == nil {
			t.Error("no panic")
		}
	})
}
