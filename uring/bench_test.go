package uring_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"prismfs/lanes"
	"prismfs/uring"
)

const benchBlock = 4096

// BenchmarkRead compares the routes of random 4 KiB reads: ReadAsync over the
// ring and over the BlockingIO lane, the next read started by the Done of the
// last, and blocking preads on as many goroutines. Cold reads use O_DIRECT; busy
// are cold ones beside a CPU-bound goroutine per core. Run it with -cpu 8: with
// GOMAXPROCS at the cores a busy process serves completions every 10 ms only.
func BenchmarkRead(b *testing.B) {
	dir := b.TempDir()
	if d := os.Getenv("PRISMFS_BENCH_DIR"); d != "" {
		dir = d
	}
	const size = 1 << 30
	path := filepath.Join(dir, "bench")
	if st, err := os.Stat(path); err != nil || st.Size() != size {
		f, err := os.Create(path)
		if err != nil {
			b.Fatal(err)
		}
		buf := make([]byte, 1<<20)
		for i := range buf {
			buf[i] = byte(i * 7)
		}
		for off := 0; off < size; off += len(buf) {
			if _, err := f.Write(buf); err != nil {
				b.Fatal(err)
			}
		}
		f.Sync()
		f.Close()
	}
	for _, temp := range []string{"warm", "cold", "busy"} {
		for _, depth := range []int{1, 8, 64} {
			for _, route := range []string{"ring", "lane", "pread", "nowait"} {
				if route == "nowait" && temp != "warm" {
					continue
				}
				b.Run(fmt.Sprintf("%s/depth=%d/%s", temp, depth, route), func(b *testing.B) {
					benchReads(b, dir, temp, depth, route)
				})
			}
		}
	}
}

func benchReads(b *testing.B, dir, temp string, depth int, route string) {
	rt := lanes.NewRuntime(lanes.Config{})
	defer rt.Close()
	mode := uring.Pread
	if route == "ring" {
		mode = uring.RingOnly
	}
	d, err := uring.Open(dir, uring.Options{Mode: mode, Lanes: rt})
	if err != nil {
		b.Skip(err)
	}
	defer d.Close()
	open := d.Open
	limit := int64(64 << 20)
	if temp != "warm" {
		open = func(name string) (uring.File, error) { return uring.OpenDirect(d, name) }
		limit = 1 << 30
	}
	f, err := open("bench")
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	slab, err := uring.Alloc(depth * benchBlock)
	if err != nil {
		b.Fatal(err)
	}
	defer uring.Free(slab)
	if temp == "warm" {
		p := make([]byte, limit)
		f.ReadAt(p, 0)
	}
	var left atomic.Int64
	left.Store(int64(b.N))
	times := make([][]time.Duration, depth)
	var wg sync.WaitGroup
	if temp == "busy" {
		var stop atomic.Bool
		defer stop.Store(true)
		for range runtime.NumCPU() {
			go func() {
				for !stop.Load() {
				}
			}()
		}
	}
	b.ResetTimer()
	for i := range depth {
		wg.Add(1)
		rng := rand.New(rand.NewPCG(uint64(i), 1))
		next := func() int64 { return rng.Int64N(limit/benchBlock) * benchBlock }
		p := slab[i*benchBlock:][:benchBlock]
		if route == "pread" || route == "nowait" {
			go func() {
				defer wg.Done()
				for left.Add(-1) >= 0 {
					t := time.Now()
					var err error
					if route == "pread" {
						_, err = f.ReadAt(p, next())
					} else {
						_, err = f.ReadAtNoWait(p, next())
					}
					if err != nil {
						b.Error(err)
						return
					}
					times[i] = append(times[i], time.Since(t))
				}
			}()
			continue
		}
		r := &uring.Read{P: p, Done: &lanes.Job{}}
		var t time.Time
		start := func() {
			if left.Add(-1) < 0 {
				wg.Done()
				return
			}
			t = time.Now()
			r.Off = next()
			if err := f.ReadAsync(r); err != nil {
				b.Error(err)
				wg.Done()
			}
		}
		r.Done.Run = func(*lanes.Job) {
			times[i] = append(times[i], time.Since(t))
			if r.Err != nil {
				b.Error(r.Err)
				wg.Done()
				return
			}
			start()
		}
		start()
	}
	wg.Wait()
	b.StopTimer()
	all := slices.Concat(times...)
	slices.Sort(all)
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "reads/s")
	b.ReportMetric(float64(all[len(all)/2])/1e3, "p50-us")
	b.ReportMetric(float64(all[len(all)*99/100])/1e3, "p99-us")
}
