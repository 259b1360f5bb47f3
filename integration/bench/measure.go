package main

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"
)

// site is where one contender's rows of one round run: a directory of its own,
// and what earlier rows have left in it.
type site struct {
	c    contender
	dir  string
	have map[string]string // see fixtures in rows.go
}

func (s *site) path(name string) string { return s.dir + "/" + name }

// sample is one row, one contender, one round.
type sample struct {
	took     time.Duration
	ops      int
	cpu      time.Duration // of the daemon
	rss      int64         // of the daemon, its peak since the row's mount
	device   deviceCount
	mounting time.Duration    // cold rows
	requests map[string]int64 // of FUSE, by operation; nil: unknown
	err      error
}

func (s *sample) perSecond() float64 {
	if s.err != nil || s.took <= 0 {
		return 0
	}
	return float64(s.ops) / s.took.Seconds()
}

// hung is how long a row may take before its daemon is killed.
const hung = 3 * time.Minute

// measure runs one row for one contender. It leaves nothing mounted but the
// image.
func (b *bench) measure(r *row, s *site) (sm sample) {
	if err := s.c.mount(); err != nil {
		return sample{err: fmt.Errorf("mount: %w", err)}
	}
	mounted := true
	watchdog := time.AfterFunc(hung, func() {
		b.logf("%s, %s: no end after %v: its daemon is killed", r.label, s.c.name(), hung)
		if pid := s.c.pid(); pid != 0 {
			unix.Kill(pid, unix.SIGKILL)
		}
	})
	defer watchdog.Stop()
	defer func() {
		if !mounted {
			return
		}
		if err := s.c.unmount(); err != nil {
			sm.err = errors.Join(sm.err, fmt.Errorf("unmount: %w", err))
			if pid := s.c.pid(); pid != 0 {
				unix.Kill(pid, unix.SIGKILL)
			}
			unix.Unmount(s.c.dir(), unix.MNT_DETACH)
		}
	}()
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return sample{err: err}
	}
	if r.prepare != nil {
		if err := r.prepare(s); err != nil {
			return sample{err: fmt.Errorf("prepare: %w", err)}
		}
	}
	if r.cold {
		mounted = false
		took, err := b.makeCold(s.c)
		if err != nil {
			return sample{err: err}
		}
		mounted = true
		sm.mounting = took
	}
	b.settle(s.c)

	requests, err := s.c.requests()
	if err != nil {
		return sample{err: err}
	}
	if b.beforeRun != nil {
		if err := b.beforeRun(s.c); err != nil {
			return sample{err: err}
		}
	}
	old := debug.SetGCPercent(-1)
	cpu, device := cpuTime(s.c.pid()), countDevice(b.image.deviceName())
	sm.ops, sm.took, sm.err = r.run(s)
	sm.cpu = cpuTime(s.c.pid()) - cpu
	sm.device = countDevice(b.image.deviceName()).sub(device)
	debug.SetGCPercent(old)
	if b.afterRun != nil {
		sm.err = errors.Join(sm.err, b.afterRun(s.c))
	}
	sm.rss = peakRSS(s.c.pid())
	after, err := s.c.requests()
	if err != nil {
		sm.err = errors.Join(sm.err, err)
	}
	if requests != nil {
		sm.requests = map[string]int64{}
		for op, n := range after {
			if n -= requests[op]; n > 0 {
				sm.requests[op] = n
			}
		}
	}
	b.settle(s.c)
	return sm
}

// makeCold unmounts everything, empties the caches of all but the contender's
// program, and mounts again. It returns how long mounting took (the image's
// ext4, where that is the contender).
func (b *bench) makeCold(c contender) (time.Duration, error) {
	if err := c.unmount(); err != nil {
		return 0, err
	}
	if err := b.image.unmount(); err != nil {
		return 0, err
	}
	if err := os.WriteFile("/proc/sys/vm/drop_caches", []byte("3\n"), 0); err != nil {
		return 0, err
	}
	began := time.Now()
	if err := b.image.mount(); err != nil {
		return 0, err
	}
	below := time.Since(began)
	if file := c.programFile(); file != "" {
		if _, err := os.ReadFile(file); err != nil {
			return 0, err
		}
	}
	began = time.Now()
	if err := c.mount(); err != nil {
		return 0, err
	}
	if c.pid() == 0 {
		return below, nil
	}
	return time.Since(began), nil
}

// settle returns when everything is on disk and the daemon does nothing, or
// after a while.
func (b *bench) settle(c contender) {
	c.sync()
	b.image.sync()
	quiet := 0
	for deadline := time.Now().Add(2 * time.Second); c.pid() != 0 && quiet < 2 && time.Now().Before(deadline); {
		before := cpuTime(c.pid())
		time.Sleep(15 * time.Millisecond)
		if cpuTime(c.pid())-before < time.Millisecond {
			quiet++
		} else {
			quiet = 0
		}
	}
}
