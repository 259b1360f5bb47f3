package main

import (
	"fmt"
	"io"
	"math"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// mountSettings is what -o amounts to. The zero value plus defaults() is a
// mount without options.
type mountSettings struct {
	readOnly           bool
	remount            bool
	allowOther         bool
	defaultPermissions bool
	suid, dev, exec    bool
	sync, dirSync      bool
	atime              string // "", noatime, relatime, strictatime
	noDirAtime         bool
	acl                bool
	opens              bool

	fuseURing string // auto, on, off
	writeback bool
	io        string // auto, io_uring, pread
	commit    time.Duration
	cache     int64 // bytes; 0: the built-in size
	log       string
}

// defaults are those of a FUSE mount. A mount by root is for everybody, as any
// other file system's is: default_permissions makes that safe.
func defaultMountSettings(uid int) mountSettings {
	return mountSettings{
		allowOther:         uid == 0,
		defaultPermissions: true,
		exec:               true,
		acl:                uid == 0,
		fuseURing:          "auto",
		io:                 "auto",
		commit:             time.Second,
	}
}

// mountOptionDef is one word of -o. set is nil for words that are accepted and
// change nothing.
type mountOptionDef struct {
	name  string
	value string // name of the value in the help text; "": none
	help  string // "": not advertised
	set   func(s *mountSettings, value string) error
}

func oneOf(target func(*mountSettings) *string, allowed ...string) func(*mountSettings, string) error {
	return func(s *mountSettings, v string) error {
		for _, a := range allowed {
			if v == a {
				*target(s) = v
				return nil
			}
		}
		return usagef("must be one of %s", strings.Join(allowed, ", "))
	}
}

func flag(set func(*mountSettings)) func(*mountSettings, string) error {
	return func(s *mountSettings, _ string) error { set(s); return nil }
}

var mountOptionDefs = []mountOptionDef{
	{name: "ro", help: "read-only", set: flag(func(s *mountSettings) { s.readOnly = true })},
	{name: "rw", help: "read and write (default)", set: flag(func(s *mountSettings) { s.readOnly = false })},
	{name: "allow_other", help: "other users may use the mount (default when root mounts)", set: flag(func(s *mountSettings) { s.allowOther = true })},
	{name: "noallow_other", help: "only the mounting user may use the mount", set: flag(func(s *mountSettings) { s.allowOther = false })},
	{name: "default_permissions", help: "the kernel checks modes (always on)", set: flag(func(s *mountSettings) { s.defaultPermissions = true })},
	{name: "suid", help: "honour set-user-ID bits (default: nosuid)", set: flag(func(s *mountSettings) { s.suid = true })},
	{name: "nosuid", set: flag(func(s *mountSettings) { s.suid = false })},
	{name: "dev", help: "honour device nodes (default: nodev)", set: flag(func(s *mountSettings) { s.dev = true })},
	{name: "nodev", set: flag(func(s *mountSettings) { s.dev = false })},
	{name: "exec", set: flag(func(s *mountSettings) { s.exec = true })},
	{name: "noexec", help: "run no programs from it", set: flag(func(s *mountSettings) { s.exec = false })},
	{name: "sync", help: "every write is on disk when it returns", set: flag(func(s *mountSettings) { s.sync = true })},
	{name: "async", set: flag(func(s *mountSettings) { s.sync = false })},
	{name: "dirsync", help: "accepted; changes of directories wait for fsync or commit=", set: flag(func(s *mountSettings) { s.dirSync = true })},
	{name: "noatime", help: "never update access times", set: flag(func(s *mountSettings) { s.atime = "noatime" })},
	{name: "relatime", help: "update them when older than the last change (default)", set: flag(func(s *mountSettings) { s.atime = "relatime" })},
	{name: "strictatime", help: "update them at each read that reaches prismfs", set: flag(func(s *mountSettings) { s.atime = "strictatime" })},
	{name: "atime", set: flag(func(s *mountSettings) { s.atime = "" })},
	{name: "norelatime", set: flag(func(s *mountSettings) { s.atime = "" })},
	{name: "nostrictatime", set: flag(func(s *mountSettings) { s.atime = "" })},
	{name: "nodiratime", set: flag(func(s *mountSettings) { s.noDirAtime = true })},
	{name: "diratime", set: flag(func(s *mountSettings) { s.noDirAtime = false })},
	{name: "opens", help: "see each open(2): chattr +i and +a are then felt there, not only at the first write", set: flag(func(s *mountSettings) { s.opens = true })},
	{name: "noopens", set: flag(func(s *mountSettings) { s.opens = false })},
	{name: "acl", help: "POSIX ACLs (default when root mounts)", set: flag(func(s *mountSettings) { s.acl = true })},
	{name: "noacl", help: "no POSIX ACLs", set: flag(func(s *mountSettings) { s.acl = false })},
	{name: "remount", help: "change ro, rw and the no* options of a live mount", set: flag(func(s *mountSettings) { s.remount = true })},

	{name: "fuse_uring", value: "auto|on|off", help: "FUSE over io_uring: when the kernel offers it (default), insist, never", set: oneOf(func(s *mountSettings) *string { return &s.fuseURing }, "auto", "on", "off")},
	{name: "io", value: "auto|io_uring|pread", help: "how the store's files are read and written", set: oneOf(func(s *mountSettings) *string { return &s.io }, "auto", "io_uring", "pread")},
	{name: "writeback", help: "let the kernel delay writes (fast small overwrites; what it delays is not yet acknowledged)", set: flag(func(s *mountSettings) { s.writeback = true })},
	{name: "nowriteback", set: flag(func(s *mountSettings) { s.writeback = false })},
	{name: "commit", value: "SECONDS", help: "longest time until a change is on disk without fsync (default 1, at most 3600)", set: func(s *mountSettings, v string) (err error) {
		s.commit, err = parseSeconds(v)
		return err
	}},
	{name: "cache", value: "SIZE", help: "memory for caches, such as 64M or 1G (default 256M)", set: func(s *mountSettings, v string) (err error) {
		s.cache, err = parseSize(v)
		return err
	}},
	{name: "log", value: "FILE", help: "where the daemon logs (default STORE/log)", set: func(s *mountSettings, v string) (err error) {
		if v == "" {
			return usagef("needs a file name")
		}
		s.log, err = filepath.Abs(v)
		return err
	}},
}

// ignoredMountOptions belong to mount(8), systemd or fstab, or are what the
// kernel reports of a FUSE mount and mount(8) hands back when it remounts.
var ignoredMountOptions = map[string]bool{
	"defaults": true, "auto": true, "noauto": true, "nofail": true, "_netdev": true,
	"user": true, "nouser": true, "users": true, "nousers": true, "owner": true, "noowner": true,
	"group": true, "nogroup": true, "loud": true, "silent": true, "quiet": true,
	"mand": true, "nomand": true, "iversion": true, "noiversion": true,
	"lazytime": true, "nolazytime": true, "comment": true, "helper": true, "uhelper": true,
	"user_id": true, "group_id": true, "rootmode": true, "fd": true, "max_read": true, "blksize": true,
	"subtype": true, "fsname": true, "nonempty": true,
}

// parse applies an -o string; later words win. With sloppy (-s) unknown words
// are ignored, as mount(8) asks.
func (s *mountSettings) parse(text string, sloppy bool) error {
	words, err := splitMountOptions(text)
	if err != nil {
		return err
	}
next:
	for _, word := range words {
		name, value, hasValue := strings.Cut(word, "=")
		if name == "" || ignoredMountOptions[name] || strings.HasPrefix(name, "x-") || strings.HasPrefix(name, "X-") {
			continue
		}
		for i := range mountOptionDefs {
			d := &mountOptionDefs[i]
			if d.name != name {
				continue
			}
			if (d.value != "") != hasValue {
				if hasValue {
					return usagef("-o %s takes no value", name)
				}
				return usagef("-o %s needs a value: %s=%s", name, name, d.value)
			}
			if err := d.set(s, value); err != nil {
				return usagef("-o %s: %v", word, err)
			}
			continue next
		}
		if !sloppy {
			return usagef("-o %s: unknown option: `prismfs help options` lists them", word)
		}
	}
	return nil
}

// kernelFlags are the options that the kernel acts on, by mount(8)'s names.
func (s *mountSettings) kernelFlags() []string {
	var flags []string
	add := func(set bool, name string) {
		if set {
			flags = append(flags, name)
		}
	}
	add(!s.exec, "noexec")
	add(s.sync, "sync")
	add(s.dirSync, "dirsync")
	add(s.noDirAtime, "nodiratime")
	add(s.atime != "", s.atime)
	return flags
}

// splitMountOptions splits at commas that are neither quoted nor escaped.
func splitMountOptions(text string) ([]string, error) {
	var words []string
	var word strings.Builder
	quoted := false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\\' && i+1 < len(text) && (text[i+1] == ',' || text[i+1] == '\\' || text[i+1] == '"'):
			i++
			word.WriteByte(text[i])
		case c == '"':
			quoted = !quoted
		case c == ',' && !quoted:
			words = append(words, word.String())
			word.Reset()
		default:
			word.WriteByte(c)
		}
	}
	if quoted {
		return nil, usagef("-o %s: the quote is not closed", text)
	}
	return append(words, word.String()), nil
}

// parseSeconds reads "5", "0.5" or a Go duration such as "500ms".
func parseSeconds(v string) (time.Duration, error) {
	d, err := time.ParseDuration(v)
	if err != nil {
		f, ferr := strconv.ParseFloat(v, 64)
		if ferr != nil {
			return 0, usagef("must be a number of seconds")
		}
		// Not-a-number fails both comparisons below only in this form.
		if !(f >= 0 && f <= 3600) {
			return 0, usagef("must be between 0 and 3600 seconds")
		}
		d = time.Duration(f * float64(time.Second))
	}
	if d < 0 || d > time.Hour {
		return 0, usagef("must be between 0 and 3600 seconds")
	}
	return d, nil
}

// parseSize reads a number of bytes with an optional suffix K, M, G or T
// (powers of 1024; "KiB" and "KB" mean the same).
func parseSize(v string) (int64, error) {
	digits := strings.TrimRight(v, "kKmMgGtTiIbB")
	suffix := strings.ToLower(v[len(digits):])
	suffix = strings.TrimSuffix(strings.TrimSuffix(suffix, "b"), "i")
	shift, ok := map[string]uint{"": 0, "k": 10, "m": 20, "g": 30, "t": 40}[suffix]
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || !ok || n < 0 || n > math.MaxInt64>>shift {
		return 0, usagef("must be a size such as 64M or 1G")
	}
	return n << shift, nil
}

func printMountOptions(w io.Writer) {
	fmt.Fprint(w, "Mount options (-o, separated by commas):\n")
	for _, d := range mountOptionDefs {
		if d.help == "" {
			continue
		}
		name := d.name
		if d.value != "" {
			name += "=" + d.value
		}
		fmt.Fprintf(w, "  %-24s %s\n", name, d.help)
	}
	fmt.Fprint(w, "  Words of mount(8) and systemd (noauto, nofail, _netdev, user, x-*) are accepted.\n")
}
