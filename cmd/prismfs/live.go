package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// The commands that talk to the daemon of a live mount.

// controlPatience bounds the wait for answers that need no disk.
const controlPatience = 10 * time.Second

var jsonFlag = flagDef{long: "json", help: "machine-readable"}

var statusCommand = &command{
	name: "status", aliases: []string{"info"}, args: "MNT|STORE [--json]", summary: "say whether and how a store is mounted",
	min: 1, max: 1, flags: []flagDef{jsonFlag},
	details: "Shows the state, the mount point, the daemon and the store's figures. Ends with 0\nwhen it is mounted and answers, 6 when not.",
	run: func(in *invocation) error {
		t, err := findTarget(in.positional[0])
		if err != nil {
			return err
		}
		var st json.RawMessage
		err = controlCall(t.store, "status", &st, controlPatience)
		if err == nil {
			return printAnswer(in, st)
		}
		if !errors.Is(err, errNoDaemon) {
			return callFailure(t, err)
		}
		if t.mount != nil {
			return failf(exitNotMounted, "%s: the daemon of %s is gone: `prismfs umount %s`, then mount it again", t.store, t.mount.mountPoint, t.mount.mountPoint)
		}
		if err := notMountNorStore(t.store); err != nil {
			return err
		}
		if in.has("json") {
			if err := printJSON(in.stdout, map[string]string{"state": "not mounted", "store": t.store}); err != nil {
				return err
			}
		}
		return failf(exitNotMounted, "%s is not mounted: `prismfs mount %s MNT`", t.store, t.store)
	},
}

var statsCommand = &command{
	name: "stats", args: "MNT|STORE [--json]", summary: "counters of a live store",
	min: 1, max: 1, flags: []flagDef{jsonFlag},
	details: "Shows the counters of the lanes, the engine and the logs.",
	run: func(in *invocation) error {
		return live(in, func(t *target) error {
			var st json.RawMessage
			if err := controlCall(t.store, "stats", &st, controlPatience); err != nil {
				return err
			}
			return printAnswer(in, st)
		})
	},
}

var syncCommand = &command{
	name: "sync", args: "MNT|STORE", summary: "make everything acknowledged so far durable",
	min: 1, max: 1,
	details: "Returns when every change that any program has been told is done is on disk.\nsync(1) does not reach a FUSE file system; this does.",
	run: func(in *invocation) error {
		return live(in, func(t *target) error { return controlCall(t.store, "sync", nil, 0) })
	},
}

var gcCommand = &command{
	name: "gc", args: "MNT|STORE", summary: "give the space of deleted data back now",
	min: 1, max: 1,
	details: "The daemon does this by itself; the command returns when nothing is left to gain.",
	run: func(in *invocation) error {
		return live(in, func(t *target) error { return controlCall(t.store, "gc", nil, 0) })
	},
}

var compactCommand = &command{
	name: "compact", args: "MNT|STORE", summary: "merge the store's tables now",
	min: 1, max: 1,
	details: "The daemon does this by itself; the command returns when everything is merged.",
	run: func(in *invocation) error {
		return live(in, func(t *target) error { return controlCall(t.store, "compact", nil, 0) })
	},
}

// live runs a request and says what to do when nobody answers it.
func live(in *invocation, request func(*target) error) error {
	t, err := findTarget(in.positional[0])
	if err != nil {
		return err
	}
	err = request(t)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errNoDaemon) && t.mount != nil:
		return failf(exitNotMounted, "%s: its daemon is gone: `prismfs umount %s`, then mount it again", t.mount.mountPoint, t.mount.mountPoint)
	case errors.Is(err, errNoDaemon):
		if err := notMountNorStore(t.store); err != nil {
			return err
		}
		return failf(exitNotMounted, "%s is not mounted: `prismfs mount %s MNT`", t.store, t.store)
	}
	return callFailure(t, err)
}

// callFailure is what a request to a daemon came to that is there.
func callFailure(t *target, err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return failf(exitNotMounted, "%s: its daemon does not answer: see %s; `kill -9` it if it hangs, then mount again", t.store, filepath.Join(t.store, logFile))
	}
	return failf(codeOf(err), "%s: %v", t.store, plain(err))
}

// notMountNorStore refuses a directory that is not a store. It may well be the
// mount point of one that is not mounted: then making a store there is no advice.
func notMountNorStore(dir string) error {
	if _, err := os.Stat(filepath.Join(dir, "superblock")); errors.Is(err, fs.ErrNotExist) {
		return failf(exitNotStore, "%s is neither a prismfs mount nor a store: name a store, or mount one there first: `prismfs mount STORE %s`", dir, dir)
	}
	return newBackend().isStore(dir)
}

func printJSON(w io.Writer, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s\n", b)
	return err
}

// printAnswer shows a daemon's JSON object, for people as "name: value" lines
// in the order in which the daemon gave them.
func printAnswer(in *invocation, answer json.RawMessage) error {
	if in.has("json") {
		var b bytes.Buffer
		if err := json.Indent(&b, answer, "", "  "); err != nil {
			return err
		}
		_, err := fmt.Fprintf(in.stdout, "%s\n", b.Bytes())
		return err
	}
	d := json.NewDecoder(bytes.NewReader(answer))
	d.UseNumber()
	var b strings.Builder
	if err := writePlain(&b, d, 0); err != nil {
		return err
	}
	_, err := io.WriteString(in.stdout, b.String())
	return err
}

// writePlain turns the next JSON value into lines.
func writePlain(b *strings.Builder, d *json.Decoder, depth int) error {
	token, err := d.Token()
	if err != nil {
		return err
	}
	delim, ok := token.(json.Delim)
	if !ok {
		fmt.Fprintf(b, " %v\n", token)
		return nil
	}
	if depth > 0 {
		b.WriteByte('\n')
	}
	for d.More() {
		b.WriteString(strings.Repeat("  ", depth))
		if delim == '{' {
			key, err := d.Token()
			if err != nil {
				return err
			}
			fmt.Fprintf(b, "%s:", strings.ReplaceAll(key.(string), "_", " "))
		} else {
			b.WriteByte('-')
		}
		if err := writePlain(b, d, depth+1); err != nil {
			return err
		}
	}
	_, err = d.Token()
	return err
}
