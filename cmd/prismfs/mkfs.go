package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

var mkfsCommand = &command{
	name: "mkfs", aliases: []string{"init", "format", "create"}, args: "STORE [--force] [-L NAME]", summary: "make a store in a directory that is new or empty",
	min: 1, max: 1,
	details: `Makes STORE, a directory that holds a file system. It may exist if it is empty.
--force makes a new store over an old one, whose contents are lost, or beside
other files, which are left alone.`,
	flags: []flagDef{
		{short: 'F', long: "force", help: "also in a directory that is not empty"},
		{short: 'L', long: "label", value: "NAME", help: "a name for the store, shown by status"},
		{short: 't', value: "TYPE"}, {short: 'q', long: "quiet"}, {short: 'v'},
	},
	run: runMkfs,
}

const labelMax = 64 // bytes in the superblock

// mkfsSettings is what the command line of mkfs says.
type mkfsSettings struct {
	force bool
	label string
}

func runMkfs(in *invocation) error {
	dir := in.positional[0]
	s := mkfsSettings{force: in.has("force"), label: in.last("label")}
	if len(s.label) > labelMax {
		return usagef("the label has %d bytes: at most %d", len(s.label), labelMax)
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(abs)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if err := os.MkdirAll(abs, 0o700); err != nil {
			return failf(exitSystem, "%s: %v", dir, plain(err))
		}
	case err != nil && !isDirectory(abs):
		return failf(exitUsage, "%s is not a directory: name a new or empty directory", dir)
	case err != nil:
		return failf(exitSystem, "%s: %v", dir, plain(err))
	case len(entries) > 0 && !s.force:
		return failf(exitBusy, "%s is not empty: choose another directory or use --force, which destroys a store there", dir)
	}
	if s.force {
		var st daemonStatus
		if controlCall(abs, "status", &st, controlPatience) == nil {
			return failf(exitBusy, "%s is mounted at %s: `prismfs umount %s` first", dir, st.MountPoint, st.MountPoint)
		}
	}
	if err := newBackend().mkfs(abs, &s); err != nil {
		return err
	}
	if !in.has("quiet") {
		fmt.Fprintf(in.stdout, "%s is ready: prismfs mount %s MNT\n", dir, dir)
	}
	return nil
}
