package ordered

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"prismfs/uring"
)

// TailKind says how a log ends.
type TailKind int

const (
	// Clean: the last record is whole and an end follows it: the end of the
	// file, zeros, or what an older use of a recycled file left.
	Clean TailKind = iota
	// Torn: an incomplete record follows, as a crash leaves it.
	Torn
	// Damaged: what follows End had been durable and is not readable now.
	Damaged
)

func (k TailKind) String() string {
	switch k {
	case Clean:
		return "clean"
	case Torn:
		return "torn"
	case Damaged:
		return "damaged"
	}
	return "unknown"
}

// ReadResult is what ReadLog found.
type ReadResult struct {
	Records int
	// End is the offset behind the last good record.
	End  int64
	Tail TailKind
	// DamagedAt is the offset of the bad spot when Tail is Damaged.
	DamagedAt int64
	// Durable is the highest position that the log itself states to have been
	// durable; 0 in the Strict profile.
	Durable int64
}

// ReadLog calls fn with every record of the log and the offset where it
// starts, until the first that is not whole. rec is valid until fn returns;
// an error of fn ends the reading and is returned as it is.
//
//   - Tail: unsynced writes reach the medium in any order, so that good records
//     behind a bad spot are what a power cut leaves. In the Default profile
//     the tail is Damaged only if a mark proves that the bad spot had been
//     durable. The Strict profile has no marks: the start of another
//     record behind the bad spot counts as damage, for losing acknowledged
//     records in silence is worse than refusing.
//   - Concurrency: a log that is being written may be read; some end of it that
//     was true meanwhile is found.
//   - Errors: one that wraps ErrCorrupt when the tail is Damaged, with the
//     result filled in; what the disk returned on a failed read.
func ReadLog(disk uring.Disk, name string, number uint64, p Profile, fn func(rec []byte, off int64) error) (ReadResult, error) {
	f, err := disk.Open(name)
	if err != nil {
		return ReadResult{}, fmt.Errorf("ordered: open log %s: %w", name, err)
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		return ReadResult{}, fmt.Errorf("ordered: size of log %s: %w", name, err)
	}
	r := &logReader{f: f, size: size, number: uint32(number), profile: p}
	res, err := r.read(fn)
	if err != nil || res.Tail != Damaged {
		return res, err
	}
	return res, fmt.Errorf("ordered: log %s: record at offset %d was durable, bad fragment at %d: %w",
		name, res.End, res.DamagedAt, ErrCorrupt)
}

const readChunk = 8 * blockSize

type logReader struct {
	f       uring.File
	size    int64
	number  uint32
	profile Profile

	buf    []byte // bytes of the file from bufOff on
	bufOff int64
	rec    []byte // a record of several fragments
}

// window returns up to readChunk bytes of the file from off on, fewer only at
// its end.
func (r *logReader) window(off int64) ([]byte, error) {
	n := min(readChunk, r.size-off)
	if n <= 0 {
		return nil, nil
	}
	if r.buf == nil {
		r.buf = make([]byte, readChunk)
	}
	b := r.buf[:n]
	got, err := r.f.ReadAt(b, off)
	if err != nil && !(errors.Is(err, io.EOF) && got == len(b)) {
		r.buf = nil
		return nil, fmt.Errorf("ordered: read log %s at %d: %w", r.f.Name(), off, err)
	}
	r.bufOff, r.buf = off, b[:readChunk]
	return b, nil
}

// rest returns the bytes from off to the end of its block or of the file.
func (r *logReader) rest(off int64) ([]byte, error) {
	end := min(off-off%blockSize+blockSize, r.size)
	if off >= end {
		return nil, nil
	}
	if r.buf == nil || off < r.bufOff || end > r.bufOff+readChunk {
		if _, err := r.window(off - off%blockSize); err != nil {
			return nil, err
		}
	}
	return r.buf[off-r.bufOff : end-r.bufOff], nil
}

func (r *logReader) read(fn func(rec []byte, off int64) error) (res ReadResult, err error) {
	h := r.profile.headerLen()
	start := int64(-1) // where the record of several fragments starts, or -1
	pos := int64(0)
	for {
		if blockSize-pos%blockSize < h {
			pos += blockSize - pos%blockSize
		}
		b, err := r.rest(pos)
		if err != nil {
			return res, err
		}
		if len(b) == 0 {
			if start >= 0 {
				res.Tail = Torn
			}
			return res, nil
		}
		frag, state := parseFragment(b, r.profile, r.number)
		// Only a first fragment may start a record and only others may
		// continue it.
		inside := frag.typ == typeMiddle || frag.typ == typeLast
		misplaced := state == fragmentValid && frag.typ != typeMark && inside != (start >= 0)
		if state != fragmentValid || misplaced {
			res.Tail = Torn
			if start < 0 && (state == fragmentZero || state == fragmentStale) {
				res.Tail = Clean
			}
			res, err := r.judge(res, pos, b)
			if err == nil && res.Tail == Damaged && !misplaced {
				err = r.lookAgain(&res)
			}
			return res, err
		}
		next := pos + h + int64(len(frag.data))
		switch frag.typ {
		case typeMark:
			if d, ok := decodeMark(frag.data, pos); ok {
				res.Durable = max(res.Durable, d)
			}
			if start < 0 {
				res.End = next
			}
		case typeFirst:
			start, r.rec = pos, append(r.rec[:0], frag.data...)
		case typeMiddle:
			r.rec = append(r.rec, frag.data...)
		default:
			rec, off := frag.data, pos
			if frag.typ == typeLast {
				r.rec = append(r.rec, frag.data...)
				rec, off = r.rec, start
			}
			if err := fn(rec, off); err != nil {
				return res, err
			}
			start = -1
			res.Records++
			res.End = next
		}
		pos = next
	}
}

// judge tells a crash's tail from damage: nothing good was found at pos, where
// b stands up to the end of the block.
func (r *logReader) judge(res ReadResult, pos int64, b []byte) (ReadResult, error) {
	var damaged bool
	var err error
	if r.profile == Strict {
		damaged, err = r.recordBehind(pos, b)
	} else {
		var durable int64
		durable, err = r.highestMark(pos)
		res.Durable = max(res.Durable, durable)
		damaged = durable > res.End
	}
	if damaged {
		res.Tail, res.DamagedAt = Damaged, pos
	}
	return res, err
}

// lookAgain takes damage back if the fragment is good by now: the log is being
// written, and the end that we saw is past.
func (r *logReader) lookAgain(res *ReadResult) error {
	r.buf = nil
	b, err := r.rest(res.DamagedAt)
	if err != nil {
		return err
	}
	if _, state := parseFragment(b, r.profile, r.number); state == fragmentValid {
		res.Tail, res.DamagedAt = Torn, 0
	}
	return nil
}

// highestMark finds the marks of this log behind pos, at any alignment: what
// stands before them may be gone.
func (r *logReader) highestMark(pos int64) (durable int64, err error) {
	want := []byte{markPayloadLen, 0, typeMark, 0, 0, 0, 0} // from the length on
	binary.LittleEndian.PutUint32(want[3:], r.number)
	for pos < r.size {
		b, err := r.window(pos)
		if err != nil {
			return 0, err
		}
		for i := 0; ; {
			n := bytes.Index(b[i:], want)
			if n < 0 {
				break
			}
			at := i + n - 4
			i += n + 1
			if at < 0 {
				continue
			}
			if frag, state := parseFragment(b[at:], Default, r.number); state == fragmentValid {
				if d, ok := decodeMark(frag.data, pos+int64(at)); ok {
					durable = max(durable, d)
				}
			}
		}
		if len(b) <= markLen {
			break
		}
		pos += int64(len(b) - markLen + 1)
	}
	return durable, nil
}

// recordBehind says whether a record of the Strict profile starts behind the
// bad fragment at pos, where b stands up to the end of the block: after it, if
// its length can be believed, or in a later block. Fragments that continue a
// record prove nothing, they may belong to the torn one.
func (r *logReader) recordBehind(pos int64, b []byte) (bool, error) {
	if len(b) >= strictHeader {
		next := strictHeader + int(binary.LittleEndian.Uint16(b[4:]))
		if next < len(b) && recordStarts(b[next:]) {
			return true, nil
		}
	}
	for off := pos - pos%blockSize + blockSize; off < r.size; off += blockSize {
		b, err := r.rest(off)
		if err != nil {
			return false, err
		}
		if recordStarts(b) {
			return true, nil
		}
	}
	return false, nil
}

// recordStarts says whether a record starts among the good fragments in front
// of b.
func recordStarts(b []byte) bool {
	for {
		frag, state := parseFragment(b, Strict, 0)
		if state != fragmentValid {
			return false
		}
		if frag.typ == typeFull || frag.typ == typeFirst {
			return true
		}
		b = b[strictHeader+len(frag.data):]
	}
}
