package lanes_test

import (
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"prismfs/lanes"
)

// pingJob is what a client of a lane looks like: a pooled request with the job
// inside and a token to wait for.
type pingJob struct {
	job  lanes.Job
	done chan struct{}
}

func newPing() *pingJob {
	p := &pingJob{done: make(chan struct{}, 1)}
	p.job.Arg = p
	p.job.Run = pong
	return p
}

func pong(j *lanes.Job) { j.Arg.(*pingJob).done <- struct{}{} }

// clients splits b.N over n goroutines.
func clients(b *testing.B, n int, op func(*pingJob)) {
	b.ReportAllocs()
	pings := make([]*pingJob, n)
	for i := range pings {
		pings[i] = newPing()
	}
	var wg sync.WaitGroup
	b.ResetTimer()
	before := cpuTime()
	for i := range n {
		share := b.N / n
		if i < b.N%n {
			share++
		}
		wg.Go(func() {
			for range share {
				op(pings[i])
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64(cpuTime()-before)/float64(b.N), "cpu-ns/op")
}

// cpuTime is the process's CPU time, which a busy machine blurs less than the
// wall clock.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func benchClients(b *testing.B, op func(*pingJob)) {
	for _, n := range []int{1, 8, 48} {
		b.Run(fmt.Sprintf("clients=%d", n), func(b *testing.B) { clients(b, n, op) })
	}
}

// BenchmarkSubmit measures submit to completion, a hop each way.
func BenchmarkSubmit(b *testing.B) {
	pool := lanes.NewPool("cpu", 4)
	defer pool.Close()
	blocking := lanes.NewBlocking("blocking", 4, true)
	defer blocking.Close()
	serial := lanes.NewSerial("serial")
	defer serial.Close()
	for _, l := range []struct {
		name string
		lane lanes.Submitter
	}{{"pool", pool}, {"blocking", blocking}, {"serial", serial}} {
		b.Run(l.name, func(b *testing.B) {
			benchClients(b, func(p *pingJob) {
				l.lane.Submit(&p.job)
				<-p.done
			})
		})
	}
}

// BenchmarkChannelHop is the yardstick: a channel of pooled jobs and four
// goroutines, without counters, order, drain or labels.
func BenchmarkChannelHop(b *testing.B) {
	jobs := make(chan *lanes.Job, 128)
	defer close(jobs)
	for range 4 {
		go func() {
			for j := range jobs {
				j.Run(j)
			}
		}()
	}
	benchClients(b, func(p *pingJob) {
		jobs <- &p.job
		<-p.done
	})
}

// BenchmarkSubmitChain measures a job that submits itself to its own worker.
func BenchmarkSubmitChain(b *testing.B) {
	pool := lanes.NewPool("cpu", 4)
	defer pool.Close()
	b.ReportAllocs()
	left := b.N
	done := make(chan struct{})
	j := &lanes.Job{}
	j.Run = func(j *lanes.Job) {
		if left--; left <= 0 {
			close(done)
			return
		}
		pool.SubmitIn(j.Context(), j)
	}
	b.ResetTimer()
	pool.Submit(j)
	<-done
}

func BenchmarkEnterLeave(b *testing.B) {
	lane := lanes.NewBlocking("read", 4, true)
	defer lane.Close()
	benchClients(b, func(*pingJob) {
		lane.Enter()
		lane.Leave()
	})
}

func nop(*lanes.Job) {}

func BenchmarkSerialDo(b *testing.B) {
	lane := lanes.NewSerial("write")
	defer lane.Close()
	benchClients(b, func(p *pingJob) {
		p.job.Run = nop
		lane.Do(&p.job)
	})
}
