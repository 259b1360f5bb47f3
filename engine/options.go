package engine

import (
	"prismfs/lanes"
	"prismfs/ordered"
	"prismfs/uring"
)

// Wait says whether a call may wait for the disk or for room.
type Wait bool

const (
	// Block lets the call wait.
	Block Wait = false
	// NoWait makes the call return ErrWouldBlock, before any effect,
	// instead of waiting.
	NoWait Wait = true
)

// FileNum numbers logs, tables and manifests; one sequence for all three.
type FileNum uint64

// Codec is the compression of a table block, as its trailer's type byte.
type Codec uint8

const (
	None   Codec = 0
	Snappy Codec = 1
	Zstd   Codec = 2
)

// Default sizes.
const (
	defaultMemTableSize  = 16 << 20
	defaultBlockSize     = 4096
	defaultBlockCache    = 64 << 20
	defaultMaxOpenTables = 1000
	defaultTableSize     = 8 << 20
	defaultLevelBase     = 64 << 20
)

// Options configure a DB. Disk and Lanes are required, the rest has defaults.
type Options struct {
	Disk  uring.Disk     // where the files live
	Dir   string         // directory on Disk, "" for its root
	Lanes *lanes.Runtime // where work runs

	// Profile is ordered.Default, with notes in the log and recycled log
	// files, or ordered.Strict, whose files LevelDB reads. The two carry
	// different comparator names, so that neither misreads the other.
	Profile ordered.Profile

	MemTableSize  int   // bytes; a memtable of that size is flushed
	BlockSize     int   // bytes of table block before compression
	BlockCache    int64 // bytes, hard budget
	Codec         Codec
	MaxOpenTables int
	TableSize     int64 // bytes at which a compaction starts the next table
	LevelBase     int64 // bytes of level 1; each further level holds ten times as much

	ReadOnly        bool
	CreateIfMissing bool
	// Salvage opens a store whose logs are damaged in the middle: what the
	// damage hides is given up and reported through Logf.
	Salvage bool

	// GroupNote appends a note to dst that goes into the log at the head of
	// each batch. It runs on the write lane and must not block.
	GroupNote func(dst []byte) []byte
	// BeforeInstall runs before a flushed memtable is installed in the
	// manifest: what its records refer to must be durable on return.
	BeforeInstall func() error
	// OnRotate may add a last batch to a full memtable. It runs on the write
	// lane and must not block.
	OnRotate func(b *Batch)

	// ReplayNote, ReplayStart and Replay observe the recovery: first every
	// note of all logs in order, then ReplayStart, then every batch before
	// it is applied.
	ReplayNote  func(note []byte) error
	ReplayStart func() error
	Replay      func(b *BatchReader) error
	// AfterReplay may add a batch to the end of what was replayed. get reads
	// what the tables held before the replay. Not called when there was none.
	AfterReplay func(get func(key []byte) ([]byte, error), b *Batch) error

	Logf func(format string, args ...any)

	// PlantedStaleLog gives every log the same number in its records, so that
	// what a recycled file held before passes for its own: a fault that crash
	// tests must notice.
	PlantedStaleLog bool
}

func (o Options) withDefaults() Options {
	if o.MemTableSize <= 0 {
		o.MemTableSize = defaultMemTableSize
	}
	if o.BlockSize <= 0 {
		o.BlockSize = defaultBlockSize
	}
	if o.BlockCache <= 0 {
		o.BlockCache = defaultBlockCache
	}
	if o.MaxOpenTables <= 0 {
		o.MaxOpenTables = defaultMaxOpenTables
	}
	if o.TableSize <= 0 {
		o.TableSize = defaultTableSize
	}
	if o.LevelBase <= 0 {
		o.LevelBase = defaultLevelBase
	}
	if o.Logf == nil {
		o.Logf = func(string, ...any) {}
	}
	return o
}

// logID is the number in the records of a log, which tells them from what its
// file held before.
func (db *DB) logID(num FileNum) uint64 {
	if db.opts.PlantedStaleLog {
		return 1
	}
	return uint64(num)
}
