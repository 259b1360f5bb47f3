package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// gitEnv keeps git from depending on who runs the tests.
var gitEnv = []string{
	"GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null",
	"GIT_AUTHOR_NAME=A", "GIT_AUTHOR_EMAIL=a@example.org",
	"GIT_COMMITTER_NAME=C", "GIT_COMMITTER_EMAIL=c@example.org",
}

func git(t testing.TB, dir string, args ...string) string {
	t.Helper()
	return mustEnv(t, dir, gitEnv, "git", args...)
}

// TestGit: a repository lives on the mount.
func TestGit(t *testing.T) {
	needTool(t, "git")
	tree := sourceTree(t)
	m := newMount(t)
	repo := m.path("repo")
	git(t, m.dir, "init", "-q", "-b", "main", "repo")
	must(t, "", "cp", "-a", filepath.Join(tree, "src", "fmt"), filepath.Join(tree, "src", "net"), filepath.Join(tree, "src", "cmd", "go"), repo)
	git(t, repo, "add", "-A")
	git(t, repo, "commit", "-qm", "first")
	first := git(t, repo, "rev-parse", "HEAD^{tree}")
	git(t, repo, "checkout", "-q", "-b", "work")
	must(t, repo, "rm", "-r", "net")
	writeFile(t, filepath.Join(repo, "new"), []byte("new\n"))
	git(t, repo, "add", "-A")
	git(t, repo, "commit", "-qm", "second")
	for range 3 {
		git(t, repo, "checkout", "-q", "main")
		git(t, repo, "checkout", "-q", "work")
	}
	git(t, repo, "checkout", "-q", "main")
	git(t, repo, "merge", "-q", "--no-ff", "-m", "merge", "work")
	git(t, repo, "fsck", "--strict", "--full", "--no-progress")
	git(t, repo, "gc", "-q", "--prune=now")
	git(t, repo, "fsck", "--strict", "--full", "--no-progress")
	m.remount()
	git(t, repo, "fsck", "--strict", "--full", "--no-progress")
	if s := git(t, repo, "status", "--porcelain"); s != "" {
		t.Errorf("git status after a remount: %s", s)
	}
	if got := git(t, repo, "rev-parse", "HEAD~1^{tree}"); got != first {
		t.Errorf("tree %s, want %s", got, first)
	}
	git(t, m.dir, "clone", "-q", "repo", "clone")
	must(t, "", "diff", "-r", "-x", ".git", repo, m.path("clone"))
}

// TestGoBuild: the compiler reads its sources from the mount and keeps its
// cache, its temporary files and its results there. What it builds runs.
func TestGoBuild(t *testing.T) {
	m := newMount(t)
	src := m.path("src")
	must(t, "", "cp", "-a", repoRoot(), src)
	cache, tmp := m.path("cache"), m.path("tmp")
	check(t, os.Mkdir(tmp, 0o755))
	modcache := strings.TrimSpace(must(t, "", "go", "env", "GOMODCACHE"))
	env := []string{"GOCACHE=" + cache, "TMPDIR=" + tmp, "GOTMPDIR=" + tmp, "GOMODCACHE=" + modcache, "GOFLAGS=-mod=mod -buildvcs=false", "GOPROXY=off"}
	bin := m.path("prismfs")
	mustEnv(t, src, env, "go", "build", "-o", bin, "./cmd/prismfs")
	must(t, "", bin, "version")
	// Nothing is built twice: the cache on the mount is believed.
	if out := command(t, src, env, "go", "build", "-x", "-o", bin, "./cmd/prismfs"); strings.Contains(out.stderr, "/compile ") {
		t.Errorf("the build cache on the mount is not used:\n%s", tail(out.stderr))
	}
	m.remount()
	must(t, "", bin, "version")
}

// TestSQLite: transactions in each journal mode, whole after a remount and
// after a kill.
func TestSQLite(t *testing.T) {
	needTool(t, "sqlite3")
	for _, mode := range []string{"DELETE", "TRUNCATE", "PERSIST", "WAL"} {
		t.Run(mode, func(t *testing.T) {
			m := newMount(t)
			db := m.path("db")
			sql := func(text string) string {
				t.Helper()
				return strings.TrimSpace(must(t, "", "sqlite3", "-batch", "-bail", db, text))
			}
			sql("PRAGMA journal_mode=" + mode + "; CREATE TABLE t(id INTEGER PRIMARY KEY, v BLOB); CREATE INDEX i ON t(v);")
			const rows = 3000
			var b strings.Builder
			fmt.Fprintf(&b, "PRAGMA journal_mode=%s;", mode)
			for i := range rows {
				if i%100 == 0 {
					b.WriteString("BEGIN;")
				}
				fmt.Fprintf(&b, "INSERT INTO t VALUES(%d, randomblob(%d));", i, 100+i%900)
				if i%100 == 99 {
					b.WriteString("COMMIT;")
				}
			}
			b.WriteString("BEGIN; DELETE FROM t; ROLLBACK; DELETE FROM t WHERE id%3=0; VACUUM;")
			script := filepath.Join(tempDir(t), "script")
			writeFile(t, script, []byte(b.String()))
			sql(".read " + script)
			want := fmt.Sprint(rows - rows/3)
			verify := func() {
				t.Helper()
				if got := sql("PRAGMA integrity_check"); got != "ok" {
					t.Errorf("integrity_check: %s", got)
				}
				if got := sql("SELECT count(*) FROM t"); got != want {
					t.Errorf("%s rows, want %s", got, want)
				}
			}
			verify()
			m.remount()
			verify()
			// A transaction survives the kill if sqlite syncs the end of its
			// journal too, which EXTRA makes it do.
			pid := m.pid()
			sql("PRAGMA journal_mode=" + mode + "; PRAGMA synchronous=EXTRA; INSERT INTO t(v) VALUES('last')")
			m.killPid(pid)
			m.mount()
			want = fmt.Sprint(rows - rows/3 + 1)
			verify()
		})
	}
}

// TestPrograms: small programs that lean on one feature each.
func TestPrograms(t *testing.T) {
	m := newMount(t)
	dir := m.path("d")
	check(t, os.Mkdir(dir, 0o755))
	// A script and a copy of a program run from the mount.
	writeFile(t, filepath.Join(dir, "script"), []byte("#!/bin/sh\necho ran\n"))
	check(t, os.Chmod(filepath.Join(dir, "script"), 0o755))
	if out := must(t, dir, "./script"); out != "ran\n" {
		t.Errorf("script printed %q", out)
	}
	cat, err := exec.LookPath("cat")
	check(t, err)
	must(t, "", "cp", cat, filepath.Join(dir, "cat"))
	must(t, dir, "./cat", "script")
	wantErrno(t, "write to a running program", runningText(t, dir), 26) // ETXTBSY
	must(t, dir, "sh", "-c", "seq 100000 | sort -R -T . | sort -n -T . | tail -1 | grep -qx 100000")
	must(t, dir, "sh", "-c", "i=0; while [ $i -lt 200 ]; do echo $i >>log; i=$((i+1)); done; test $(wc -l <log) = 200")
	must(t, dir, "dd", "if=/dev/zero", "of=dd", "bs=64k", "count=16", "oflag=dsync", "status=none")
	must(t, dir, "dd", "if=/dev/urandom", "of=direct", "bs=4k", "count=64", "oflag=direct", "status=none")
	must(t, dir, "sh", "-c", "dd if=direct iflag=direct bs=4k status=none | cmp - direct")
	must(t, dir, "sed", "-i", "s/1/one/", "log")
	must(t, dir, "truncate", "-s", "1G", "sparse")
	if used := strings.Fields(must(t, dir, "du", "-k", "sparse"))[0]; used != "0" {
		t.Errorf("a sparse file uses %s KiB", used)
	}
	must(t, dir, "cp", "--sparse=always", "sparse", "sparse2")
	must(t, dir, "cmp", "-n", "1048576", "sparse", "sparse2")
}

// runningText tries to write to a program that runs.
func runningText(t *testing.T, dir string) error {
	t.Helper()
	cmd := exec.Command(filepath.Join(dir, "cat"))
	in, err := cmd.StdinPipe()
	check(t, err)
	check(t, cmd.Start())
	defer cmd.Wait()
	defer in.Close()
	f, err := os.OpenFile(filepath.Join(dir, "cat"), os.O_WRONLY, 0)
	if err == nil {
		f.Close()
	}
	return err
}
