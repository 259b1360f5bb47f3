package lanes

import (
	"sync"
	"sync/atomic"
)

// gate bounds how many callers are inside. Uncontended it costs two atomic
// additions in and one out.
//
//	free > 0: slots left      free < 0: -free callers wait or are about to
//
// A leaver that finds a waiter hands its slot over: to the first in the queue,
// or, when that caller has not queued yet, as a grant that it will find. So a
// slot can't be lost and newcomers can't overtake.
type gate struct {
	_       [cacheLine]byte
	free    atomic.Int64
	entered atomic.Uint64
	closed  atomic.Bool
	slots   int64
	_       [cacheLine]byte

	mu         sync.Mutex
	head, tail *gateWaiter // guarded by mu
	grants     int         // guarded by mu
	waited     uint64      // guarded by mu
	wait       histogram   // guarded by mu; of those who had to wait
	pool       sync.Pool
	once       sync.Once
}

type gateWaiter struct {
	next  *gateWaiter
	token chan struct{}
}

func (g *gate) init(slots int) {
	g.slots = int64(slots)
	g.free.Store(g.slots)
	g.pool.New = func() any { return &gateWaiter{token: make(chan struct{}, 1)} }
}

func (g *gate) enter() error {
	if g.free.Add(-1) < 0 {
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
	for {
		n := g.free.Load()
		if n <= 0 || g.closed.Load() {
			return false
		}
		if g.free.CompareAndSwap(n, n-1) {
			break
		}
	}
	if g.closed.Load() {
		g.leave()
		return false
	}
	g.entered.Add(1)
	return true
}

func (g *gate) leave() {
	n := g.free.Add(1)
	if n > g.slots {
		panic("lanes: Leave without Enter")
	}
	if n <= 0 {
		g.grant()
	}
}

func (g *gate) waitForSlot() {
	start := now()
	g.mu.Lock()
	g.waited++
	if g.grants > 0 {
		g.grants--
		g.mu.Unlock()
		return
	}
	w := g.pool.Get().(*gateWaiter)
	w.next = nil
	if g.tail == nil {
		g.head = w
	} else {
		g.tail.next = w
	}
	g.tail = w
	g.mu.Unlock()
	<-w.token
	g.pool.Put(w)
	g.mu.Lock()
	g.wait.add(now() - start)
	g.mu.Unlock()
}

func (g *gate) grant() {
	g.mu.Lock()
	w := g.head
	if w == nil {
		g.grants++
		g.mu.Unlock()
		return
	}
	g.head = w.next
	if g.head == nil {
		g.tail = nil
	}
	g.mu.Unlock()
	w.token <- struct{}{}
}

// close refuses newcomers and waits until nobody is inside.
func (g *gate) close() {
	g.once.Do(func() {
		g.closed.Store(true)
		for range g.slots {
			if g.free.Add(-1) < 0 {
				g.waitForSlot()
			}
		}
		for range g.slots {
			g.leave()
		}
	})
}
