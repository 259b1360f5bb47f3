package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
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

// profile runs rows for prismfs while its daemon profiles itself, each as many
// times as there are rounds: one run is too short for many samples.
func (b *bench) profile(rows []row, out string) error {
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
	for i := range rows {
		if err := b.profileRow(&rows[i], s, out); err != nil {
			return fmt.Errorf("%s: %w", rows[i].id, err)
		}
	}
	return nil
}

func (b *bench) profileRow(r *row, s *site, out string) error {
	c := s.c.(*prismfs)
	var before, after prismfsStats
	var files []string
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
		files = append(files, filepath.Join(b.image.work, fmt.Sprintf("%s-%d.prof", r.id, len(files))))
		return errors.Join(os.WriteFile(files[len(files)-1], p, 0o644), c.ask("stats", &after))
	}
	fmt.Printf("== %s\n", r.label)
	for range b.rounds {
		if err := b.resetAll(); err != nil {
			return err
		}
		sm := b.measure(r, s)
		if sm.err != nil {
			return fmt.Errorf("%w%s", sm.err, logEnd(c))
		}
		fmt.Printf("%d operations in %.3f s, %.0f a second; daemon: CPU %.1f µs each, peak %d MiB; requests each: %s\n",
			sm.ops, sm.took.Seconds(), sm.perSecond(), float64(sm.cpu.Microseconds())/float64(max(sm.ops, 1)), sm.rss>>20, describeRequests(&sm))
	}
	fmt.Println()
	printLanes("before the last", before.Store.Lanes)
	printLanes("after it", after.Store.Lanes)
	merged := filepath.Join(out, "cpu-"+r.id+".prof")
	if err := run("", "go", append([]string{"tool", "pprof", "-proto", "-output=" + merged, c.program}, files...)...); err != nil {
		return err
	}
	top, err := exec.Command("go", "tool", "pprof", "-top", "-nodecount=25", c.program, merged).CombinedOutput()
	fmt.Printf("%s\n", top)
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
