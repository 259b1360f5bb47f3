package lanes

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// Every sleep in this file is in a synctest bubble and takes no time.

// logged collects log lines.
type logged struct {
	mu    sync.Mutex
	lines []string
}

func (l *logged) f(format string, args ...any) {
	l.mu.Lock()
	l.lines = append(l.lines, fmt.Sprintf(format, args...))
	l.mu.Unlock()
}

func (l *logged) all() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.lines, "\n")
}

func TestStop(t *testing.T) {
	root := NewStopSource(StopToken{})
	child := NewStopSource(root.Token())
	grandchild := NewStopSource(child.Token())
	sibling := NewStopSource(root.Token())

	if (StopToken{}).Stopped() || grandchild.Token().Err() != nil {
		t.Error("stopped before anyone stopped")
	}
	child.Stop()
	child.Stop()
	if !grandchild.Token().Stopped() || !errors.Is(child.Token().Err(), ErrStopped) {
		t.Error("descendants don't see the stop")
	}
	if root.Token().Stopped() || sibling.Token().Stopped() {
		t.Error("a stop spread upwards or sideways")
	}
	root.Stop()
	if !sibling.Token().Stopped() {
		t.Error("the root's stop doesn't reach everyone")
	}
}

func TestOp(t *testing.T) {
	errDisk := errors.New("disk on fire")

	bubble("success", t, func(t *testing.T) {
		b := NewBlocking("b", 1, false)
		defer b.Close()
		goOn := make(chan struct{})
		o, err := StartOp(b, "scrub", StopToken{}, t.Errorf, func(o *Op) error {
			o.SetProgress(3, 10)
			<-goOn
			time.Sleep(time.Second)
			return nil
		})
		must(t, err)
		synctest.Wait()
		if s, _, err := o.Status(); s != OpRunning || err != nil {
			t.Errorf("%v, %v", s, err)
		}
		if d, n := o.Progress(); d != 3 || n != 10 {
			t.Errorf("progress %d of %d", d, n)
		}
		close(goOn)
		must(t, o.Wait(t.Context()))
		must(t, o.Wait(t.Context()))
		if s, took, err := o.Status(); s != OpSucceeded || err != nil || took != time.Second {
			t.Errorf("%v, %v, %v", s, err, took)
		}
		o.Cancel() // too late: nothing changes
		if s, _, _ := o.Status(); s != OpSucceeded || o.Name() != "scrub" {
			t.Errorf("%s: %v", o.Name(), s)
		}
	})

	bubble("failure that nobody waits for is logged", t, func(t *testing.T) {
		b := NewBlocking("b", 1, false)
		var l logged
		o, err := StartOp(b, "gc", StopToken{}, l.f, func(*Op) error { return errDisk })
		must(t, err)
		b.Close()
		if s, _, err := o.Status(); s != OpFailed || err != errDisk {
			t.Errorf("%v, %v", s, err)
		}
		if got := l.all(); got != "gc failed after 0s: disk on fire" {
			t.Errorf("log %q", got)
		}
	})

	bubble("failure that somebody waits for isn't", t, func(t *testing.T) {
		b := NewBlocking("b", 1, false)
		defer b.Close()
		bs := occupy(t, b, 1)
		o, err := StartOp(b, "gc", StopToken{}, t.Errorf, func(*Op) error { return errDisk })
		must(t, err)
		got := make(chan error)
		go func() { got <- o.Wait(t.Context()) }()
		synctest.Wait()
		releaseAll(bs)
		if err := <-got; err != errDisk {
			t.Errorf("Wait: %v", err)
		}
	})

	bubble("canceled before its start it does not run", t, func(t *testing.T) {
		b := NewBlocking("b", 1, false)
		bs := occupy(t, b, 1)
		o, err := StartOp(b, "gc", StopToken{}, t.Errorf, func(*Op) error { t.Error("ran"); return nil })
		must(t, err)
		o.Cancel()
		releaseAll(bs)
		<-o.Done()
		if s, _, err := o.Status(); s != OpCanceled || err != ErrStopped {
			t.Errorf("%v, %v", s, err)
		}
		b.Close()
	})

	for name, cancel := range map[string]func(*Op, *StopSource){
		"itself":      func(o *Op, _ *StopSource) { o.Cancel() },
		"by a parent": func(_ *Op, s *StopSource) { s.Stop() },
	} {
		bubble("canceled "+name, t, func(t *testing.T) {
			b := NewBlocking("b", 1, false)
			parent := NewStopSource(StopToken{})
			o, err := StartOp(b, "gc", parent.Token(), t.Errorf, func(o *Op) error {
				for o.Stop().Err() == nil {
					time.Sleep(time.Second)
				}
				return fmt.Errorf("segment 7: %w", o.Stop().Err())
			})
			must(t, err)
			synctest.Wait()
			cancel(o, parent)
			b.Close()
			if s, _, err := o.Status(); s != OpCanceled || !errors.Is(err, ErrStopped) {
				t.Errorf("%v, %v", s, err)
			}
		})
	}

	bubble("a failure after a cancel stays a failure", t, func(t *testing.T) {
		b := NewBlocking("b", 1, false)
		var l logged
		o, err := StartOp(b, "gc", StopToken{}, l.f, func(o *Op) error { o.Cancel(); return errDisk })
		must(t, err)
		b.Close()
		if s, _, _ := o.Status(); s != OpFailed || l.all() == "" {
			t.Errorf("%v, log %q", s, l.all())
		}
	})

	bubble("Wait is bounded", t, func(t *testing.T) {
		b := NewBlocking("b", 1, false)
		bs := occupy(t, b, 1)
		o, err := StartOp(b, "gc", StopToken{}, t.Errorf, func(*Op) error { return nil })
		must(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := o.Wait(ctx); err != context.DeadlineExceeded {
			t.Errorf("Wait: %v", err)
		}
		if s, age, _ := o.Status(); s != OpRunning || age != time.Minute {
			t.Errorf("%v, %v", s, age)
		}
		releaseAll(bs)
		b.Close()
	})

	bubble("not accepted, no handle", t, func(t *testing.T) {
		b := NewBlocking("b", 1, false)
		b.Close()
		o, err := StartOp(b, "gc", StopToken{}, t.Errorf, func(*Op) error { return nil })
		if o != nil || !errors.Is(err, ErrClosed) {
			t.Errorf("%v, %v", o, err)
		}
	})

	bubble("a job does not wait for its own lane", t, func(t *testing.T) {
		for _, lane := range []interface {
			Submitter
			Go(func()) error
			Close()
		}{NewPool("p", 1), NewBlocking("b", 1, false), NewSerial("s")} {
			must(t, lane.Go(func() {
				o, err := StartOp(lane, "inner", StopToken{}, t.Errorf, func(*Op) error { return nil })
				must(t, err)
				if err := o.Wait(t.Context()); err != ErrOwnLane {
					t.Errorf("%T: Wait: %v", lane, err)
				}
			}))
			lane.Close()
		}
	})

	for s, want := range map[OpState]string{OpRunning: "running", OpSucceeded: "succeeded", OpFailed: "failed", OpCanceled: "canceled"} {
		if s.String() != want {
			t.Errorf("%d: %s", s, s)
		}
	}
}

func TestPeriodic(t *testing.T) {
	bubble("beats at its period", t, func(t *testing.T) {
		b := NewBlocking("b", 1, false)
		start := time.Now()
		var at []time.Duration
		p := StartPeriodic(b, time.Second, 0, func(x Beat) {
			at = append(at, time.Since(start))
			if x.Skipped != 0 || x.Left() != time.Second || time.Since(x.Due) != 0 {
				t.Errorf("beat %+v", x)
			}
		})
		time.Sleep(3500 * time.Millisecond)
		p.Close()
		p.Close()
		time.Sleep(10 * time.Second)
		b.Close()
		if fmt.Sprint(at) != "[1s 2s 3s]" {
			t.Errorf("beats at %v", at)
		}
		if s := p.Stats(); s.Beats != 3 || s.Skipped != 0 || s.Over != 0 {
			t.Errorf("%+v", s)
		}
	})

	bubble("skips what it missed and keeps the grid", t, func(t *testing.T) {
		b := NewBlocking("b", 1, false)
		start := time.Now()
		var at, skipped []string
		p := StartPeriodic(b, time.Second, 100*time.Millisecond, func(x Beat) {
			at = append(at, time.Since(start).String())
			skipped = append(skipped, fmt.Sprint(x.Skipped))
			if len(at) == 1 {
				time.Sleep(3200 * time.Millisecond) // until 4.2 s: misses 2, 3 and 4
				if x.Left() > 0 {
					t.Error("budget left after 3.2 s")
				}
			}
		})
		time.Sleep(6500 * time.Millisecond)
		p.Close()
		b.Close()
		if got := strings.Join(at, " "); got != "1s 5s 6s" {
			t.Errorf("beats at %s", got)
		}
		if got := strings.Join(skipped, " "); got != "0 3 0" {
			t.Errorf("skipped %s", got)
		}
		if s := p.Stats(); s.Beats != 3 || s.Skipped != 3 || s.Over != 1 || s.Longest != 3200*time.Millisecond {
			t.Errorf("%+v", s)
		}
	})

	bubble("Close waits for the running beat", t, func(t *testing.T) {
		b := NewBlocking("b", 1, false)
		defer b.Close()
		goOn := make(chan struct{})
		p := StartPeriodic(b, time.Second, 0, func(Beat) { <-goOn })
		time.Sleep(1100 * time.Millisecond)
		first, second := closing(p), closing(p)
		if isDone(first) || isDone(second) {
			t.Error("Close returned during a beat")
		}
		close(goOn)
		<-first
		<-second
	})

	bubble("closed while its beat is queued", t, func(t *testing.T) {
		b := NewBlocking("b", 1, false)
		bs := occupy(t, b, 1)
		p := StartPeriodic(b, time.Second, 0, func(Beat) { t.Error("beat after Close") })
		time.Sleep(1100 * time.Millisecond)
		done := closing(p)
		releaseAll(bs)
		<-done
		b.Close()
	})

	bubble("closed from its own beat", t, func(t *testing.T) {
		b := NewBlocking("b", 1, false)
		self := make(chan *Periodic, 1)
		var v any
		p := StartPeriodic(b, time.Second, 0, func(Beat) { v = panics((<-self).Close) })
		self <- p
		time.Sleep(1100 * time.Millisecond)
		p.Close()
		b.Close()
		if v == nil {
			t.Error("no panic")
		}
	})

	bubble("a closed lane ends it", t, func(t *testing.T) {
		b := NewBlocking("b", 1, false)
		n := 0
		p := StartPeriodic(b, time.Second, 0, func(Beat) { n++ })
		time.Sleep(1100 * time.Millisecond)
		b.Close()
		time.Sleep(5 * time.Second)
		p.Close()
		if n != 1 {
			t.Errorf("%d beats", n)
		}
	})

	if panics(func() { StartPeriodic(nil, 0, 0, nil) }) == nil {
		t.Error("period 0 accepted")
	}
}

func stuckJob(j *Job) { <-j.Arg.(chan struct{}) }

func TestWatchdog(t *testing.T) {
	bubble("names what is stuck, once, and when it moves again", t, func(t *testing.T) {
		rt := NewRuntime(Config{})
		var l logged
		w := StartWatchdog(rt, 4*time.Second, l.f)
		release := make(chan struct{})
		must(t, rt.CPU.Submit(&Job{Run: stuckJob, Arg: release}))
		must(t, rt.DBWrite.Submit(&Job{Run: stuckJob, Arg: release}))
		must(t, rt.DBWrite.Submit(&Job{Run: func(*Job) {}}))
		must(t, rt.DBRead.Enter())

		time.Sleep(4500 * time.Millisecond)
		if got := l.all(); got != "" {
			t.Errorf("too early: %s", got)
		}
		time.Sleep(20 * time.Second)
		got := l.all()
		for _, want := range []string{
			"lane CPU: worker ", "in job prismfs/lanes.stuckJob, 0 behind it, for at least 4s",
			"lane DBWrite: in job prismfs/lanes.stuckJob, 1 behind it, for at least 4s",
			"lane DBRead: nobody of 1 inside has left, 0 wait, for at least 4s",
		} {
			if strings.Count(got, want) != 1 {
				t.Errorf("want once %q in\n%s", want, got)
			}
		}
		close(release)
		rt.DBRead.Leave()
		time.Sleep(2 * time.Second)
		if got := l.all(); strings.Count(got, "moves again after at least 2") != 3 {
			t.Errorf("log\n%s", got)
		}
		w.Close()
		w.Close()
		rt.Close()
	})

	bubble("is silent about many short jobs", t, func(t *testing.T) {
		rt := NewRuntime(Config{})
		w := StartWatchdog(rt, time.Second, t.Errorf)
		for range 50 {
			must(t, rt.CPU.Go(func() { time.Sleep(200 * time.Millisecond) }))
			must(t, rt.File.Go(func() { time.Sleep(200 * time.Millisecond) }))
			must(t, rt.BlockingIO.Enter())
			time.Sleep(100 * time.Millisecond)
			rt.BlockingIO.Leave()
		}
		w.Close()
		rt.Close()
	})
}
