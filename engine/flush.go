package engine

import (
	"bytes"
	"errors"
	"fmt"

	"prismfs/uring"
)

// flushImm writes the immutable memtable to level 0 and installs it. Background
// only.
//
// F1: the table and its name are durable, and BeforeInstall has returned, before
// the manifest names it; the logs that held the memtable go only after that.
func (db *DB) flushImm() error {
	v := db.view.Load()
	m := v.imm[len(v.imm)-1]
	files, err := db.writeTables(m.newIter(), db.smallestSnapshot())
	if err != nil {
		return fmt.Errorf("flush: %w", err)
	}
	edit := &versionEdit{}
	for _, f := range files {
		edit.added = append(edit.added, newFile{0, f})
	}
	err = db.beforeInstall()
	if err != nil {
		db.removeOutputs(files)
		return err
	}
	log := v.mem.logNum
	edit.logNumber = &log
	if m.lastSeq > db.flushedSeq {
		edit.lastSeq = &m.lastSeq
	}
	return db.install(edit, func(v *view) {
		v.imm = v.imm[:len(v.imm)-1]
		db.stats.Flushes++
	})
}

func (db *DB) beforeInstall() error {
	if db.opts.BeforeInstall == nil {
		return nil
	}
	if err := db.opts.BeforeInstall(); err != nil {
		return fmt.Errorf("flush: before install: %w", err)
	}
	return nil
}

// writeTables writes what a memtable holds and may still be asked for; no table
// if it is empty. States before smallest are never asked for.
func (db *DB) writeTables(it internalIterator, smallest SeqNum) ([]*fileMeta, error) {
	out := &tableOutput{db: db}
	c := &compactionIter{in: it, smallest: smallest}
	for ok := c.First(); ok; ok = c.Next() {
		if err := out.add(c.Key(), c.Value()); err != nil {
			out.abandon()
			return nil, err
		}
	}
	if err := c.Err(); err != nil {
		out.abandon()
		return nil, err
	}
	files, err := out.finish()
	if err != nil {
		out.abandon()
		return nil, err
	}
	return files, nil
}

// tableOutput writes a sequence of tables.
type tableOutput struct {
	db *DB
	// limit is the size at which the next table starts, 0 for none. No two
	// tables of an output share a user key.
	limit int64

	num   FileNum
	file  uring.File
	w     *tableWriter
	files []*fileMeta
	bytes int64
}

func (o *tableOutput) add(ikey, value []byte) error {
	if o.w != nil && o.limit > 0 && o.w.estimatedSize() >= o.limit && !bytes.Equal(userKey(o.w.lastKey), userKey(ikey)) {
		if err := o.finishTable(); err != nil {
			return err
		}
	}
	if o.w == nil {
		o.num = o.db.newFileNum()
		name := tableFileName(o.db.dir, o.num)
		f, err := o.db.disk.Create(name)
		if err != nil {
			return fmt.Errorf("engine: create table %s: %w", name, err)
		}
		o.file = f
		o.w = newTableWriter(f, o.num, o.db.topts)
	}
	return o.w.add(ikey, value)
}

// cut starts a new table with the next key, which must not be another version
// of the last one.
func (o *tableOutput) cut() error {
	if o.w == nil {
		return nil
	}
	return o.finishTable()
}

// finishTable makes the current table durable; its name is not yet.
func (o *tableOutput) finishTable() error {
	meta, err := o.w.finish()
	if err == nil {
		err = o.file.Sync()
	}
	if err == nil {
		err = o.file.Close()
		o.file = nil
	}
	if err != nil {
		return fmt.Errorf("engine: write table %d: %w", o.num, err)
	}
	o.w = nil
	o.files = append(o.files, &fileMeta{num: o.num, size: meta.size, smallest: meta.smallest, largest: meta.largest})
	o.bytes += meta.size
	return nil
}

// finish makes all tables and their names durable.
func (o *tableOutput) finish() ([]*fileMeta, error) {
	if o.w != nil {
		if err := o.finishTable(); err != nil {
			return nil, err
		}
	}
	if len(o.files) == 0 {
		return nil, nil
	}
	if err := o.db.disk.SyncDir(dirName(o.db.dir)); err != nil {
		return nil, fmt.Errorf("engine: sync directory: %w", err)
	}
	return o.files, nil
}

// abandon removes what was written; no manifest may name it.
func (o *tableOutput) abandon() {
	if o.file != nil {
		o.file.Close() // to be removed
		o.file = nil
	}
	if o.w != nil {
		o.db.remove(tableFileName(o.db.dir, o.num))
		o.w = nil
	}
	o.db.removeOutputs(o.files)
	o.files = nil
}

func (db *DB) removeOutputs(files []*fileMeta) {
	for _, f := range files {
		db.remove(tableFileName(db.dir, f.num))
	}
}

// compactionIter drops the versions that nobody can ask for any more.
type compactionIter struct {
	in       internalIterator
	smallest SeqNum // the oldest state to be kept, below maxSeqNum
	// bottom says whether nothing older of a user key can be anywhere below.
	// nil: something may be.
	bottom func(ukey []byte) bool

	key     []byte // user key of the last entry, kept or not
	hasKey  bool
	lastSeq SeqNum // of the entry before of the same key
	err     error
}

func (c *compactionIter) First() bool {
	c.in.First()
	return c.settle()
}

func (c *compactionIter) Next() bool {
	c.in.Next()
	return c.settle()
}

// settle moves on to the next entry that must be kept.
func (c *compactionIter) settle() bool {
	for c.in.Valid() {
		ik := c.in.Key()
		ukey, t := userKey(ik), trailer(ik)
		if !c.hasKey || !bytes.Equal(c.key, ukey) {
			c.key = append(c.key[:0], ukey...)
			c.hasKey = true
			c.lastSeq = maxSeqNum
		}
		seq := trailerSeq(t)
		// Hidden from every state that is kept by the version before it.
		drop := c.lastSeq <= c.smallest
		// A tombstone that hides nothing: older versions in the input are
		// dropped by the rule above, as lastSeq is set all the same.
		if !drop && trailerKind(t) == KindDelete && seq <= c.smallest && c.bottom != nil && c.bottom(ukey) {
			drop = true
		}
		c.lastSeq = seq
		if !drop {
			return true
		}
		c.in.Next()
	}
	c.err = c.in.Err()
	return false
}

func (c *compactionIter) Key() []byte   { return c.in.Key() }
func (c *compactionIter) Value() []byte { return c.in.Value() }
func (c *compactionIter) Err() error    { return c.err }

// install makes an edit durable and shows the version that it leads to; change
// alters the rest of the view, under DB.mu. Background and Open only.
//
// After an error the edit may have reached the manifest all the same: tables
// that it adds must not be removed.
func (db *DB) install(edit *versionEdit, change func(v *view)) error {
	base := db.view.Load().ver
	v, err := newVersion(base, edit)
	if err != nil {
		return err
	}
	next := FileNum(db.nextFile.Load())
	edit.nextFile = &next
	fresh := db.manifest.log == nil || db.manifest.log.Size() > maxManifestSize
	if fresh {
		err = db.startManifest(v, edit)
	} else {
		err = db.manifest.append(edit)
	}
	if err != nil {
		v.unref()
		if !errors.Is(err, ErrNoSpace) {
			return err
		}
		// The next edit goes to a new manifest, once there is room. Until
		// then the old one may name what this edit adds.
		db.manifest.close()
		db.mu.Lock()
		for _, a := range edit.added {
			if !db.live[a.meta.num] {
				db.limbo = append(db.limbo, a.meta.num)
			}
		}
		db.mu.Unlock()
		return err
	}
	if fresh {
		db.mu.Lock()
		limbo := db.limbo
		db.limbo = nil
		db.mu.Unlock()
		for _, num := range limbo {
			db.remove(tableFileName(db.dir, num))
		}
	}
	if edit.logNumber != nil {
		db.logNumber = *edit.logNumber
	}
	if edit.lastSeq != nil {
		db.flushedSeq = *edit.lastSeq
	}
	for _, p := range edit.pointers {
		db.pointers[p.level] = p.key
	}
	db.mu.Lock()
	for _, a := range edit.added {
		db.live[a.meta.num] = true
	}
	db.publishLocked(func(nv *view) {
		nv.ver = v
		if change != nil {
			change(nv)
		}
	})
	db.retireLocked(base.unref())
	for len(db.wals) > 1 && db.wals[0].num < db.logNumber {
		db.deadWals = append(db.deadWals, db.wals[0])
		db.wals = db.wals[1:]
	}
	db.broadcastLocked()
	db.mu.Unlock()
	return nil
}

// startManifest writes a new manifest that holds version v and what edit says
// of the rest.
func (db *DB) startManifest(v *version, edit *versionEdit) error {
	all := &versionEdit{
		comparator: comparatorName(db.opts.Profile),
		logNumber:  &db.logNumber,
		lastSeq:    &db.flushedSeq,
		pointers:   edit.pointers,
	}
	if edit.logNumber != nil {
		all.logNumber = edit.logNumber
	}
	if edit.lastSeq != nil {
		all.lastSeq = edit.lastSeq
	}
	zero := FileNum(0)
	all.prevLog = &zero
	for level, files := range v.levels {
		stated := false
		for _, p := range edit.pointers {
			stated = stated || p.level == level
		}
		if db.pointers[level] != nil && !stated {
			all.pointers = append(all.pointers, compactPointer{level, db.pointers[level]})
		}
		for _, f := range files {
			all.added = append(all.added, newFile{level, f})
		}
	}
	old := db.manifest.num
	num := db.newFileNum()
	next := FileNum(db.nextFile.Load())
	all.nextFile = &next
	if err := db.manifest.start(num, all); err != nil {
		return err
	}
	if old != 0 {
		db.remove(manifestFileName(db.dir, old))
	}
	return nil
}
