package lanes

import (
	"fmt"
	"os"
	"reflect"
	"runtime"
	"runtime/debug"
)

// Job is the unit of work. Its owner embeds or pools it, sets Run (a static
// function, so that nothing is allocated) and Arg, and submits it to one lane.
//
//   - Ownership: from an accepted Submit until Run is called the Job is the
//     lane's and must stay untouched. From the call of Run on it is the owner's
//     again, so Run may free it or submit it anew.
//   - Errors: a panic or runtime.Goexit in Run is a bug of the caller and ends
//     the process; see Pool.
type Job struct {
	Run func(*Job)
	Arg any

	next, prev *Job    // links of the queue that holds the job
	at         int64   // sampled enqueue time (now), 0 when not sampled; deadline while delayed
	seq        uint64  // order among equals in the priority and delay heaps
	on         *worker // the worker that called Run, for Context
	wait       *waiter // Serial.Do: whom to wake after Run
	prio       int32
	queued     bool // in some queue, to catch a double submit
	stolen     bool // moved by a thief since it was queued
}

// Submitter is a lane that takes jobs: Pool, Blocking and Serial.
type Submitter interface {
	// Submit hands j over. ErrClosed when the lane is closing and the caller
	// isn't one of its own jobs; j is then still the caller's.
	Submit(j *Job) error
}

// Context names the worker that is running a job. It knows its pool: used with
// another one it is recognised and the job takes the ordinary path.
type Context struct{ w *worker }

// Context returns where j is running. It is meaningful only inside j.Run, and
// the zero Context when j runs on a Serial lane or nowhere.
func (j *Job) Context() Context { return Context{j.on} }

// enqueued marks j as owned by a queue.
func (j *Job) enqueued() {
	if j.queued {
		panic("lanes: job submitted while it is still queued: " + funcName(j.Run))
	}
	if j.Run == nil {
		panic("lanes: job without Run")
	}
	j.queued = true
	j.stolen = false
}

// goFunc is the Run of jobs made by Go.
func goFunc(j *Job) { j.Arg.(func())() }

// call runs j on a lane. A panic is reported with the lane and job and then
// continues on its goroutine; since the lane's state is undefined from there
// on, nobody may recover it. Goexit would kill a worker silently, so it is
// turned into a panic.
func call(lane string, j *Job) {
	run := j.Run
	ok := false
	defer func() {
		if !ok {
			fatal(lane, run, recover())
		}
	}()
	run(j)
	ok = true
}

func fatal(lane string, run func(*Job), value any) {
	if value == nil {
		value = "runtime.Goexit in a job"
	}
	fmt.Fprintf(os.Stderr, "lanes: lane %s: job %s failed: %v\n%s\n", lane, funcName(run), value, debug.Stack())
	panic(value)
}

// funcName labels a job by its function: it costs nothing until someone asks.
func funcName(run func(*Job)) string {
	if run == nil {
		return "<none>"
	}
	f := runtime.FuncForPC(reflect.ValueOf(run).Pointer())
	if f == nil {
		return "<unknown>"
	}
	return f.Name()
}

// list is an intrusive FIFO queue.
type list struct {
	head, tail *Job
	n          int
}

func (l *list) pushBack(j *Job) {
	j.next, j.prev = nil, l.tail
	if l.tail == nil {
		l.head = j
	} else {
		l.tail.next = j
	}
	l.tail = j
	l.n++
}

func (l *list) popFront() *Job {
	j := l.head
	if j == nil {
		return nil
	}
	l.head = j.next
	if l.head == nil {
		l.tail = nil
	} else {
		l.head.prev = nil
	}
	j.next, j.prev = nil, nil
	l.n--
	j.queued = false
	return j
}

// stealTail cuts the last k jobs off l and puts them, in their order, before
// dst's first. 1 <= k <= l.n.
func (l *list) stealTail(dst *list, k int) {
	first := l.tail
	first.stolen = true
	for i := 1; i < k; i++ {
		first = first.prev
		first.stolen = true
	}
	last := l.tail
	l.tail = first.prev
	if l.tail == nil {
		l.head = nil
	} else {
		l.tail.next = nil
	}
	l.n -= k

	first.prev = nil
	last.next = dst.head
	if dst.head == nil {
		dst.tail = last
	} else {
		dst.head.prev = last
	}
	dst.head = first
	dst.n += k
}
