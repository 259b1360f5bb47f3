package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// row is one line of the table.
type row struct {
	id, label string
	unit      unit
	// target is the share of ext4's speed that prismfs is meant to reach; 0:
	// none is set.
	target float64
	cold   bool
	// prepare makes what the row works on. It runs before the caches are
	// emptied (cold rows) or in the mount that is measured (others).
	prepare func(*site) error
	// run returns what it did and how long that took.
	run func(*site) (ops int, took time.Duration, err error)
}

type unit int

const (
	opsPerSecond unit = iota
	mebibytes         // ops are MiB
	seconds           // the time is shown; ops are files
)

// Sizes of the rows, chosen so that a round takes about a minute a contender.
const (
	nameCount   = 10000 // files of the rows about names
	dirCount    = 20000 // files of the directory that is looked at
	openCount   = 8000  // of which so many are read
	bigMiB      = 512
	textMiB     = 256
	readCount   = 4000 // random reads with 1 thread
	readCount16 = 1000 // random reads a thread with 16
	overwrites  = 20000
	insertCount = 300
)

// Fixtures: a directory of files "<letter><number>", one directory a thread
// below it. site.have[name] is the letter that the names begin with now.

func threadDir(s *site, name string, worker int) string {
	return s.path(name) + "/" + strconv.Itoa(worker)
}

func makeThreadDirs(s *site, name string, threads int) error {
	for w := range threads {
		if err := os.MkdirAll(threadDir(s, name, w), 0o755); err != nil {
			return err
		}
	}
	return nil
}

// createFiles makes total files of size bytes on threads.
func createFiles(s *site, name string, threads, total, size int, sync bool) (int, time.Duration, error) {
	each := total / threads
	s.have[name] = "a"
	took, err := onThreads(threads, func(w int) error {
		var data []byte
		if size > 0 {
			data = make([]byte, size)
		}
		r := newRand(w)
		prefix := threadDir(s, name, w) + "/a"
		for i := range each {
			fresh(data, r)
			if err := createFile(prefix+strconv.Itoa(i), data, sync); err != nil {
				return err
			}
		}
		return nil
	})
	return each * threads, took, err
}

// needFiles makes the fixture unless it is there, and looks at each file, as
// whoever has just made it would have.
func needFiles(s *site, name string, threads, total, size int) error {
	if s.have[name] == "" {
		if err := makeThreadDirs(s, name, threads); err != nil {
			return err
		}
		_, _, err := createFiles(s, name, threads, total, size, false)
		return err
	}
	var st unix.Stat_t
	for w := range threads {
		for i := range total / threads {
			if err := unix.Lstat(threadDir(s, name, w)+"/"+s.have[name]+strconv.Itoa(i), &st); err != nil {
				return err
			}
		}
	}
	return nil
}

func createRow(id, label string, threads, size int, target float64) row {
	name := id
	return row{
		id: id, label: label, target: target,
		prepare: func(s *site) error { return makeThreadDirs(s, name, threads) },
		run: func(s *site) (int, time.Duration, error) {
			return createFiles(s, name, threads, nameCount, size, false)
		},
	}
}

// eachFile calls f with every file of a fixture, each thread with its own.
func eachFile(s *site, name string, threads, total int, f func(dir, number string) error) (int, time.Duration, error) {
	each := total / threads
	took, err := onThreads(threads, func(w int) error {
		dir := threadDir(s, name, w) + "/"
		for i := range each {
			if err := f(dir, strconv.Itoa(i)); err != nil {
				return err
			}
		}
		return nil
	})
	return each * threads, took, err
}

func renameRow(threads int, target float64) row {
	name := "create4k-" + strconv.Itoa(threads)
	return row{
		id: fmt.Sprintf("rename-%d", threads), label: threadLabel("rename", threads), target: target,
		prepare: func(s *site) error { return needFiles(s, name, threads, nameCount, block) },
		run: func(s *site) (int, time.Duration, error) {
			from := s.have[name]
			to := map[string]string{"a": "b", "b": "a"}[from]
			s.have[name] = to
			return eachFile(s, name, threads, nameCount, func(dir, number string) error {
				return unix.Rename(dir+from+number, dir+to+number)
			})
		},
	}
}

func unlinkRow(threads int, target float64) row {
	name := "create4k-" + strconv.Itoa(threads)
	return row{
		id: fmt.Sprintf("unlink-%d", threads), label: threadLabel("unlink", threads), target: target,
		prepare: func(s *site) error { return needFiles(s, name, threads, nameCount, block) },
		run: func(s *site) (int, time.Duration, error) {
			letter := s.have[name]
			delete(s.have, name)
			return eachFile(s, name, threads, nameCount, func(dir, number string) error {
				return unix.Unlink(dir + letter + number)
			})
		},
	}
}

func threadLabel(what string, threads int) string {
	if threads == 1 {
		return what + ", 1 thread"
	}
	return fmt.Sprintf("%s, %d threads", what, threads)
}

// oneDir is a fixture: dirCount files of 4 KiB in one directory.
const oneDir = "onedir"

func needOneDir(s *site) error {
	if s.have[oneDir] != "" {
		return nil
	}
	if err := makeThreadDirs(s, oneDir, 1); err != nil {
		return err
	}
	_, _, err := createFiles(s, oneDir, 1, dirCount, block, false)
	return err
}

// shuffledRow calls f with files of oneDir in random order.
func shuffledRow(id, label string, threads, files int, target float64, f func(name string, buf []byte) error) row {
	return row{
		id: fmt.Sprintf("%s-%d", id, threads), label: threadLabel(label, threads), target: target, cold: true,
		prepare: needOneDir,
		run: func(s *site) (int, time.Duration, error) {
			order := rand.New(rand.NewPCG(1, 2)).Perm(dirCount)
			prefix := threadDir(s, oneDir, 0) + "/a"
			each := files / threads
			took, err := onThreads(threads, func(w int) error {
				buf := make([]byte, block)
				for _, i := range order[w*each : (w+1)*each] {
					if err := f(prefix+strconv.Itoa(i), buf); err != nil {
						return err
					}
				}
				return nil
			})
			return each * threads, took, err
		},
	}
}

func appendRow(threads, each int, target float64) row {
	name := "append-" + strconv.Itoa(threads)
	return row{
		id: name, label: threadLabel("append 4 KiB + fsync", threads), target: target,
		prepare: func(s *site) error {
			if err := os.MkdirAll(s.path(name), 0o755); err != nil {
				return err
			}
			for w := range threads {
				if err := os.WriteFile(threadDir(s, name, w), nil, 0o644); err != nil {
					return err
				}
			}
			return nil
		},
		run: func(s *site) (int, time.Duration, error) {
			took, err := onThreads(threads, func(w int) error {
				fd, err := unix.Open(threadDir(s, name, w), unix.O_WRONLY|unix.O_APPEND|unix.O_CLOEXEC, 0)
				if err != nil {
					return err
				}
				defer unix.Close(fd)
				data, r := make([]byte, block), newRand(w)
				for range each {
					fresh(data, r)
					if err := writeAll(fd, data); err != nil {
						return err
					}
					if err := unix.Fsync(fd); err != nil {
						return err
					}
				}
				return nil
			})
			return each * threads, took, err
		},
	}
}

// writeBig writes a file in pieces of 1 MiB and syncs it. Text is the same
// every few pieces, as making it takes longer than writing it.
func writeBig(name string, sizeMiB int, text bool) (int, time.Duration, error) {
	r := newRand(0)
	pieces := make([][]byte, 16)
	for i := range pieces {
		pieces[i] = make([]byte, 1<<20)
		if text {
			freshText(pieces[i], r)
		}
	}
	took, err := onThreads(1, func(int) error {
		fd, err := unix.Open(name, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC|unix.O_CLOEXEC, 0o644)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		for i := range sizeMiB {
			p := pieces[i%len(pieces)]
			if !text {
				fresh(p, r)
			}
			if err := writeAll(fd, p); err != nil {
				return err
			}
		}
		return unix.Fsync(fd)
	})
	return sizeMiB, took, err
}

func needBig(s *site) error {
	if s.have["big"] != "" {
		return nil
	}
	s.have["big"] = "a"
	_, _, err := writeBig(s.path("big"), bigMiB, false)
	return err
}

func randomReadRow(threads, each int, target float64) row {
	return row{
		id: fmt.Sprintf("randread-%d", threads), label: threadLabel("random read 4 KiB, cold", threads), target: target, cold: true,
		prepare: needBig,
		run: func(s *site) (int, time.Duration, error) {
			took, err := onThreads(threads, func(w int) error {
				fd, err := unix.Open(s.path("big"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
				if err != nil {
					return err
				}
				defer unix.Close(fd)
				if err := unix.Fadvise(fd, 0, 0, unix.FADV_RANDOM); err != nil {
					return err
				}
				buf, r := make([]byte, block), newRand(w)
				for range each {
					if n, err := unix.Pread(fd, buf, r.Int64N(bigMiB<<20/block)*block); err != nil || n != block {
						return fmt.Errorf("read: %d bytes, %v", n, err)
					}
				}
				return nil
			})
			return each * threads, took, err
		},
	}
}

// tree is what the rows about programs work on: a tar file of the Go source
// tree, in the page cache.
type tree struct {
	tar     string
	entries int
}

func newTree(work, root string) (*tree, error) {
	t := &tree{tar: filepath.Join(work, "tree.tar")}
	if err := run("", "tar", "--format=posix", "-C", root, "-cf", t.tar, "."); err != nil {
		return nil, err
	}
	out, err := exec.Command("tar", "-tf", t.tar).Output()
	if err != nil {
		return nil, err
	}
	t.entries = strings.Count(string(out), "\n")
	return t, nil
}

// program times programs; the first word of each is run once before, so that
// reading the program itself from disk is not counted.
func program(s *site, entries int, words ...string) (int, time.Duration, error) {
	exec.Command(words[0], "--version").Run()
	began := time.Now()
	err := run(s.dir, words[0], words[1:]...)
	return entries, time.Since(began), err
}

func (t *tree) untar(s *site) error {
	s.have["tree"] = "a"
	if err := os.MkdirAll(s.path("tree"), 0o755); err != nil {
		return err
	}
	return run("", "tar", "-C", s.path("tree"), "-xf", t.tar)
}

// fill brings the tar file into the page cache, from which a cold row drops it.
func (t *tree) fill() error { return run("", "cat", t.tar) }

func (t *tree) need(s *site) error {
	if s.have["tree"] != "" {
		return nil
	}
	return t.untar(s)
}

func (t *tree) needCopy(s *site) error {
	if s.have["copy"] != "" {
		return nil
	}
	s.have["copy"] = "a"
	if err := t.need(s); err != nil {
		return err
	}
	return run(s.dir, "cp", "-a", "tree", "copy")
}

func (t *tree) rows() []row {
	return []row{
		{id: "untar", label: "untar + sync", unit: seconds, target: .35,
			prepare: func(s *site) error {
				if err := os.RemoveAll(s.path("tree")); err != nil {
					return err
				}
				return t.fill()
			},
			run: func(s *site) (int, time.Duration, error) {
				exec.Command("tar", "--version").Run()
				began := time.Now()
				err := t.untar(s)
				if err == nil {
					err = s.c.sync()
				}
				return t.entries, time.Since(began), err
			}},
		{id: "find", label: "find, cold", unit: seconds, target: .60, cold: true, prepare: t.need,
			run: func(s *site) (int, time.Duration, error) {
				return program(s, t.entries, "find", "tree", "-name", "no such name")
			}},
		{id: "grep", label: "grep -r, cold", unit: seconds, target: 1.3, cold: true, prepare: t.need,
			run: func(s *site) (int, time.Duration, error) {
				n, took, err := program(s, t.entries, "grep", "-r", "no such line", "tree")
				var ee *exec.ExitError
				if errors.As(err, &ee) && ee.ExitCode() == 1 {
					err = nil
				}
				return n, took, err
			}},
		{id: "cp", label: "cp -a", unit: seconds, target: .22,
			prepare: func(s *site) error {
				if err := t.need(s); err != nil {
					return err
				}
				if err := run(s.dir, "rm", "-rf", "copy"); err != nil {
					return err
				}
				return run(s.dir, "grep", "-rqc", "package", "tree") // the source is cached
			},
			run: func(s *site) (int, time.Duration, error) {
				s.have["copy"] = "a"
				return program(s, t.entries, "cp", "-a", "tree", "copy")
			}},
		{id: "rm", label: "rm -rf", unit: seconds, target: .35,
			prepare: func(s *site) error {
				if err := t.needCopy(s); err != nil {
					return err
				}
				return run(s.dir, "find", "copy", "-size", "+1000000") // attributes are cached
			},
			run: func(s *site) (int, time.Duration, error) {
				delete(s.have, "copy")
				return program(s, t.entries, "rm", "-rf", "copy")
			}},
		{id: "git", label: "git add + commit", unit: seconds, target: .50,
			prepare: func(s *site) error {
				if err := t.need(s); err != nil {
					return err
				}
				if err := os.RemoveAll(s.path("tree/.git")); err != nil {
					return err
				}
				return run(s.path("tree"), "git", "init", "-q")
			},
			run: func(s *site) (int, time.Duration, error) {
				began := time.Now()
				err := run(s.path("tree"), "git", "-c", "gc.auto=0", "add", "-A", ".")
				if err == nil {
					err = run(s.path("tree"), "git", "-c", "gc.auto=0", "-c", "user.name=b", "-c", "user.email=b@example.org", "commit", "-q", "-m", "all")
				}
				took := time.Since(began)
				os.RemoveAll(s.path("tree/.git"))
				return t.entries, took, err
			}},
	}
}

var sqliteRuns atomic.Int64

func sqliteRow() row {
	script := func(s *site) string { return s.path("inserts.sql") }
	return row{id: "sqlite", label: "sqlite, one insert a transaction", target: 1.3,
		prepare: func(s *site) error {
			var b strings.Builder
			r := newRand(0)
			for i := range insertCount {
				fmt.Fprintf(&b, "INSERT INTO t VALUES(%d, '%016x%016x');\n", i, r.Uint64(), r.Uint64())
			}
			return os.WriteFile(script(s), []byte(b.String()), 0o644)
		},
		run: func(s *site) (int, time.Duration, error) {
			db := fmt.Sprintf("db%d", sqliteRuns.Add(1))
			if err := run(s.dir, "sqlite3", db, "CREATE TABLE t(id INTEGER PRIMARY KEY, v TEXT)"); err != nil {
				return 0, 0, err
			}
			return program(s, insertCount, "sqlite3", db, ".read inserts.sql")
		}}
}

// allRows are in the order of the table; later ones use what earlier ones made.
func allRows(t *tree) []row {
	stat := func(name string, _ []byte) error {
		var st unix.Stat_t
		return unix.Lstat(name, &st)
	}
	read := func(name string, buf []byte) error { return readFile(name, buf, block) }
	rows := []row{
		createRow("create4k-1", threadLabel("create 4 KiB file", 1), 1, block, .40),
		createRow("create4k-4", threadLabel("create 4 KiB file", 4), 4, block, .30),
		createRow("create0-1", threadLabel("create empty file", 1), 1, 0, .35),
		createRow("create0-4", threadLabel("create empty file", 4), 4, 0, .23),
		{id: "mkdir-1", label: threadLabel("mkdir", 1), target: .80,
			prepare: func(s *site) error { return os.RemoveAll(s.path("mkdir")) },
			run: func(s *site) (int, time.Duration, error) {
				if err := os.Mkdir(s.path("mkdir"), 0o755); err != nil {
					return 0, 0, err
				}
				took, err := onThreads(1, func(int) error {
					prefix := s.path("mkdir") + "/d"
					for i := range nameCount {
						if err := unix.Mkdir(prefix+strconv.Itoa(i), 0o755); err != nil {
							return err
						}
					}
					return nil
				})
				return nameCount, took, err
			}},
		shuffledRow("stat", "stat in random order, cold", 1, dirCount, .55, stat),
		shuffledRow("stat", "stat in random order, cold", 4, dirCount, .40, stat),
		{id: "liststat", label: "list + stat of a directory, cold", target: .80, cold: true, prepare: needOneDir,
			run: func(s *site) (n int, took time.Duration, err error) {
				took, err = onThreads(1, func(int) (err error) {
					n, err = listAndStat(threadDir(s, oneDir, 0))
					return err
				})
				return n, took, err
			}},
		shuffledRow("read4k", "open + read + close 4 KiB, cold", 1, openCount, 1.8, read),
		shuffledRow("read4k", "open + read + close 4 KiB, cold", 4, openCount, 1.8, read),
		renameRow(1, .50), renameRow(4, .35),
		unlinkRow(1, .47), unlinkRow(4, .22),
		appendRow(1, 300, 1.3), appendRow(16, 150, 1.2),
		{id: "createsync-16", label: threadLabel("create 4 KiB + fsync", 16), target: 1.0,
			prepare: func(s *site) error {
				if err := os.RemoveAll(s.path("createsync")); err != nil {
					return err
				}
				return makeThreadDirs(s, "createsync", 16)
			},
			run: func(s *site) (int, time.Duration, error) {
				return createFiles(s, "createsync", 16, 16*100, block, true)
			}},
		{id: "seqwrite", label: "sequential write 1 MiB + fsync", unit: mebibytes, target: 1.0,
			run: func(s *site) (int, time.Duration, error) {
				s.have["big"] = "a"
				return writeBig(s.path("big"), bigMiB, false)
			}},
		{id: "seqread", label: "sequential read 1 MiB, cold", unit: mebibytes, target: 1.0, cold: true, prepare: needBig,
			run: func(s *site) (int, time.Duration, error) {
				took, err := onThreads(1, func(int) error {
					fd, err := unix.Open(s.path("big"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
					if err != nil {
						return err
					}
					defer unix.Close(fd)
					buf := make([]byte, 1<<20)
					for {
						n, err := unix.Read(fd, buf)
						if err != nil || n == 0 {
							return err
						}
					}
				})
				return bigMiB, took, err
			}},
		randomReadRow(1, readCount, 1.0), randomReadRow(16, readCount16, 1.2),
		{id: "randwrite", label: "20,000 random 4 KiB writes + one fsync", target: .80, prepare: needBig,
			run: func(s *site) (int, time.Duration, error) {
				took, err := onThreads(1, func(int) error {
					fd, err := unix.Open(s.path("big"), unix.O_WRONLY|unix.O_CLOEXEC, 0)
					if err != nil {
						return err
					}
					defer unix.Close(fd)
					buf, r := make([]byte, block), newRand(0)
					for range overwrites {
						fresh(buf, r)
						if n, err := unix.Pwrite(fd, buf, r.Int64N(bigMiB<<20/block)*block); err != nil || n != block {
							return fmt.Errorf("write: %d bytes, %v", n, err)
						}
					}
					return unix.Fsync(fd)
				})
				return overwrites, took, err
			}},
	}
	rows = append(rows, t.rows()...)
	return append(rows, sqliteRow(), row{
		id: "text", label: "sequential write of text 1 MiB + fsync", unit: mebibytes,
		run: func(s *site) (int, time.Duration, error) {
			return writeBig(s.path("text"), textMiB, true)
		}})
}
