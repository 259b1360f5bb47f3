package lanes

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// The failure contract: a panic in a job is a bug and ends the process with
// exit code 2, whatever lane and path the job took. Each case runs in a child.

const fatalEnv = "LANES_FATAL_CASE"

func explodingJob(*Job) { panic("boom 42") }

func goexitJob(*Job) { goexit() }

var fatalCases = map[string]func(){
	"pool":         func() { NewPool("LaneX", 2).Submit(&Job{Run: explodingJob}) },
	"priority":     func() { NewPool("LaneX", 2).SubmitPriority(&Job{Run: explodingJob}, 1) },
	"delayed":      func() { NewPool("LaneX", 2).SubmitAfter(time.Microsecond, &Job{Run: explodingJob}) },
	"blocking":     func() { NewBlocking("LaneX", 2, true).Submit(&Job{Run: explodingJob}) },
	"serial":       func() { NewSerial("LaneX").Submit(&Job{Run: explodingJob}) },
	"serial Do":    func() { NewSerial("LaneX").Do(&Job{Run: explodingJob}) },
	"serial TryDo": func() { NewSerial("LaneX").TryDo(&Job{Run: explodingJob}) },
	"while closing": func() {
		p := NewPool("LaneX", 1)
		p.SubmitAfter(time.Hour, &Job{Run: explodingJob})
		p.Close()
	},
	"goexit": func() { NewPool("LaneX", 2).Submit(&Job{Run: goexitJob}) },
}

func TestMain(m *testing.M) {
	if f := fatalCases[os.Getenv(fatalEnv)]; f != nil {
		f()
		select {} // the job ends the process
	}
	os.Exit(m.Run())
}

func TestFatal(t *testing.T) {
	for name := range fatalCases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), fatalEnv+"="+name)
			out, err := cmd.CombinedOutput()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != 2 {
				t.Errorf("child ended with %v, want exit status 2", err)
			}
			wants := []string{"lanes: lane LaneX: job prismfs/lanes.explodingJob failed: boom 42", "fatal_test.go"}
			if name == "goexit" {
				wants = []string{"lanes: lane LaneX: job prismfs/lanes.goexitJob failed: runtime.Goexit"}
			}
			for _, want := range wants {
				if !strings.Contains(string(out), want) {
					t.Errorf("no %q in\n%s", want, out)
				}
			}
		})
	}
}
