// Package lanes decides where work runs.
//
// # Terms
//
//   - Lane: a set of workers for work of one kind. A lane exists only because it
//     isolates work that blocks (Blocking), protects an order (Serial) or keeps
//     continuations off the threads that reap completions (Pool).
//   - Job: the unit of work, owned and pooled by its user. Queueing one takes one
//     lock and allocates nothing.
//   - Enter: running on a lane without leaving one's goroutine. A Blocking lane
//     is then a gate, a free Serial lane runs the job in place. An uncontended
//     operation so pays no hop between goroutines.
//   - Outside: any goroutine that isn't one of the lane's workers.
//
// # Map
//
//	                 who                          how
//	CPU        Pool      completed reads          Submit from the ring
//	BlockingIO Blocking  requests that block      Submit from the dispatcher
//	DBRead     Blocking  gets that miss memory    Enter
//	DBWrite    Serial    the single writer        Do
//	File       Serial    order on the logs        Submit, Do
//	Compaction Blocking  flush, compaction, GC    Enter (one slot: single flight)
//
//	job.go      Job, its queue links, what happens to a panic
//	crew.go     workers, queues, stealing, parking, drain: Pool and Blocking
//	pool.go     priority, delay, affinity        gate.go    Enter and Leave
//	blocking.go                                  serial.go  combining FIFO
//	runtime.go  the process's lanes              stats.go   counters
//	op.go       handle of background work        stop.go    cooperative stop
//	periodic.go beats on a grid                  watchdog.go names what is stuck
//
// # What is promised
//
//   - Accepted work runs, exactly once. Refused work (ErrClosed) is untouched.
//   - Serial runs in the order of admission. A Pool or Blocking lane with several
//     workers promises no order between jobs; that was traded for submits that
//     share nothing, and no caller may rely on it.
//   - No job waits behind a running one while a worker of a stealing lane idles.
//     Nobody spins: an idle lane does nothing at all.
//   - A panic in a job, or runtime.Goexit, is a bug and ends the process (exit
//     code 2) with the lane, the job and its stack on standard error.
//
// # Rules for users
//
// Locks before lanes: take inode locks first, then enter a lane, then call the
// engine. A job drained on a Serial lane takes no inode lock and waits on no
// lane, for it may be run by any caller of Do. Inside a job of a Serial lane, use
// k.Run(k) instead of Do(k). Whoever is inside a Blocking lane by Enter doesn't
// Enter it again.
//
// # Who am I
//
// Go has no thread-local state, so a job carries its worker: Job.Context inside
// Run, SubmitIn to stay on that worker. Where a lane must know whether its caller
// is one of its own workers, which is only while it closes, it compares goroutine
// numbers, which takes about 2 microseconds.
//
// # Shutdown
//
// Users first, top down: requests end, then metadata, engine, logs and disk
// close, then the Runtime: Compaction, BlockingIO, DBRead, DBWrite, File, CPU,
// producers before those they submit to. Each lane drains in four stages:
//
//  1. outsiders are refused; the lane's own running jobs may still submit
//  2. delayed jobs are promoted
//  3. the workers run everything to the fixed point done == accepted
//  4. the workers are joined; a gate waits until everyone inside has left
//
// A worker that closes its own lane would wait for itself: that panics.
//
// # Why like this
//
// A queued hop costs 250 to 450 ns on busy lanes and 2 to 10 microseconds on idle
// ones, where the wake of a thread is the floor; Enter and an uncontended Do stay
// far below. Times of short jobs are sampled (one in eight), since reading the
// clock costs as much as the rest of the path.
//
// There is no admission control here, since each queue is bounded by its users'
// pooled jobs; no quarantine or scope, since no result is written to a receiver
// that may be gone; no bridge beyond Op.Wait.
package lanes
