package engine

import (
	"fmt"
	"path"
	"strconv"
	"strings"
)

// fileKind tells apart the files of a store by their names.
type fileKind int

const (
	unknownFile fileKind = iota
	logFile
	tableFile
	manifestFile
	currentFile
	lockFile
	tempFile
)

func logFileName(dir string, n FileNum) string   { return path.Join(dir, fmt.Sprintf("%06d.log", n)) }
func tableFileName(dir string, n FileNum) string { return path.Join(dir, fmt.Sprintf("%06d.ldb", n)) }
func manifestFileName(dir string, n FileNum) string {
	return path.Join(dir, fmt.Sprintf("MANIFEST-%06d", n))
}

// dirName is the name by which the disk knows dir.
func dirName(dir string) string {
	if dir == "" {
		return "."
	}
	return dir
}

func currentFileName(dir string) string { return path.Join(dir, "CURRENT") }
func lockFileName(dir string) string    { return path.Join(dir, "LOCK") }
func tempFileName(dir string, n FileNum) string {
	return path.Join(dir, fmt.Sprintf("%06d.dbtmp", n))
}

// parseFileName classifies the base name of a file. Only names that the
// engine itself writes are recognised: a foreign file is never removed.
func parseFileName(name string) (fileKind, FileNum) {
	switch name {
	case "CURRENT":
		return currentFile, 0
	case "LOCK":
		return lockFile, 0
	}
	if rest, ok := strings.CutPrefix(name, "MANIFEST-"); ok {
		if n, ok := parseFileNum(rest); ok {
			return manifestFile, n
		}
		return unknownFile, 0
	}
	base, ext, ok := strings.Cut(name, ".")
	if !ok {
		return unknownFile, 0
	}
	n, ok := parseFileNum(base)
	if !ok {
		return unknownFile, 0
	}
	switch ext {
	case "log":
		return logFile, n
	case "ldb", "sst":
		return tableFile, n
	case "dbtmp":
		return tempFile, n
	}
	return unknownFile, 0
}

func parseFileNum(s string) (FileNum, bool) {
	if s == "" || s[0] < '0' || s[0] > '9' {
		return 0, false
	}
	n, err := strconv.ParseUint(s, 10, 64)
	return FileNum(n), err == nil
}
