package engine

import (
	"bytes"
	"fmt"
	"path"

	"prismfs/ordered"
)

// Check verifies the structure of the store and calls fn for every problem: all
// blocks of all tables, the order of keys, the bounds that the manifest states,
// the levels, the manifest against the tables in use, the logs, and files that
// nobody needs.
//
//   - Concurrency: safe beside reads and writes; flushes and compactions wait
//     while the files are listed, not while they are read.
//   - Errors: what kept the check itself from going on. Problems go to fn only.
func (db *DB) Check(fn func(problem error)) error {
	v, err := db.checkFiles(fn)
	if err != nil {
		return err
	}
	defer db.releaseVersion(v)
	for level, files := range v.levels {
		for i, f := range files {
			if level > 0 && i > 0 && bytes.Compare(userKey(files[i-1].largest), userKey(f.smallest)) >= 0 {
				fn(fmt.Errorf("engine: tables %d and %d overlap in level %d: %w", files[i-1].num, f.num, level, ErrCorrupt))
			}
			if db.isClosing() {
				return ErrClosed
			}
			if err := db.checkTable(f); err != nil {
				fn(fmt.Errorf("level %d: %w", level, err))
			}
		}
	}
	return nil
}

// checkFiles compares manifest, version and directory, and returns the version
// with a reference.
func (db *DB) checkFiles(fn func(problem error)) (*version, error) {
	db.stepMu.Lock()
	defer db.stepMu.Unlock()
	view := db.view.Load()
	if view == nil || !view.ver.tryRef() {
		return nil, ErrClosed
	}
	v := view.ver
	if err := db.checkFilesOf(v, fn); err != nil {
		db.releaseVersion(v)
		return nil, err
	}
	return v, nil
}

func (db *DB) checkFilesOf(v *version, fn func(problem error)) error {
	num, err := readCurrent(db.disk, db.dir)
	if err != nil {
		return err
	}
	if num != db.manifest.num {
		fn(fmt.Errorf("engine: CURRENT names manifest %d, in use is %d: %w", num, db.manifest.num, ErrCorrupt))
	}
	type place struct {
		level    int
		size     int64
		from, to string
	}
	want := map[FileNum]place{}
	for level, files := range v.levels {
		for _, f := range files {
			want[f.num] = place{level, f.size, string(f.smallest), string(f.largest)}
		}
	}
	if state, err := readManifest(db.disk, db.dir, num, db.opts.Profile); err != nil {
		fn(err)
	} else {
		found := 0
		for level, files := range state.version.levels {
			for _, f := range files {
				if want[f.num] != (place{level, f.size, string(f.smallest), string(f.largest)}) {
					fn(fmt.Errorf("engine: manifest %d differs from the version in use about table %d: %w", num, f.num, ErrCorrupt))
				}
				found++
			}
		}
		if found != len(want) {
			fn(fmt.Errorf("engine: manifest %d names %d tables, in use are %d: %w", num, found, len(want), ErrCorrupt))
		}
	}

	db.mu.Lock()
	needed := map[FileNum]bool{}
	for _, r := range db.retired {
		needed[r.num] = true
	}
	for _, n := range db.limbo {
		needed[n] = true
	}
	for _, w := range db.deadWals {
		needed[w.num] = true
	}
	needed[db.recycling] = true
	for _, n := range db.spare {
		needed[n] = true
	}
	logs := make([]FileNum, 0, len(db.wals))
	for _, w := range db.wals {
		needed[w.num] = true
		logs = append(logs, w.num)
	}
	if db.opts.ReadOnly {
		for n := range db.replayed {
			logs = append(logs, db.replayed[n])
			needed[db.replayed[n]] = true
		}
	}
	// Files made after this are not known yet.
	next := FileNum(db.nextFile.Load())
	if db.next != nil {
		needed[db.next.wal.num] = true
	}
	db.mu.Unlock()

	names, err := db.disk.List(dirName(db.dir))
	if err != nil {
		return fmt.Errorf("engine: check %s: %w", db.dir, err)
	}
	for _, name := range names {
		kind, n := parseFileName(name)
		orphan := false
		switch kind {
		case tableFile:
			_, used := want[n]
			// A version that an iterator holds may need it too.
			orphan = !used && !needed[n] && !db.heldByReader(n)
		case logFile:
			orphan = !needed[n] && n < db.logNumber
		case manifestFile:
			orphan = n != num
		case tempFile:
			orphan = true
		}
		// What a crash left over is removed when the store is opened for writing.
		if orphan && n < next && !db.opts.ReadOnly {
			fn(fmt.Errorf("engine: %s is not needed by anything", path.Join(db.dir, name)))
		}
	}
	for _, n := range logs {
		_, err := ordered.ReadLog(db.disk, logFileName(db.dir, n), uint64(n), db.opts.Profile, func(rec []byte, off int64) error {
			b, err := decodeBatch(rec)
			if err == nil {
				err = b.check()
			}
			if err != nil {
				return fmt.Errorf("engine: log %d at %d: %w", n, off, err)
			}
			return nil
		})
		if err != nil {
			fn(err)
		}
	}
	return nil
}

// checkTable reads a whole table.
func (db *DB) checkTable(f *fileMeta) error {
	it, err := db.tables.newScan(f.num, f.size)
	if err != nil {
		return err
	}
	defer it.Close()
	var last []byte
	n := 0
	for ok := it.First(); ok; ok = it.Next() {
		k := it.Key()
		if n == 0 && !bytes.Equal(k, f.smallest) {
			return fmt.Errorf("engine: table %d starts with %q, the manifest says %q: %w", f.num, k, f.smallest, ErrCorrupt)
		}
		if n > 0 && compareInternal(last, k) >= 0 {
			return fmt.Errorf("engine: table %d: entry %d is out of order: %w", f.num, n, ErrCorrupt)
		}
		last = append(last[:0], k...)
		n++
		if n%checkEvery == 0 && db.isClosing() {
			return ErrClosed
		}
	}
	if err := it.Err(); err != nil {
		return err
	}
	if !bytes.Equal(last, f.largest) {
		return fmt.Errorf("engine: table %d ends with %q, the manifest says %q: %w", f.num, last, f.largest, ErrCorrupt)
	}
	return nil
}
