package main

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// onThreads runs f on n system threads at once and returns how long the
// slowest took.
func onThreads(n int, f func(worker int) error) (time.Duration, error) {
	errs := make([]error, n)
	start := make(chan struct{})
	var ready, done sync.WaitGroup
	for i := range n {
		ready.Add(1)
		done.Add(1)
		go func() {
			defer done.Done()
			runtime.LockOSThread()
			ready.Done()
			<-start
			errs[i] = f(i)
		}()
	}
	ready.Wait()
	began := time.Now()
	close(start)
	done.Wait()
	took := time.Since(began)
	for _, err := range errs {
		if err != nil {
			return took, err
		}
	}
	return took, nil
}

const block = 4096

// pool is the source of incompressible data.
var pool = sync.OnceValue(func() []byte {
	p := make([]byte, 32<<20)
	r := rand.NewChaCha8([32]byte{1})
	r.Read(p)
	return p
})

var stamp atomic.Uint64

// fresh fills p with bytes that neither compress nor were there before: random
// ones from a random place, each block with a number of its own.
func fresh(p []byte, r *rand.Rand) {
	src := pool()
	copy(p, src[r.IntN(len(src)-len(p)):])
	for i := 0; i+8 <= len(p); i += block {
		binary.LittleEndian.PutUint64(p[i:], stamp.Add(1))
	}
}

// freshText fills p with log lines: text that compresses about fourfold.
func freshText(p []byte, r *rand.Rand) {
	words := [...]string{"accepted", "connection", "request", "timeout", "worker", "finished", "retry", "GET", "POST", "/index.html"}
	for n := 0; n < len(p); {
		line := fmt.Appendf(nil, "2026-01-02T03:04:05 %08x %s %s %s status=%d\n", r.Uint32(), words[r.IntN(10)], words[r.IntN(10)], words[r.IntN(10)], r.IntN(600))
		n += copy(p[n:], line)
	}
}

func newRand(worker int) *rand.Rand { return rand.New(rand.NewPCG(stamp.Add(1), uint64(worker))) }

// createFile makes a file with these contents; nil makes it empty.
func createFile(name string, data []byte, sync bool) error {
	fd, err := unix.Open(name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return fmt.Errorf("create %s: %w", name, err)
	}
	if data != nil {
		err = writeAll(fd, data)
	}
	if err == nil && sync {
		err = unix.Fsync(fd)
	}
	if cerr := unix.Close(fd); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

func writeAll(fd int, p []byte) error {
	for len(p) > 0 {
		n, err := unix.Write(fd, p)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		p = p[n:]
	}
	return nil
}

// readFile reads a small file whole and wants size bytes.
func readFile(name string, p []byte, size int) error {
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", name, err)
	}
	n, err := unix.Read(fd, p)
	if cerr := unix.Close(fd); err == nil {
		err = cerr
	}
	if err == nil && n != size {
		err = fmt.Errorf("%d bytes, want %d", n, size)
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	return nil
}

// listAndStat does what `ls -lU` does and returns the number of entries.
func listAndStat(dir string) (int, error) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	buf := make([]byte, 32<<10)
	var names []string
	var st unix.Stat_t
	entries := 0
	for {
		n, err := unix.Getdents(fd, buf)
		if err != nil {
			return 0, err
		}
		if n == 0 {
			return entries, nil
		}
		_, _, names = unix.ParseDirent(buf[:n], -1, names[:0])
		for _, name := range names {
			if err := unix.Lstat(dir+"/"+name, &st); err != nil {
				return 0, fmt.Errorf("stat %s: %w", name, err)
			}
			entries++
		}
	}
}
