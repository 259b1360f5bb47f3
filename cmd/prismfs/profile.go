package main

import (
	"os"
	"path/filepath"
	"runtime/pprof"
	"sync"
)

// Requests on the control socket.
const (
	profileStart = "profile start"
	profileStop  = "profile stop"
)

const profileFile = "cpu.prof"

var profileCommand = &command{
	name: "profile", args: "MNT|STORE start|stop",
	min: 2, max: 2,
	details: "Between start and stop the daemon records where it spends CPU time. Stop leaves\nthe record in STORE/cpu.prof, for `go tool pprof`.",
	run: func(in *invocation) error {
		op := "profile " + in.positional[1]
		if op != profileStart && op != profileStop {
			return usagef("%q: say start or stop", in.positional[1])
		}
		return live(in, func(t *target) error { return controlCall(t.store, op, nil, controlPatience) })
	},
}

// profiling is the process's one CPU profile; file is nil while there is none.
var profiling struct {
	mu   sync.Mutex
	file *os.File
}

func startProfile(store string) error {
	profiling.mu.Lock()
	defer profiling.mu.Unlock()
	if profiling.file != nil {
		return failf(exitBusy, "a profile is being recorded: stop that first")
	}
	f, err := os.OpenFile(filepath.Join(store, profileFile), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		f.Close()
		return err
	}
	profiling.file = f
	return nil
}

func stopProfile() error {
	profiling.mu.Lock()
	defer profiling.mu.Unlock()
	if profiling.file == nil {
		return usagef("no profile is being recorded")
	}
	pprof.StopCPUProfile()
	err := profiling.file.Close()
	profiling.file = nil
	return err
}
