package integration

import (
	"bytes"
	"fmt"
	"io/fs"
	"math/rand"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"
)

// crashRounds is how often each load is cut off.
func crashRounds() int {
	switch {
	case long():
		return 100
	case testing.Short():
		return 4
	}
	return 20
}

// crashLoad is what runs beside the witness when the daemon is killed.
type crashLoad struct {
	prepare func(t *testing.T, m *mount)
	// start begins the load. stop is called after the kill: it returns when
	// nothing of the load runs any more.
	start func(t *testing.T, m *mount, rng *rand.Rand) (stop func())
	// verify looks at what the load left, after the next mount.
	verify  func(t *testing.T, m *mount)
	longest time.Duration // the kill comes at a random moment before this
}

// crash kills the daemon under load again and again. Each time the store must
// mount, the witness's directory must be a prefix of its requests that holds
// everything fsynced, fsck must be clean, and the load's own check must hold.
func crash(t *testing.T, load crashLoad) {
	s := seed(t)
	m := newMount(t)
	if load.prepare != nil {
		load.prepare(t, m)
	}
	for round := range crashRounds() {
		rng := rand.New(rand.NewSource(s + int64(round)))
		dir := m.path(fmt.Sprintf("witness-%d", round))
		check(t, os.Mkdir(dir, 0o755))
		w := newWitness(dir, rand.New(rand.NewSource(rng.Int63())))
		// Rounds differ in how much is made durable: often, rarely, never.
		syncEvery := []int{10, 100, 0}[round%3]
		pid := m.pid()
		stopLoad := load.start(t, m, rng)
		stop := make(chan struct{})
		failed := make(chan error, 1)
		go func() { failed <- w.run(stop, syncEvery) }()
		moment := time.Duration(rng.Int63n(int64(load.longest)))
		var werr error
		select {
		case werr = <-failed:
			t.Fatalf("round %d: the witness failed before the kill: %v", round, werr)
		case <-time.After(moment):
		}
		m.killPid(pid)
		close(stop)
		<-failed
		stopLoad()
		t.Logf("round %d: killed after %v", round, moment)
		if round%2 == 1 {
			m.fsck()
		}
		m.mount()
		if what, err := w.verdict(); err != nil {
			t.Error(err)
		} else {
			t.Log(what)
		}
		if load.verify != nil {
			load.verify(t, m)
		}
		if t.Failed() {
			t.Fatalf("round %d failed", round)
		}
		check(t, os.RemoveAll(dir))
	}
}

// startProcess runs a program in a process group of its own; stop waits for
// its end, which the kill brings about. A program may take it badly that its
// files are gone: git pack-objects reads a directory again and again, though
// getdents(2) answers ENOTCONN each time. That is its own affair as long as it can
// be ended; what must not be is a process that the kernel holds for an answer of
// the dead daemon.
func startProcess(t *testing.T, dir, name string, args ...string) (stop func()) {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), gitEnv...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	check(t, cmd.Start())
	return func() {
		done := make(chan struct{})
		go func() { cmd.Wait(); close(done) }()
		select {
		case <-done:
		case <-time.After(patience / 4):
			t.Logf("%s runs on after its file system is gone: killed", name)
		}
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		select {
		case <-done:
		case <-time.After(patience):
			t.Fatalf("%s cannot be killed after its file system is gone", name)
		}
	}
}

// TestKillDuringUntar: also, every file of the archive that is there is a
// beginning of the original.
func TestKillDuringUntar(t *testing.T) {
	tree := sourceTree(t)
	crash(t, crashLoad{
		longest: 2500 * time.Millisecond,
		prepare: func(t *testing.T, m *mount) { check(t, os.Mkdir(m.path("untar"), 0o755)) },
		start: func(t *testing.T, m *mount, _ *rand.Rand) func() {
			// Over the files of the round before: tar unlinks each first.
			return startProcess(t, "/", "tar", "-C", m.path("untar"), "-xf", tree+".tar")
		},
		verify: func(t *testing.T, m *mount) { wantBeginnings(t, m.path("untar"), tree) },
	})
}

func wantBeginnings(t *testing.T, dir, original string) {
	t.Helper()
	bad := 0
	check(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		got, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		want, err := os.ReadFile(filepath.Join(original, rel))
		if err != nil {
			return err
		}
		if !bytes.HasPrefix(want, got) && bad < 10 {
			bad++
			t.Errorf("%s: %d bytes are no beginning of the original's %d, first difference at %d", rel, len(got), len(want), firstDifference(got, want))
		}
		return nil
	}))
}

// TestKillDuringGitGC: the repository is sound each time.
func TestKillDuringGitGC(t *testing.T) {
	needTool(t, "git")
	tree := sourceTree(t)
	repo := func(m *mount) string { return m.path("repo") }
	crash(t, crashLoad{
		longest: 3 * time.Second,
		prepare: func(t *testing.T, m *mount) {
			git(t, m.dir, "init", "-q", "repo")
			for _, p := range []string{"fmt", "net", "os", "strconv"} {
				must(t, "", "cp", "-r", filepath.Join(tree, "src", p), repo(m))
				git(t, repo(m), "add", "-A")
				git(t, repo(m), "commit", "-qm", "add "+p)
			}
		},
		start: func(t *testing.T, m *mount, rng *rand.Rand) func() {
			script := fmt.Sprintf(`i=%d; while :; do
				echo $i >>counter && git add -A && git commit -qm $i && git gc -q --prune=now || exit 0
				i=$((i+1))
			done`, rng.Intn(1e6))
			return startProcess(t, repo(m), "sh", "-c", script)
		},
		verify: func(t *testing.T, m *mount) {
			// What a killed git leaves on any file system.
			must(t, repo(m), "find", ".git", "(", "-name", "*.lock", "-o", "-name", "gc.pid", ")", "-delete")
			git(t, repo(m), "fsck", "--strict", "--full", "--no-progress")
			git(t, repo(m), "reset", "-q", "--hard")
		},
	})
}

// TestKillDuringOverwrites: small changes to a bounded set of files fill
// memtables and leave garbage behind as fast as they can.
func TestKillDuringOverwrites(t *testing.T) {
	const workers, files = 3, 200
	crash(t, crashLoad{
		longest: 2 * time.Second,
		prepare: func(t *testing.T, m *mount) {
			for w := range workers {
				check(t, os.Mkdir(m.path(fmt.Sprint("churn-", w)), 0o755))
			}
		},
		start: func(t *testing.T, m *mount, rng *rand.Rand) func() {
			var wg sync.WaitGroup
			for w := range workers {
				wg.Add(1)
				go func(rng *rand.Rand) {
					defer wg.Done()
					churn(m.path(fmt.Sprint("churn-", w)), files, rng)
				}(rand.New(rand.NewSource(rng.Int63())))
			}
			return wg.Wait
		},
		verify: func(t *testing.T, m *mount) {
			for w := range workers {
				wantChurned(t, m.path(fmt.Sprint("churn-", w)))
			}
		},
	})
}

// churn overwrites, replaces and renames files until that fails. A file holds
// one byte value only, so that mixed contents show.
func churn(dir string, files int, rng *rand.Rand) {
	for {
		name := filepath.Join(dir, fmt.Sprintf("f%03d", rng.Intn(files)))
		data := bytes.Repeat([]byte{byte(rng.Intn(256))}, 1+rng.Intn(20000))
		temporary := name + ".new"
		if os.WriteFile(temporary, data, 0o600) != nil ||
			os.Chmod(temporary, fs.FileMode(0o600+rng.Intn(0o100))) != nil ||
			os.Rename(temporary, name) != nil {
			return
		}
	}
}

func wantChurned(t *testing.T, dir string) {
	t.Helper()
	names, err := os.ReadDir(dir)
	check(t, err)
	for _, d := range names {
		data, err := os.ReadFile(filepath.Join(dir, d.Name()))
		if err != nil {
			t.Error(err)
			continue
		}
		if len(data) == 0 {
			// The moment between create and write; it was never renamed.
			if filepath.Ext(d.Name()) != ".new" {
				t.Errorf("%s is empty: its size or name came before its data", d.Name())
			}
			continue
		}
		if bytes.Count(data, data[:1]) != len(data) {
			t.Errorf("%s holds a mixture", d.Name())
		}
	}
}
