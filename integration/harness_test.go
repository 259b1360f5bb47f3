package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Exit codes as documented.
const (
	exitOK         = 0
	exitUsage      = 1
	exitSystem     = 2
	exitNotStore   = 3
	exitDamaged    = 4
	exitBusy       = 5
	exitNotMounted = 6
)

// patience bounds every wait for something that must happen.
const patience = 30 * time.Second

// workDir is the directory of this run; its name carries the process, so that
// a later run can clear away what a killed one left.
var workDir string

const workPrefix = "prismfs-test-"

func TestMain(m *testing.M) {
	flag.Parse()
	if code, done := runInNamespace(); done {
		os.Exit(code)
	}
	base := os.Getenv("PRISMFS_TESTDIR")
	if base == "" {
		base = "/var/tmp"
	}
	removeLeftovers(base)
	var err error
	workDir, err = os.MkdirTemp(base, fmt.Sprintf("%s%d-", workPrefix, os.Getpid()))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	unmountBelow(workDir)
	os.RemoveAll(workDir)
	os.Exit(code)
}

// runInNamespace runs the tests again in a mount namespace of their own, where
// that is possible: they leave no mounts behind, however they end, and no other
// program's new namespace keeps a copy of one alive.
func runInNamespace() (code int, done bool) {
	const inside = "PRISMFS_TEST_NAMESPACE"
	if os.Getuid() != 0 || os.Getenv(inside) != "" {
		return 0, false
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread() // Pdeathsig is about the thread
	if err := cmd.Start(); err != nil {
		return 0, false
	}
	cmd.Wait()
	if code = cmd.ProcessState.ExitCode(); code < 0 {
		code = 1
	}
	return code, true
}

func removeLeftovers(base string) {
	old, _ := filepath.Glob(filepath.Join(base, workPrefix+"*"))
	for _, dir := range old {
		pid, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(dir), workPrefix), "-")
		if n, err := strconv.Atoi(pid); err == nil && errors.Is(syscall.Kill(n, 0), syscall.ESRCH) {
			unmountBelow(dir)
			os.RemoveAll(dir)
		}
	}
}

// unmountBelow detaches every mount below dir, the last first.
func unmountBelow(dir string) {
	b, _ := os.ReadFile("/proc/self/mountinfo")
	lines := strings.Split(string(b), "\n")
	for i := len(lines) - 1; i >= 0; i-- {
		if f := strings.Fields(lines[i]); len(f) > 4 && strings.HasPrefix(f[4], dir+"/") {
			unix.Unmount(f[4], unix.MNT_DETACH)
		}
	}
}

// needMount skips where mounting is impossible, except in CI.
func needMount(t testing.TB) {
	t.Helper()
	f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err == nil {
		f.Close()
		return
	}
	if os.Getenv("CI") != "" {
		t.Fatalf("this machine cannot mount: %v", err)
	}
	t.Skipf("this machine cannot mount: %v", err)
}

func needRoot(t testing.TB) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
}

// needTool fails in CI, where `make test` has installed everything.
func needTool(t testing.TB, names ...string) {
	t.Helper()
	for _, name := range names {
		if _, err := exec.LookPath(name); err != nil {
			if os.Getenv("CI") != "" {
				t.Fatal(err)
			}
			t.Skip(err)
		}
	}
}

func long() bool { return os.Getenv("PRISMFS_LONG") != "" }

var buildOnce = sync.OnceValues(func() (string, error) {
	if bin := os.Getenv("PRISMFS_BIN"); bin != "" {
		return filepath.Abs(bin)
	}
	bin := filepath.Join(workDir, "bin", "prismfs")
	cmd := exec.Command("go", "build", "-o", bin, "prismfs/cmd/prismfs")
	cmd.Dir = repoRoot()
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building prismfs: %w\n%s", err, out)
	}
	return bin, nil
})

// prismfsBin is the program under test.
func prismfsBin(t testing.TB) string {
	t.Helper()
	bin, err := buildOnce()
	if err != nil {
		t.Fatal(err)
	}
	return bin
}

func repoRoot() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Dir(filepath.Dir(file))
}

// tempDir is a directory on the real disk. Unlike t.TempDir's it survives
// inside it a mount whose daemon died, until cleanup has detached it.
func tempDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp(workDir, "t-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		unmountBelow(dir)
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// result is what a program said and how it ended.
type result struct {
	code           int
	stdout, stderr string
}

// command runs a program in dir with extra environment, bounded in time.
func command(t testing.TB, dir string, env []string, name string, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(append(os.Environ(), "LC_ALL=C"), env...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	// A daemon inherits the ends of these pipes when it fails to let go of
	// them; that is a fault, and it must not hang the test.
	cmd.WaitDelay = 10 * time.Second
	err := cmd.Run()
	var ee *exec.ExitError
	if err != nil && !errors.As(err, &ee) {
		t.Fatalf("%s %q: %v\n%s", name, args, err, stderr.String())
	}
	return result{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// must runs a program that has to succeed and returns what it printed.
func must(t testing.TB, dir string, name string, args ...string) string {
	t.Helper()
	return mustEnv(t, dir, nil, name, args...)
}

func mustEnv(t testing.TB, dir string, env []string, name string, args ...string) string {
	t.Helper()
	r := command(t, dir, env, name, args...)
	if r.code != 0 {
		t.Fatalf("%s %q ended with %d\n%s%s", name, args, r.code, tail(r.stdout), tail(r.stderr))
	}
	return r.stdout
}

// tail keeps failures readable.
func tail(s string) string {
	const keep = 4000
	if len(s) > keep {
		return "..." + s[len(s)-keep:]
	}
	return s
}

// prismfs runs the program under test.
func prismfs(t testing.TB, args ...string) result {
	t.Helper()
	return command(t, "", nil, prismfsBin(t), args...)
}

func mustPrismfs(t testing.TB, args ...string) string {
	t.Helper()
	return must(t, "", prismfsBin(t), args...)
}

// refuse wants a failure with this exit code and exactly one line of the
// documented shape.
func refuse(t testing.TB, code int, r result) {
	t.Helper()
	line := strings.TrimSuffix(r.stderr, "\n")
	if r.code != code {
		t.Errorf("exit code %d, want %d (stderr %q)", r.code, code, r.stderr)
	}
	if strings.Contains(line, "\n") || !strings.HasPrefix(line, "prismfs: ") || strings.Contains(line, "goroutine ") {
		t.Errorf("stderr %q, want one line `prismfs: ...`", r.stderr)
	}
}

// mount is a store of its own, mounted by a daemon of its own.
type mount struct {
	t     testing.TB
	store string
	dir   string
	opts  []string
	up    bool
}

// newMount makes a store and mounts it. At the end of the test it is
// unmounted and checked.
func newMount(t testing.TB, opts ...string) *mount {
	t.Helper()
	needMount(t)
	base := tempDir(t)
	m := &mount{t: t, store: filepath.Join(base, "store"), dir: filepath.Join(base, "mnt"), opts: opts}
	if extra := os.Getenv("PRISMFS_MOUNT_OPTS"); extra != "" {
		m.opts = append(m.opts, extra)
	}
	if err := os.Mkdir(m.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	mustPrismfs(t, "mkfs", m.store)
	t.Cleanup(m.finish)
	m.mount()
	return m
}

// finish unmounts and checks. After a failure it shows what may explain it.
func (m *mount) finish() {
	m.t.Helper()
	if m.up {
		m.umount()
	}
	m.fsck()
	if !m.t.Failed() {
		return
	}
	if b, err := os.ReadFile(filepath.Join(m.store, "log")); err == nil {
		m.t.Logf("log of the daemon:\n%s", tail(string(b)))
	}
	if keep := os.Getenv("PRISMFS_KEEP"); keep != "" {
		m.t.Log(command(m.t, "", nil, "cp", "-a", m.store, keep))
	}
}

func (m *mount) path(elem ...string) string {
	return filepath.Join(append([]string{m.dir}, elem...)...)
}

func (m *mount) mount() {
	m.t.Helper()
	args := []string{"mount", m.store, m.dir}
	if len(m.opts) > 0 {
		args = append(args, "-o", strings.Join(m.opts, ","))
	}
	mustPrismfs(m.t, args...)
	m.up = true
}

// umount bears with a user of the mount that is only just ending.
func (m *mount) umount() {
	m.t.Helper()
	m.up = false
	var r result
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		r = prismfs(m.t, "umount", m.dir)
		if r.code != exitBusy || time.Now().After(deadline) {
			break
		}
	}
	if r.code != exitOK {
		m.t.Errorf("umount ended with %d: %s", r.code, r.stderr)
	}
}

func (m *mount) remount() {
	m.t.Helper()
	m.umount()
	m.mount()
}

// daemonStatus is what the tests use of `prismfs status --json`.
type daemonStatus struct {
	State      string `json:"state"`
	Store      string `json:"store"`
	MountPoint string `json:"mount_point"`
	ReadOnly   bool   `json:"read_only"`
	Pid        int    `json:"pid"`
}

func (m *mount) status() daemonStatus {
	m.t.Helper()
	var st daemonStatus
	if err := json.Unmarshal([]byte(mustPrismfs(m.t, "status", "--json", m.dir)), &st); err != nil {
		m.t.Fatal(err)
	}
	return st
}

func (m *mount) pid() int { m.t.Helper(); return m.status().Pid }

// kill9 ends the daemon without warning and removes the dead mount.
func (m *mount) kill9() {
	m.t.Helper()
	m.killPid(m.pid())
}

// killPid is kill9 when the daemon's process was asked for before, so that
// nothing delays the moment.
func (m *mount) killPid(pid int) {
	m.t.Helper()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		m.t.Fatal(err)
	}
	waitGone(m.t, pid)
	m.up = false
	if err := unix.Unmount(m.dir, unix.MNT_DETACH); err != nil {
		m.t.Fatal(err)
	}
}

// waitGone waits for the end of a process that is no child of ours. A zombie
// has let go of everything.
func waitGone(t testing.TB, pid int) {
	t.Helper()
	eventually(t, fmt.Sprintf("process %d ends", pid), func() bool {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return true
		}
		_, rest, _ := strings.Cut(string(b), ") ")
		return strings.HasPrefix(rest, "Z")
	})
}

// eventually polls an observable state.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !cond(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("still waiting after %v: %s", patience, what)
		}
	}
}

func (m *mount) fsck() {
	m.t.Helper()
	if r := prismfs(m.t, "fsck", m.store); r.code != exitOK {
		m.t.Errorf("fsck ended with %d\n%s%s", r.code, tail(r.stdout), tail(r.stderr))
	}
}

// peakRSS is the largest resident size of the daemon so far, in bytes.
func (m *mount) peakRSS() int64 {
	m.t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", m.pid()))
	if err != nil {
		m.t.Fatal(err)
	}
	for _, line := range strings.Split(string(b), "\n") {
		if v, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, err := strconv.ParseInt(strings.Fields(v)[0], 10, 64)
			if err != nil {
				m.t.Fatal(err)
			}
			return kib << 10
		}
	}
	m.t.Fatal("no VmHWM")
	return 0
}

// seed is printed so that a failure can be repeated with PRISMFS_SEED.
func seed(t testing.TB) int64 {
	t.Helper()
	s := time.Now().UnixNano()
	if v := os.Getenv("PRISMFS_SEED"); v != "" {
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil {
			t.Fatalf("PRISMFS_SEED: %v", err)
		}
		s = n
	}
	t.Logf("PRISMFS_SEED=%d", s)
	return s
}

// check fails the test when err is not nil.
func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wantErrno wants this errno from a system call.
func wantErrno(t testing.TB, what string, err error, want syscall.Errno) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}

func writeFile(t testing.TB, path string, data []byte) {
	t.Helper()
	check(t, os.WriteFile(path, data, 0o644))
}

func wantFile(t testing.TB, path string, want []byte) {
	t.Helper()
	got, err := os.ReadFile(path)
	if err != nil {
		t.Error(err)
	} else if !bytes.Equal(got, want) {
		t.Errorf("%s: %d bytes that differ from the %d expected, first at %d", path, len(got), len(want), firstDifference(got, want))
	}
}

func firstDifference(a, b []byte) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	return min(len(a), len(b))
}

// countFiles counts regular files below dir.
func countFiles(t testing.TB, dir string) (n int) {
	t.Helper()
	check(t, filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			n++
		}
		return err
	}))
	return n
}
