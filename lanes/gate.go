package lanes

import (
	"sync"
	"sync/atomic"
)

// gate bounds how many callers are inside. Uncontended it costs two atomic
// read-modify-writes in and one out.
//
// A slot given back goes to whoever takes it first, for handing it to a parked
// waiter makes every following caller park too. A waiter that was woken and
// found the slot gone makes the gate unfair until it is in (starved), so
// nobody loses more than once.
//
//	G1 A waiter counts itself in waiting and then looks at free; a leaver adds
//	   to free and then looks at waiting: one of them sees the other.
//	G2 A woken waiter either takes a slot or queues again at the front.
//	G3 While callers queue, every free slot has a woken waiter on its way to it:
//	   who queues first found no slot, and each later one given back wakes one.
type gate struct {
	_       [cacheLine]byte
	free    atomic.Int64 // slots nobody holds
	waiting atomic.Int64 // callers in the slow path
	entered atomic.Uint64
	starved atomic.Bool // the front waiter has lost once; newcomers queue
	closed  atomic.Bool
	slots   int64
	_       [cacheLine]byte

	mu         sync.Mutex
	head, tail *gateWaiter // guarded by mu
	waited     uint64      // guarded by mu
	wait       histogram   // guarded by mu; of those who had to wait
	pool       sync.Pool   // *gateWaiter
	end        closer
}

type gateWaiter struct {
	next    *gateWaiter
	token   chan struct{}
	lost    bool // was woken and found no slot
	granted bool // the waker has taken the slot for it
}

func (g *gate) init(slots int) {
	g.slots = int64(slots)
	g.free.Store(g.slots)
	g.pool.New = func() any { return &gateWaiter{token: make(chan struct{}, 1)} }
}

func (g *gate) enter() error {
	if g.starved.Load() || !g.takeSlot() {
		g.waitForSlot()
	}
	// Checked with the slot in hand: close takes every slot after it has set
	// closed, so it waits for all who saw it unset.
	if g.closed.Load() {
		g.leave()
		return ErrClosed
	}
	g.entered.Add(1)
	return nil
}

func (g *gate) tryEnter() bool {
	if g.starved.Load() || g.closed.Load() || !g.takeSlot() {
		return false
	}
	if g.closed.Load() {
		g.leave()
		return false
	}
	g.entered.Add(1)
	return true
}

func (g *gate) leave() {
	if g.free.Add(1) > g.slots {
		panic("lanes: Leave without Enter")
	}
	if g.waiting.Load() > 0 {
		g.wakeFirst()
	}
}

func (g *gate) takeSlot() bool {
	for {
		n := g.free.Load()
		if n <= 0 {
			return false
		}
		if g.free.CompareAndSwap(n, n-1) {
			return true
		}
	}
}

func (g *gate) waitForSlot() {
	start := now()
	w := g.pool.Get().(*gateWaiter)
	w.next, w.lost, w.granted = nil, false, false
	g.mu.Lock()
	g.waited++
	g.waiting.Add(1)
	for {
		// A newcomer doesn't pass those who queue.
		if (g.head == nil || w.lost) && g.takeSlot() {
			break
		}
		g.enqueueLocked(w)
		g.mu.Unlock()
		<-w.token
		g.mu.Lock()
		if w.granted {
			break
		}
		w.lost = true
	}
	g.waiting.Add(-1)
	g.starved.Store(g.head != nil && g.head.lost)
	g.wait.add(now() - start)
	g.mu.Unlock()
	g.pool.Put(w)
}

// enqueueLocked queues w: at the back, or at the front when it has lost.
func (g *gate) enqueueLocked(w *gateWaiter) {
	w.next = nil
	switch {
	case g.head == nil:
		g.head, g.tail = w, w
	case w.lost:
		w.next, g.head = g.head, w
	default:
		g.tail.next, g.tail = w, w
	}
	if w.lost {
		g.starved.Store(true)
	}
}

func (g *gate) wakeFirst() {
	g.mu.Lock()
	g.wakeFirstLocked()
	g.mu.Unlock()
}

func (g *gate) wakeFirstLocked() {
	w := g.head
	if w == nil {
		return
	}
	if w.lost {
		if !g.takeSlot() {
			return // whoever took it will come here when leaving
		}
		w.granted = true
	}
	g.head = w.next
	if g.head == nil {
		g.tail = nil
	}
	w.token <- struct{}{}
}

// close refuses newcomers and waits until nobody is inside.
func (g *gate) close() {
	g.end.do(func() {
		g.closed.Store(true)
		for range g.slots {
			if !g.takeSlot() {
				g.waitForSlot()
			}
		}
		for range g.slots {
			g.leave()
		}
	})
}
