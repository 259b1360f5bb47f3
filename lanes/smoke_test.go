package lanes

import (
	"sync"
	"sync/atomic"
	"testing"
)

func TestSmoke(t *testing.T) {
	r := NewRuntime(Config{})
	var n atomic.Int64
	var wg sync.WaitGroup
	var plain int
	for range 8 {
		wg.Go(func() {
			for range 2000 {
				j := &Job{Run: func(*Job) { n.Add(1) }}
				if err := r.CPU.Submit(j); err != nil {
					t.Error(err)
				}
				r.BlockingIO.Go(func() { n.Add(1) })
				r.DBRead.Enter()
				r.DBRead.Leave()
				k := &Job{Run: func(*Job) { plain++ }}
				r.DBWrite.Do(k)
				r.File.Go(func() { n.Add(1) })
			}
		})
	}
	wg.Wait()
	r.Close()
	if n.Load() != 3*16000 || plain != 16000 {
		t.Fatal(n.Load(), plain)
	}
	for _, s := range r.Stats() {
		t.Logf("%+v", s)
	}
}
