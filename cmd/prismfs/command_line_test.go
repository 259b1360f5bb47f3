package main

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestParseArguments(t *testing.T) {
	defs := []flagDef{{short: 'f', long: "foreground"}, {short: 'o', long: "options", value: "O"}, {short: 'n'}, {long: "json"}}
	for _, c := range []struct {
		words string
		pos   []string
		on    []string
		opts  []string
		fails bool
	}{
		{words: "a b -f -o ro", pos: []string{"a", "b"}, on: []string{"foreground"}, opts: []string{"ro"}},
		{words: "-nf -oro,noatime a --json b", pos: []string{"a", "b"}, on: []string{"foreground", "n", "json"}, opts: []string{"ro,noatime"}},
		{words: "--options=x -o y --options z a", pos: []string{"a"}, opts: []string{"x", "y", "z"}},
		{words: "-- -f --json", pos: []string{"-f", "--json"}},
		{words: "-", pos: []string{"-"}},
		{words: "-fo", fails: true}, {words: "-x", fails: true}, {words: "--what", fails: true},
		{words: "--json=1", fails: true}, {words: "--options", fails: true}, {words: "--=", fails: true},
	} {
		a, err := parseArguments(strings.Fields(c.words), defs)
		if c.fails {
			if codeOf(err) != exitUsage {
				t.Errorf("%q: %v", c.words, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%q: %v", c.words, err)
			continue
		}
		if !reflect.DeepEqual(a.positional, c.pos) || !reflect.DeepEqual(a.values["options"], c.opts) || len(a.switches) != len(c.on) {
			t.Errorf("%q: %+v", c.words, a)
		}
		for _, k := range c.on {
			if !a.has(k) {
				t.Errorf("%q: no %s", c.words, k)
			}
		}
	}
}

func TestMountOptions(t *testing.T) {
	s := defaultMountSettings(1000)
	if s.allowOther || !defaultMountSettings(0).allowOther {
		t.Error("allow_other is root's default, and only root's")
	}
	err := s.parse(`rw,noatime,ro,allow_other,suid,nosuid,dev,noexec,fuse_uring=off,io=pread,commit=0.25,cache=64M,log="/a, b",x-systemd.automount=5,user=me,comment=c,,_netdev`, false)
	if err != nil {
		t.Fatal(err)
	}
	want := defaultMountSettings(1000)
	want.readOnly, want.atime, want.allowOther, want.suid, want.dev, want.exec = true, "noatime", true, false, true, false
	want.fuseURing, want.io, want.commit, want.cache, want.log = "off", "pread", 250*time.Millisecond, 64<<20, "/a, b"
	if s != want {
		t.Errorf("%+v\nwant %+v", s, want)
	}
	if got := s.kernelFlags(); !reflect.DeepEqual(got, []string{"noexec", "noatime"}) {
		t.Errorf("flags %q", got)
	}
	for _, bad := range []string{"nonsense", "ro=1", "commit", "commit=-1", "commit=NaN", "commit=4000", "cache=", "cache=-1", "cache=1X", "cache=9999999999T", "io=fast", "fuse_uring=", `log="x`, "log="} {
		s := defaultMountSettings(0)
		if err := s.parse(bad, false); codeOf(err) != exitUsage {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if err := s.parse("nonsense,ro", true); err != nil {
		t.Errorf("sloppy: %v", err)
	}
}

func TestParseSize(t *testing.T) {
	for in, want := range map[string]int64{"0": 0, "1": 1, "4k": 4096, "4K": 4096, "4KiB": 4096, "4KB": 4096, "3G": 3 << 30, "2TiB": 2 << 40, "7B": 7} {
		if got, err := parseSize(in); err != nil || got != want {
			t.Errorf("%s: %d, %v", in, got, err)
		}
	}
}

func TestMountinfo(t *testing.T) {
	const text = `22 1 0:21 / / rw,relatime - ext4 /dev/root rw
garbage
40 22 0:40 / /mnt/a\040b rw,nosuid,nodev shared:5 master:1 - fuse.prismfs /st\011ore\134x rw,user_id=0
41 22 0:41 / /mnt/a\040b rw - tmpfs tmpfs rw
42 22 0:42 / /other rw - fuse.prismfs /st` + "\\011" + `ore\134x rw
`
	mounts := parseMountinfo([]byte(text))
	if len(mounts) != 4 {
		t.Fatalf("%+v", mounts)
	}
	if m := mounts[1]; m.mountPoint != "/mnt/a b" || m.source != "/st\tore\\x" || !m.isPrismfs() || m.options != "rw,nosuid,nodev" {
		t.Errorf("%+v", m)
	}
	if m := topMountAt(mounts, "/mnt/a b"); m == nil || m.fsType != "tmpfs" {
		t.Errorf("%+v", m)
	}
	if found := mountsOfStore(mounts, "/st\tore\\x"); len(found) != 2 || found[1].mountPoint != "/other" {
		t.Errorf("%+v", found)
	}
}

func TestRealPath(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	os.Mkdir(filepath.Join(dir, "d"), 0o755)
	os.Symlink("d", filepath.Join(dir, "l"))
	if got, err := realPath(filepath.Join(dir, "l", "..", "l")); err != nil || got != filepath.Join(dir, "d") {
		t.Errorf("%s, %v", got, err)
	}
	if _, err := realPath(filepath.Join(dir, "absent")); err == nil {
		t.Error("an absent path is real")
	}
	for path, want := range map[string]bool{"/a": true, "/a/b": true, "/a/..b": true, "/": false, "/ab": false} {
		if got := inside(path, "/a"); got != want {
			t.Errorf("inside(%s, /a) = %v", path, got)
		}
	}
}

// TestExitCodes: the numbers are part of the interface.
func TestExitCodes(t *testing.T) {
	for _, c := range []struct {
		code              exitCode
		own, mount8, fsck int
	}{
		{exitOK, 0, 0, 0}, {exitUsage, 1, 1, 16}, {exitSystem, 2, 32, 8}, {exitNotStore, 3, 32, 8}, {exitDamaged, 4, 32, 4},
		{exitBusy, 5, 32, 8}, {exitNotMounted, 6, 32, 8}, {exitInternal, 7, 4, 8}, {exitInterrupt, 8, 8, 32},
	} {
		if got := [3]int{c.code.forHelper(helperNone), c.code.forHelper(helperMount), c.code.forHelper(helperFsck)}; got != [3]int{c.own, c.mount8, c.fsck} {
			t.Errorf("%d: %v", c.code, got)
		}
	}
	if len(exitCodeTexts) != int(exitInterrupt)+1 {
		t.Error("a code lacks its explanation")
	}
}

func TestChoose(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct {
		argv []string
		want *command
		kind helperKind
	}{
		{[]string{"/usr/bin/prismfs", "mkfs", "x"}, mkfsCommand, helperNone},
		{[]string{"prismfs", "unmount", "x"}, umountCommand, helperNone},
		{[]string{"prismfs"}, helpCommand, helperNone},
		{[]string{"prismfs", "--version"}, versionCommand, helperNone},
		{[]string{"/sbin/mount.prismfs", "a", "b"}, mountCommand, helperMount},
		{[]string{"/sbin/mount.fuse.prismfs", "a", "b"}, mountCommand, helperMount},
		{[]string{"/sbin/umount.fuse.prismfs", "b"}, umountCommand, helperMount},
		{[]string{"mkfs.prismfs", "b"}, mkfsCommand, helperNone},
		{[]string{"fsck.prismfs", "b"}, fsckCommand, helperFsck},
		{[]string{"prismfs", dir, dir, "-o", "ro"}, mountCommand, helperMount},
	} {
		cmd, _, kind, err := choose(c.argv)
		if err != nil || cmd != c.want || kind != c.kind {
			t.Errorf("%q: %v, %v, %v", c.argv, cmd, kind, err)
		}
	}
	if _, _, _, err := choose([]string{"prismfs", "frobnicate"}); codeOf(err) != exitUsage {
		t.Error(err)
	}
}

// TestCommandTable: every command explains itself, and no two answer to one
// name.
func TestCommandTable(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range commands {
		for _, n := range append([]string{c.name}, c.aliases...) {
			if seen[n] {
				t.Errorf("%s twice", n)
			}
			seen[n] = true
		}
		var b bytes.Buffer
		printCommandHelp(&b, c)
		if c.details == "" || c.run == nil || !strings.Contains(b.String(), c.name) {
			t.Errorf("%s explains nothing", c.name)
		}
	}
}

func TestOneLine(t *testing.T) {
	var out, errs bytes.Buffer
	code := run([]string{"prismfs", "mkfs", "--bad\nflag"}, &out, &errs)
	if code != 1 || strings.Count(errs.String(), "\n") != 1 || !strings.HasPrefix(errs.String(), "prismfs: mkfs: ") {
		t.Errorf("%d %q", code, errs.String())
	}
}

func TestPanicIsOneLine(t *testing.T) {
	old := versionCommand.run
	defer func() { versionCommand.run = old }()
	versionCommand.run = func(*invocation) error { panic("oh") }
	var out, errs bytes.Buffer
	if code := run([]string{"prismfs", "version"}, &out, &errs); code != 7 || strings.Count(errs.String(), "\n") != 1 {
		t.Errorf("%d %q", code, errs.String())
	}
}

func TestWritePlain(t *testing.T) {
	var out bytes.Buffer
	in := &invocation{arguments: &arguments{}, stdout: &out}
	if err := printAnswer(in, []byte(`{"mount_point":"/m","n":12345678901234567890,"list":[1,{"a":true}],"none":[],"x":null}`)); err != nil {
		t.Fatal(err)
	}
	const want = "mount point: /m\nn: 12345678901234567890\nlist:\n  - 1\n  -\n    a: true\nnone:\nx: <nil>\n"
	if out.String() != want {
		t.Errorf("%q", out.String())
	}
}
