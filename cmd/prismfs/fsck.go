package main

import (
	"errors"
	"fmt"
	"io/fs"
)

var fsckCommand = &command{
	name: "fsck", aliases: []string{"check"}, args: "STORE [--json]", summary: "verify a store that is not mounted",
	min: 1, max: 1,
	details: `Reads the whole store, verifies every checksum and every link between its
parts, and prints one line for each problem. It repairs nothing; like a mount it
first replays what a killed daemon left in the log. A store needs no fsck before
it is mounted, not even after a crash.`,
	flags: []flagDef{
		jsonFlag,
		// fsck(8) passes these; nothing is ever repaired, so nothing is asked.
		{short: 'a'}, {short: 'p'}, {short: 'n'}, {short: 'y'}, {short: 'f'}, {short: 'v'}, {short: 'T'}, {short: 'M'}, {short: 'r'}, {short: 'C', value: "FD"},
	},
	run: runFsck,
}

// fsckSummary is what a check found.
type fsckSummary struct {
	Store    string   `json:"store"`
	Clean    bool     `json:"clean"`
	Problems []string `json:"problems"`
	Details  any      `json:"details,omitempty"`
}

func runFsck(in *invocation) error {
	dir := in.positional[0]
	store, err := realPath(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return failf(exitNotStore, "%s does not exist: name the directory of a store", dir)
	}
	if err != nil {
		return failf(exitSystem, "%s: %v", dir, plain(err))
	}
	if !isDirectory(store) {
		return failf(exitNotStore, "%s is not a directory: name the directory of a store", dir)
	}
	mounts, err := readMounts()
	if err != nil {
		return err
	}
	if m := topMountAt(mounts, store); m != nil && m.isPrismfs() {
		return failf(exitBusy, "%s is a mount: `prismfs umount %s`, then check the store %s", dir, dir, m.source)
	}
	sum := fsckSummary{Store: store, Problems: []string{}}
	report := func(problem string) {
		sum.Problems = append(sum.Problems, problem)
		if !in.has("json") {
			fmt.Fprintln(in.stdout, problem)
		}
	}
	// umount(8) returns before the daemon has closed the store.
	b := newBackend()
	err = whenUnlocked(b, store, nil, func() (err error) {
		sum.Details, err = b.check(store, report)
		return err
	})
	if err != nil {
		return err
	}
	sum.Clean = len(sum.Problems) == 0
	if in.has("json") {
		if err := printJSON(in.stdout, &sum); err != nil {
			return err
		}
	}
	if !sum.Clean {
		return failf(exitDamaged, "%s: %d problem%s found: keep a copy of the store, save what can be read", dir, len(sum.Problems), map[bool]string{false: "s"}[len(sum.Problems) == 1])
	}
	if !in.has("json") {
		fmt.Fprintf(in.stdout, "%s: clean\n", dir)
	}
	return nil
}
