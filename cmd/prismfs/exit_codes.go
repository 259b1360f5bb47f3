package main

import (
	"errors"
	"fmt"
	"strings"
)

// exitCode is what the process ends with. The numbers are stable: scripts
// test them. They are documented in README.md and by `prismfs help exit-codes`.
type exitCode int

const (
	exitOK         exitCode = 0
	exitUsage      exitCode = 1 // the command line is wrong; nothing was touched
	exitSystem     exitCode = 2 // the system refused, or reading or writing failed
	exitNotStore   exitCode = 3 // no store there, or one of a newer format
	exitDamaged    exitCode = 4 // the store is damaged
	exitBusy       exitCode = 5 // the store, mount point or directory is in use
	exitNotMounted exitCode = 6 // it is not mounted, or no daemon answers
	exitInternal   exitCode = 7 // a bug in prismfs
	exitInterrupt  exitCode = 8 // the user interrupted it
)

var exitCodeTexts = []struct {
	code exitCode
	text string
}{
	{exitOK, "done"},
	{exitUsage, "the command line is wrong; nothing was touched"},
	{exitSystem, "the system refused, or reading or writing failed"},
	{exitNotStore, "there is no store there, or its format is newer than this program"},
	{exitDamaged, "the store is damaged (fsck: problems were found)"},
	{exitBusy, "the store, the mount point or the directory is in use"},
	{exitNotMounted, "it is not mounted, or its daemon does not answer"},
	{exitInternal, "a bug in prismfs"},
	{exitInterrupt, "interrupted by the user"},
}

// helperKind says whose table of exit codes the caller reads.
type helperKind int

const (
	helperNone  helperKind = iota
	helperMount            // mount(8), umount(8): 0, 1, 2, 8, 32
	helperFsck             // fsck(8): 0, 4, 8, 16, 32
)

// forHelper translates a code into the table of the program that called us.
//
//   - Source: mount(8) and fsck(8), EXIT STATUS.
func (c exitCode) forHelper(k helperKind) int {
	switch k {
	case helperMount:
		switch c {
		case exitOK, exitUsage, exitInterrupt:
			return int(c)
		case exitInternal:
			return 4
		}
		return 32
	case helperFsck:
		switch c {
		case exitOK:
			return 0
		case exitDamaged:
			return 4
		case exitUsage:
			return 16
		case exitInterrupt:
			return 32
		}
		return 8
	}
	return int(c)
}

// failure is an error with the exit code that it leads to. Its text is the
// whole line behind "prismfs: "; an empty one has been said elsewhere.
type failure struct {
	code exitCode
	text string
}

func (f *failure) Error() string { return f.text }

func failf(code exitCode, format string, args ...any) error {
	return &failure{code, fmt.Sprintf(format, args...)}
}

func usagef(format string, args ...any) error {
	return failf(exitUsage, format, args...)
}

// codeOf is the exit code of any error; one without a code of its own came
// from the system.
func codeOf(err error) exitCode {
	var f *failure
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &f):
		return f.code
	}
	return exitSystem
}

// oneLine keeps C3 whatever a lower layer put into its error.
func oneLine(err error) string {
	return strings.Join(strings.FieldsFunc(err.Error(), func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
}
