// Package engine is a log-structured merge tree: an ordered map from byte
// strings to byte strings with atomic batches, snapshots, iterators in both
// directions, and recovery to a prefix of what was applied.
//
// # Terms
//
//   - batch: updates that are applied all or not at all. Its bytes in the log
//     are LevelDB's WriteBatch.
//   - note: bytes that travel in the log only, in the order of the batches.
//   - sequence number: every update has one, in the order of Apply. A record of
//     the log that holds only notes takes one too (Default profile), so that the
//     loss of any record shows as a gap.
//   - memtable: an arena skip list of the newest updates. One takes updates, at
//     most one more is being flushed.
//   - table: an immutable sorted file. Level 0 holds flushed memtables, which
//     overlap; each level below is one sorted run, ten times as large as the one
//     above.
//   - version: the set of tables of all levels; view: version and memtables.
//   - barrier: makes everything applied so far durable.
//
// # Flow
//
//	Apply -> write lane: sequence number -> log buffer -> memtable -> visible
//	                                          |              | full
//	Barrier -> log: write, datasync           |              v
//	                                   NNNNNN.log        immutable memtable
//	                                                         | flush, Compaction lane
//	Get, NewIter <- view { memtable, immutable, version }    v
//	                                         ^        NNNNNN.ldb in level 0
//	                                         |               | compaction
//	                       MANIFEST edit, synced             v
//	                                                  levels 1 to 6
//
// # Files of a store
//
//   - CURRENT: the name of the manifest.
//   - MANIFEST-NNNNNN: version edits; the sum of them is the current version,
//     and the number of the first log that it doesn't cover.
//   - NNNNNN.log: batches and notes.
//   - NNNNNN.ldb: a table.
//   - NNNNNN.dbtmp: CURRENT in the making.
//   - LOCK: held while the store is open.
//
// FORMAT.md has the bytes.
//
// # Who does what
//
// The write lane alone assigns sequence numbers, appends to the log and inserts
// into the memtable; it never waits for the disk. One background goroutine
// flushes, compacts, writes the manifest and deletes files, each step inside the
// Compaction lane. A second one prepares the next log and memtable, so that a
// rotation is a matter of pointers. Readers take no lock: they load the
// published view, and count themselves in at an epoch so that files are deleted
// only when nobody can be reading them.
//
// # Failures
//
// A failed write or sync of a log, a table or the manifest makes the store
// read-only until it is opened again (ErrReadOnly). ErrNoSpace does not: work
// that met it is repeated when a writer asks, and once a second. A failed read
// is the reader's alone.
//
// # Lock order
//
// The write lane, then DB.mu, then locks inside of logs and caches. No I/O
// happens under DB.mu. Background work takes DB.stepMu first of all.
package engine
