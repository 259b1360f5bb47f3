package lanes

import "testing"

// TestAllocs pins that no way into a lane allocates.
func TestAllocs(t *testing.T) {
	if invariants {
		t.Skip("the checks of this build allocate")
	}
	pool := NewPool("cpu", 2)
	defer pool.Close()
	read := NewBlocking("read", 2, true)
	defer read.Close()
	write := NewSerial("write")
	defer write.Close()
	done := make(chan struct{}, 1)
	j := &Job{Run: func(*Job) { done <- struct{}{} }}
	quiet := &Job{Run: func(*Job) {}}
	for name, f := range map[string]func(){
		"Pool.Submit":         func() { pool.Submit(j); <-done },
		"Pool.SubmitIn":       func() { pool.SubmitIn(j.Context(), j); <-done },
		"Pool.SubmitPriority": func() { pool.SubmitPriority(j, 1); <-done },
		"Blocking.Submit":     func() { read.Submit(j); <-done },
		"Blocking.Enter":      func() { read.Enter(); read.Leave() },
		"Serial.Submit":       func() { write.Submit(j); <-done },
		"Serial.Do":           func() { write.Do(quiet) },
		"Serial.TryDo":        func() { write.TryDo(quiet) },
	} {
		if n := testing.AllocsPerRun(200, f); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}
