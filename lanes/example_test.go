package lanes_test

import (
	"context"
	"fmt"
	"time"

	"prismfs/lanes"
)

// A request embeds its job, so that queueing it allocates nothing.
type request struct {
	job  lanes.Job
	key  string
	done chan struct{}
}

func runRequest(j *lanes.Job) {
	r := j.Arg.(*request)
	fmt.Println("get", r.key)
	close(r.done)
}

func ExamplePool_Submit() {
	pool := lanes.NewPool("CPU", 2)
	defer pool.Close()
	r := &request{key: "name", done: make(chan struct{})}
	r.job.Run, r.job.Arg = runRequest, r
	if err := pool.Submit(&r.job); err != nil {
		fmt.Println(err)
		return
	}
	<-r.done
	// Output: get name
}

// Inside a job, its Context keeps what follows on the same worker.
func ExamplePool_SubmitIn() {
	pool := lanes.NewPool("CPU", 2)
	pool.Submit(&lanes.Job{Run: func(j *lanes.Job) {
		fmt.Println("verify")
		pool.SubmitIn(j.Context(), &lanes.Job{Run: func(*lanes.Job) { fmt.Println("reply") }})
	}})
	pool.Close()
	// Output:
	// verify
	// reply
}

// A caller that may block runs on its own goroutine, bounded by the lane.
func ExampleBlocking_Enter() {
	read := lanes.NewBlocking("DBRead", 4, true)
	defer read.Close()
	if err := read.Enter(); err != nil {
		fmt.Println(err)
		return
	}
	defer read.Leave()
	fmt.Println("reading; inside:", read.Stats().Inside)
	// Output: reading; inside: 1
}

// The single writer is whoever comes first; nothing needs a lock.
func ExampleSerial_Do() {
	write := lanes.NewSerial("DBWrite")
	sequence := 0
	for range 3 {
		write.Do(&lanes.Job{Run: func(*lanes.Job) { sequence++ }})
	}
	write.Close()
	fmt.Println(sequence, write.Do(&lanes.Job{Run: func(*lanes.Job) {}}))
	// Output: 3 lanes: closed
}

// A control command hands its work to a lane and keeps the handle.
func ExampleStartOp() {
	lane := lanes.NewBlocking("BlockingIO", 4, true)
	defer lane.Close()
	op, err := lanes.StartOp(lane, "scrub", lanes.StopToken{}, nil, func(o *lanes.Op) error {
		for i := uint64(1); i <= 3; i++ {
			if err := o.Stop().Err(); err != nil {
				return err
			}
			o.SetProgress(i, 3)
		}
		return nil
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	err = op.Wait(ctx)
	state, _, _ := op.Status()
	done, total := op.Progress()
	fmt.Println(op.Name(), state, err, done, "of", total)
	// Output: scrub succeeded <nil> 3 of 3
}
