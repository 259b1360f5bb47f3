package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// goTree is a copy of the Go source tree with symbolic and hard links added,
// made once on the real disk, and the tar file of it.
var goTree = sync.OnceValues(func() (dir string, err error) {
	out, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return "", err
	}
	root := strings.TrimSpace(string(out))
	dir = filepath.Join(workDir, "tree")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return "", err
	}
	// Below "go" there is no go.mod of ours, so tools leave it alone.
	for _, sub := range []string{"src", "test"} {
		if _, err := os.Stat(filepath.Join(root, sub)); err != nil {
			continue
		}
		if out, err := exec.Command("cp", "-a", "--no-preserve=ownership", filepath.Join(root, sub), dir).CombinedOutput(); err != nil {
			return "", &exec.Error{Name: string(out), Err: err}
		}
	}
	links := filepath.Join(dir, "links")
	if err := os.Mkdir(links, 0o755); err != nil {
		return "", err
	}
	for _, l := range [][2]string{{"../src/fmt", "relative"}, {"/nowhere/at all", "dangling"}, {"loop", "loop"}} {
		if err := os.Symlink(l[0], filepath.Join(links, l[1])); err != nil {
			return "", err
		}
	}
	for _, name := range []string{"one", "two", "three"} {
		if err := os.Link(filepath.Join(dir, "src", "fmt", "print.go"), filepath.Join(links, name)); err != nil {
			return "", err
		}
	}
	if err := os.WriteFile(filepath.Join(links, "empty"), nil, 0o600); err != nil {
		return "", err
	}
	if out, err := exec.Command("tar", "--format=posix", "-C", dir, "-cf", dir+".tar", ".").CombinedOutput(); err != nil {
		return "", &exec.Error{Name: string(out), Err: err}
	}
	return dir, nil
})

func sourceTree(t testing.TB) string {
	t.Helper()
	dir, err := goTree()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// compareTrees wants equal names, contents, modes, times, sizes and links.
func compareTrees(t testing.TB, a, b string) {
	t.Helper()
	if r := command(t, "", nil, "diff", "-rq", "--no-dereference", a, b); r.code != 0 {
		t.Errorf("diff ended with %d\n%s%s", r.code, tail(r.stdout), tail(r.stderr))
		for _, line := range strings.Split(r.stdout, "\n") {
			// "Files A and B differ": where, and is it so still?
			if f := strings.Fields(line); len(f) == 5 && f[0] == "Files" {
				t.Log(command(t, "", nil, "sh", "-c", "cmp "+f[1]+" "+f[3]+"; cmp -l "+f[1]+" "+f[3]+" | head -5; cmp -l "+f[1]+" "+f[3]+" | wc -l").stdout)
			}
		}
	}
	// %l is a link's target; directories' sizes and times of links that tar
	// does not restore are left out.
	const regular, other = `%P %y %m %s %n %T@\n`, `%P %y %m %l\n`
	list := func(dir string) string {
		s := must(t, dir, "find", ".", "-type", "f", "-printf", regular, "-o", "-printf", other)
		return sortLines(s)
	}
	la, lb := list(a), list(b)
	if la != lb {
		t.Errorf("%s and %s differ in attributes: %s", a, b, firstLineDifference(la, lb))
	}
}

// TestSourceTree: a tree of more than 10,000 files passes through tar, cp,
// find, grep, du and rsync unharmed, before and after a remount, and the
// daemon stays small.
func TestSourceTree(t *testing.T) {
	needTool(t, "rsync", "tar", "diff")
	tree := sourceTree(t)
	files := countFiles(t, tree)
	if files < 10000 {
		t.Fatalf("only %d files in the Go source tree", files)
	}
	m := newMount(t)
	untarred := m.path("untar")
	check(t, os.Mkdir(untarred, 0o755))
	must(t, "", "tar", "-C", untarred, "-xf", tree+".tar")
	compareTrees(t, tree, untarred)

	copied := m.path("copy")
	must(t, "", "cp", "-a", untarred, copied)
	compareTrees(t, tree, copied)

	sameOutput := func(what string, args ...string) {
		t.Helper()
		want := sortLines(must(t, tree, args[0], args[1:]...))
		if got := sortLines(must(t, untarred, args[0], args[1:]...)); got != want {
			t.Errorf("%s differs on the mount: %s", what, firstLineDifference(want, got))
		}
	}
	sameOutput("find", "find", ".", "-name", "*.go", "-size", "+8k")
	sameOutput("find by links", "find", ".", "-type", "f", "-links", "+1")
	sameOutput("grep", "grep", "-r", "--include=*.go", "-c", "func Print", "src/fmt", "src/os", "src/net")
	sameOutput("du", "du", "--apparent-size", "-b", "src/fmt/print.go", "src/os/file.go")
	must(t, "", "du", "-s", untarred)

	// The second rsync finds nothing to do, at once and after a remount.
	synced := m.path("rsync")
	rsync := []string{"-aH", "--itemize-changes", tree + "/", synced + "/"}
	must(t, "", "rsync", rsync...)
	if out := must(t, "", "rsync", rsync...); out != "" {
		t.Errorf("a second rsync transfers:\n%s", tail(out))
	}
	if out := must(t, "", "rsync", append([]string{"--checksum"}, rsync...)...); out != "" {
		t.Errorf("a second rsync --checksum transfers:\n%s", tail(out))
	}

	if rss := m.peakRSS(); rss > 300<<20 {
		t.Errorf("the daemon grew to %d MiB", rss>>20)
	}
	m.remount()
	compareTrees(t, tree, untarred)
	compareTrees(t, tree, copied)
	if out := must(t, "", "rsync", rsync...); out != "" {
		t.Errorf("rsync after a remount transfers:\n%s", tail(out))
	}
	must(t, "", "rm", "-rf", untarred, copied, synced)
	names, err := os.ReadDir(m.dir)
	check(t, err)
	if len(names) != 0 {
		t.Errorf("rm -rf left %v", names)
	}
	if rss := m.peakRSS(); rss > 300<<20 {
		t.Errorf("the daemon grew to %d MiB after the remount", rss>>20)
	}
	t.Logf("%d files; peak RSS %d MiB", files, m.peakRSS()>>20)
}
