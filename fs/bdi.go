package fs

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// mountOf finds the topmost mount on path in /proc/self/mountinfo, without
// touching the mount itself: a daemon that stats its own mount point waits for
// its own answer.
//
//   - Source: proc_pid_mountinfo(5); mounts are listed in the order they were
//     made, so the last one is on top.
func mountOf(path string) (m mountInfo, ok bool, err error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return m, false, fmt.Errorf("fs: %w", err)
	}
	m, ok = findMount(string(b), path)
	return m, ok, nil
}

// mountInfo is a line of mountinfo.
type mountInfo struct {
	dev    string // major:minor
	fsType string
	source string
}

func findMount(mountinfo, path string) (m mountInfo, ok bool) {
	for line := range strings.Lines(mountinfo) {
		f := strings.Fields(line)
		if len(f) < 7 || unescapeMount(f[4]) != path {
			continue
		}
		for i, s := range f {
			if s == "-" && i+2 < len(f) {
				m, ok = mountInfo{dev: f[2], fsType: f[i+1], source: unescapeMount(f[i+2])}, true
				break
			}
		}
	}
	return m, ok
}

// unescapeMount undoes the kernel's \ooo for blanks and backslashes.
func unescapeMount(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+4 <= len(s) {
			if c, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(c))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// tuneBDI sets the mount's read-ahead and writeback limits, which INIT can't
// raise. It needs root; what can't be set is left as it is and reported.
//
//   - Source: Documentation/ABI/testing/sysfs-class-bdi.
func tuneBDI(dev string, o *MountOptions) error {
	set := func(file, value string) error {
		if err := os.WriteFile("/sys/class/bdi/"+dev+"/"+file, []byte(value), 0); err != nil {
			return fmt.Errorf("fs: set %s=%s: %w", file, value, err)
		}
		return nil
	}
	if o.ReadAheadKB > 0 {
		if err := set("read_ahead_kb", strconv.Itoa(o.ReadAheadKB)); err != nil {
			return err
		}
	}
	if o.MaxRatio > 0 {
		if err := set("max_ratio", strconv.Itoa(o.MaxRatio)); err != nil {
			return err
		}
	}
	if o.NoStrictLimit {
		return set("strict_limit", "0")
	}
	return nil
}
