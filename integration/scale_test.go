package integration

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// pattern fills p as the bytes of a large file at off are: every eight bytes
// say where they are.
func pattern(p []byte, off int64) {
	for i := 0; i+8 <= len(p); i += 8 {
		binary.LittleEndian.PutUint64(p[i:], uint64(off+int64(i))*0x9e3779b97f4a7c15)
	}
}

// TestLargeFile: 5 GiB long with a hole in it, beyond every 32-bit limit.
func TestLargeFile(t *testing.T) {
	const gib = int64(1) << 30
	m := newMount(t)
	var space unix.Statfs_t
	check(t, unix.Statfs(workDir, &space))
	// The long form writes every byte that is not in the hole.
	data := []struct{ from, to int64 }{{0, 256 << 20}, {2*gib - 64<<20, 2*gib + 64<<20}, {4*gib - 64<<20, 4*gib + 64<<20}, {5*gib - 128<<20, 5 * gib}}
	if long() {
		data = []struct{ from, to int64 }{{0, 2 * gib}, {3 * gib, 5 * gib}}
	}
	if int64(space.Bavail)*space.Bsize < 8*gib {
		t.Skip("less than 8 GiB free on the disk")
	}
	name := m.path("large")
	f, err := os.Create(name)
	check(t, err)
	defer f.Close()
	buf := make([]byte, 1<<20)
	for _, d := range data {
		for off := d.from; off < d.to; off += int64(len(buf)) {
			pattern(buf, off)
			_, err := f.WriteAt(buf, off)
			check(t, err)
		}
	}
	check(t, f.Sync())
	check(t, f.Close())
	verify := func() {
		t.Helper()
		st := lstat(t, name)
		if st.Size != 5*gib {
			t.Errorf("size %d", st.Size)
		}
		f, err := os.Open(name)
		check(t, err)
		defer f.Close()
		want, got := make([]byte, len(buf)), make([]byte, len(buf))
		for _, d := range data {
			for off := d.from; off < d.to; off += int64(len(buf)) {
				if _, err := f.ReadAt(got, off); err != nil {
					t.Fatal(err)
				}
				if pattern(want, off); string(got) != string(want) {
					t.Fatalf("wrong byte at %d", off+int64(firstDifference(got, want)))
				}
			}
		}
		if got, err := unix.Seek(int(f.Fd()), data[0].to, unix.SEEK_DATA); err != nil || got != data[1].from {
			t.Errorf("the hole ends at %d, %v, want %d", got, err, data[1].from)
		}
		n, err := f.ReadAt(got, 5*gib-100)
		if n != 100 || err != io.EOF {
			t.Errorf("reading over the end: %d, %v", n, err)
		}
	}
	verify()
	m.remount()
	verify()
	check(t, os.Truncate(name, 3*gib))
	check(t, os.Truncate(name, 5*gib))
	if rss := m.peakRSS(); rss > 300<<20 {
		t.Errorf("the daemon grew to %d MiB", rss>>20)
	}
	g, err := os.Open(name)
	check(t, err)
	defer g.Close()
	b := make([]byte, 4096)
	_, err = g.ReadAt(b, 5*gib-4096)
	check(t, err)
	for _, c := range b {
		if c != 0 {
			t.Fatal("old bytes after shrinking and growing")
		}
	}
	check(t, os.Remove(name))
}

// TestLargeDirectory: 200,000 entries are listed whole while others are
// removed: everything that stays is seen exactly once.
func TestLargeDirectory(t *testing.T) {
	m := newMount(t)
	n := 200000
	if testing.Short() {
		n = 20000
	}
	dir := m.path("d")
	check(t, os.Mkdir(dir, 0o755))
	const workers = 4
	var wg sync.WaitGroup
	errs := make(chan error, workers)
	for w := range workers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := w; i < n; i += workers {
				fd, err := unix.Open(fmt.Sprintf("%s/entry-%06d", dir, i), unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY, 0o644)
				if err != nil {
					errs <- err
					return
				}
				unix.Close(fd)
			}
		}()
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		t.Fatal(err)
	}
	m.remount()
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	check(t, err)
	// Every third entry is removed, from both ends, while the listing goes on.
	removed := make(chan error, 1)
	go func() {
		for i, j := 0, (n-1)/3*3; i <= j; i, j = i+3, j-3 {
			for _, k := range []int{i, j} {
				err := os.Remove(fmt.Sprintf("%s/entry-%06d", dir, k))
				if err != nil && !(i == j && errors.Is(err, os.ErrNotExist)) {
					removed <- err
					return
				}
			}
		}
		removed <- nil
	}()
	names, _ := dirEntries(t, fd, -1)
	check(t, <-removed)
	check(t, unix.Close(fd))
	seen := make([]int, n)
	for _, name := range names {
		var i int
		if _, err := fmt.Sscanf(name, "entry-%d", &i); err == nil {
			seen[i]++
		}
	}
	bad := 0
	for i, s := range seen {
		if s > 1 || s == 0 && i%3 != 0 {
			if bad++; bad < 10 {
				t.Errorf("entry %d seen %d times", i, s)
			}
		}
	}
	if bad > 0 {
		t.Errorf("%d entries wrong", bad)
	}
	m.remount()
	d, err := os.Open(dir)
	check(t, err)
	left, err := d.Readdirnames(-1)
	check(t, err)
	check(t, d.Close())
	if want := n - (n+2)/3; len(left) != want {
		t.Errorf("%d entries are left, want %d", len(left), want)
	}
	check(t, os.RemoveAll(dir))
	if rss := m.peakRSS(); rss > 300<<20 {
		t.Errorf("the daemon grew to %d MiB", rss>>20)
	}
}
