package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// laneStats is what the tables use of a lane's counters; times are in
// nanoseconds.
type laneStats struct {
	Name                       string
	Fast, Affine, Fallback     int64
	InPlace, Handed, Steals    int64
	Completed, Entered, Waited int64
	Wait, Run, GateWait        laneHistogram
}

type laneHistogram struct{ Samples, P50, P99, Max int64 }

// profile runs one row for prismfs while its daemon profiles itself.
func (b *bench) profile(all []row, name, file string) error {
	var r *row
	for i := range all {
		if strings.HasPrefix(all[i].id, name) {
			r = &all[i]
			break
		}
	}
	if r == nil {
		return fmt.Errorf("no row %q: -list shows them", name)
	}
	var s *site
	for _, candidate := range b.sites {
		if _, ok := candidate.c.(*prismfs); ok {
			s = candidate
			break
		}
	}
	if s == nil {
		return errors.New("-profile needs prismfs among the contenders")
	}
	b.sites = []*site{s}
	if err := b.resetAll(); err != nil {
		return err
	}
	c := s.c.(*prismfs)
	var before, after prismfsStats
	b.beforeRun = func(contender) error {
		return errors.Join(c.ask("stats", &before), run("", c.program, "profile", c.dir(), "start"))
	}
	b.afterRun = func(contender) error {
		if err := run("", c.program, "profile", c.dir(), "stop"); err != nil {
			return err
		}
		p, err := os.ReadFile(filepath.Join(c.store(), "cpu.prof"))
		if err != nil {
			return err
		}
		return errors.Join(os.WriteFile(file, p, 0o644), c.ask("stats", &after))
	}
	sm := b.measure(r, s)
	if sm.err != nil {
		return sm.err
	}
	fmt.Printf("%s: %d operations in %.3f s, %.0f a second, daemon CPU %.1f µs each, peak %d MiB\nrequests per operation: %s\n\n",
		r.label, sm.ops, sm.took.Seconds(), sm.perSecond(), float64(sm.cpu.Microseconds())/float64(max(sm.ops, 1)), sm.rss>>20, describeRequests(&sm))
	printLanes("lanes before", before.Store.Lanes)
	printLanes("lanes after", after.Store.Lanes)
	out, err := exec.Command("go", "tool", "pprof", "-top", "-nodecount=40", c.program, file).CombinedOutput()
	fmt.Printf("%s\n", out)
	return err
}

func printLanes(title string, lanes []laneStats) {
	fmt.Printf("%-14s %9s %9s %9s %9s %9s   %-30s %-30s %-30s\n", title, "queued", "in place", "handed", "entered", "waited", "wait p50/p99/max", "run p50/p99/max", "gate wait p50/p99/max")
	show := func(h laneHistogram) string {
		if h.Samples == 0 {
			return "-"
		}
		return fmt.Sprintf("%v/%v/%v", time.Duration(h.P50), time.Duration(h.P99), time.Duration(h.Max))
	}
	for _, l := range lanes {
		fmt.Printf("%-14s %9d %9d %9d %9d %9d   %-30s %-30s %-30s\n", l.Name, l.Fast+l.Affine+l.Fallback, l.InPlace, l.Handed, l.Entered, l.Waited, show(l.Wait), show(l.Run), show(l.GateWait))
	}
	fmt.Println()
}
