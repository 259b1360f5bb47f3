package lanes

import (
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// blocker is a job that says when it has started and then waits to be let go.
type blocker struct {
	job     Job
	started chan struct{}
	release chan struct{}
	then    func(*Job) // runs after release
}

func newBlocker(then func(*Job)) *blocker {
	b := &blocker{started: make(chan struct{}), release: make(chan struct{}), then: then}
	b.job.Arg = b
	b.job.Run = func(j *Job) {
		b := j.Arg.(*blocker)
		close(b.started)
		<-b.release
		if b.then != nil {
			b.then(j)
		}
	}
	return b
}

// occupy blocks n workers of a lane with one job each.
func occupy(t *testing.T, lane Submitter, n int) []*blocker {
	t.Helper()
	var bs []*blocker
	for range n {
		b := newBlocker(nil)
		must(t, lane.Submit(&b.job))
		<-b.started
		bs = append(bs, b)
	}
	return bs
}

func releaseAll(bs []*blocker) {
	for _, b := range bs {
		close(b.release)
	}
}

// record collects the order in which jobs ran.
type record struct {
	mu  sync.Mutex
	ran []int
}

func (r *record) job(i int) *Job {
	return &Job{Run: func(*Job) { r.add(i) }}
}

func (r *record) add(i int) {
	r.mu.Lock()
	r.ran = append(r.ran, i)
	r.mu.Unlock()
}

func (r *record) list() []int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]int(nil), r.ran...)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantClosed(t *testing.T, what string, err error) {
	t.Helper()
	if err != ErrClosed {
		t.Errorf("%s: got %v, want ErrClosed", what, err)
	}
}

// closing starts lane's Close and returns when it waits for running jobs;
// the returned channel closes with it. For use inside a synctest bubble.
func closing(lane interface{ Close() }) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		lane.Close()
		close(done)
	}()
	synctest.Wait()
	return done
}

func isDone(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func panics(f func()) (value any) {
	defer func() { value = recover() }()
	f()
	return nil
}

func ms(n int) time.Duration { return time.Duration(n) * time.Millisecond }

// goexit is what t.FailNow does in a job.
func goexit() { runtime.Goexit() }

// sleep lets the bubble's clock run; outside a bubble it would be a real sleep.
func sleep(d time.Duration) { time.Sleep(d) }
