package integration

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// newStore makes a store and an empty directory to mount it at.
func newStore(t testing.TB) (store, mnt string) {
	t.Helper()
	base := tempDir(t)
	store, mnt = filepath.Join(base, "store"), filepath.Join(base, "mnt")
	check(t, os.Mkdir(mnt, 0o755))
	mustPrismfs(t, "mkfs", store)
	return store, mnt
}

func isMountPoint(t testing.TB, dir string) bool {
	t.Helper()
	b, err := os.ReadFile("/proc/self/mountinfo")
	check(t, err)
	for _, line := range strings.Split(string(b), "\n") {
		if f := strings.Fields(line); len(f) > 4 && f[4] == dir {
			return true
		}
	}
	return false
}

func TestUsageErrors(t *testing.T) {
	for _, args := range [][]string{
		{"frobnicate"}, {"mkfs"}, {"mkfs", "--frobnicate", "x"}, {"mkfs", "a", "b"}, {"mkfs", "--compress=lzma", "x"},
		{"mount"}, {"mount", "x"}, {"mount", "-o"}, {"mount", "-q", "a", "b"},
		{"mount", "-o", "frobnicate", "a", "b"}, {"mount", "-o", "commit=x", "a", "b"}, {"mount", "-o", "cache=lots", "a", "b"},
		{"mount", "-o", "io=magic", "a", "b"}, {"mount", "-o", "fuse_uring", "a", "b"}, {"mount", "-o", "ro=1", "a", "b"},
		{"umount"}, {"status"}, {"fsck"}, {"sync"}, {"help", "frobnicate"},
	} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			r := prismfs(t, args...)
			refuse(t, exitUsage, r)
			if r.stdout != "" {
				t.Errorf("stdout %q", r.stdout)
			}
		})
	}
}

func TestNoStore(t *testing.T) {
	base := tempDir(t)
	mnt := filepath.Join(base, "mnt")
	empty := filepath.Join(base, "empty")
	foreign := filepath.Join(base, "foreign")
	file := filepath.Join(base, "file")
	for _, d := range []string{mnt, empty, foreign} {
		check(t, os.Mkdir(d, 0o755))
	}
	writeFile(t, filepath.Join(foreign, "letter"), []byte("dear"))
	writeFile(t, file, []byte("x"))
	for _, store := range []string{empty, foreign, file, filepath.Join(base, "absent")} {
		refuse(t, exitNotStore, prismfs(t, "mount", store, mnt))
		refuse(t, exitNotStore, prismfs(t, "fsck", store))
		if isMountPoint(t, mnt) {
			t.Fatalf("%s was mounted", store)
		}
	}
	refuse(t, exitNotStore, prismfs(t, "status", empty))
	// The refused directories are as they were.
	for dir, want := range map[string]int{empty: 0, foreign: 1} {
		names, err := os.ReadDir(dir)
		check(t, err)
		if n := len(slices.DeleteFunc(names, func(d os.DirEntry) bool { return d.Name() == "log" })); n != want {
			t.Errorf("%s holds %v now", dir, names)
		}
	}
}

func TestMkfsRefuses(t *testing.T) {
	base := tempDir(t)
	store := filepath.Join(base, "store")
	check(t, os.Mkdir(store, 0o755))
	writeFile(t, filepath.Join(store, "letter"), []byte("dear"))
	refuse(t, exitBusy, prismfs(t, "mkfs", store))
	mustPrismfs(t, "mkfs", "--force", store)
	wantFile(t, filepath.Join(store, "letter"), []byte("dear"))
	mustPrismfs(t, "fsck", store)
	refuse(t, exitBusy, prismfs(t, "mkfs", store))
	refuse(t, exitUsage, prismfs(t, "mkfs", filepath.Join(store, "letter")))

	m := newMount(t)
	writeFile(t, m.path("a"), []byte("a"))
	refuse(t, exitBusy, prismfs(t, "mkfs", m.store))
	refuse(t, exitBusy, prismfs(t, "mkfs", "--force", m.store))
	m.remount()
	wantFile(t, m.path("a"), []byte("a"))
	m.umount()
	mustPrismfs(t, "mkfs", "--force", m.store)
	m.mount()
	if _, err := os.Stat(m.path("a")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("mkfs --force kept a file: %v", err)
	}
}

// TestDamagedEngine: fsck ends with the code for damage, whatever file of the
// engine is hit.
func TestDamagedEngine(t *testing.T) {
	m := newMount(t)
	for i := range 300 {
		writeFile(t, m.path(fmt.Sprintf("f%d", i)), []byte("a"))
	}
	mustPrismfs(t, "compact", m.dir)
	m.umount()
	for _, c := range []struct {
		pattern string
		damage  func(b []byte) []byte
	}{
		{"*.ldb", func(b []byte) []byte { b[len(b)/3] ^= 4; return b }},
		{"*.ldb", func(b []byte) []byte { return b[:len(b)/2] }},
		{"MANIFEST-*", func(b []byte) []byte { b[20] ^= 4; return b }},
		{"MANIFEST-*", func(b []byte) []byte { return b[:60] }},
		{"CURRENT", func(b []byte) []byte { b[9] = '9'; return b }},
		{"CURRENT", func(b []byte) []byte { return b[:5] }},
	} {
		names, err := filepath.Glob(filepath.Join(m.store, "db", c.pattern))
		check(t, err)
		if len(names) == 0 {
			t.Fatalf("no %s", c.pattern)
		}
		good, err := os.ReadFile(names[0])
		check(t, err)
		check(t, os.WriteFile(names[0], c.damage(bytes.Clone(good)), 0o600))
		r := prismfs(t, "fsck", m.store)
		refuse(t, exitDamaged, r)
		check(t, os.WriteFile(names[0], good, 0o600))
	}
	mustPrismfs(t, "fsck", m.store)
}

// TestSuperblock: a damaged or newer superblock is refused and, put right
// again, mounts.
func TestSuperblock(t *testing.T) {
	m := newMount(t)
	writeFile(t, m.path("a"), []byte("a"))
	m.umount()
	name := filepath.Join(m.store, "superblock")
	good, err := os.ReadFile(name)
	check(t, err)
	try := func(what string, b []byte, codes ...int) {
		t.Helper()
		check(t, os.WriteFile(name, b, 0o600))
		for _, args := range [][]string{{"mount", m.store, m.dir}, {"fsck", m.store}} {
			r := prismfs(t, args...)
			if !slices.Contains(codes, r.code) {
				t.Errorf("%s: %s ended with %d, want %v: %s", what, args[0], r.code, codes, r.stderr)
			}
			refuse(t, r.code, r)
		}
	}
	for _, off := range []int{0, 9, 17, 45, 60, 1000, len(good) - 1} {
		b := bytes.Clone(good)
		b[off] ^= 0x10
		try(fmt.Sprintf("byte %d damaged", off), b, exitNotStore, exitDamaged)
	}
	try("cut", good[:100], exitNotStore, exitDamaged)
	try("empty", nil, exitNotStore, exitDamaged)
	newer := bytes.Clone(good)
	binary.LittleEndian.PutUint32(newer[8:], 1000)
	binary.LittleEndian.PutUint32(newer[len(newer)-4:], crc32.Checksum(newer[:len(newer)-4], crc32.MakeTable(crc32.Castagnoli)))
	try("newer format", newer, exitNotStore)
	check(t, os.WriteFile(name, good, 0o600))
	m.mount()
	wantFile(t, m.path("a"), []byte("a"))
}

func TestMountPointErrors(t *testing.T) {
	store, mnt := newStore(t)
	base := filepath.Dir(store)
	file := filepath.Join(base, "file")
	writeFile(t, file, nil)
	refuse(t, exitUsage, prismfs(t, "mount", store, filepath.Join(base, "absent")))
	refuse(t, exitUsage, prismfs(t, "mount", store, file))
	refuse(t, exitUsage, prismfs(t, "mount", store, store))
	refuse(t, exitUsage, prismfs(t, "mount", store, base))
	check(t, os.Mkdir(filepath.Join(store, "inside"), 0o755))
	refuse(t, exitUsage, prismfs(t, "mount", store, filepath.Join(store, "inside")))
	refuse(t, exitNotMounted, prismfs(t, "umount", mnt))
	refuse(t, exitNotMounted, prismfs(t, "umount", store))
	refuse(t, exitNotMounted, prismfs(t, "status", store))
	refuse(t, exitNotMounted, prismfs(t, "sync", store))
	refuse(t, exitSystem, prismfs(t, "mount", "-o", "log="+filepath.Join(base, "no", "log"), store, mnt))

	needRoot(t)
	check(t, unix.Mount("tmpfs", mnt, "tmpfs", 0, "size=64k"))
	refuse(t, exitBusy, prismfs(t, "mount", store, mnt))
	refuse(t, exitNotMounted, prismfs(t, "umount", mnt))
	check(t, unix.Unmount(mnt, 0))
	mustPrismfs(t, "fsck", store)
}

// TestOneStoreTwice: the second mount of a store is refused, whoever comes
// first, and the first goes on.
func TestOneStoreTwice(t *testing.T) {
	m := newMount(t)
	writeFile(t, m.path("a"), []byte("a"))
	other := filepath.Join(tempDir(t), "other")
	check(t, os.Mkdir(other, 0o755))
	refuse(t, exitBusy, prismfs(t, "mount", m.store, other))
	refuse(t, exitBusy, prismfs(t, "mount", m.store, m.dir))
	refuse(t, exitBusy, prismfs(t, "fsck", m.store))
	wantFile(t, m.path("a"), []byte("a"))
	m.umount()

	var wg sync.WaitGroup
	results := make([]result, 2)
	for i, dir := range []string{m.dir, other} {
		wg.Add(1)
		go func() {
			defer wg.Done()
			results[i] = prismfs(t, "mount", m.store, dir)
		}()
	}
	wg.Wait()
	codes := []int{results[0].code, results[1].code}
	slices.Sort(codes)
	if !slices.Equal(codes, []int{exitOK, exitBusy}) {
		t.Errorf("two mounts at once ended with %v: %q %q", codes, results[0].stderr, results[1].stderr)
	}
	mustPrismfs(t, "umount", m.store)
	m.mount()
	wantFile(t, m.path("a"), []byte("a"))
}

// smallDisk is a file system of its own on a loop device.
func smallDisk(t testing.TB, size string) string {
	t.Helper()
	needRoot(t)
	needTool(t, "mkfs.ext4", "losetup")
	base := tempDir(t)
	img, dir := filepath.Join(base, "img"), filepath.Join(base, "disk")
	check(t, os.Mkdir(dir, 0o755))
	must(t, "", "truncate", "-s", size, img)
	must(t, "", "mkfs.ext4", "-q", "-m", "0", img)
	if r := command(t, "", nil, "mount", "-o", "loop", img, dir); r.code != 0 {
		if os.Getenv("CI") != "" && os.Getenv("PRISMFS_NO_LOOP") == "" {
			t.Fatalf("no loop devices here (PRISMFS_NO_LOOP=1 skips): %s", r.stderr)
		}
		t.Skipf("no loop devices here: %s", r.stderr)
	}
	t.Cleanup(func() {
		if r := command(t, "", nil, "umount", dir); r.code != 0 && isMountPoint(t, dir) {
			t.Errorf("umount %s: %s", dir, r.stderr)
		}
	})
	return dir
}

// mountOn is newMount with the store on a given disk.
func mountOn(t testing.TB, disk string, opts ...string) *mount {
	t.Helper()
	needMount(t)
	m := &mount{t: t, store: filepath.Join(disk, "store"), dir: filepath.Join(tempDir(t), "mnt"), opts: opts}
	check(t, os.Mkdir(m.dir, 0o755))
	mustPrismfs(t, "mkfs", m.store)
	t.Cleanup(m.finish)
	m.mount()
	return m
}

// TestFullDisk: ENOSPC comes at the write that meets it, what was written
// before stays right, deleting works, and then writing does again.
func TestFullDisk(t *testing.T) {
	disk := smallDisk(t, "256M")
	m := mountOn(t, disk)
	content := func(i int) []byte {
		// Such that no codec makes it smaller.
		b := make([]byte, 1<<20)
		x := uint64(i)*0x9e3779b97f4a7c15 + 1
		for j := 0; j < len(b); j += 8 {
			x ^= x << 13
			x ^= x >> 7
			x ^= x << 17
			binary.LittleEndian.PutUint64(b[j:], x)
		}
		return b
	}
	for round := range 2 {
		written := 0
		for ; ; written++ {
			if written > 400 {
				t.Fatal("a disk of 256 MiB took 400 MiB")
			}
			name := m.path(fmt.Sprint("f", written))
			err := os.WriteFile(name, content(written), 0o644)
			if err == nil {
				continue
			}
			wantErrno(t, "write on a full disk", err, syscall.ENOSPC)
			if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
				t.Errorf("deleting on a full disk: %v", err)
			}
			break
		}
		if written < 50 {
			t.Errorf("round %d: full after %d MiB", round, written)
		}
		for i := range written {
			wantFile(t, m.path(fmt.Sprint("f", i)), content(i))
		}
		if t.Failed() {
			return
		}
		// A full disk is no reason to lose anything across a remount.
		m.remount()
		for i := range written {
			wantFile(t, m.path(fmt.Sprint("f", i)), content(i))
			if err := os.Remove(m.path(fmt.Sprint("f", i))); err != nil {
				t.Errorf("deleting on a full disk: %v", err)
			}
		}
		var err error
		eventually(t, "room returns", func() bool {
			err = os.WriteFile(m.path("again"), content(0), 0o644)
			return err == nil
		})
		check(t, os.Remove(m.path("again")))
		mustPrismfs(t, "sync", m.dir)
	}
}

// TestDiskFilledByOthers: another program takes the last room of the disk.
func TestDiskFilledByOthers(t *testing.T) {
	disk := smallDisk(t, "128M")
	m := mountOn(t, disk)
	writeFile(t, m.path("kept"), []byte("kept"))
	mustPrismfs(t, "sync", m.dir)
	ballast := filepath.Join(disk, "ballast")
	must(t, "", "sh", "-c", "cat /dev/zero >"+ballast+" 2>/dev/null || true")
	var err error
	for i := 0; err == nil && i < 1000; i++ {
		err = os.WriteFile(m.path(fmt.Sprint("f", i)), bytes.Repeat([]byte{byte(i), 1, 2, 3}, 64<<10), 0o644)
	}
	wantErrno(t, "write on a disk filled by others", err, syscall.ENOSPC)
	wantFile(t, m.path("kept"), []byte("kept"))
	check(t, os.Remove(ballast))
	eventually(t, "room returns", func() bool { return os.WriteFile(m.path("again"), []byte("again"), 0o644) == nil })
	m.remount()
	wantFile(t, m.path("kept"), []byte("kept"))
	wantFile(t, m.path("again"), []byte("again"))
}

// TestReadOnlyDisk: a store on a read-only file system mounts read-only.
func TestReadOnlyDisk(t *testing.T) {
	disk := smallDisk(t, "128M")
	m := mountOn(t, disk)
	writeFile(t, m.path("a"), []byte("a"))
	check(t, os.Mkdir(m.path("d"), 0o755))
	m.umount()
	must(t, "", "mount", "-o", "remount,ro", disk)
	m.mount()
	wantFile(t, m.path("a"), []byte("a"))
	wantErrno(t, "write", os.WriteFile(m.path("b"), nil, 0o644), syscall.EROFS)
	wantErrno(t, "unlink", os.Remove(m.path("a")), syscall.EROFS)
	wantErrno(t, "rename", os.Rename(m.path("a"), m.path("b")), syscall.EROFS)
	if !m.status().ReadOnly {
		t.Error("status does not say read_only")
	}
	m.umount()
	m.fsck()
	must(t, "", "mount", "-o", "remount,rw", disk)
	m.mount()
	writeFile(t, m.path("b"), []byte("b"))
}

// TestUmountInUse: a mount in use is left alone; -l detaches it.
func TestUmountInUse(t *testing.T) {
	m := newMount(t)
	f, err := os.Create(m.path("open"))
	check(t, err)
	defer f.Close()
	refuse(t, exitBusy, prismfs(t, "umount", m.dir))
	_, err = f.WriteString("still there")
	check(t, err)
	wantFile(t, m.path("open"), []byte("still there"))
	pid := m.pid()
	mustPrismfs(t, "umount", "-l", m.dir)
	m.up = false
	if isMountPoint(t, m.dir) {
		t.Error("still mounted after umount -l")
	}
	_, err = f.WriteString(", and goes on")
	check(t, err)
	check(t, f.Close())
	waitGone(t, pid)
	m.mount()
	wantFile(t, m.path("open"), []byte("still there, and goes on"))
}

// TestUmountWithCopy: a container that got a copy of the mount keeps the store
// in use. umount says so instead of waiting for it.
func TestUmountWithCopy(t *testing.T) {
	needRoot(t)
	needTool(t, "unshare")
	m := newMount(t)
	writeFile(t, m.path("a"), []byte("a"))
	pid := m.pid()
	container := exec.Command("unshare", "--mount", "cat")
	container.Stderr = os.Stderr
	in, err := container.StdinPipe()
	check(t, err)
	out, err := container.StdoutPipe()
	check(t, err)
	check(t, container.Start())
	// Once it echoes, it is in its namespace.
	_, err = in.Write([]byte("x"))
	check(t, err)
	_, err = out.Read(make([]byte, 1))
	check(t, err)
	r := prismfs(t, "umount", m.dir)
	refuse(t, exitBusy, r)
	if !strings.Contains(r.stderr, "namespace") || isMountPoint(t, m.dir) {
		t.Errorf("mounted here: %v; %s", isMountPoint(t, m.dir), r.stderr)
	}
	check(t, in.Close())
	check(t, container.Wait())
	waitGone(t, pid)
	m.mount()
	wantFile(t, m.path("a"), []byte("a"))
}
