package integration

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestHelpAndVersion(t *testing.T) {
	for _, args := range [][]string{{}, {"help"}, {"--help"}, {"-h"}, {"help", "mount"}, {"mount", "--help"}, {"help", "options"}, {"help", "exit-codes"}, {"help", "unmount"}, {"version"}, {"--version"}, {"version", "--json"}} {
		if r := prismfs(t, args...); r.code != 0 || r.stdout == "" || r.stderr != "" {
			t.Errorf("%q ended with %d, stdout %q, stderr %q", args, r.code, r.stdout, r.stderr)
		}
	}
}

func TestStatus(t *testing.T) {
	m := newMount(t)
	check(t, os.Mkdir(m.path("d"), 0o755))
	for _, where := range []string{m.dir, m.store, m.dir + "/"} {
		r := prismfs(t, "status", where)
		if r.code != 0 || !strings.Contains(r.stdout, "state: running\n") || !strings.Contains(r.stdout, m.dir) {
			t.Errorf("status %s ended with %d: %s%s", where, r.code, r.stdout, r.stderr)
		}
	}
	st := m.status()
	if st.State != "running" || st.Store != m.store || st.MountPoint != m.dir || st.ReadOnly || st.Pid == 0 {
		t.Errorf("%+v", st)
	}
	for _, c := range []string{"sync", "gc", "compact"} {
		mustPrismfs(t, c, m.dir)
		mustPrismfs(t, c, m.store)
	}
	if out := mustPrismfs(t, "stats", "--json", m.dir); !strings.HasPrefix(out, "{") {
		t.Errorf("stats --json: %s", out)
	}
	fi, err := os.Stat(filepath.Join(m.store, "control.sock"))
	check(t, err)
	if fi.Mode().Perm() != 0o600 {
		t.Errorf("control.sock has mode %v", fi.Mode())
	}
	pid := st.Pid
	m.umount()
	r := prismfs(t, "status", "--json", m.store)
	refuse(t, exitNotMounted, r)
	if !strings.Contains(r.stdout, `"not mounted"`) {
		t.Errorf("status --json of an idle store: %s", r.stdout)
	}
	waitGone(t, pid)
	b, err := os.ReadFile(filepath.Join(m.store, "log"))
	check(t, err)
	for _, want := range []string{"mounted at " + m.dir, "closed"} {
		if !bytes.Contains(b, []byte(want)) {
			t.Errorf("the log lacks %q:\n%s", want, b)
		}
	}
}

// TestAliases: the names that people try first.
func TestAliases(t *testing.T) {
	base := tempDir(t)
	store, mnt := filepath.Join(base, "s"), filepath.Join(base, "m")
	check(t, os.Mkdir(mnt, 0o755))
	mustPrismfs(t, "format", store)
	mustPrismfs(t, "check", store)
	mustPrismfs(t, "mount", store, mnt, "-v")
	mustPrismfs(t, "info", mnt)
	mustPrismfs(t, "unmount", mnt)
	// As mount.fuse(8) calls: prismfs STORE MNT -o OPTIONS.
	mustPrismfs(t, store, mnt, "-o", "rw,noatime")
	mustPrismfs(t, "umount", mnt)
}

// TestOptions: what mount(8) and fstab hand over is accepted, and what the
// kernel is to do shows in its table.
func TestOptions(t *testing.T) {
	const accepted = "rw,noatime,nosuid,nodev,noexec,default_permissions,noauto,nofail,_netdev,user,x-systemd.automount,x-foo=bar,fuse_uring=auto,io=pread,commit=5,cache=32M"
	m := newMount(t, accepted)
	line := mountLine(t, m.dir)
	for _, want := range []string{"rw", "noatime", "nosuid", "nodev", "noexec"} {
		if !strings.Contains(","+strings.Fields(line)[5]+",", ","+want+",") {
			t.Errorf("%s is missing in %s", want, line)
		}
	}
	if f := strings.Split(line, " - "); len(f) != 2 || !strings.HasPrefix(f[1], "fuse.prismfs "+m.store+" ") {
		t.Errorf("type and source in %s", line)
	}
	must(t, "", "cp", "/bin/true", m.path("true"))
	if err := exec.Command(m.path("true")).Run(); !errors.Is(err, syscall.EACCES) {
		t.Errorf("noexec: %v", err)
	}
	m.umount()

	logFile := filepath.Join(tempDir(t), "a, b.log")
	m.opts = []string{"ro", `log="` + logFile + `"`}
	m.mount()
	wantErrno(t, "write on a read-only mount", os.WriteFile(m.path("x"), nil, 0o644), syscall.EROFS)
	wantErrno(t, "utime on a read-only mount", os.Chtimes(m.path("true"), time.Time{}, time.Unix(1, 0)), syscall.EROFS)
	if b, err := os.ReadFile(logFile); err != nil || !bytes.Contains(b, []byte("mounted")) {
		t.Errorf("log=FILE: %q, %v", b, err)
	}
	m.umount()
	refuse(t, exitUsage, prismfs(t, "mount", m.store, m.dir, "-o", "nonsense"))
	mustPrismfs(t, "mount", m.store, m.dir, "-s", "-o", "nonsense,rw")
	mustPrismfs(t, "umount", m.dir)
}

func mountLine(t testing.TB, dir string) string {
	t.Helper()
	b, err := os.ReadFile("/proc/self/mountinfo")
	check(t, err)
	found := ""
	for _, line := range strings.Split(string(b), "\n") {
		if f := strings.Fields(line); len(f) > 4 && f[4] == dir {
			found = line
		}
	}
	return found
}

// TestOtherUsers: what root mounts is for everybody, by their permissions;
// set-user-ID bits and devices count only where they were asked for.
func TestOtherUsers(t *testing.T) {
	needRoot(t)
	m := newMount(t, "suid,dev")
	writeFile(t, m.path("public"), []byte("public"))
	check(t, os.WriteFile(m.path("private"), []byte("private"), 0o600))
	check(t, os.Mkdir(m.path("tmp"), 0o777))
	check(t, unix.Chmod(m.path("tmp"), 0o1777))
	// Everybody may pass through the directories above.
	for d := filepath.Dir(m.dir); d != workDir && len(d) > 1; d = filepath.Dir(d) {
		check(t, os.Chmod(d, 0o755))
	}
	check(t, os.Chmod(workDir, 0o755))
	as := func(uid uint32, script string) result {
		t.Helper()
		cmd := exec.Command("sh", "-c", script)
		cmd.Dir = m.dir
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		err := cmd.Run()
		var ee *exec.ExitError
		if err != nil && !errors.As(err, &ee) {
			t.Fatal(err)
		}
		return result{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
	}
	allowed := func(uid uint32, script string) {
		t.Helper()
		if r := as(uid, script); r.code != 0 {
			t.Errorf("%d may not %q: %s", uid, script, r.stderr)
		}
	}
	denied := func(uid uint32, script string) {
		t.Helper()
		if r := as(uid, script); r.code == 0 {
			t.Errorf("%d may %q", uid, script)
		}
	}
	allowed(1000, "cat public")
	denied(1000, "cat private")
	denied(1000, "touch new")
	allowed(1000, "echo x >tmp/mine && chmod 600 tmp/mine")
	allowed(1001, "ls -l tmp")
	denied(1001, "cat tmp/mine")
	denied(1001, "rm -f tmp/mine") // the sticky bit
	denied(1001, "mv tmp/mine tmp/yours")
	allowed(1000, "rm tmp/mine")
	must(t, "", "cp", "/usr/bin/id", m.path("id"))
	check(t, unix.Chmod(m.path("id"), 0o4755))
	if r := as(1000, "./id -u"); strings.TrimSpace(r.stdout) != "0" {
		t.Errorf("set-user-ID with suid: id -u says %q %s", r.stdout, r.stderr)
	}
	check(t, unix.Mknod(m.path("null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
	check(t, unix.Chmod(m.path("null"), 0o666))
	allowed(1000, "echo x >null")
	// Writing takes the set-user-ID bit away.
	check(t, os.Chmod(m.path("tmp"), 0o777))
	writeFile(t, m.path("tmp", "s"), []byte("s"))
	check(t, unix.Chmod(m.path("tmp", "s"), 0o6777))
	allowed(1000, "echo x >>tmp/s")
	if fi, err := os.Stat(m.path("tmp", "s")); err != nil || fi.Mode()&(os.ModeSetuid|os.ModeSetgid) != 0 {
		t.Errorf("written by another: %v, %v", fi.Mode(), err)
	}
	m.umount()
	m.opts = nil
	m.mount()
	if r := as(1000, "./id -u"); strings.TrimSpace(r.stdout) != "1000" {
		t.Errorf("set-user-ID without suid: id -u says %q %s", r.stdout, r.stderr)
	}
	denied(1000, "echo x >null")
}

// TestSignals: SIGTERM and SIGINT end the daemon as umount does, even when
// the mount is in use.
func TestSignals(t *testing.T) {
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(s.String(), func(t *testing.T) {
			m := newMount(t)
			writeFile(t, m.path("a"), []byte("a"))
			pid := m.pid()
			check(t, syscall.Kill(pid, s))
			waitGone(t, pid)
			if isMountPoint(t, m.dir) {
				t.Error("still mounted")
			}
			m.mount()
			wantFile(t, m.path("a"), []byte("a"))
			f, err := os.Open(m.path("a"))
			check(t, err)
			defer f.Close()
			pid = m.pid()
			check(t, syscall.Kill(pid, s))
			waitGone(t, pid)
			if isMountPoint(t, m.dir) {
				t.Error("still mounted while in use")
			}
			m.mount()
			wantFile(t, m.path("a"), []byte("a"))
		})
	}
}

// TestForeground: -f stays, logs to stderr, and ends by Ctrl-C or umount.
func TestForeground(t *testing.T) {
	needMount(t)
	store, mnt := newStore(t)
	for i, end := range []func(cmd *exec.Cmd){
		func(cmd *exec.Cmd) { check(t, cmd.Process.Signal(os.Interrupt)) },
		func(*exec.Cmd) { mustPrismfs(t, "umount", mnt) },
		func(*exec.Cmd) { check(t, unix.Unmount(mnt, 0)) },
	} {
		cmd := exec.Command(prismfsBin(t), "mount", "-f", store, mnt)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		check(t, cmd.Start())
		eventually(t, "the daemon runs", func() bool { return prismfs(t, "status", store).code == 0 })
		writeFile(t, filepath.Join(mnt, fmt.Sprint(i)), []byte("x"))
		end(cmd)
		if err := cmd.Wait(); err != nil {
			t.Errorf("round %d: %v", i, err)
		}
		if !strings.Contains(stderr.String(), "mounted at") {
			t.Errorf("stderr: %s", stderr.String())
		}
	}
	mustPrismfs(t, "fsck", store)
}

// TestMountAfterUmount: umount(2) does not wait for the daemon, so the next
// mount does.
func TestMountAfterUmount(t *testing.T) {
	needRoot(t)
	m := newMount(t)
	for i := range 20 {
		name := m.path(fmt.Sprint("f", i))
		writeFile(t, name, bytes.Repeat([]byte{byte(i)}, 100000))
		check(t, unix.Unmount(m.dir, 0))
		m.mount()
		wantFile(t, name, bytes.Repeat([]byte{byte(i)}, 100000))
	}
	// prismfs umount does wait: its end is the daemon's.
	for range 5 {
		pid := m.pid()
		m.umount()
		m.fsck()
		waitGone(t, pid)
		m.mount()
	}
}

// TestMountOverDead: after a kill the same command mounts again, without an
// umount in between; and umount alone clears the dead mount away.
func TestMountOverDead(t *testing.T) {
	m := newMount(t)
	writeFile(t, m.path("a"), []byte("a"))
	mustPrismfs(t, "sync", m.dir)
	pid := m.pid()
	check(t, syscall.Kill(pid, syscall.SIGKILL))
	waitGone(t, pid)
	refuse(t, exitNotMounted, prismfs(t, "status", m.dir))
	refuse(t, exitNotMounted, prismfs(t, "sync", m.dir))
	m.mount()
	wantFile(t, m.path("a"), []byte("a"))
	pid = m.pid()
	check(t, syscall.Kill(pid, syscall.SIGKILL))
	waitGone(t, pid)
	mustPrismfs(t, "umount", m.dir)
	if isMountPoint(t, m.dir) {
		t.Error("still mounted")
	}
	m.mount()
	wantFile(t, m.path("a"), []byte("a"))
}

// TestMount8: mount(8), umount(8), fstab and remounting, through the helpers.
func TestMount8(t *testing.T) {
	needRoot(t)
	needMount(t)
	bin := prismfsBin(t)
	for _, name := range []string{"mount.prismfs", "mount.fuse.prismfs", "umount.fuse.prismfs"} {
		helper := filepath.Join("/sbin", name)
		old, err := os.Readlink(helper)
		if err == nil {
			check(t, os.Remove(helper))
			t.Cleanup(func() { os.Symlink(old, helper) })
		} else if _, err := os.Lstat(helper); err == nil {
			t.Skipf("%s is installed and no link", helper)
		}
		check(t, os.Symlink(bin, helper))
		t.Cleanup(func() { os.Remove(helper) })
	}
	store, mnt := newStore(t)
	// umount(8) does not wait for the daemon; fsck does.
	end := func() {
		t.Helper()
		mustPrismfs(t, "status", mnt)
		must(t, "", "umount", mnt)
		mustPrismfs(t, "fsck", store)
	}
	for _, typ := range []string{"prismfs", "fuse.prismfs"} {
		must(t, "", "mount", "-t", typ, store, mnt, "-o", "noatime,x-test")
		writeFile(t, filepath.Join(mnt, typ), []byte(typ))
		end()
	}

	must(t, "", "mount", "-t", "prismfs", store, mnt, "-o", "nosuid")
	must(t, "", "mount", "-o", "remount,ro", mnt)
	wantErrno(t, "write after remount,ro", os.WriteFile(filepath.Join(mnt, "x"), nil, 0o644), syscall.EROFS)
	must(t, "", "mount", "-o", "remount,rw,noexec", mnt)
	writeFile(t, filepath.Join(mnt, "x"), []byte("x"))
	if line := mountLine(t, mnt); !strings.Contains(line, "noexec") || !strings.Contains(line, "nosuid") {
		t.Errorf("after remount,rw,noexec: %s", line)
	}
	end()

	fstab := filepath.Join(filepath.Dir(store), "fstab")
	writeFile(t, fstab, []byte(fmt.Sprintf("%s %s prismfs defaults,nofail,_netdev,x-systemd.automount 0 0\n", store, mnt)))
	must(t, "", "mount", "-T", fstab, "-a")
	wantFile(t, filepath.Join(mnt, "x"), []byte("x"))
	end()
	must(t, "", "mount", "-T", fstab, mnt)
	end()

	// Failures end with mount(8)'s code.
	check(t, os.Mkdir(filepath.Join(filepath.Dir(store), "nostore"), 0o755))
	if r := command(t, "", nil, "mount", "-t", "prismfs", filepath.Join(filepath.Dir(store), "nostore"), mnt); r.code != 32 {
		t.Errorf("mount of no store ended with %d: %s", r.code, r.stderr)
	}
	if r := command(t, "", nil, "/sbin/mount.prismfs", store, mnt, "-o", "nonsense"); r.code != 1 {
		t.Errorf("mount helper with a wrong option ended with %d: %s", r.code, r.stderr)
	}
	if r := command(t, "", nil, "/sbin/mount.prismfs", store, mnt, "-f"); r.code != 0 || isMountPoint(t, mnt) {
		t.Errorf("a fake mount ended with %d, mounted: %v", r.code, isMountPoint(t, mnt))
	}
}
