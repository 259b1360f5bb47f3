package integration

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"

	"github.com/cespare/xxhash/v2"
)

// witness changes a directory by one request at a time, in a known order, and
// can say afterwards whether what is found is the state after some number of
// those requests (P2), and not fewer than were made durable (P3).
//
// It keeps a fingerprint of every state: the sum over all names of a hash of
// name, kind and content. A request changes few names, so that keeping it up
// costs little, and comparing a found directory with all states is a search
// for one number.
type witness struct {
	dir string
	rng *rand.Rand

	names  map[string]*witnessFile // files, by name relative to dir
	dirs   []string
	links  map[string]string // symbolic links
	next   int               // number of the next name
	sum    uint64
	states []uint64 // states[k]: the fingerprint after k requests
	log    []string // log[k]: the request that led to states[k+1]
	synced int      // this many requests are durable
}

// witnessFile is an inode: names that are hard links share it.
type witnessFile struct {
	data  []byte
	names []string
}

const (
	witnessMaxFile  = 256 << 10
	witnessMaxWrite = 64 << 10
	witnessMaxFiles = 300
)

func newWitness(dir string, rng *rand.Rand) *witness {
	return &witness{dir: dir, rng: rng, names: map[string]*witnessFile{}, links: map[string]string{}, dirs: []string{"."}, states: []uint64{0}}
}

func entryHash(name, kind string, content uint64) uint64 {
	return xxhash.Sum64String(fmt.Sprintf("%s\x00%s\x00%x", name, kind, content))
}

func (w *witness) path(name string) string { return filepath.Join(w.dir, name) }

// weight is what the names of a file contribute to the fingerprint.
func (f *witnessFile) weight() (sum uint64) {
	content := xxhash.Sum64(f.data)
	for _, n := range f.names {
		sum += entryHash(n, "file", content)
	}
	return sum
}

// step records one request in the model, then performs it. The model is first
// because a request whose answer never came may have happened.
func (w *witness) step(what string, delta uint64, do func() error) error {
	w.sum += delta
	w.states = append(w.states, w.sum)
	w.log = append(w.log, what)
	if err := do(); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

func (w *witness) newName() string {
	w.next++
	name := fmt.Sprintf("n%06d", w.next)
	return filepath.Join(w.dirs[w.rng.Intn(len(w.dirs))], name)
}

func (w *witness) someFile() string {
	// Map order is random, but not by our seed: take the n-th of the sorted.
	names := make([]string, 0, len(w.names))
	for n := range w.names {
		names = append(names, n)
	}
	sort.Strings(names)
	return names[w.rng.Intn(len(names))]
}

// change applies a modification of a file's content as one request.
func (w *witness) change(what, name string, data []byte, do func() error) error {
	f := w.names[name]
	before := f.weight()
	f.data = data
	return w.step(what+" "+name, f.weight()-before, do)
}

// run performs requests until one fails or stop is closed, and returns the
// failure. About one in sync of them is followed by an fsync.
func (w *witness) run(stop <-chan struct{}, syncEvery int) error {
	for {
		select {
		case <-stop:
			return nil
		default:
		}
		if err := w.one(); err != nil {
			return err
		}
		if syncEvery > 0 && w.rng.Intn(syncEvery) == 0 {
			if err := w.fsync(); err != nil {
				return err
			}
		}
	}
}

func (w *witness) fsync() error {
	name := "."
	if len(w.names) > 0 && w.rng.Intn(4) > 0 {
		name = w.someFile()
	}
	f, err := os.Open(w.path(name))
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Sync(); err != nil {
		return err
	}
	w.synced = len(w.log)
	return nil
}

func (w *witness) one() error {
	if len(w.names) == 0 {
		return w.create()
	}
	switch p := w.rng.Intn(100); {
	case p < 15 && len(w.names) < witnessMaxFiles:
		return w.create()
	case p < 50:
		return w.write()
	case p < 55:
		name := w.someFile()
		f := w.names[name]
		n := w.rng.Intn(len(f.data) + 4096)
		data := make([]byte, n)
		copy(data, f.data)
		return w.change(fmt.Sprintf("truncate to %d", n), name, data, func() error { return os.Truncate(w.path(name), int64(n)) })
	case p < 70:
		return w.rename()
	case p < 75:
		old := w.someFile()
		name := w.newName()
		f := w.names[old]
		before := f.weight()
		f.names = append(f.names, name)
		w.names[name] = f
		return w.step("link "+old+" "+name, f.weight()-before, func() error { return os.Link(w.path(old), w.path(name)) })
	case p < 78 && len(w.dirs) < 20:
		name := w.newName()
		w.dirs = append(w.dirs, name)
		return w.step("mkdir "+name, entryHash(name, "dir", 0), func() error { return os.Mkdir(w.path(name), 0o755) })
	case p < 81:
		name := w.newName()
		target := fmt.Sprintf("target of %s", name)
		w.links[name] = target
		return w.step("symlink "+name, entryHash(name, "link", xxhash.Sum64String(target)), func() error { return os.Symlink(target, w.path(name)) })
	}
	name := w.someFile()
	delta := w.drop(name)
	return w.step("unlink "+name, delta, func() error { return os.Remove(w.path(name)) })
}

// drop takes a name from the model and returns the change of the fingerprint.
func (w *witness) drop(name string) uint64 {
	f := w.names[name]
	before := f.weight()
	for i, n := range f.names {
		if n == name {
			f.names = append(f.names[:i:i], f.names[i+1:]...)
		}
	}
	delete(w.names, name)
	return f.weight() - before
}

func (w *witness) create() error {
	name := w.newName()
	f := &witnessFile{names: []string{name}}
	w.names[name] = f
	return w.step("create "+name, f.weight(), func() error {
		h, err := os.OpenFile(w.path(name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
		if err != nil {
			return err
		}
		return h.Close()
	})
}

// write is one write(2), at the end, inside, or beyond the end (which leaves a
// hole). The kernel makes one request of it or, where its page cache says so,
// several that part at page boundaries; so each of those parts is a step.
func (w *witness) write() error {
	name := w.someFile()
	f := w.names[name]
	n := 1 + w.rng.Intn(1<<(1+w.rng.Intn(16)))
	n = min(n, witnessMaxWrite)
	off := len(f.data)
	switch w.rng.Intn(3) {
	case 0:
		off = w.rng.Intn(len(f.data) + 1)
	case 1:
		off += w.rng.Intn(8192)
	}
	if off+n > witnessMaxFile {
		off = w.rng.Intn(witnessMaxFile - n)
	}
	p := make([]byte, n)
	// A row of equal bytes here and there lets compression have its way.
	if w.rng.Intn(2) == 0 {
		w.rng.Read(p)
	} else {
		for i := range p {
			p[i] = byte(w.next + i/512)
		}
	}
	const page = 4096
	what := fmt.Sprintf("write %d at %d", n, off)
	for done := 0; done < n; {
		part := min(n-done, page-(off+done)%page)
		data := make([]byte, max(len(f.data), off+done+part))
		copy(data, f.data)
		copy(data[off+done:], p[done:done+part])
		done += part
		do := func() error { return nil }
		if done == n {
			do = func() error { return w.pwrite(name, p, int64(off)) }
		}
		if err := w.change(what, name, data, do); err != nil {
			return err
		}
	}
	return nil
}

func (w *witness) pwrite(name string, p []byte, off int64) error {
	h, err := os.OpenFile(w.path(name), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = h.WriteAt(p, off)
	if cerr := h.Close(); err == nil {
		err = cerr
	}
	return err
}

// rename moves a file to a new name or over another file.
func (w *witness) rename() error {
	old := w.someFile()
	name := w.newName()
	if w.rng.Intn(2) == 0 {
		name = w.someFile()
	}
	f := w.names[old]
	var delta uint64
	if g := w.names[name]; g == f {
		// Two names of one file: nothing happens, by POSIX.
		return w.step("rename "+old+" "+name, 0, func() error { return os.Rename(w.path(old), w.path(name)) })
	} else if g != nil {
		delta += w.drop(name)
	}
	delta += w.drop(old)
	before := f.weight()
	f.names = append(f.names, name)
	w.names[name] = f
	delta += f.weight() - before
	return w.step("rename "+old+" "+name, delta, func() error { return os.Rename(w.path(old), w.path(name)) })
}

// found is the fingerprint of what is there now, and its entries.
func (w *witness) found() (uint64, map[string]uint64, error) {
	entries := map[string]uint64{}
	var sum uint64
	err := filepath.WalkDir(w.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(w.dir, path)
		if err != nil || name == "." {
			return err
		}
		var h uint64
		switch {
		case d.IsDir():
			h = entryHash(name, "dir", 0)
		case d.Type()&fs.ModeSymlink != 0:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			h = entryHash(name, "link", xxhash.Sum64String(target))
		default:
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			h = entryHash(name, "file", xxhash.Sum64(data))
		}
		entries[name] = h
		sum += h
		return nil
	})
	return sum, entries, err
}

// verdict compares what is found with every state from the last durable one
// on. Its error starts with LOST when something durable is missing, with TORN
// when no prefix of the requests leads to what is found.
func (w *witness) verdict() (string, error) {
	sum, entries, err := w.found()
	if err != nil {
		return "", fmt.Errorf("reading what the witness left: %w", err)
	}
	for k := len(w.states) - 1; k >= w.synced; k-- {
		if w.states[k] == sum {
			return fmt.Sprintf("state after %d of %d requests, %d durable", k, len(w.log), w.synced), nil
		}
	}
	for k := w.synced - 1; k >= 0; k-- {
		if w.states[k] == sum {
			return "", fmt.Errorf("LOST: state after %d of %d requests, but %d were made durable; the first lost is %q", k, len(w.log), w.synced, w.log[k])
		}
	}
	// The differences from the last state point at what is wrong, together
	// with the last requests.
	var b strings.Builder
	fmt.Fprintf(&b, "TORN: no prefix of the %d requests (%d durable) leads to what is found", len(w.log), w.synced)
	shown := 0
	for name, f := range w.names {
		if h, ok := entries[name]; shown < 10 && (!ok || h != entryHash(name, "file", xxhash.Sum64(f.data))) {
			fmt.Fprintf(&b, "\ndiffers from the last state: %s (found: %v, %d bytes wanted)", name, ok, len(f.data))
			shown++
		}
	}
	for i := max(0, len(w.log)-20); i < len(w.log); i++ {
		fmt.Fprintf(&b, "\nrequest %d: %s", i, w.log[i])
	}
	return "", errors.New(b.String())
}

// TestWitness: the judge itself finds what was lost and what was torn.
func TestWitness(t *testing.T) {
	dir := tempDir(t)
	w := newWitness(dir, rand.New(rand.NewSource(seed(t))))
	for range 2000 {
		check(t, w.one())
	}
	if _, err := w.verdict(); err != nil {
		t.Fatalf("on a directory where all is well: %v", err)
	}
	// The last request undone: in order, as long as it was not durable.
	check(t, w.create())
	last := w.path(strings.TrimPrefix(w.log[len(w.log)-1], "create "))
	check(t, os.Remove(last))
	if _, err := w.verdict(); err != nil {
		t.Errorf("one request less: %v", err)
	}
	w.synced = len(w.log)
	if _, err := w.verdict(); err == nil || !strings.HasPrefix(err.Error(), "LOST") {
		t.Errorf("a durable request undone: %v", err)
	}
	w.synced = 0
	writeFile(t, last, []byte("x"))
	if _, err := w.verdict(); err == nil || !strings.HasPrefix(err.Error(), "TORN") {
		t.Errorf("a byte that nobody wrote: %v", err)
	}
}
