package ordered_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"prismfs/ordered"
	"prismfs/uring"
)

// benchDisk is a directory beside the sources, for /tmp may be in memory. It
// is removed afterwards.
func benchDisk(b *testing.B) uring.Disk {
	dir, err := os.MkdirTemp(".", "bench-")
	if err != nil {
		b.Fatal(err)
	}
	disk, err := uring.Open(dir, uring.Options{Mode: uring.Pread})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		disk.Close()
		os.RemoveAll(dir)
	})
	return disk
}

func BenchmarkLogAppend200(b *testing.B) {
	l, err := ordered.CreateLog(ordered.LogOptions{Disk: benchDisk(b), Name: "1.log", Number: 1, Preallocate: 64 << 20})
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	rec := randomBytes(rand.New(rand.NewPCG(1, 2)), 200)
	b.SetBytes(200)
	b.ReportAllocs()
	for i := 0; i < b.N; i++ {
		// The kernel's part is left out: the flusher comes later than this.
		if l.Buffered() > 200<<10 {
			b.StopTimer()
			if err := l.Flush(); err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
		}
		if _, err := l.Append(rec); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkLogSync: appends under a mutex as the write lane does, one sync for
// each record. A recycled log has overwritten its file once before.
func BenchmarkLogSync(b *testing.B) {
	for _, recycled := range []bool{false, true} {
		for _, writers := range []int{1, 16, 64} {
			b.Run(fmt.Sprintf("recycled=%v/writers=%d", recycled, writers), func(b *testing.B) {
				disk := benchDisk(b)
				o := ordered.LogOptions{Disk: disk, Name: "1.log", Number: 1, Preallocate: 32 << 20}
				l, err := ordered.CreateLog(o)
				if err != nil {
					b.Fatal(err)
				}
				rec := randomBytes(rand.New(rand.NewPCG(1, 2)), 200)
				if recycled {
					for l.Size() < 31<<20 {
						l.Append(rec)
					}
					if err := l.Close(); err != nil {
						b.Fatal(err)
					}
					o.Name, o.Number, o.Recycle = "2.log", 2, "1.log"
					if l, err = ordered.CreateLog(o); err != nil {
						b.Fatal(err)
					}
				}
				defer l.Close()
				var mu sync.Mutex
				var left atomic.Int64
				left.Store(int64(b.N))
				var wg sync.WaitGroup
				b.ResetTimer()
				for range writers {
					wg.Go(func() {
						for left.Add(-1) >= 0 {
							mu.Lock()
							end, err := l.Append(rec)
							mu.Unlock()
							if err == nil {
								err = l.Sync(end)
							}
							if err != nil {
								b.Error(err)
								return
							}
						}
					})
				}
				wg.Wait()
				b.ReportMetric(float64(b.N)/float64(l.Syncs()), "records/sync")
			})
		}
	}
}

// BenchmarkRawSync is the floor of BenchmarkLogSync: a small pwrite and an
// fdatasync, over bytes written before or only allocated.
func BenchmarkRawSync(b *testing.B) {
	for _, written := range []bool{false, true} {
		b.Run(fmt.Sprintf("written=%v", written), func(b *testing.B) {
			f, err := benchDisk(b).Create("raw")
			if err != nil {
				b.Fatal(err)
			}
			defer f.Close()
			const size = 32 << 20
			if err := f.Allocate(0, size, false); err != nil {
				b.Fatal(err)
			}
			if written {
				if _, err := f.WriteAt(make([]byte, size), 0); err != nil {
					b.Fatal(err)
				}
			}
			if err := f.Sync(); err != nil {
				b.Fatal(err)
			}
			rec := make([]byte, 211)
			off := int64(0)
			for b.Loop() {
				if _, err := f.WriteAt(rec, off%(size-4096)); err != nil {
					b.Fatal(err)
				}
				if err := f.Datasync(); err != nil {
					b.Fatal(err)
				}
				off += int64(len(rec))
			}
		})
	}
}

// BenchmarkDataLogAppendMemory leaves the disk out: bursts that fit into the
// tail, synced with the clock stopped.
func BenchmarkDataLogAppendMemory(b *testing.B) {
	for _, size := range []int{4 << 10, 128 << 10} {
		b.Run(fmt.Sprintf("%dKiB", size>>10), func(b *testing.B) {
			d, err := ordered.OpenDataLog(ordered.DataLogOptions{Disk: benchDisk(b), FlushDelay: time.Hour})
			if err != nil {
				b.Fatal(err)
			}
			defer d.Close()
			payload := randomBytes(rand.New(rand.NewPCG(1, 2)), size)
			b.SetBytes(int64(size))
			b.ReportAllocs()
			burst := 0
			for i := 0; i < b.N; i++ {
				if burst += size; burst > 6<<20 {
					b.StopTimer()
					if _, err := d.Sync(); err != nil {
						b.Fatal(err)
					}
					burst = 0
					b.StartTimer()
				}
				if _, _, err := d.Append(1, 0, payload, false); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkDataLogAppend(b *testing.B) {
	for _, size := range []int{4 << 10, 128 << 10} {
		for _, writers := range []int{1, 4} {
			b.Run(fmt.Sprintf("%dKiB/writers=%d", size>>10, writers), func(b *testing.B) {
				d, err := ordered.OpenDataLog(ordered.DataLogOptions{Disk: benchDisk(b), MaxUndurable: 256 << 20})
				if err != nil {
					b.Fatal(err)
				}
				defer d.Close()
				payload := randomBytes(rand.New(rand.NewPCG(1, 2)), size)
				b.SetBytes(int64(size))
				b.ReportAllocs()
				var left atomic.Int64
				left.Store(int64(b.N))
				var wg sync.WaitGroup
				b.ResetTimer()
				for range writers {
					wg.Go(func() {
						for left.Add(-1) >= 0 {
							if _, _, err := d.Append(1, 0, payload, false); err != nil {
								b.Error(err)
								return
							}
						}
					})
				}
				wg.Wait()
			})
		}
	}
}

func BenchmarkDataLogSync4KiB(b *testing.B) {
	for _, writers := range []int{1, 16} {
		b.Run(fmt.Sprintf("writers=%d", writers), func(b *testing.B) {
			d, err := ordered.OpenDataLog(ordered.DataLogOptions{Disk: benchDisk(b)})
			if err != nil {
				b.Fatal(err)
			}
			defer d.Close()
			payload := randomBytes(rand.New(rand.NewPCG(1, 2)), 4096)
			var left atomic.Int64
			left.Store(int64(b.N))
			var wg sync.WaitGroup
			b.ResetTimer()
			for range writers {
				wg.Go(func() {
					for left.Add(-1) >= 0 {
						_, _, err := d.Append(1, 0, payload, false)
						if err == nil {
							_, err = d.Sync()
						}
						if err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
		})
	}
}

func BenchmarkDataLogReadWarm(b *testing.B) {
	for _, size := range []int{4 << 10, 128 << 10} {
		for _, where := range []string{"memory", "file"} {
			b.Run(fmt.Sprintf("%dKiB/%s", size>>10, where), func(b *testing.B) {
				d, err := ordered.OpenDataLog(ordered.DataLogOptions{Disk: benchDisk(b)})
				if err != nil {
					b.Fatal(err)
				}
				defer d.Close()
				payload := randomBytes(rand.New(rand.NewPCG(1, 2)), 128<<10)
				e, _, err := d.Append(1, 0, payload, false)
				if err != nil {
					b.Fatal(err)
				}
				if where == "file" {
					for range 200 {
						if _, _, err := d.Append(1, 0, payload, false); err != nil {
							b.Fatal(err)
						}
					}
				}
				if _, err := d.Sync(); err != nil {
					b.Fatal(err)
				}
				p := make([]byte, size)
				b.SetBytes(int64(size))
				b.ReportAllocs()
				for b.Loop() {
					if err := d.ReadAt(&e, 0, p, false); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
