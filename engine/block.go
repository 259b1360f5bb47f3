package engine

import (
	"bytes"
	"encoding/binary"
	"fmt"
)

// internalIterator walks internal keys in compareInternal order.
//
//   - The moving methods return Valid(). After false, Err tells the end of the
//     data (nil) from a failure; a failed iterator stays invalid until it is
//     positioned again.
//   - Key and Value are valid until the next move or Close.
//   - Next and Prev require Valid.
//   - Not safe for concurrent use.
type internalIterator interface {
	First() bool
	Last() bool
	SeekGE(ikey []byte) bool // first entry >= ikey
	SeekLT(ikey []byte) bool // last entry < ikey
	Next() bool
	Prev() bool
	Valid() bool
	Key() []byte
	Value() []byte
	Err() error
	Close() error
}

// blockBuilder writes prefix-compressed entries with restart points.
type blockBuilder struct {
	interval int
	buf      []byte
	restarts []uint32
	counter  int // entries since the last restart point
	lastKey  []byte
}

// reset empties the builder; restart points come every interval entries.
func (b *blockBuilder) reset(interval int) {
	b.interval = interval
	b.buf = b.buf[:0]
	b.restarts = append(b.restarts[:0], 0)
	b.counter = 0
	b.lastKey = b.lastKey[:0]
}

func (b *blockBuilder) empty() bool { return len(b.buf) == 0 }

// estimatedSize is the exact size that finish would give now.
func (b *blockBuilder) estimatedSize() int { return len(b.buf) + 4*len(b.restarts) + 4 }

// add appends an entry. Keys must come in order; the builder doesn't check.
func (b *blockBuilder) add(key, value []byte) {
	shared := 0
	if b.counter < b.interval {
		n := min(len(b.lastKey), len(key))
		for shared < n && b.lastKey[shared] == key[shared] {
			shared++
		}
	} else {
		b.restarts = append(b.restarts, uint32(len(b.buf)))
		b.counter = 0
	}
	b.buf = binary.AppendUvarint(b.buf, uint64(shared))
	b.buf = binary.AppendUvarint(b.buf, uint64(len(key)-shared))
	b.buf = binary.AppendUvarint(b.buf, uint64(len(value)))
	b.buf = append(b.buf, key[shared:]...)
	b.buf = append(b.buf, value...)
	b.lastKey = append(b.lastKey[:shared], key[shared:]...)
	b.counter++
}

// finish appends the restart array and returns the block's contents, which are
// valid until reset.
func (b *blockBuilder) finish() []byte {
	for _, r := range b.restarts {
		b.buf = binary.LittleEndian.AppendUint32(b.buf, r)
	}
	b.buf = binary.LittleEndian.AppendUint32(b.buf, uint32(len(b.restarts)))
	return b.buf
}

// block is the decoded shape of a block's contents.
type block struct {
	data        []byte // entries, then the restart array, then its length
	restarts    int    // offset of the restart array
	numRestarts int
}

func makeBlock(data []byte) (block, error) {
	if len(data) < 4 {
		return block{}, fmt.Errorf("block of %d bytes is too short: %w", len(data), ErrCorrupt)
	}
	n := binary.LittleEndian.Uint32(data[len(data)-4:])
	if uint64(n) > uint64(len(data)-4)/4 {
		return block{}, fmt.Errorf("block of %d bytes claims %d restart points: %w", len(data), n, ErrCorrupt)
	}
	b := block{data: data, restarts: len(data) - 4 - 4*int(n), numRestarts: int(n)}
	if n == 0 && b.restarts != 0 {
		return block{}, fmt.Errorf("block of %d bytes has entries but no restart point: %w", len(data), ErrCorrupt)
	}
	return b, nil
}

// restart returns the offset of restart point i; it may be out of range in a
// damaged block, so entry checks it.
func (b *block) restart(i int) int {
	return int(binary.LittleEndian.Uint32(b.data[b.restarts+4*i:]))
}

// entry decodes the header of the entry at off: its key is the first shared
// bytes of the key before it and then data[keyOff:valOff], its value
// data[valOff:end].
func (b *block) entry(off int) (shared, keyOff, valOff, end int, ok bool) {
	if off < 0 || off >= b.restarts {
		return 0, 0, 0, 0, false
	}
	d := b.data[:b.restarts]
	// Entries are read far more often than anything else here. Keys are mostly
	// short and values mostly below 16 KiB.
	var nonShared, valLen int
	if off+4 <= len(d) && d[off]|d[off+1] < 0x80 && d[off+2]&d[off+3] < 0x80 {
		shared, nonShared, valLen, keyOff = int(d[off]), int(d[off+1]), int(d[off+2]), off+3
		if valLen >= 0x80 {
			valLen, keyOff = valLen&0x7f|int(d[off+3])<<7, off+4
		}
	} else {
		var v [3]uint64
		keyOff = off
		for i := range v {
			x, n := binary.Uvarint(d[keyOff:])
			if n <= 0 || x > 1<<31 {
				return 0, 0, 0, 0, false
			}
			v[i], keyOff = x, keyOff+n
		}
		shared, nonShared, valLen = int(v[0]), int(v[1]), int(v[2])
	}
	valOff = keyOff + nonShared
	end = valOff + valLen
	return shared, keyOff, valOff, end, end <= b.restarts
}

// restartKey returns the whole internal key at restart point i, in place.
func (b *block) restartKey(i int) ([]byte, bool) {
	shared, k, v, _, ok := b.entry(b.restart(i))
	if !ok || shared != 0 || v-k < trailerLen {
		return nil, false
	}
	return b.data[k:v], true
}

// blockIter iterates over one block of internal keys. The zero value is an
// exhausted iterator; init points it at a block.
type blockIter struct {
	b     block
	off   int    // offset of the current entry; b.restarts when exhausted
	next  int    // offset of the entry behind it
	key   []byte // the current key, owned by the iterator
	val   []byte // aliases b.data
	minKy int    // shortest key allowed: trailerLen, or 0 in the metaindex
	err   error
}

// init points the iterator at b and leaves it unpositioned.
func (i *blockIter) init(b block) {
	i.b, i.minKy, i.err = b, trailerLen, nil
	i.invalidate()
}

// initRaw is init for a block whose keys aren't internal keys. Only First and
// Next work.
func (i *blockIter) initRaw(b block) {
	i.init(b)
	i.minKy = 0
}

func (i *blockIter) invalidate() {
	i.off, i.next = i.b.restarts, i.b.restarts
	i.key, i.val = i.key[:0], nil
}

func (i *blockIter) corrupt() bool {
	i.err = fmt.Errorf("bad block entry at %d: %w", i.next, ErrCorrupt)
	i.invalidate()
	return false
}

// step decodes the entry at i.next on top of the current key.
func (i *blockIter) step() bool {
	if i.next >= i.b.restarts {
		i.invalidate()
		return false
	}
	shared, k, v, end, ok := i.b.entry(i.next)
	if !ok || shared > len(i.key) || shared+v-k < i.minKy {
		return i.corrupt()
	}
	i.key = append(i.key[:shared], i.b.data[k:v]...)
	i.val = i.b.data[v:end:end]
	i.off, i.next = i.next, end
	return true
}

// toRestart puts the iterator before restart point r; step moves onto it.
func (i *blockIter) toRestart(r int) {
	i.key, i.val = i.key[:0], nil
	i.next = i.b.restart(r)
	i.off = i.next
}

func (i *blockIter) First() bool {
	i.err = nil
	if i.b.restarts == 0 {
		i.invalidate()
		return false
	}
	i.toRestart(0)
	if i.next != 0 {
		return i.corrupt()
	}
	return i.step()
}

func (i *blockIter) Last() bool {
	i.err = nil
	if i.b.restarts == 0 {
		i.invalidate()
		return false
	}
	i.toRestart(i.b.numRestarts - 1)
	for i.step() {
		if i.next == i.b.restarts {
			return true
		}
	}
	if i.err == nil {
		return i.corrupt() // the last restart point has no entry
	}
	return false
}

// lastRestartBefore returns the last restart point whose key is < ikey, or 0.
func (i *blockIter) lastRestartBefore(ikey []byte) (int, bool) {
	lo, hi := 0, i.b.numRestarts-1
	for lo < hi {
		mid := int(uint(lo+hi+1) >> 1)
		k, ok := i.b.restartKey(mid)
		if !ok {
			i.next = i.b.restart(mid)
			return 0, i.corrupt()
		}
		if compareInternal(k, ikey) < 0 {
			lo = mid
		} else {
			hi = mid - 1
		}
	}
	return lo, true
}

func (i *blockIter) SeekGE(ikey []byte) bool {
	i.err = nil
	if i.b.restarts == 0 {
		i.invalidate()
		return false
	}
	r, ok := i.lastRestartBefore(ikey)
	if !ok {
		return false
	}
	i.toRestart(r)
	for i.step() {
		if compareInternal(i.key, ikey) >= 0 {
			return true
		}
	}
	return false
}

func (i *blockIter) SeekLT(ikey []byte) bool {
	i.err = nil
	if i.b.restarts == 0 {
		i.invalidate()
		return false
	}
	r, ok := i.lastRestartBefore(ikey)
	if !ok {
		return false
	}
	i.toRestart(r)
	prev := -1
	for i.step() {
		if compareInternal(i.key, ikey) >= 0 {
			break
		}
		prev = i.off
	}
	if i.err != nil {
		return false
	}
	if prev < 0 {
		i.invalidate()
		return false
	}
	return i.scanTo(r, prev)
}

// scanTo moves onto the entry at off, which lies at or behind restart point r.
func (i *blockIter) scanTo(r, off int) bool {
	i.toRestart(r)
	for i.step() {
		if i.off >= off {
			return true
		}
	}
	return false
}

func (i *blockIter) Next() bool { return i.step() }

func (i *blockIter) Prev() bool {
	cur := i.off
	// The entry before the current one lies in the last interval that starts
	// before it.
	lo, hi := 0, i.b.numRestarts-1
	for lo < hi {
		mid := int(uint(lo+hi+1) >> 1)
		if i.b.restart(mid) < cur {
			lo = mid
		} else {
			hi = mid - 1
		}
	}
	if cur == 0 || i.b.restart(lo) >= cur {
		i.invalidate()
		return false
	}
	i.toRestart(lo)
	for i.step() {
		if i.next >= cur {
			return true
		}
	}
	return false
}

func (i *blockIter) Valid() bool   { return i.off < i.b.restarts }
func (i *blockIter) Key() []byte   { return i.key }
func (i *blockIter) Value() []byte { return i.val }
func (i *blockIter) Err() error    { return i.err }

// Close forgets the block; the iterator keeps its key buffer for reuse.
func (i *blockIter) Close() error {
	err := i.err
	i.init(block{})
	return err
}

// equalUserKey tells whether two internal keys have the same user key.
func equalUserKey(a, b []byte) bool { return bytes.Equal(userKey(a), userKey(b)) }
