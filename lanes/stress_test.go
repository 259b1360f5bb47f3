package lanes

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Mixed loads, a few hundred milliseconds each. The seed goes to the log; the
// schedule is the machine's, so these back up the deterministic tests above.

func seeded(t *testing.T) *rand.Rand {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// drive runs op n times on each of eight goroutines.
func drive(t *testing.T, n int, op func(rng *rand.Rand)) {
	root := seeded(t)
	var wg sync.WaitGroup
	for range 8 {
		rng := rand.New(rand.NewPCG(root.Uint64(), 1))
		wg.Go(func() {
			for range n {
				op(rng)
			}
		})
	}
	wg.Wait()
}

func TestStressPool(t *testing.T) {
	p := NewPool("p", 4)
	var accepted, ran atomic.Int64
	var work func(*Job)
	work = func(j *Job) {
		ran.Add(1)
		if depth := j.Arg.(int); depth > 0 {
			for range 2 {
				accepted.Add(1)
				if err := p.SubmitIn(j.Context(), &Job{Run: work, Arg: depth - 1}); err != nil {
					t.Error(err)
				}
			}
		}
	}
	drive(t, 300, func(rng *rand.Rand) {
		j := &Job{Run: work, Arg: rng.IntN(4)}
		var err error
		switch rng.IntN(4) {
		case 0:
			err = p.Submit(j)
		case 1:
			err = p.SubmitPriority(j, rng.IntN(5))
		case 2:
			err = p.SubmitAfter(time.Duration(rng.IntN(2000))*time.Microsecond, j)
		case 3:
			err = p.SubmitIn(Context{p.c.workers[rng.IntN(4)]}, j)
		}
		if err != nil {
			t.Error(err)
		}
		accepted.Add(1)
	})
	p.Close()
	checkCrew(t, p.c)
	if a, r := accepted.Load(), ran.Load(); a != r {
		t.Errorf("%d accepted, %d ran", a, r)
	}
	if s := p.Stats(); s.Completed != uint64(ran.Load()) || s.Fast+s.Affine+s.Fallback != s.Completed || s.Depth != 0 {
		t.Errorf("%+v", s)
	}
}

func TestStressBlocking(t *testing.T) {
	b := NewBlocking("b", 4, true)
	var inside, running, entered, ran atomic.Int64
	bound := func(n *atomic.Int64) {
		if n.Add(1) > 4 {
			t.Error("more than four at once")
		}
		n.Add(-1)
	}
	drive(t, 2000, func(rng *rand.Rand) {
		switch rng.IntN(4) {
		case 0:
			must(t, b.Go(func() { bound(&running); ran.Add(1) }))
		case 1:
			if b.TryEnter() {
				bound(&inside)
				entered.Add(1)
				b.Leave()
			}
		default:
			must(t, b.Enter())
			bound(&inside)
			entered.Add(1)
			b.Leave()
		}
	})
	b.Close()
	if s := b.Stats(); s.Completed != uint64(ran.Load()) || s.Entered != uint64(entered.Load()) || s.Inside != 0 || s.Waiting != 0 {
		t.Errorf("%+v; ran %d, entered %d", s, ran.Load(), entered.Load())
	}
}

func TestStressSerial(t *testing.T) {
	s := NewSerial("s")
	plain := 0 // guarded by the lane: the race detector is the judge
	var want atomic.Int64
	count := func(*Job) { plain++ }
	drive(t, 2000, func(rng *rand.Rand) {
		j := &Job{Run: count}
		switch rng.IntN(4) {
		case 0:
			must(t, s.Submit(j))
			want.Add(1)
		case 1:
			if s.TryDo(j) {
				want.Add(1)
			}
		default:
			must(t, s.Do(j))
			want.Add(1)
		}
	})
	s.Close()
	if int64(plain) != want.Load() {
		t.Errorf("%d jobs ran, want %d", plain, want.Load())
	}
}

// TestStressClose lets submitters run into Close: each job either ran or was
// refused.
func TestStressClose(t *testing.T) {
	for range 30 {
		p, b, s := NewPool("p", 4), NewBlocking("b", 4, true), NewSerial("s")
		var accepted, ran atomic.Int64
		run := func(*Job) { ran.Add(1) }
		var wg sync.WaitGroup
		begin := make(chan struct{})
		for i := range 8 {
			wg.Go(func() {
				<-begin
				for n := 0; ; n++ {
					var err error
					switch j := (&Job{Run: run}); (i + n) % 6 {
					case 0:
						err = p.Submit(j)
					case 1:
						err = p.SubmitPriority(j, n%3)
					case 2:
						err = p.SubmitAfter(time.Duration(n), j)
					case 3:
						err = b.Submit(j)
					case 4:
						err = s.Submit(j)
					case 5:
						err = s.Do(j)
					}
					if err != nil {
						if err != ErrClosed {
							t.Error(err)
						}
						return
					}
					accepted.Add(1)
					if err := b.Enter(); err == nil {
						b.Leave()
					}
				}
			})
		}
		close(begin)
		wg.Go(p.Close)
		wg.Go(b.Close)
		wg.Go(s.Close)
		wg.Wait()
		if a, r := accepted.Load(), ran.Load(); a != r {
			t.Fatalf("%d accepted, %d ran", a, r)
		}
	}
}

// TestStressGateHandover makes a one-slot gate change hands as often as it can.
func TestStressGateHandover(t *testing.T) {
	b := NewBlocking("b", 1, false)
	plain := 0
	drive(t, 3000, func(*rand.Rand) {
		must(t, b.Enter())
		plain++
		b.Leave()
	})
	b.Close()
	if plain != 24000 {
		t.Errorf("%d", plain)
	}
}

// TestStressRuntime sends each operation over several lanes, as the file
// system does: a blocking lane enters DBRead, then commits on DBWrite, then a
// continuation runs on CPU.
func TestStressRuntime(t *testing.T) {
	rt := NewRuntime(Config{})
	commits := 0
	drive(t, 200, func(rng *rand.Rand) {
		done := make(chan struct{})
		must(t, rt.BlockingIO.Go(func() {
			must(t, rt.DBRead.Enter())
			rt.DBRead.Leave()
			must(t, rt.DBWrite.Do(&Job{Run: func(*Job) {
				commits++
				must(t, rt.File.Go(func() {}))
			}}))
			must(t, rt.CPU.Go(func() { close(done) }))
		}))
		if rng.IntN(16) == 0 {
			must(t, rt.Compaction.Go(func() {}))
		}
		<-done
	})
	rt.Close()
	if commits != 1600 {
		t.Errorf("%d commits", commits)
	}
	for _, s := range rt.Stats() {
		if s.Depth != 0 || s.Running != 0 || s.Inside != 0 {
			t.Errorf("%+v", s)
		}
	}
}
