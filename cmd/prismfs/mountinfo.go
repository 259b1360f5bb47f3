package main

import (
	"bufio"
	"bytes"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	fsType    = "fuse.prismfs"
	fsSubtype = "prismfs"
)

// mountEntry is one line of /proc/self/mountinfo.
type mountEntry struct {
	mountPoint string
	options    string // per mount: ro, nosuid, ...
	fsType     string
	source     string
}

func (m *mountEntry) isPrismfs() bool { return m.fsType == fsType }

// readMounts lists what is mounted in this mount namespace, oldest first.
func readMounts() ([]mountEntry, error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	return parseMountinfo(b), nil
}

// parseMountinfo skips lines that it does not understand.
//
//   - Source: proc_pid_mountinfo(5).
func parseMountinfo(b []byte) []mountEntry {
	var mounts []mountEntry
	lines := bufio.NewScanner(bytes.NewReader(b))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		before, after, ok := strings.Cut(lines.Text(), " - ")
		fields, tail := strings.Fields(before), strings.Fields(after)
		if !ok || len(fields) < 6 || len(tail) < 2 {
			continue
		}
		mounts = append(mounts, mountEntry{
			mountPoint: unescapeMount(fields[4]),
			options:    fields[5],
			fsType:     tail[0],
			source:     unescapeMount(tail[1]),
		})
	}
	return mounts
}

// unescapeMount undoes the kernel's \ooo for space, tab, newline, backslash
// and '#'.
func unescapeMount(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) && isOctal(s[i+1]) && isOctal(s[i+2]) && isOctal(s[i+3]) {
			b.WriteByte((s[i+1]-'0')<<6 | (s[i+2]-'0')<<3 | (s[i+3] - '0'))
			i += 3
			continue
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

func isOctal(c byte) bool { return c >= '0' && c <= '7' }

// topMountAt is what is mounted last, that is uppermost, exactly at path.
func topMountAt(mounts []mountEntry, path string) *mountEntry {
	for i := len(mounts) - 1; i >= 0; i-- {
		if mounts[i].mountPoint == path {
			return &mounts[i]
		}
	}
	return nil
}

// mountsOfStore are the prismfs mounts whose source is the store.
func mountsOfStore(mounts []mountEntry, store string) []mountEntry {
	var found []mountEntry
	for _, m := range mounts {
		if m.isPrismfs() && m.source == store {
			found = append(found, m)
		}
	}
	return found
}

// realPath is path without symbolic links, absolute. The last part may be a
// mount whose daemon died, which answers nothing: only its parent is resolved
// then.
func realPath(path string) (string, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	real, err := filepath.EvalSymlinks(abs)
	if err == nil {
		return real, nil
	}
	parent, perr := filepath.EvalSymlinks(filepath.Dir(abs))
	if perr != nil {
		return "", err
	}
	candidate := filepath.Join(parent, filepath.Base(abs))
	if mounts, merr := readMounts(); merr == nil && topMountAt(mounts, candidate) != nil {
		return candidate, nil
	}
	return "", err
}

// readOnlyDirectory says whether the file system below dir is read-only.
func readOnlyDirectory(dir string) bool {
	var st unix.Statfs_t
	return unix.Statfs(dir, &st) == nil && st.Flags&unix.ST_RDONLY != 0
}

// target is a store named by its directory or by a place where it is mounted.
type target struct {
	store  string      // absolute, real; "" when only a dead mount is known
	mount  *mountEntry // nil: not mounted
	mounts []mountEntry
}

// findTarget accepts MNT (or a path below it) and STORE. stat is not called on
// MNT, so a dead or stuck daemon does not stop it.
func findTarget(path string) (*target, error) {
	mounts, err := readMounts()
	if err != nil {
		return nil, err
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	if m := topMountAt(mounts, abs); m != nil && m.isPrismfs() {
		return &target{store: m.source, mount: m, mounts: mounts}, nil
	}
	real, err := realPath(path)
	if err != nil {
		return nil, failf(exitUsage, "%s: %v", path, plain(err))
	}
	if m := topMountAt(mounts, real); m != nil && m.isPrismfs() {
		return &target{store: m.source, mount: m, mounts: mounts}, nil
	}
	t := &target{store: real, mounts: mounts}
	if found := mountsOfStore(mounts, real); len(found) > 0 {
		t.mount = &found[len(found)-1]
	}
	return t, nil
}
