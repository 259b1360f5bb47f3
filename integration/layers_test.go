package integration

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"strings"
	"testing"
)

// layers is the order of the packages, lowest first. A package may import what
// stands before it.
var layers = []string{"lanes", "uring", "ordered", "engine", "metadata", "fs", "cmd/prismfs"}

// allowedOutside are the modules that each layer may use besides the standard
// library.
var allowedOutside = map[string][]string{
	"lanes":       nil,
	"uring":       {"golang.org/x/sys"},
	"ordered":     {"golang.org/x/sys", "github.com/cespare/xxhash", "github.com/klauspost/compress"},
	"engine":      {"golang.org/x/sys", "github.com/cespare/xxhash", "github.com/klauspost/compress"},
	"metadata":    {"golang.org/x/sys", "github.com/cespare/xxhash", "github.com/klauspost/compress"},
	"fs":          {"golang.org/x/sys", "github.com/hanwen/go-fuse"},
	"cmd/prismfs": {"golang.org/x/sys"},
}

type listedPackage struct {
	ImportPath string
	Imports    []string
	GoFiles    []string
}

func listPackages(t *testing.T) []listedPackage {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports,GoFiles", "prismfs/...")
	cmd.Dir = repoRoot()
	out, err := cmd.Output()
	var ee *exec.ExitError
	if errors.As(err, &ee) {
		t.Fatalf("%v\n%s", err, ee.Stderr)
	}
	check(t, err)
	var pkgs []listedPackage
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listedPackage
		err := d.Decode(&p)
		if errors.Is(err, io.EOF) {
			return pkgs
		}
		if err != nil {
			t.Fatal(err)
		}
		pkgs = append(pkgs, p)
	}
}

// layerOf is the index of the layer that an import path belongs to: uring and
// uring/simdisk are the same layer.
func layerOf(path string) int {
	for i, l := range layers {
		if path == "prismfs/"+l || strings.HasPrefix(path, "prismfs/"+l+"/") {
			return i
		}
	}
	return -1
}

// TestLayers: imports point downwards only; go-fuse is known to fs alone,
// unsafe to uring and fs.
func TestLayers(t *testing.T) {
	seen := map[int]bool{}
	for _, p := range listPackages(t) {
		layer := layerOf(p.ImportPath)
		if layer < 0 {
			if !strings.HasPrefix(p.ImportPath, "prismfs/integration") {
				t.Errorf("%s belongs to no layer", p.ImportPath)
			}
			continue
		}
		seen[layer] = true
		name := layers[layer]
		for _, imp := range p.Imports {
			switch {
			case strings.HasPrefix(imp, "prismfs/"):
				if l := layerOf(imp); l < 0 || l > layer {
					t.Errorf("%s imports %s, which is above it", p.ImportPath, imp)
				}
			case imp == "unsafe" && name != "uring" && name != "fs":
				t.Errorf("%s imports unsafe", p.ImportPath)
			case strings.Contains(strings.Split(imp, "/")[0], "."):
				ok := false
				for _, m := range allowedOutside[name] {
					ok = ok || imp == m || strings.HasPrefix(imp, m+"/")
				}
				if !ok {
					t.Errorf("%s imports %s", p.ImportPath, imp)
				}
			case imp == "testing" && !strings.HasSuffix(p.ImportPath, "test"):
				t.Errorf("%s imports testing outside of its tests", p.ImportPath)
			}
		}
	}
	for i, l := range layers {
		if !seen[i] {
			t.Errorf("package %s is missing", l)
		}
	}
}
