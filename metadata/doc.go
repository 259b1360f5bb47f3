// Package metadata is the file system: names, inodes, extended attributes and
// the map from files to the data log, kept in the engine. It knows nothing of
// FUSE.
//
// # Map
//
//	api.go            FS, the operations that a front end serves, and their types
//	store.go          Store: opening, closing, inode numbers, hooks of the engine
//	superblock.go     identity and format of a store       mkfs.go    a new store
//	keys.go           keys of the tables
//	inode_record.go   values of tables I                   dirent.go  of D
//	extent.go         of E                            extent_map.go  the part of them in memory
//	txn.go            one operation: its batch and its change of the counters
//	inode_cache.go    inodes in memory                     refs.go    the kernel's references
//	lock.go           locking inodes
//	ops_*.go          the operations                       orphan.go  deletion of unlinked inodes
//	acl.go            ACLs and file capabilities           chattr.go  what flags forbid
//	sync.go           barriers                             space.go   room on the disk
//	recovery.go       what a replay accepts                gc.go      data-log segments
//	check.go          fsck                                 status.go  figures
//
// # An operation's way
//
//	lock inodes -> read what it needs -> build a txn -> engine.Apply -> change memory -> unlock
//	     |              |                                   |
//	     +--------------+------ NoWait: ErrWouldBlock ------+   nothing has changed then
//
// A write first appends its bytes to the data log (memory), so that the batch
// that names them comes after them in the order of everything.
//
// # Invariants
//
//	M1  One operation is one batch. What memory shows changes after the batch is
//	    applied, under the same locks, so that a refused operation has no effect
//	    and memory can be dropped at any time.
//	M2  Size and extents are in one record set: a size is never visible without
//	    the data below it.
//	M3  A batch that names bytes of the data log is applied after they were
//	    appended; a table that names them is installed after they are durable.
//	M4  A replay ends before the first batch that names bytes behind the last
//	    watermark which do not verify. Bytes before it are not asked for, and a
//	    segment is deleted only once a watermark behind its end is durable.
//	M5  An inode number is leased durably before it is given out: none is ever
//	    used twice.
//	M6  A reference is counted before the reply that hands it out, under a lock
//	    that keeps the inode's last name in place; an inode without names goes
//	    only when its count is zero, by its own lock.
//	M7  Counters change on the write lane, in commit order; what a log says of
//	    them is relative to the last absolute values before it.
//	M8  Extents of a file do not overlap, begin at block boundaries, and end at
//	    one unless they hold the last byte.
//
// # Lock order
//
// Inode locks first, by ascending number where a call waits for more than one;
// under NoWait locks are only tried, in any order. Then the shards of the inode
// cache and of the reference table, which are held for a few instructions. Then
// the engine's write lane, on which the locks of the counters and of the data
// log's positions are taken. A job on that lane takes no inode lock.
package metadata
