package metadata

import (
	"encoding/binary"
	"errors"
	"fmt"

	"prismfs/engine"
)

// CheckReport sums up a check.
type CheckReport struct {
	Inodes, Directories, Names, Extents, Xattrs int64
	DataBytes                                   int64 // verified
	Problems                                    int64
}

// checker holds what a check has seen of each inode.
type checker struct {
	s      *Store
	report func(problem string)
	rep    CheckReport
	inodes map[Ino]*checkInode
	live   map[uint32]int64
	bytes  int64
}

type checkInode struct {
	names    uint32 // directory entries that point here
	typ      uint8  // as those entries say
	entries  uint64 // for a directory: names in it
	subdirs  uint32
	parent   Ino // for a directory: where it was found
	space    uint64
	inline   int // length of the small-file record, -1 if there is none
	xattrs   uint32
	seen     bool // has an inode record
	attr     Attr
	orphaned bool
}

// Check proves the whole store: the engine's tables, every key and value, every
// byte of file data against its checksum, and that names, link counts, sizes,
// space and counters agree. It reports each problem and goes on; the error is
// only for a check that could not be done. Nothing may change meanwhile.
func (s *Store) Check(report func(problem string)) (CheckReport, error) {
	s.reclaimer.drain(s)
	c := &checker{s: s, report: report, inodes: make(map[Ino]*checkInode), live: make(map[uint32]int64)}
	if err := s.db.Check(func(problem error) { c.problem("%v", problem) }); err != nil {
		return c.rep, err
	}
	switch err := c.scan(); {
	case errors.Is(err, engine.ErrCorrupt):
		// What cannot be read would be missed everywhere.
		c.problem("names, inodes and data are checked only up to a damaged table: %v", err)
		return c.rep, nil
	case err != nil:
		return c.rep, err
	}
	c.judgeInodes()
	c.judgeCounters()
	return c.rep, nil
}

func (c *checker) problem(format string, args ...any) {
	c.rep.Problems++
	c.report(fmt.Sprintf(format, args...))
}

func (c *checker) inode(ino Ino) *checkInode {
	ci := c.inodes[ino]
	if ci == nil {
		ci = &checkInode{inline: -1}
		c.inodes[ino] = ci
	}
	return ci
}

func (c *checker) scan() error {
	it := c.s.db.NewIter(engine.IterOptions{Lower: appendPrefix(nil, treeLive, 0), Upper: appendPrefix(nil, treeLive+1, 0)})
	defer it.Close()
	var lastIno Ino
	var lastEnd uint64
	for ok := it.First(); ok; ok = it.Next() {
		k, err := parseKey(it.Key())
		if err != nil {
			c.problem("%v", err)
			continue
		}
		v := it.Value()
		switch k.table {
		case tableInline:
			c.inode(k.ino).inline = len(v)
			if len(v) > inlineMax {
				c.problem("inode %d: small-file record of %d bytes", k.ino, len(v))
			}
		case tableDirent:
			c.bucket(k.ino, binary.BigEndian.Uint64(k.rest), v)
		case tableExtent:
			off := binary.BigEndian.Uint64(k.rest)
			e, err := decodeExtent(off, v)
			if err != nil {
				c.problem("inode %d: %v", k.ino, err)
				continue
			}
			if k.ino == lastIno && off < lastEnd {
				c.problem("inode %d: extent at %d overlaps the one before, which ends at %d", k.ino, off, lastEnd)
			}
			lastIno, lastEnd = k.ino, e.end()
			c.extent(k.ino, &e)
		case tableInode:
			a, _, err := decodeInode(k.ino, v)
			if err != nil {
				c.problem("%v", err)
				continue
			}
			ci := c.inode(k.ino)
			ci.seen, ci.attr = true, a
			c.rep.Inodes++
			if a.isDir() {
				c.rep.Directories++
			}
		case tableOrphan:
			c.inode(k.ino).orphaned = true
		case tableXattr:
			c.inode(k.ino).xattrs++
			c.rep.Xattrs++
		default:
			c.problem("key %q: not of a file system's table", it.Key())
		}
	}
	return it.Err()
}

func (c *checker) bucket(dir Ino, hash uint64, v []byte) {
	b, err := bucketEntries(v)
	last := -1
	for err == nil && len(b) > 0 {
		var e dirent
		if e, b, err = nextDirent(b); err != nil {
			break
		}
		c.rep.Names++
		d, child := c.inode(dir), c.inode(e.ino)
		d.entries++
		child.names++
		if child.typ != 0 && child.typ != e.typ {
			c.problem("inode %d: names disagree about its type", e.ino)
		}
		child.typ = e.typ
		if e.typ == modeDir>>12 {
			d.subdirs++
			child.parent = dir
		}
		if h := c.s.nameHash(e.name); h != hash {
			c.problem("directory %d: name %q is in bucket %#x, belongs in %#x", dir, e.name, hash, h)
		}
		if err := checkName(e.name); err != nil {
			c.problem("directory %d: name %q: %v", dir, e.name, err)
		}
		if int(e.slot) <= last || hash == 0 && e.slot < firstSlot0 {
			c.problem("directory %d: bucket %#x: slot %d out of order", dir, hash, e.slot)
		}
		last = int(e.slot)
	}
	if err != nil || last < 0 {
		c.problem("directory %d: bucket %#x is damaged", dir, hash)
	}
}

func (c *checker) extent(ino Ino, e *extent) {
	c.rep.Extents++
	ci := c.inode(ino)
	ci.space += e.space()
	c.live[e.seg] += e.stored()
	if e.kind != extentData {
		return
	}
	x := e.log()
	if err := c.s.dlog.Verify(&x); err != nil {
		c.problem("inode %d, offset %d: %v", ino, e.off, err)
		return
	}
	c.rep.DataBytes += int64(e.payload)
}

func (c *checker) judgeInodes() {
	for ino, ci := range c.inodes {
		a := &ci.attr
		if !ci.seen {
			c.problem("inode %d: has %d names, %d entries and %d bytes, but no record", ino, ci.names, ci.entries, ci.space)
			continue
		}
		space := ci.space
		if ci.inline >= 0 {
			space += blockUp(uint64(ci.inline))
		}
		c.bytes += int64(space)
		want := ci.names
		if a.isDir() {
			want = 2 + ci.subdirs
			if ino == RootIno {
				ci.names++ // its own
				ci.parent, ci.typ = RootIno, modeDir>>12
			}
			switch {
			case ci.names == 0 && a.Nlink == 0:
				want = 0
			case ci.names != 1:
				c.problem("directory %d: has %d names", ino, ci.names)
			case a.Parent != ci.parent:
				c.problem("directory %d: says its parent is %d, is in %d", ino, a.Parent, ci.parent)
			case !c.rooted(ino):
				c.problem("directory %d: not reachable from the root", ino)
			}
			if a.Entries != ci.entries {
				c.problem("directory %d: says it has %d names, has %d", ino, a.Entries, ci.entries)
			}
		} else if ci.entries > 0 {
			c.problem("inode %d: not a directory, has %d names in it", ino, ci.entries)
		}
		if a.Nlink != want {
			c.problem("inode %d: link count %d, should be %d", ino, a.Nlink, want)
		}
		if ci.names > 0 && ci.typ != a.dirType() {
			c.problem("inode %d: its name says type %d, the record %d", ino, ci.typ, a.dirType())
		}
		if (a.Nlink == 0) != ci.orphaned {
			c.problem("inode %d: link count %d, listed as unlinked: %v", ino, a.Nlink, ci.orphaned)
		}
		if a.Inline != (ci.inline >= 0) {
			c.problem("inode %d: small file: %v, its bytes are there: %v", ino, a.Inline, ci.inline >= 0)
		}
		if uint64(max(ci.inline, 0)) > a.Size {
			c.problem("inode %d: %d bytes in its record, size %d", ino, ci.inline, a.Size)
		}
		if ci.inline >= 0 && ci.space > 0 {
			c.problem("inode %d: has both a small-file record and extents", ino)
		}
		if a.Blocks*512 != space {
			c.problem("inode %d: says %d bytes of space, takes %d", ino, a.Blocks*512, space)
		}
		if a.Xattrs != ci.xattrs {
			c.problem("inode %d: says %d xattrs, has %d", ino, a.Xattrs, ci.xattrs)
		}
		if uint64(ino) >= c.s.leaseEnd.Load() {
			c.problem("inode %d: number was never leased", ino)
		}
	}
	if ci := c.inodes[RootIno]; ci == nil || !ci.seen {
		c.problem("the root directory is missing")
	}
}

// rooted walks from a directory up to the root.
func (c *checker) rooted(ino Ino) bool {
	for steps := 0; ino != RootIno; steps++ {
		ci := c.inodes[ino]
		if ci == nil || !ci.seen || ci.parent == 0 || steps > len(c.inodes) {
			return false
		}
		ino = ci.parent
	}
	return true
}

func (c *checker) judgeCounters() {
	k := &c.s.counters
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.inodes != c.rep.Inodes {
		c.problem("inode counter is %d, there are %d", k.inodes, c.rep.Inodes)
	}
	if k.bytes != c.bytes {
		c.problem("space counter is %d, files take %d", k.bytes, c.bytes)
	}
	sizes := make(map[uint32]bool)
	for _, info := range c.s.dlog.Segments() {
		sizes[info.Number] = true
	}
	for seg, live := range c.live {
		if !sizes[seg] && seg != noSegment {
			c.problem("segment %d is missing, %d bytes of files are in it", seg, live)
		}
		if k.live[seg] != live {
			c.problem("segment %d: live counter is %d, %d bytes are", seg, k.live[seg], live)
		}
	}
	for seg, v := range k.live {
		if v != 0 && c.live[seg] == 0 {
			c.problem("segment %d: live counter is %d, nothing is", seg, v)
		}
	}
}
