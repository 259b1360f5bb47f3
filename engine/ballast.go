package engine

import (
	"errors"
	"fmt"
	"path"

	"prismfs/uring"
)

// The ballast is a file that only takes up room. When a flush or a compaction
// meets a full disk the ballast goes, and Low is true from then on: whoever uses
// the store should then refuse what takes space, so that the room is left for
// what was acknowledged already and for deletions. It is laid down again when
// the disk has room for it twice over.
//
// B1: low is true whenever the ballast is not there.

// ballastShare is the part of a small disk that the ballast may take.
const ballastShare = 16

// ballastSize is room for a log, some memtables and the output of a compaction.
func (db *DB) ballastSize(total int64) int64 {
	return min(4*int64(db.opts.MemTableSize)+1<<20, total/ballastShare)
}

func ballastFileName(dir string) string { return path.Join(dir, "BALLAST") }

// Low says that the disk is nearly full: updates that take space should be
// refused, deletions will work. It costs an atomic load.
func (db *DB) Low() bool { return db.low.Load() }

// dropBallast gives the room up and says whether there was any.
func (db *DB) dropBallast() bool {
	if db.low.Swap(true) {
		return false
	}
	db.opts.Logf("engine: the disk is full, using the reserve")
	if err := db.disk.Remove(ballastFileName(db.dir)); err != nil {
		if !errors.Is(err, uring.ErrNotExist) {
			db.opts.Logf("engine: %v", err)
		}
		return false
	}
	return true
}

// layBallast makes the ballast if it is missing and there is room. Background
// and Open only.
func (db *DB) layBallast() error {
	if !db.low.Load() || db.opts.ReadOnly {
		return nil
	}
	space, err := db.disk.Free()
	if err != nil {
		return fmt.Errorf("engine: free space: %w", err)
	}
	size := db.ballastSize(space.Total)
	name := ballastFileName(db.dir)
	if have, err := db.disk.Stat(name); err == nil && have >= size {
		db.low.Store(false)
		return nil
	}
	if space.Free < 2*size {
		return nil
	}
	f, err := db.disk.Create(name)
	if err != nil {
		return fmt.Errorf("engine: create reserve: %w", err)
	}
	err = f.Allocate(0, size, false)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		db.remove(name)
		return fmt.Errorf("engine: create reserve: %w", err)
	}
	db.low.Store(false)
	return nil
}

// roomForOpen gives the ballast up if what Open writes, a log, tables for what is
// replayed and a manifest, might not fit beside it.
func (db *DB) roomForOpen() error {
	space, err := db.disk.Free()
	if err != nil {
		return fmt.Errorf("engine: free space: %w", err)
	}
	if space.Free < 2*db.walSize()+manifestReserve {
		if err := db.disk.Remove(ballastFileName(db.dir)); err != nil && !errors.Is(err, uring.ErrNotExist) {
			return fmt.Errorf("engine: give up the reserve: %w", err)
		}
	}
	return nil
}
