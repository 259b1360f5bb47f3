package main

import (
	"fmt"
	"io"
	"runtime"
	"strings"
)

var versionCommand = &command{
	name: "version", args: "[--json]", summary: "say which prismfs this is",
	details: "Prints the version, the Go release and the platform.",
	flags:   []flagDef{{long: "json", help: "machine-readable"}},
	run: func(in *invocation) error {
		if in.has("json") {
			return printJSON(in.stdout, map[string]string{"version": version, "go": runtime.Version(), "platform": runtime.GOOS + "/" + runtime.GOARCH})
		}
		fmt.Fprintf(in.stdout, "prismfs %s (%s, %s/%s)\n", version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
		return nil
	},
}

var helpCommand = &command{
	name: "help", args: "[COMMAND | options | exit-codes]", summary: "this list, or more about one command",
	max: 1, details: "Without a word it lists the commands; with one it explains it.",
	run: func(in *invocation) error {
		if len(in.positional) == 0 {
			printHelp(in.stdout)
			return nil
		}
		topic := in.positional[0]
		switch topic {
		case "options":
			printMountOptions(in.stdout)
			return nil
		case "exit-codes":
			printExitCodes(in.stdout)
			return nil
		}
		c := findCommand(topic)
		if c == nil {
			return usagef("no command %q: `prismfs help` lists them", topic)
		}
		printCommandHelp(in.stdout, c)
		return nil
	},
}

func printHelp(w io.Writer) {
	fmt.Fprint(w, `prismfs keeps a file system in a directory (the store) and mounts it.

  prismfs mkfs STORE          make a store
  prismfs mount STORE MNT     use it at MNT
  prismfs umount MNT          stop; returns when everything is on disk

Commands:
`)
	for _, c := range commands {
		if c.summary == "" {
			continue
		}
		fmt.Fprintf(w, "  %-37s %s\n", c.name+" "+c.args, c.summary)
	}
	fmt.Fprint(w, `
More: prismfs help COMMAND, prismfs help options, prismfs help exit-codes
`)
}

func printCommandHelp(w io.Writer, c *command) {
	fmt.Fprintf(w, "prismfs %s %s\n\n  %s\n", c.name, c.args, strings.ReplaceAll(c.details, "\n", "\n  "))
	if len(c.aliases) > 0 {
		fmt.Fprintf(w, "\n  Also called: %s\n", strings.Join(c.aliases, ", "))
	}
	header := false
	for i := range c.flags {
		d := &c.flags[i]
		if d.help == "" {
			continue
		}
		if !header {
			fmt.Fprint(w, "\nOptions:\n")
			header = true
		}
		var forms []string
		if d.short != 0 {
			forms = append(forms, "-"+string(d.short))
		}
		if d.long != "" {
			forms = append(forms, "--"+d.long)
		}
		if d.value != "" {
			forms[len(forms)-1] += map[bool]string{true: "=", false: " "}[d.long != ""] + d.value
		}
		fmt.Fprintf(w, "  %-24s %s\n", strings.Join(forms, ", "), d.help)
	}
	if c == mountCommand {
		fmt.Fprintln(w)
		printMountOptions(w)
	}
}

func printExitCodes(w io.Writer) {
	fmt.Fprint(w, "Exit codes:\n")
	for _, e := range exitCodeTexts {
		fmt.Fprintf(w, "  %d  %s\n", e.code, e.text)
	}
	fmt.Fprint(w, `
Called by mount(8) or umount(8) (as mount.prismfs, umount.prismfs, mount.fuse.prismfs
or umount.fuse.prismfs) it ends as mount(8) documents: 0 done, 1 usage, 4 bug,
8 interrupted, 32 failed.
Called as fsck.prismfs it ends as fsck(8) documents: 0 clean, 4 damaged,
8 operational error, 16 usage, 32 interrupted.
`)
}
