package simdisk_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"prismfs/uring"
	"prismfs/uring/simdisk"
)

// kindOf reduces an error to what callers may distinguish.
func kindOf(err error) string {
	for _, kind := range []error{nil, io.EOF, uring.ErrNotExist, uring.ErrNoSpace, uring.ErrReadOnly, uring.ErrClosed, uring.ErrLocked} {
		if err == kind || kind != nil && errors.Is(err, kind) {
			return fmt.Sprint(kind)
		}
	}
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno.Error()
	}
	return err.Error()
}

// A random history on the simulated and on the real disk gives the same
// results, names and bytes at every step.
func TestAgainstRealDisk(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rng(seed)
	dir := t.TempDir()
	real, err := uring.Open(dir, uring.Options{Mode: uring.Pread})
	must(t, err)
	defer real.Close()
	disks := []uring.Disk{simdisk.New(seed), real}
	names := []string{"a", "b", "d", "d/a", "d/b", "d/e", "d/e/a", "f", "f/a"}
	type handles [2]uring.File
	var open []handles
	defer func() {
		for _, h := range open {
			h[1].Close()
		}
	}()

	for step := range 2000 {
		name, other := names[r.IntN(len(names))], names[r.IntN(len(names))]
		op := r.IntN(20)
		off, n := r.Int64N(20_000), 1+r.IntN(9_000)
		fill := byte(1 + r.IntN(255))
		var h handles
		if len(open) > 0 {
			h = open[r.IntN(len(open))]
		}
		var results [2]string
		var opened handles
		for i, d := range disks {
			var res any
			var err error
			switch op {
			case 0, 1:
				opened[i], err = d.Create(name)
			case 2:
				if opened[i], err = d.Open(name); errors.Is(err, syscall.EISDIR) {
					opened[i] = nil
				}
			case 3:
				err = d.Remove(name)
			case 4, 5:
				err = d.Rename(name, other)
			case 6:
				err = d.MkdirAll(name)
			case 7:
				res, err = d.List(name)
			case 8:
				if _, listErr := d.List(name); listErr != nil {
					res, err = d.Stat(name) // the size of a directory is the host's own
				}
			case 9:
				err = d.SyncDir(name)
			default:
				f := h[i]
				if f == nil {
					continue
				}
				switch op {
				case 10, 11, 12:
					res, err = f.WriteAt(bytes.Repeat([]byte{fill}, n), off)
				case 13, 14:
					p := make([]byte, n)
					var m int
					m, err = f.ReadAt(p, off)
					res = p[:m]
				case 15:
					err = f.Truncate(off)
				case 16:
					err = f.Allocate(off, int64(n), fill%2 == 0)
				case 17:
					err = f.Datasync()
				case 18:
					res, err = f.Size()
				case 19:
					err = f.Close()
				}
			}
			results[i] = fmt.Sprint(kindOf(err), res)
		}
		if results[0] != results[1] {
			t.Fatalf("step %d: operation %d %s %s %d %d: %.200s on the simulated disk, %.200s on the real one",
				step, op, name, other, off, n, results[0], results[1])
		}
		if (opened[0] == nil) != (opened[1] == nil) {
			t.Fatalf("step %d: one disk opens %s", step, name)
		}
		if opened[0] != nil {
			open = append(open, opened)
		}
	}
	d := t.TempDir()
	must(t, disks[0].(*simdisk.Disk).Materialize(d))
	if a, b := tree(t, d), tree(t, dir); !slices.Equal(a, b) {
		t.Errorf("the trees differ:\n%.500q\n%.500q", a, b)
	}
	loaded, err := simdisk.Load(1, dir)
	must(t, err)
	d = t.TempDir()
	must(t, loaded.Crash(nil, simdisk.LoseAll).Materialize(d))
	if !slices.Equal(tree(t, d), tree(t, dir)) {
		t.Error("the loaded tree differs")
	}
}

// tree lists all names with their contents.
func tree(t *testing.T, dir string) []string {
	t.Helper()
	var all []string
	must(t, filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil || e.IsDir() {
			all = append(all, rel)
			return err
		}
		b, err := os.ReadFile(path)
		all = append(all, rel+"="+string(b))
		return err
	}))
	return all
}

func BenchmarkCrash(b *testing.B) {
	d := simdisk.New(1)
	r := rand.New(rand.NewPCG(1, 1))
	for i := range 10 {
		f, err := d.Create(fmt.Sprint(i))
		if err != nil {
			b.Fatal(err)
		}
		f.WriteAt(make([]byte, 1<<20), 0)
		f.Datasync()
		f.WriteAt(make([]byte, 64<<10), r.Int64N(1<<20))
	}
	d.SyncDir("")
	for b.Loop() {
		d.Crash(r, simdisk.Subset)
	}
}

func BenchmarkWriteSync(b *testing.B) {
	d := simdisk.New(1)
	f, err := d.Create("f")
	if err != nil {
		b.Fatal(err)
	}
	p := make([]byte, 4096)
	for i := 0; b.Loop(); i++ {
		f.WriteAt(p, int64(i%1000)*4096)
		if i%16 == 0 {
			f.Datasync()
		}
	}
}
