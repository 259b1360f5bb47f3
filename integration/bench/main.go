package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// bench is one run of this program.
type bench struct {
	root    string // of the repository
	image   *image
	sites   []*site
	rows    []row
	rounds  int
	results map[string]map[string][]sample // row, contender: a sample a round
	began   time.Time
	restore func() // undoes setURing

	// beforeRun and afterRun, if set, surround what is timed.
	beforeRun, afterRun func(contender) error
}

func (b *bench) logf(format string, args ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", args...)
}

// ownMounts marks the process that has a mount namespace of its own.
const ownMounts = "PRISMFS_BENCH_OWN_MOUNTS"

func main() {
	if os.Getuid() == 0 && os.Getenv(ownMounts) == "" {
		os.Exit(again())
	}
	if err := benchMain(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// again runs this program once more, in a mount namespace of its own: another
// program that makes a namespace meanwhile gets no copy of our mounts, which
// would keep them in use. It returns the exit code.
func again() int {
	signal.Ignore(syscall.SIGINT) // the second process has it too, and cleans up
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), ownMounts+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGTERM}
	runtime.LockOSThread() // Pdeathsig is about the thread that starts it
	err := cmd.Run()
	if err != nil && cmd.ProcessState == nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		return 1
	}
	return cmd.ProcessState.ExitCode()
}

// uringSwitch says whether the kernel offers FUSE over io_uring.
const uringSwitch = "/sys/module/fuse/parameters/enable_uring"

func benchMain() error {
	var (
		root       = flag.String("root", "../..", "the repository")
		dir        = flag.String("dir", "/var/tmp", "where the image is made: a real disk")
		sizeGiB    = flag.Int64("size", 8, "of the image, in GiB")
		rounds     = flag.Int("rounds", 3, "how often each row is measured")
		rows       = flag.String("rows", "", "regular expression: only the rows whose name it matches")
		contenders = flag.String("contenders", "ext4,prismfs,loopback", "of ext4, prismfs, devfuse (prismfs over /dev/fuse), writeback (prismfs -o writeback), loopback")
		list       = flag.Bool("list", false, "list the rows")
		out        = flag.String("out", "", "file that gets the tables as its first section (default: only standard output)")
		profile    = flag.Bool("profile", false, "profile the prismfs daemon while the rows run")
		profileDir = flag.String("profile-dir", ".", "where -profile leaves cpu-ROW.prof")
	)
	flag.Parse()
	if *list {
		for _, r := range allRows(&tree{}) {
			fmt.Printf("%-14s %s\n", r.id, r.label)
		}
		return nil
	}
	if os.Getuid() != 0 {
		return errors.New("needs root: it mounts")
	}
	only, err := regexp.Compile(*rows)
	if err != nil {
		return err
	}
	// Threads in system calls keep their share of GOMAXPROCS for a while.
	runtime.GOMAXPROCS(24)

	b := &bench{root: *root, rounds: *rounds, results: map[string]map[string][]sample{}, began: time.Now()}
	if b.restore, err = setURing(); err != nil {
		return err
	}
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, syscall.SIGINT, syscall.SIGTERM)
	if b.image, err = newImage(*dir, *sizeGiB<<30); err != nil {
		b.restore()
		return err
	}
	defer b.cleanUp()
	go func() {
		<-interrupted
		b.cleanUp()
		os.Exit(130)
	}()
	if err := b.addContenders(strings.Split(*contenders, ",")); err != nil {
		return err
	}
	goroot, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return fmt.Errorf("go env: %w", err)
	}
	t, err := newTree(b.image.work, filepath.Join(strings.TrimSpace(string(goroot)), "src"))
	if err != nil {
		return err
	}
	for _, r := range allRows(t) {
		if only.MatchString(r.id) {
			b.rows = append(b.rows, r)
		}
	}
	if len(b.rows) == 0 {
		return fmt.Errorf("no row matches %q: -list shows them", *rows)
	}
	if *profile {
		return b.profile(b.rows, *profileDir)
	}
	if err := b.measureAll(); err != nil {
		return err
	}
	text := b.report()
	fmt.Print(text)
	if *out == "" {
		return nil
	}
	return prepend(*out, text)
}

// setURing turns FUSE over io_uring on where the kernel has it.
func setURing() (restore func(), err error) {
	old, err := os.ReadFile(uringSwitch)
	if err != nil {
		return func() {}, nil
	}
	if err := os.WriteFile(uringSwitch, []byte("Y"), 0); err != nil {
		return nil, err
	}
	return func() { os.WriteFile(uringSwitch, old, 0) }, nil
}

func (b *bench) addContenders(names []string) error {
	program := filepath.Join(b.image.work, "bin", "prismfs")
	if err := run(b.root, "go", "build", "-o", program, "./cmd/prismfs"); err != nil {
		return err
	}
	for _, name := range names {
		var c contender
		switch name {
		case "ext4":
			c = &native{image: b.image, label: name}
		case "prismfs":
			c = &prismfs{image: b.image, label: name, program: program}
		case "devfuse":
			c = &prismfs{image: b.image, label: name, program: program, options: "fuse_uring=off"}
		case "writeback":
			c = &prismfs{image: b.image, label: name, program: program, options: "writeback"}
		case "loopback":
			path, err := exec.Command("go", "tool", "-n", "loopback").Output()
			if err != nil {
				return fmt.Errorf("building go-fuse's loopback example: %w", err)
			}
			c = &loopback{image: b.image, label: name, program: strings.TrimSpace(string(path))}
		default:
			return fmt.Errorf("no contender %q", name)
		}
		b.sites = append(b.sites, &site{c: c})
	}
	return nil
}

func (b *bench) resetAll() error {
	for _, s := range b.sites {
		if err := s.c.reset(); err != nil {
			return err
		}
		s.dir, s.have = s.c.dir()+"/bench", map[string]string{}
	}
	return b.image.sync()
}

func (b *bench) measureAll() error {
	for round := range b.rounds {
		if err := b.resetAll(); err != nil {
			return err
		}
		for i := range b.rows {
			r := &b.rows[i]
			if b.results[r.id] == nil {
				b.results[r.id] = map[string][]sample{}
			}
			var line strings.Builder
			for k := range b.sites {
				s := b.sites[(k+round+i)%len(b.sites)]
				sm := b.measure(r, s)
				if sm.err != nil {
					b.logf("%s, %s: %v%s", r.label, s.c.name(), sm.err, logEnd(s.c))
				}
				fmt.Fprintf(&line, "  %s %.3f s", s.c.name(), sm.took.Seconds())
				b.results[r.id][s.c.name()] = append(b.results[r.id][s.c.name()], sm)
			}
			b.logf("%4.0f s  round %d  %-14s%s", time.Since(b.began).Seconds(), round+1, r.id, line.String())
		}
	}
	return nil
}

// logEnd is what the daemon said last.
func logEnd(c contender) string {
	p, ok := c.(*prismfs)
	if !ok {
		return ""
	}
	log, err := os.ReadFile(filepath.Join(p.store(), "log"))
	if err != nil {
		return ""
	}
	return "\nits log ends:\n" + string(log[max(0, len(log)-1000):])
}

// cleanUp ends the daemons, removes mounts, loop device and image, and restores
// the kernel's switch.
func (b *bench) cleanUp() {
	for _, s := range b.sites {
		if pid := s.c.pid(); pid != 0 {
			unix.Unmount(s.c.dir(), unix.MNT_DETACH)
			unix.Kill(pid, unix.SIGKILL)
			for deadline := time.Now().Add(5 * time.Second); unix.Kill(pid, 0) == nil && time.Now().Before(deadline); {
				var ws unix.WaitStatus
				unix.Wait4(pid, &ws, unix.WNOHANG, nil)
				time.Sleep(5 * time.Millisecond)
			}
		}
	}
	b.image.remove()
	b.restore()
}

func median[T int64 | float64 | time.Duration](v []T) T {
	if len(v) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(v))
	if len(s)%2 == 1 {
		return s[len(s)/2]
	}
	return (s[len(s)/2-1] + s[len(s)/2]) / 2
}
