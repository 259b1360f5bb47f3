package integration

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// TestRename: every kind over every kind, with each flag.
func TestRename(t *testing.T) {
	m := newMount(t)
	reset := func() {
		t.Helper()
		names, err := os.ReadDir(m.dir)
		check(t, err)
		for _, d := range names {
			check(t, os.RemoveAll(m.path(d.Name())))
		}
		writeFile(t, m.path("file"), []byte("file"))
		writeFile(t, m.path("file2"), []byte("file2"))
		check(t, os.Mkdir(m.path("empty"), 0o755))
		check(t, os.MkdirAll(m.path("full", "sub"), 0o755))
		check(t, os.Symlink("file", m.path("link")))
		check(t, os.Link(m.path("file"), m.path("hard")))
	}
	rename := func(flags uint, from, to string, want error) {
		t.Helper()
		reset()
		err := unix.Renameat2(unix.AT_FDCWD, m.path(from), unix.AT_FDCWD, m.path(to), flags)
		if !errors.Is(err, want) {
			t.Errorf("rename %s to %s with %d: %v, want %v", from, to, flags, err, want)
		}
	}
	exists := func(name string, want bool) {
		t.Helper()
		if _, err := os.Lstat(m.path(name)); (err == nil) != want {
			t.Errorf("%s exists: %v, want %v", name, err == nil, want)
		}
	}
	rename(0, "file", "new", nil)
	exists("file", false)
	wantFile(t, m.path("new"), []byte("file"))
	rename(0, "file", "file2", nil)
	exists("file", false)
	wantFile(t, m.path("file2"), []byte("file"))
	// Two names of one file: nothing happens.
	rename(0, "file", "hard", nil)
	exists("file", true)
	if st := lstat(t, m.path("file")); st.Nlink != 2 {
		t.Errorf("nlink %d", st.Nlink)
	}
	rename(0, "full", "empty", nil)
	exists("empty/sub", true)
	exists("full", false)
	if st := lstat(t, m.dir); st.Nlink != 3 {
		t.Errorf("nlink of the root is %d, want 3", st.Nlink)
	}
	rename(0, "empty", "full", unix.ENOTEMPTY)
	rename(0, "file", "empty", unix.EISDIR)
	rename(0, "empty", "file", unix.ENOTDIR)
	rename(0, "full", "full/sub/x", unix.EINVAL)
	rename(0, "absent", "file", unix.ENOENT)
	rename(0, "link", "file2", nil)
	if target, err := os.Readlink(m.path("file2")); err != nil || target != "file" {
		t.Errorf("a renamed link reads %q, %v", target, err)
	}
	rename(unix.RENAME_NOREPLACE, "file", "file2", unix.EEXIST)
	rename(unix.RENAME_NOREPLACE, "file", "new", nil)
	rename(unix.RENAME_EXCHANGE, "file", "absent", unix.ENOENT)
	rename(unix.RENAME_EXCHANGE, "file", "file2", nil)
	wantFile(t, m.path("file"), []byte("file2"))
	wantFile(t, m.path("file2"), []byte("file"))
	rename(unix.RENAME_EXCHANGE, "file", "full", nil)
	exists("file/sub", true)
	wantFile(t, m.path("full"), []byte("file"))
	rename(unix.RENAME_EXCHANGE, "full", "full/sub", unix.EINVAL)
	rename(unix.RENAME_EXCHANGE|unix.RENAME_NOREPLACE, "file", "file2", unix.EINVAL)
	if os.Getuid() == 0 {
		rename(unix.RENAME_WHITEOUT, "file", "new", nil)
		if st := lstat(t, m.path("file")); st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Rdev != 0 {
			t.Errorf("a whiteout has mode %o, device %x", st.Mode, st.Rdev)
		}
	}
	// Across directories: ".." and the counts follow.
	reset()
	check(t, os.Rename(m.path("full", "sub"), m.path("empty", "sub")))
	if a, b := lstat(t, m.path("full")), lstat(t, m.path("empty")); a.Nlink != 2 || b.Nlink != 3 {
		t.Errorf("nlink %d and %d, want 2 and 3", a.Nlink, b.Nlink)
	}
	if a, b := lstat(t, m.path("empty")), lstat(t, m.path("empty", "sub")+"/.."); a.Ino != b.Ino {
		t.Error("'..' of a moved directory is another one")
	}
	m.remount()
	exists("empty/sub", true)
	exists("full/sub", false)
}

// TestDirectories: errors, counts, and a working directory that was removed.
func TestDirectories(t *testing.T) {
	m := newMount(t)
	d := m.path("d")
	check(t, os.Mkdir(d, 0o755))
	wantErrno(t, "mkdir again", os.Mkdir(d, 0o755), unix.EEXIST)
	writeFile(t, d+"/f", nil)
	wantErrno(t, "rmdir of a full directory", unix.Rmdir(d), unix.ENOTEMPTY)
	wantErrno(t, "unlink of a directory", unix.Unlink(d), unix.EISDIR)
	wantErrno(t, "rmdir of a file", unix.Rmdir(d+"/f"), unix.ENOTDIR)
	wantErrno(t, "rmdir of '.'", unix.Rmdir(d+"/."), unix.EINVAL)
	check(t, os.Remove(d+"/f"))
	open, err := os.Open(d)
	check(t, err)
	defer open.Close()
	check(t, os.Remove(d))
	wantErrno(t, "create in a removed directory", func() error {
		fd, err := unix.Openat(int(open.Fd()), "x", unix.O_CREAT|unix.O_WRONLY, 0o644)
		if err == nil {
			unix.Close(fd)
		}
		return err
	}(), unix.ENOENT)
	if names, err := open.Readdirnames(-1); len(names) != 0 {
		t.Errorf("a removed directory lists %q, %v", names, err)
	}
	check(t, open.Close())
	deep := m.dir
	for i := range 100 {
		deep += fmt.Sprintf("/d%d", i)
	}
	check(t, os.MkdirAll(deep, 0o755))
	writeFile(t, deep+"/f", []byte("deep"))
	m.remount()
	wantFile(t, deep+"/f", []byte("deep"))
	if st := lstat(t, m.path("d0")); st.Nlink != 3 {
		t.Errorf("nlink %d, want 3", st.Nlink)
	}
	check(t, os.RemoveAll(m.path("d0")))
	if st := lstat(t, m.dir); st.Nlink != 2 {
		t.Errorf("nlink of the root %d, want 2", st.Nlink)
	}
}

// dirEntries reads a directory by getdents from its current position and
// returns names with the positions after them.
func dirEntries(t testing.TB, fd int, limit int) (names []string, after []int64) {
	t.Helper()
	buf := make([]byte, 4096)
	for limit < 0 || len(names) < limit {
		n, err := unix.Getdents(fd, buf)
		check(t, err)
		if n == 0 {
			return names, after
		}
		for b := buf[:n]; len(b) > 0; {
			// struct linux_dirent64: ino, off, reclen, type, name.
			off := int64(uint64(b[8]) | uint64(b[9])<<8 | uint64(b[10])<<16 | uint64(b[11])<<24 | uint64(b[12])<<32 | uint64(b[13])<<40 | uint64(b[14])<<48 | uint64(b[15])<<56)
			reclen := int(b[16]) | int(b[17])<<8
			name := b[19:reclen]
			for i, c := range name {
				if c == 0 {
					name = name[:i]
					break
				}
			}
			names, after = append(names, string(name)), append(after, off)
			b = b[reclen:]
		}
	}
	return names, after
}

// TestSeekdir: a position stays good while entries come and go, and rewinding
// shows what is new.
func TestSeekdir(t *testing.T) {
	m := newMount(t)
	const n = 500
	for i := range n {
		writeFile(t, m.path(fmt.Sprintf("f%03d", i)), nil)
	}
	fd, err := unix.Open(m.dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	check(t, err)
	defer unix.Close(fd)
	names, after := dirEntries(t, fd, -1)
	if len(names) != n+2 {
		t.Fatalf("%d entries, want %d", len(names), n+2)
	}
	if s := slices.Compact(slices.Sorted(slices.Values(names))); len(s) != n+2 {
		t.Errorf("only %d of %d names differ", len(s), n+2)
	}
	for _, i := range []int{0, 1, 2, 100, 250, n} {
		_, err := unix.Seek(fd, after[i], 0)
		check(t, err)
		rest, _ := dirEntries(t, fd, -1)
		if !slices.Equal(rest, names[i+1:]) {
			t.Errorf("from position %d: %d entries, want %d", i, len(rest), len(names)-i-1)
		}
	}
	// Removing what was read already does not disturb what follows.
	_, err = unix.Seek(fd, 0, 0)
	check(t, err)
	seen := map[string]bool{}
	for {
		part, _ := dirEntries(t, fd, 1)
		if len(part) == 0 {
			break
		}
		for _, name := range part {
			if seen[name] {
				t.Errorf("%s twice", name)
			}
			seen[name] = true
			if name != "." && name != ".." {
				check(t, os.Remove(m.path(name)))
			}
		}
	}
	if len(seen) != n+2 {
		t.Errorf("saw %d entries while removing, want %d", len(seen), n+2)
	}
	writeFile(t, m.path("late"), nil)
	_, err = unix.Seek(fd, 0, 0)
	check(t, err)
	names, _ = dirEntries(t, fd, -1)
	slices.Sort(names)
	if !slices.Equal(names, []string{".", "..", "late"}) {
		t.Errorf("after rewinding: %q", names)
	}
}

// TestRenameWhileListing: a listing ends, though every entry read is renamed.
func TestRenameWhileListing(t *testing.T) {
	m := newMount(t)
	const n = 300
	for i := range n {
		writeFile(t, m.path(fmt.Sprintf("f%03d", i)), nil)
	}
	fd, err := unix.Open(m.dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	check(t, err)
	defer unix.Close(fd)
	renamed, steps := 0, 0
	for {
		part, _ := dirEntries(t, fd, 1)
		if len(part) == 0 {
			break
		}
		if steps++; steps > 100*n {
			t.Fatal("the listing does not end")
		}
		for _, name := range part {
			if name == "." || name == ".." {
				continue
			}
			check(t, os.Rename(m.path(name), m.path(fmt.Sprintf("r%06d", renamed))))
			renamed++
		}
	}
	names, err := os.ReadDir(m.dir)
	check(t, err)
	if len(names) != n {
		t.Errorf("%d names, want %d", len(names), n)
	}
}
