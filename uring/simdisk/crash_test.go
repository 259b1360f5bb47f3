package simdisk_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"prismfs/uring"
	"prismfs/uring/simdisk"
)

func rng(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 1)) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func create(t *testing.T, d *simdisk.Disk, name string) uring.File {
	t.Helper()
	f, err := d.Create(name)
	must(t, err)
	return f
}

func write(t *testing.T, f uring.File, data string, off int64) {
	t.Helper()
	_, err := f.WriteAt([]byte(data), off)
	must(t, err)
}

// content is the whole of a file, or "missing".
func content(t *testing.T, d uring.Disk, name string) string {
	t.Helper()
	f, err := d.Open(name)
	if errors.Is(err, uring.ErrNotExist) {
		return "missing"
	}
	must(t, err)
	defer f.Close()
	n, err := f.Size()
	must(t, err)
	p := make([]byte, n)
	_, err = f.ReadAt(p, 0)
	must(t, err)
	return string(p)
}

// outcomes crashes many times and counts what is found.
func outcomes(t *testing.T, d *simdisk.Disk, mode simdisk.CrashMode, look func(*simdisk.Disk) string) map[string]int {
	t.Helper()
	m := make(map[string]int)
	for seed := uint64(0); seed < 300; seed++ {
		m[look(d.Crash(rng(seed), mode))]++
	}
	return m
}

func want(t *testing.T, got map[string]int, all ...string) {
	t.Helper()
	for k := range got {
		if !slices.Contains(all, k) {
			t.Errorf("impossible outcome %q", k)
		}
	}
	for _, k := range all {
		if got[k] == 0 {
			t.Errorf("outcome %q never seen in %v", k, got)
		}
	}
}

func TestNameNeedsSyncDir(t *testing.T) {
	d := simdisk.New(1)
	f := create(t, d, "a")
	write(t, f, "hello", 0)
	must(t, f.Datasync())
	look := func(c *simdisk.Disk) string { return content(t, c, "a") }
	want(t, outcomes(t, d, simdisk.LoseAll, look), "missing")
	want(t, outcomes(t, d, simdisk.KeepAll, look), "hello")
	want(t, outcomes(t, d, simdisk.Random, look), "missing", "hello")
	must(t, d.SyncDir("."))
	want(t, outcomes(t, d, simdisk.Random, look), "hello")
}

func TestDataNeedsDatasync(t *testing.T) {
	d := simdisk.New(1)
	f := create(t, d, "a")
	must(t, d.SyncDir(""))
	write(t, f, "hello", 0)
	look := func(c *simdisk.Disk) string { return content(t, c, "a") }
	want(t, outcomes(t, d, simdisk.LoseAll, look), "")
	want(t, outcomes(t, d, simdisk.Random, look), "", "hello", "\x00\x00\x00\x00\x00")
	must(t, f.Datasync())
	want(t, outcomes(t, d, simdisk.Random, look), "hello")
	write(t, f, "HE", 0)
	want(t, outcomes(t, d, simdisk.Random, look), "hello", "HEllo")
}

// A sector that holds a later write holds the earlier ones of it too.
func TestSectorIsAPrefixOfItsHistory(t *testing.T) {
	d := simdisk.New(1)
	f := create(t, d, "a")
	write(t, f, "....", 0)
	must(t, f.Datasync())
	must(t, d.SyncDir(""))
	write(t, f, "1", 0)
	write(t, f, "2", 1)
	write(t, f, "3", 0)
	look := func(c *simdisk.Disk) string { return content(t, c, "a") }
	want(t, outcomes(t, d, simdisk.Subset, look), "....", "1...", "12..", "32..")
	want(t, outcomes(t, d, simdisk.Torn, look), "....", "1...", "12..", "32..")
}

func TestTornWriteMixesSectors(t *testing.T) {
	d := simdisk.New(1)
	f := create(t, d, "a")
	write(t, f, string(bytes.Repeat([]byte("a"), 1536)), 0)
	must(t, f.Datasync())
	must(t, d.SyncDir(""))
	write(t, f, string(bytes.Repeat([]byte("b"), 1536)), 0)
	got := outcomes(t, d, simdisk.Torn, func(c *simdisk.Disk) string {
		s := content(t, c, "a")
		for i := 0; i < 1536; i += 512 {
			if s[i:i+512] != string(bytes.Repeat([]byte{s[i]}, 512)) {
				return "sector torn inside"
			}
		}
		return s[:1] + s[512:513] + s[1024:1025]
	})
	want(t, got, "aaa", "aab", "aba", "abb", "baa", "bab", "bba", "bbb")
}

// Two unsynced files are independent, except in a prefix.
func TestOrderBetweenFiles(t *testing.T) {
	d := simdisk.New(1)
	a, b := create(t, d, "a"), create(t, d, "b")
	write(t, a, "-", 0)
	write(t, b, "-", 0)
	must(t, a.Datasync())
	must(t, b.Datasync())
	must(t, d.SyncDir(""))
	write(t, a, "1", 0)
	write(t, b, "1", 0)
	look := func(c *simdisk.Disk) string { return content(t, c, "a") + content(t, c, "b") }
	want(t, outcomes(t, d, simdisk.Subset, look), "--", "-1", "1-", "11")
	want(t, outcomes(t, d, simdisk.Prefix, look), "--", "1-", "11")
}

func TestRenameIsAtomic(t *testing.T) {
	d := simdisk.New(1)
	for _, name := range []string{"cur", "tmp"} {
		f := create(t, d, name)
		write(t, f, name, 0)
		must(t, f.Sync())
	}
	must(t, d.SyncDir(""))
	must(t, d.Rename("tmp", "cur"))
	look := func(c *simdisk.Disk) string { return content(t, c, "cur") + " " + content(t, c, "tmp") }
	want(t, outcomes(t, d, simdisk.Random, look), "cur tmp", "tmp missing")
	must(t, d.SyncDir(""))
	want(t, outcomes(t, d, simdisk.Random, look), "tmp missing")
}

// A name that is reused implies that its former use ended: the old file is
// never lost altogether.
func TestRecycledNameKeepsTheOldFile(t *testing.T) {
	d := simdisk.New(1)
	f := create(t, d, "1.log")
	write(t, f, "old", 0)
	must(t, f.Datasync())
	must(t, d.SyncDir(""))
	must(t, d.Rename("1.log", "2.log"))
	create(t, d, "1.log")
	look := func(c *simdisk.Disk) string { return content(t, c, "1.log") + " " + content(t, c, "2.log") }
	want(t, outcomes(t, d, simdisk.Random, look), "old missing", "missing old", " old")
}

func TestRenameAcrossDirectoriesIsSyncedByEither(t *testing.T) {
	for _, dir := range []string{"a", "b"} {
		d := simdisk.New(1)
		must(t, d.MkdirAll("a"))
		must(t, d.MkdirAll("b"))
		f := create(t, d, "a/f")
		write(t, f, "x", 0)
		must(t, f.Datasync())
		must(t, d.SyncDir(""))
		must(t, d.Rename("a/f", "b/f"))
		must(t, d.SyncDir(dir))
		look := func(c *simdisk.Disk) string { return content(t, c, "a/f") + " " + content(t, c, "b/f") }
		want(t, outcomes(t, d, simdisk.Random, look), "missing x")
	}
}

func TestDirectoryNeedsSyncOfItsParent(t *testing.T) {
	d := simdisk.New(1)
	must(t, d.MkdirAll("a"))
	f := create(t, d, "a/f")
	must(t, f.Datasync())
	must(t, d.SyncDir("a"))
	look := func(c *simdisk.Disk) string { return fmt.Sprint(c.Exists("a"), c.Exists("a/f")) }
	want(t, outcomes(t, d, simdisk.Random, look), "false false", "true true")
	must(t, d.SyncDir(""))
	want(t, outcomes(t, d, simdisk.Random, look), "true true")
}

func TestRemoveNeedsSyncDir(t *testing.T) {
	d := simdisk.New(1)
	f := create(t, d, "a")
	write(t, f, "x", 0)
	must(t, f.Datasync())
	must(t, d.SyncDir(""))
	must(t, d.Remove("a"))
	look := func(c *simdisk.Disk) string { return content(t, c, "a") }
	want(t, outcomes(t, d, simdisk.Random, look), "x", "missing")
	must(t, d.SyncDir(""))
	want(t, outcomes(t, d, simdisk.Random, look), "missing")
}

func TestTruncateAndRewrite(t *testing.T) {
	d := simdisk.New(1)
	f := create(t, d, "a")
	write(t, f, "abcdef", 0)
	must(t, f.Datasync())
	must(t, d.SyncDir(""))
	must(t, f.Truncate(2))
	look := func(c *simdisk.Disk) string { return content(t, c, "a") }
	want(t, outcomes(t, d, simdisk.Random, look), "abcdef", "ab")
	write(t, f, "X", 3)
	for k := range outcomes(t, d, simdisk.Random, look) {
		// Whatever the sizes, a byte cut off never comes back beside the X.
		if len(k) > 3 && k[3] == 'X' && k != "ab\x00X" && k != "ab\x00X\x00\x00" {
			t.Errorf("impossible outcome %q", k)
		}
	}
	must(t, f.Datasync())
	want(t, outcomes(t, d, simdisk.Random, look), "ab\x00X")
}

func TestAllocatedReadsAsZeros(t *testing.T) {
	d := simdisk.New(1)
	f := create(t, d, "a")
	must(t, d.SyncDir(""))
	must(t, f.Allocate(0, 8192, false))
	must(t, f.Datasync())
	write(t, f, "x", 4096)
	for k := range outcomes(t, d, simdisk.Random, func(c *simdisk.Disk) string { return content(t, c, "a") }) {
		if k != string(make([]byte, 8192)) && k != string(make([]byte, 4096))+"x"+string(make([]byte, 4095)) {
			t.Errorf("impossible outcome of %d bytes", len(k))
		}
	}
}

// After a failed sync the pages are clean: a later sync does not bring them.
func TestFailedSyncLosesData(t *testing.T) {
	d := simdisk.New(1)
	f := create(t, d, "a")
	write(t, f, "----", 0)
	must(t, f.Datasync())
	must(t, d.SyncDir(""))
	write(t, f, "lost", 0)
	all, _ := d.Ops()
	boom := errors.New("boom")
	d.FailAt(all+1, boom)
	if err := f.Datasync(); !errors.Is(err, boom) {
		t.Fatalf("Datasync = %v", err)
	}
	must(t, f.Datasync())
	look := func(c *simdisk.Disk) string { return content(t, c, "a") }
	want(t, outcomes(t, d, simdisk.LoseAll, look), "----")
	if got := content(t, d, "a"); got != "lost" {
		t.Errorf("reads see %q before the crash", got)
	}
	write(t, f, "w", 4)
	must(t, f.Datasync())
	want(t, outcomes(t, d, simdisk.LoseAll, look), "lostw")
}

func TestPlantedFaults(t *testing.T) {
	d := simdisk.New(1)
	f := create(t, d, "a")
	d.IgnoreSyncDir(true)
	must(t, d.SyncDir(""))
	if d.Crash(nil, simdisk.LoseAll).Exists("a") {
		t.Error("IgnoreSyncDir has no effect")
	}
	d.IgnoreSyncDir(false)
	must(t, d.SyncDir(""))
	write(t, f, "x", 0)
	d.IgnoreDatasync(true)
	must(t, f.Datasync())
	if got := content(t, d.Crash(nil, simdisk.LoseAll), "a"); got != "" {
		t.Errorf("IgnoreDatasync has no effect: %q", got)
	}
}

func TestHookSeesStateBeforeTheOperation(t *testing.T) {
	d := simdisk.New(1)
	f := create(t, d, "a")
	var ops []simdisk.Op
	var before string
	d.OnOp(func(op simdisk.Op) error {
		ops = append(ops, op)
		if op.Kind == simdisk.OpWrite {
			before = content(t, d.Crash(nil, simdisk.KeepAll), "a")
		}
		return nil
	})
	write(t, f, "x", 0)
	d.OnOp(nil)
	if len(ops) != 1 || ops[0] != (simdisk.Op{Index: 2, Change: 2, Kind: simdisk.OpWrite, Name: "a", Len: 1}) {
		t.Errorf("ops = %+v", ops)
	}
	if before != "" {
		t.Errorf("before the write: %q", before)
	}
}

func TestCapacity(t *testing.T) {
	d := simdisk.New(1)
	d.SetCapacity(4 * 4096)
	f := create(t, d, "a")
	if n, err := f.WriteAt(make([]byte, 5*4096), 100); n != 4*4096-100 || !errors.Is(err, uring.ErrNoSpace) {
		t.Errorf("WriteAt = %d, %v", n, err)
	}
	if _, err := f.WriteAt(make([]byte, 4*4096), 0); err != nil {
		t.Errorf("overwrite on a full disk: %v", err)
	}
	if err := f.Allocate(4*4096, 1, true); !errors.Is(err, uring.ErrNoSpace) {
		t.Errorf("Allocate = %v", err)
	}
	must(t, f.Truncate(4096))
	must(t, f.Allocate(4096, 3*4096, true))
	must(t, d.Remove("a"))
	if s, _ := d.Free(); s.Free != 0 {
		t.Errorf("an open file gave its room back: %+v", s)
	}
	must(t, f.Close())
	if s, _ := d.Free(); s.Free != 4*4096 {
		t.Errorf("Free = %+v", s)
	}
}

func TestMaterializeAndLoad(t *testing.T) {
	d := simdisk.New(1)
	must(t, d.MkdirAll("a/b"))
	write(t, create(t, d, "a/b/f"), "hello", 10000)
	write(t, create(t, d, "g"), "top", 0)
	dir := t.TempDir()
	must(t, d.Materialize(dir))
	l, err := simdisk.Load(1, dir)
	must(t, err)
	c := l.Crash(nil, simdisk.LoseAll)
	for _, name := range []string{"a/b/f", "g"} {
		if content(t, c, name) != content(t, d, name) {
			t.Errorf("%s differs", name)
		}
	}
	real, err := uring.Open(dir, uring.Options{Mode: uring.Pread})
	must(t, err)
	defer real.Close()
	if content(t, real, "a/b/f") != content(t, d, "a/b/f") {
		t.Error("the materialized file differs")
	}
}

// A random history, crashed at every step in every mode: what was synced and
// not touched since is there, every sector is one of its versions, KeepAll is
// the volatile state, the same seed gives the same disk.
func TestRandomHistory(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rng(seed)
	const files, size = 3, 3 * 4096
	d := simdisk.New(seed)
	type version = [512]byte
	type model struct {
		f       uring.File
		now     []byte
		history [size / 512][]version // since the last sync, that one first
	}
	var ms [files]model
	for i := range ms {
		m := &ms[i]
		m.f = create(t, d, fmt.Sprint(i))
		write(t, m.f, string(make([]byte, size)), 0)
		must(t, m.f.Datasync())
		m.now = make([]byte, size)
		for s := range m.history {
			m.history[s] = []version{{}}
		}
	}
	must(t, d.SyncDir("."))
	for step := range 300 {
		m := &ms[r.IntN(files)]
		if r.IntN(6) == 0 {
			must(t, m.f.Datasync())
			for s := range m.history {
				m.history[s] = []version{version(m.now[s*512:])}
			}
		} else {
			off := r.IntN(size)
			p := make([]byte, 1+r.IntN(min(size-off, 3000)))
			for i := range p {
				p[i] = byte(r.Uint32())
			}
			write(t, m.f, string(p), int64(off))
			copy(m.now[off:], p)
			for s := off / 512; s*512 < off+len(p); s++ {
				m.history[s] = append(m.history[s], version(m.now[s*512:]))
			}
		}
		for mode := simdisk.Random; mode <= simdisk.Torn; mode++ {
			cs := r.Uint64()
			c, again := d.Crash(rng(cs), mode), d.Crash(rng(cs), mode)
			for i := range ms {
				got := content(t, c, fmt.Sprint(i))
				if got != content(t, again, fmt.Sprint(i)) {
					t.Fatalf("step %d, %v: not deterministic", step, mode)
				}
				if len(got) != size {
					t.Fatalf("step %d, %v: size %d", step, mode, len(got))
				}
				for s, h := range ms[i].history {
					v := version([]byte(got)[s*512:])
					if !slices.Contains(h, v) || mode == simdisk.LoseAll && v != h[0] || mode == simdisk.KeepAll && v != h[len(h)-1] {
						t.Fatalf("step %d, %v: file %d sector %d is none of its %d versions", step, mode, i, s, len(h))
					}
				}
			}
		}
	}
}

// Files are renamed at random, over each other too, with directories synced now
// and then. After any crash each file that was never replaced has one name, and
// one that was replaced has at most one.
func TestRandomRenames(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rng(seed)
	d := simdisk.New(seed)
	dirs := []string{"x", "y"}
	at := make(map[string]string) // name to content
	replaced := make(map[string]bool)
	var all []string
	for _, dir := range dirs {
		must(t, d.MkdirAll(dir))
		for i := range 4 {
			name := fmt.Sprintf("%s/%d", dir, i)
			f := create(t, d, name)
			write(t, f, name, 0)
			must(t, f.Datasync())
			must(t, f.Close())
			at[name] = name
			all = append(all, name)
		}
		must(t, d.SyncDir(dir))
	}
	must(t, d.SyncDir(""))
	for step := range 400 {
		from, to := fmt.Sprintf("%s/%d", dirs[r.IntN(2)], r.IntN(12)), fmt.Sprintf("%s/%d", dirs[r.IntN(2)], r.IntN(12))
		if r.IntN(8) == 0 {
			must(t, d.SyncDir(dirs[r.IntN(2)]))
		}
		if at[from] == "" || from == to || at[to] != "" && r.IntN(20) > 0 {
			continue
		}
		must(t, d.Rename(from, to))
		if old := at[to]; old != "" {
			replaced[old] = true
		}
		at[to] = at[from]
		delete(at, from)
		for mode := simdisk.Random; mode <= simdisk.Torn; mode++ {
			c := d.Crash(rng(r.Uint64()), mode)
			found := make(map[string]int)
			for _, dir := range dirs {
				names, err := c.List(dir)
				must(t, err)
				for _, name := range names {
					found[content(t, c, dir+"/"+name)]++
				}
			}
			for _, id := range all {
				if n := found[id]; n > 1 || n == 0 && !replaced[id] {
					t.Fatalf("step %d, %v: file %s has %d names", step, mode, id, n)
				}
			}
		}
	}
}
