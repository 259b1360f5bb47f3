package engine

import (
	"encoding/binary"
	"fmt"
)

// KindNote marks a record that lives in the log only: it is not counted, has no
// sequence number and never reaches the memtable. Default profile only.
const KindNote Kind = 0x7f

// batchHeaderLen is the fixed64 sequence and the fixed32 count of a batch.
const batchHeaderLen = 12

// maxBatchLen bounds a batch, so that offsets in a memtable fit 32 bits.
const maxBatchLen = 256 << 20

// A Batch collects updates that are applied all or not at all, in order. It is
// reusable after Reset and not safe for concurrent use.
//
// Its bytes are LevelDB's WriteBatch: fixed64 sequence, fixed32 count, then per
// record a type byte, the length-prefixed key and, for a set, the
// length-prefixed value. A note is a record of type 0x7f with one string.
type Batch struct {
	// OnCommit, if set, runs on the write lane when the batch has its place in
	// the order, before it is visible. It must not block. User is the caller's.
	OnCommit func(b *Batch)
	User     any

	data  []byte // header and records; empty means no record yet
	count uint32
	notes uint32
}

// NewBatch returns an empty batch.
func NewBatch() *Batch { return &Batch{} }

func (b *Batch) begin() {
	if len(b.data) == 0 {
		b.data = append(b.data[:0], make([]byte, batchHeaderLen)...)
	}
}

// Put sets key to value. Both are copied.
func (b *Batch) Put(key, value []byte) {
	b.begin()
	b.data = append(b.data, byte(KindSet))
	b.data = appendString(b.data, key)
	b.data = appendString(b.data, value)
	b.count++
}

// Delete removes key, whether it exists or not.
func (b *Batch) Delete(key []byte) {
	b.begin()
	b.data = append(b.data, byte(KindDelete))
	b.data = appendString(b.data, key)
	b.count++
}

// Note adds bytes that travel with the batch in the log and are shown to
// Options.ReplayNote and Options.Replay.
func (b *Batch) Note(p []byte) {
	b.begin()
	b.data = append(b.data, byte(KindNote))
	b.data = appendString(b.data, p)
	b.notes++
}

// Reset empties the batch and keeps its memory.
func (b *Batch) Reset() {
	b.data = b.data[:0]
	b.count, b.notes = 0, 0
}

// Len is the encoded size in bytes.
func (b *Batch) Len() int { return len(b.data) }

// Count is the number of updates, notes not counted.
func (b *Batch) Count() int { return int(b.count) }

// Empty says that the batch holds no update and no note.
func (b *Batch) Empty() bool { return b.count == 0 && b.notes == 0 }

// Reader walks the records of the batch.
func (b *Batch) Reader() *BatchReader {
	r := &BatchReader{count: b.count}
	if len(b.data) > 0 {
		r.rest = b.data[batchHeaderLen:]
	}
	return r
}

func appendString(dst, s []byte) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(s)))
	return append(dst, s...)
}

// cutString splits a length-prefixed string off b.
func cutString(b []byte) (s, rest []byte, ok bool) {
	n, w := binary.Uvarint(b)
	if w <= 0 || n > uint64(len(b)-w) {
		return nil, nil, false
	}
	end := w + int(n)
	return b[w:end:end], b[end:], true
}

// A BatchReader walks the records of one batch in order.
type BatchReader struct {
	seq        SeqNum
	count      uint32
	rest       []byte
	kind       Kind
	key, value []byte
	err        error
}

// decodeBatch reads the header of an encoded batch.
func decodeBatch(data []byte) (BatchReader, error) {
	if len(data) < batchHeaderLen {
		return BatchReader{}, fmt.Errorf("engine: batch of %d bytes: %w", len(data), ErrCorrupt)
	}
	return BatchReader{
		seq:   SeqNum(binary.LittleEndian.Uint64(data)),
		count: binary.LittleEndian.Uint32(data[8:]),
		rest:  data[batchHeaderLen:],
	}, nil
}

// Seq is the sequence number of the first update.
func (r *BatchReader) Seq() uint64 { return uint64(r.seq) }

// Count is the number of updates, notes not counted.
func (r *BatchReader) Count() int { return int(r.count) }

// Next moves to the next record and says whether there is one.
func (r *BatchReader) Next() bool {
	if len(r.rest) == 0 || r.err != nil {
		return false
	}
	kind, rest, ok := Kind(r.rest[0]), r.rest[1:], true
	var key, value []byte
	switch kind {
	case KindSet:
		if key, rest, ok = cutString(rest); ok {
			value, rest, ok = cutString(rest)
		}
	case KindDelete:
		key, rest, ok = cutString(rest)
	case KindNote:
		value, rest, ok = cutString(rest)
	default:
		ok = false
	}
	if !ok {
		r.err = fmt.Errorf("engine: batch %d, %d bytes before its end: %w", r.seq, len(r.rest), ErrCorrupt)
		return false
	}
	r.kind, r.key, r.value, r.rest = kind, key, value, rest
	return true
}

// Kind is KindSet, KindDelete or KindNote.
func (r *BatchReader) Kind() Kind { return r.kind }

// Key is the key of a set or a delete; it aliases the batch.
func (r *BatchReader) Key() []byte { return r.key }

// Value is the value of a set or the bytes of a note; it aliases the batch.
func (r *BatchReader) Value() []byte { return r.value }

// Err reports a malformed record, which ends the walk.
func (r *BatchReader) Err() error { return r.err }

// Clone returns a second reader at the same place.
func (r *BatchReader) Clone() *BatchReader { c := *r; return &c }

// check walks a copy of r and returns an error unless the records are well
// formed and as many as the header says.
func (r BatchReader) check() error {
	n := uint32(0)
	for r.Next() {
		if r.kind != KindNote {
			n++
		}
	}
	if r.err == nil && n != r.count {
		return fmt.Errorf("engine: batch %d: %d updates, header says %d: %w", r.seq, n, r.count, ErrCorrupt)
	}
	return r.err
}

// span is how many sequence numbers the batch takes. A record without updates
// takes one in the Default profile, so that the loss of any record shows as a
// gap; LevelDB's empty batches take none.
func (r *BatchReader) span(notes bool) SeqNum {
	if r.count == 0 && notes {
		return 1
	}
	return SeqNum(r.count)
}
