package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// version is set by the linker (`make build`).
var version = "dev"

// command is one of prismfs's commands.
type command struct {
	name    string
	aliases []string // what people try first
	args    string
	summary string // empty: `prismfs help` does not list it
	details string // one paragraph for `prismfs help NAME`
	flags   []flagDef
	min     int // number of words besides flags
	max     int
	run     func(*invocation) error
}

// invocation is one run of one command.
type invocation struct {
	*arguments
	cmd    *command
	words  []string // the command line behind the command's name
	helper helperKind
	stdout io.Writer
	stderr io.Writer
}

// commands is filled by init: the help command lists it and is in it.
var commands []*command

func init() {
	commands = []*command{
		mkfsCommand, mountCommand, umountCommand, statusCommand, syncCommand,
		statsCommand, fsckCommand, gcCommand, compactCommand, profileCommand, openFirstCommand, versionCommand, helpCommand,
	}
}

func findCommand(name string) *command {
	for _, c := range commands {
		if c.name == name {
			return c
		}
		for _, a := range c.aliases {
			if a == name {
				return c
			}
		}
	}
	return nil
}

func main() {
	os.Exit(run(os.Args, os.Stdout, os.Stderr))
}

// run is main with its surroundings passed in.
func run(argv []string, stdout, stderr io.Writer) (code int) {
	kind := helperNone
	defer func() {
		// C3 holds for our own bugs too. In the daemon a panic of another
		// goroutine does leave its stack, in the log.
		if p := recover(); p != nil && os.Getenv("PRISMFS_PANIC") == "" {
			fmt.Fprintf(stderr, "prismfs: internal error: %v: please report this; PRISMFS_PANIC=1 shows where\n", p)
			code = exitInternal.forHelper(kind)
		} else if p != nil {
			panic(p)
		}
	}()
	cmd, words, kind, err := choose(argv)
	if err == nil {
		err = runCommand(cmd, words, kind, stdout, stderr)
	}
	if err != nil && err.Error() != "" {
		prefix := "prismfs: "
		if cmd != nil {
			prefix += cmd.name + ": "
		}
		fmt.Fprintln(stderr, prefix+oneLine(err))
	}
	return codeOf(err).forHelper(kind)
}

// choose finds the command: by the name the program was called by, else by
// the first word. `prismfs STORE MNT -o ...` is how mount.fuse(8) calls, so a
// first word that is a directory means mount.
func choose(argv []string) (*command, []string, helperKind, error) {
	name := "prismfs"
	if len(argv) > 0 {
		name = filepath.Base(argv[0])
		argv = argv[1:]
	}
	switch {
	case strings.HasPrefix(name, "mount."):
		return mountCommand, argv, helperMount, nil
	case strings.HasPrefix(name, "umount."):
		return umountCommand, argv, helperMount, nil
	case strings.HasPrefix(name, "mkfs."):
		return mkfsCommand, argv, helperNone, nil
	case strings.HasPrefix(name, "fsck."):
		return fsckCommand, argv, helperFsck, nil
	}
	if len(argv) == 0 {
		return helpCommand, nil, helperNone, nil
	}
	switch argv[0] {
	case "-h", "--help", "-help":
		return helpCommand, argv[1:], helperNone, nil
	case "-V", "--version":
		return versionCommand, argv[1:], helperNone, nil
	}
	if c := findCommand(argv[0]); c != nil {
		return c, argv[1:], helperNone, nil
	}
	if len(argv) >= 2 && isDirectory(argv[0]) && isDirectory(argv[1]) {
		return mountCommand, argv, helperMount, nil
	}
	return nil, nil, helperNone, usagef("unknown command %q: `prismfs help` lists them", argv[0])
}

func runCommand(cmd *command, words []string, kind helperKind, stdout, stderr io.Writer) error {
	for _, w := range words {
		if w == "--" {
			break
		}
		if w == "--help" || (w == "-h" && kind == helperNone) {
			printCommandHelp(stdout, cmd)
			return nil
		}
	}
	args, err := parseArguments(words, cmd.flags)
	if err != nil {
		return usagef("%v: `prismfs help %s` shows how it is used", err, cmd.name)
	}
	for _, word := range args.positional {
		if word == "" {
			// A shell variable that is not set, most likely; not the current
			// directory.
			return usagef("an argument is empty: name a directory")
		}
	}
	if n := len(args.positional); n < cmd.min || n > cmd.max {
		return usagef("used as: prismfs %s %s", cmd.name, cmd.args)
	}
	return cmd.run(&invocation{arguments: args, cmd: cmd, words: words, helper: kind, stdout: stdout, stderr: stderr})
}

func isDirectory(path string) bool {
	fi, err := os.Stat(path)
	return err == nil && fi.IsDir()
}
