package integration

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

func readme(t testing.TB) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(repoRoot(), "README.md"))
	check(t, err)
	return string(b)
}

// TestReadmeCommands runs the console blocks of README.md in order, in an
// empty directory.
func TestReadmeCommands(t *testing.T) {
	needMount(t)
	dir := tempDir(t)
	bin := t.TempDir()
	check(t, os.Symlink(prismfsBin(t), filepath.Join(bin, "prismfs")))
	env := []string{"PATH=" + bin + ":" + os.Getenv("PATH")}
	blocks := regexp.MustCompile("(?s)```console\n(.*?)```").FindAllStringSubmatch(readme(t), -1)
	if len(blocks) == 0 {
		t.Fatal("README.md has no console blocks")
	}
	for _, b := range blocks {
		for _, line := range strings.Split(b[1], "\n") {
			if cmd, ok := strings.CutPrefix(line, "$ "); ok {
				mustEnv(t, dir, env, "sh", "-c", cmd)
			}
		}
	}
}

// TestReadmeIsComplete: every command, option and exit code that the program
// knows is in README.md.
func TestReadmeIsComplete(t *testing.T) {
	text := readme(t)
	for _, line := range strings.Split(mustPrismfs(t, "help"), "\n") {
		if m := regexp.MustCompile(`^  ([a-z]+) .* `).FindStringSubmatch(line); m != nil && m[1] != "prismfs" {
			if !strings.Contains(text, "`prismfs "+m[1]) {
				t.Errorf("README.md does not explain the command %s", m[1])
			}
		}
	}
	for _, line := range strings.Split(mustPrismfs(t, "help", "options"), "\n") {
		m := regexp.MustCompile(`^  ([a-z_]+)(=\S+)? `).FindStringSubmatch(line)
		if m == nil {
			continue
		}
		if want := "`" + m[1] + strings.ReplaceAll(m[2], "|", `\|`) + "`"; !strings.Contains(text, want) {
			t.Errorf("README.md does not explain the option %s", want)
		}
	}
	for _, line := range strings.Split(mustPrismfs(t, "help", "exit-codes"), "\n") {
		if m := regexp.MustCompile(`^  (\d)  (.*)$`).FindStringSubmatch(line); m != nil {
			if !strings.Contains(text, "| "+m[1]+" | "+m[2]+" |") {
				t.Errorf("README.md lacks exit code %s: %s", m[1], m[2])
			}
		}
	}
}
