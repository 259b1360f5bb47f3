package engine

import (
	"encoding/binary"
	"fmt"
)

const numLevels = 7

// Tags of a version edit, as in LevelDB.
const (
	tagComparator     = 1
	tagLogNumber      = 2
	tagNextFile       = 3
	tagLastSequence   = 4
	tagCompactPointer = 5
	tagDeletedFile    = 6
	tagNewFile        = 7
	tagPrevLogNumber  = 9
)

// versionEdit is one record of a manifest: what changes from one version to the
// next. Numbers that are nil are not stated.
type versionEdit struct {
	comparator string // "" is not stated
	logNumber  *FileNum
	prevLog    *FileNum
	nextFile   *FileNum
	lastSeq    *SeqNum
	pointers   []compactPointer
	deleted    []deletedFile
	added      []newFile
}

type compactPointer struct {
	level int
	key   []byte
}

type deletedFile struct {
	level int
	num   FileNum
}

type newFile struct {
	level int
	meta  *fileMeta
}

func (e *versionEdit) encode(dst []byte) []byte {
	num := func(tag, v uint64) {
		dst = binary.AppendUvarint(dst, tag)
		dst = binary.AppendUvarint(dst, v)
	}
	if e.comparator != "" {
		dst = binary.AppendUvarint(dst, tagComparator)
		dst = appendString(dst, []byte(e.comparator))
	}
	if e.logNumber != nil {
		num(tagLogNumber, uint64(*e.logNumber))
	}
	if e.prevLog != nil {
		num(tagPrevLogNumber, uint64(*e.prevLog))
	}
	if e.nextFile != nil {
		num(tagNextFile, uint64(*e.nextFile))
	}
	if e.lastSeq != nil {
		num(tagLastSequence, uint64(*e.lastSeq))
	}
	for _, p := range e.pointers {
		num(tagCompactPointer, uint64(p.level))
		dst = appendString(dst, p.key)
	}
	for _, d := range e.deleted {
		num(tagDeletedFile, uint64(d.level))
		dst = binary.AppendUvarint(dst, uint64(d.num))
	}
	for _, a := range e.added {
		num(tagNewFile, uint64(a.level))
		dst = binary.AppendUvarint(dst, uint64(a.meta.num))
		dst = binary.AppendUvarint(dst, uint64(a.meta.size))
		dst = appendString(dst, a.meta.smallest)
		dst = appendString(dst, a.meta.largest)
	}
	return dst
}

// decodeVersionEdit copies what it keeps.
func decodeVersionEdit(b []byte) (*versionEdit, error) {
	e := &versionEdit{}
	d := editDecoder{rest: b}
	for len(d.rest) > 0 && !d.bad {
		switch tag := d.uvarint(); tag {
		case tagComparator:
			e.comparator = string(d.str())
		case tagLogNumber:
			n := FileNum(d.uvarint())
			e.logNumber = &n
		case tagPrevLogNumber:
			n := FileNum(d.uvarint())
			e.prevLog = &n
		case tagNextFile:
			n := FileNum(d.uvarint())
			e.nextFile = &n
		case tagLastSequence:
			n := SeqNum(d.uvarint())
			d.bad = d.bad || n > maxSeqNum
			e.lastSeq = &n
		case tagCompactPointer:
			l := d.level()
			e.pointers = append(e.pointers, compactPointer{l, d.ikey()})
		case tagDeletedFile:
			l := d.level()
			e.deleted = append(e.deleted, deletedFile{l, FileNum(d.uvarint())})
		case tagNewFile:
			l := d.level()
			f := &fileMeta{num: FileNum(d.uvarint()), size: int64(d.uvarint())}
			f.smallest, f.largest = d.ikey(), d.ikey()
			d.bad = d.bad || f.size < 0 || (!d.bad && compareInternal(f.smallest, f.largest) > 0)
			e.added = append(e.added, newFile{l, f})
		default:
			return nil, fmt.Errorf("engine: version edit with unknown tag %d: %w", tag, ErrCorrupt)
		}
	}
	if d.bad {
		return nil, fmt.Errorf("engine: version edit of %d bytes is malformed: %w", len(b), ErrCorrupt)
	}
	return e, nil
}

// editDecoder cuts fields off rest; the first malformed one sets bad for good.
type editDecoder struct {
	rest []byte
	bad  bool
}

func (d *editDecoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.rest)
	if n <= 0 || d.bad {
		d.bad = true
		return 0
	}
	d.rest = d.rest[n:]
	return v
}

func (d *editDecoder) level() int {
	v := d.uvarint()
	if v >= numLevels {
		d.bad = true
		return 0
	}
	return int(v)
}

func (d *editDecoder) str() []byte {
	s, rest, ok := cutString(d.rest)
	if !ok || d.bad {
		d.bad = true
		return nil
	}
	d.rest = rest
	return append([]byte(nil), s...)
}

func (d *editDecoder) ikey() []byte {
	s := d.str()
	if len(s) < trailerLen {
		d.bad = true
	}
	return s
}
