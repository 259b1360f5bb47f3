package metadata_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"prismfs/lanes"
	"prismfs/metadata"
	"prismfs/uring/simdisk"
)

// A campaign runs random operations on a disk that forgets what was not synced,
// cuts the power at seeded places of the disk's own history, and opens what each
// cut left. It must be a store that passes its check and shows exactly a prefix
// of the operations: at least what a finished barrier covered, at most what had
// been acknowledged, the operation under way included.
type campaign struct {
	runs, ops int
	cuts      int // in each run, about
	plant     func(*simdisk.Disk, *metadata.Options)
	workload  func() func(*driver) (string, error) // nil: random operations
	logf      func(string, ...any)
}

type cut struct {
	disk        *simdisk.Disk
	floor, ceil int // operations that must, that may be there
	where       string
}

// result is what a campaign found out.
type result struct {
	cuts, lost int // cuts; cuts that lost an acknowledged operation
	problem    error
}

func (c *campaign) run(sd uint64) (res result) {
	for r := range c.runs {
		one := c.runOnce(sd + uint64(r)*7919)
		res.cuts += one.cuts
		res.lost += one.lost
		if one.problem != nil && res.problem == nil {
			res.problem = fmt.Errorf("run %d: %w", r, one.problem)
			return res
		}
	}
	return res
}

func (c *campaign) options(disk *simdisk.Disk, l *lanes.Runtime) metadata.Options {
	o := metadata.Options{Disk: disk, Lanes: l, NoTimer: true, MemTableSize: 64 << 10, SegmentSize: 1 << 20, Logf: func(f string, a ...any) { c.logf(f, a...) }}
	if c.plant != nil {
		c.plant(disk, &o)
	}
	return o
}

func (c *campaign) runOnce(sd uint64) (res result) {
	l := lanes.NewRuntime(lanes.Config{})
	defer l.Close()
	disk := simdisk.New(sd)
	fail := func(format string, args ...any) result {
		res.problem = fmt.Errorf("seed %d: "+format, append([]any{sd}, args...)...)
		return res
	}
	if err := metadata.Mkfs(metadata.MkfsOptions{Disk: disk, Lanes: l}); err != nil {
		return fail("mkfs: %w", err)
	}
	// What making the store left in the log goes into tables first: a planted
	// fault is to show in the run, not before it.
	s, err := metadata.Open(metadata.Options{Disk: disk, Lanes: l, NoTimer: true})
	if err == nil {
		err = s.Close()
	}
	if err != nil {
		return fail("first open: %w", err)
	}
	s, err = metadata.Open(c.options(disk, l))
	if err != nil {
		return fail("open: %w", err)
	}
	rng := rand.New(rand.NewPCG(sd, 1))
	d := &driver{s: s, m: newModel(), rng: rng, max: 100 << 10}

	var mu sync.Mutex // guards what follows, against the disk's hook
	var cuts []cut
	acked, durable := 0, 0
	cutRng := rand.New(rand.NewPCG(sd, 2))
	chance := 1.0
	disk.OnOp(func(op simdisk.Op) error {
		if op.Change == 0 {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		if cutRng.Float64() < chance {
			floor := durable
			image := disk.Crash(cutRng, simdisk.Random)
			cuts = append(cuts, cut{image, floor, acked + 1, fmt.Sprintf("before change %d (%v %s) of operation %d", op.Change, op.Kind, op.Name, acked+1)})
		}
		return nil
	})
	_, before := disk.Ops()
	digests := []string{d.m.digest()}
	step := (*driver).step
	if c.workload != nil {
		step = c.workload()
	}
	for i := range c.ops {
		_, err := step(d)
		if err != nil {
			return fail("operation %d: %w", i+1, err)
		}
		digests = append(digests, d.m.digest())
		mu.Lock()
		acked++
		mu.Unlock()
		switch rng.IntN(25) {
		case 0, 1:
			n := acked
			if err := s.Sync(); err != nil {
				return fail("sync: %w", err)
			}
			mu.Lock()
			durable = n
			mu.Unlock()
		case 2:
			if err := s.CollectGarbage(); err != nil {
				return fail("collect garbage: %w", err)
			}
		case 3:
			if rng.IntN(3) == 0 {
				if err := s.Compact(); err != nil {
					return fail("compact: %w", err)
				}
			}
		}
		// Aim at the wanted number of cuts, from the changes seen so far.
		_, now := disk.Ops()
		mu.Lock()
		chance = float64(c.cuts) / (float64(now-before+1) / float64(i+1) * float64(c.ops))
		mu.Unlock()
	}
	disk.OnOp(nil)
	if err := s.Close(); err != nil {
		return fail("close: %w", err)
	}
	for _, k := range cuts {
		res.cuts++
		lost, err := c.judge(k, digests, l)
		if err != nil {
			return fail("cut %s, %d..%d operations: %w", k.where, k.floor, k.ceil, err)
		}
		if lost {
			res.lost++
		}
	}
	return res
}

// judge opens what a cut left.
func (c *campaign) judge(k cut, digests []string, l *lanes.Runtime) (lost bool, err error) {
	for _, when := range []string{"reading only", "recovery", "second recovery"} {
		o := c.options(k.disk, l)
		o.ReadOnly = when == "reading only"
		k.disk.SetReadOnly(o.ReadOnly)
		s, err := metadata.Open(o)
		if err != nil {
			return false, fmt.Errorf("%s: %w", when, err)
		}
		var b strings.Builder
		if err := dumpStore(s, &b); err != nil {
			s.Close()
			return false, fmt.Errorf("%s: %w", when, err)
		}
		got := sumText(b.String())
		at := -1
		for i := min(k.ceil, len(digests)-1); i >= k.floor && at < 0; i-- {
			if digests[i] == got {
				at = i
			}
		}
		var problems []string
		_, err = s.Check(func(p string) { problems = append(problems, p) })
		cerr := s.Close()
		switch {
		case at < 0:
			return false, fmt.Errorf("%s: no prefix of the operations looks like this", when)
		case err != nil:
			return false, fmt.Errorf("%s: check: %w", when, err)
		case len(problems) > 0:
			return false, fmt.Errorf("%s: fsck: %s", when, strings.Join(problems, "; "))
		case cerr != nil:
			return false, fmt.Errorf("%s: close: %w", when, cerr)
		}
		lost = lost || at < k.ceil-1
		// What was recovered is durable: only that may be there next time.
		k.floor, k.ceil = at, at+1
		digests = digests[:at+1]
	}
	return lost, nil
}

var workloads = []struct {
	name  string
	steps func() func(*driver) (string, error)
}{
	{"random", nil}, {"untar", untar}, {"git gc", gitGC}, {"overwrite", overwrite},
}

func TestPowerCuts(t *testing.T) {
	for _, w := range workloads {
		t.Run(w.name, func(t *testing.T) {
			c := &campaign{runs: 24, ops: 300, cuts: 30, workload: w.steps, logf: func(string, ...any) {}}
			if testing.Short() {
				c.runs = 5
			}
			res := c.run(seed(t))
			t.Logf("%d cuts, %d lost operations that no barrier covered", res.cuts, res.lost)
			if res.problem != nil {
				t.Fatal(res.problem)
			}
			if res.cuts < 130 {
				t.Errorf("only %d cuts", res.cuts)
			}
			if res.lost == 0 {
				t.Error("no cut lost anything: the disk forgets nothing, so the campaign shows nothing")
			}
		})
	}
}

// TestPowerCutsCatchFaults plants faults that the campaign must notice.
func TestPowerCutsCatchFaults(t *testing.T) {
	for name, plant := range map[string]func(*simdisk.Disk, *metadata.Options){
		"no data sync":            func(d *simdisk.Disk, _ *metadata.Options) { d.IgnoreDatasync(true) },
		"no directory sync":       func(d *simdisk.Disk, _ *metadata.Options) { d.IgnoreSyncDir(true) },
		"stale log accepted":      func(_ *simdisk.Disk, o *metadata.Options) { o.PlantedStaleLog = true },
		"segment freed too early": func(_ *simdisk.Disk, o *metadata.Options) { o.PlantedFreeEarly = true },
	} {
		t.Run(name, func(t *testing.T) {
			c := &campaign{runs: 40, ops: 300, cuts: 26, plant: plant, logf: func(string, ...any) {}}
			res := c.run(seed(t))
			if res.problem == nil {
				t.Fatalf("not noticed in %d cuts", res.cuts)
			}
			t.Logf("noticed after %d cuts: %v", res.cuts, res.problem)
		})
	}
}
