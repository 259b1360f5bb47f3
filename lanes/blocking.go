package lanes

// Blocking isolates work that may block: the disk, a lock. It can be used in
// two ways, each bounded by its number of workers on its own: jobs queued with
// Submit run on its workers, and callers that Enter run their own code on
// their own goroutine, accounted to the lane.
//
//   - Order: none with more than one worker. With one, jobs run one at a time in
//     the order of submission, and callers are inside one at a time; a job that
//     must not run beside those callers Enters too.
//   - Concurrency: every method is safe for concurrent use. A job of the lane
//     may Enter it. Whoever is inside by Enter must not Enter the same lane
//     again: with all slots taken that way it would wait for itself.
//   - Shutdown, errors: as Pool.
type Blocking struct {
	c *crew
	g gate
}

// NewBlocking starts a lane of 1 to 64 workers. steal lets an idle worker take
// jobs that wait behind a blocked one.
func NewBlocking(name string, workers int, steal bool) *Blocking {
	b := &Blocking{c: newCrew(name, workers, steal, sampleAll, nil)}
	b.g.init(len(b.c.workers))
	return b
}

// Workers is how many jobs the lane runs at a time.
func (b *Blocking) Workers() int { return len(b.c.workers) }

// Submit queues j to a worker, an idle one first.
func (b *Blocking) Submit(j *Job) error { return b.c.submit(b.c.pick(), j, submitFast) }

// Go runs f on the lane. It allocates; for cold callers.
func (b *Blocking) Go(f func()) error { return b.Submit(&Job{Run: goFunc, Arg: f}) }

// Enter takes a slot of the lane for the calling goroutine, waiting while all
// are taken: first come first served, but a newcomer may take a slot that was
// just given back, at most once ahead of the same waiter. On success the caller
// owes a Leave.
func (b *Blocking) Enter() error { return b.g.enter() }

// TryEnter takes a slot if one is free right now.
func (b *Blocking) TryEnter() bool { return b.g.tryEnter() }

// Leave gives the slot back.
func (b *Blocking) Leave() { b.g.leave() }

// Close refuses new work, waits until everyone inside has left and every
// accepted job has run. It panics when called from one of the lane's workers;
// whoever is inside by Enter must leave first.
func (b *Blocking) Close() {
	b.c.close()
	b.g.close()
}
