package engine

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"sync/atomic"
)

const (
	maxHeight = 12
	// listHead is the node index of the head, and as a link the end of a
	// list, since no link leads back to the head.
	listHead = 0
	// entryHeaderLen is the fixed32 key and value lengths before an entry.
	entryHeaderLen = 8
)

// skiplist is an ordered set of internal keys in two arenas without pointers:
//
//	data   [key len fixed32 | value len fixed32 | internal key | value]...
//	words  node = [offset in data, next at level 0, next at level 1, ...]
//
// One writer at a time inserts; any number of readers need no lock. A node is
// complete before the atomic store that links it, and never changes except for
// its links, so whoever finds it sees all of it. Nothing is ever removed.
type skiplist struct {
	data  []byte
	words []atomic.Uint32

	height atomic.Int32 // stored by the writer

	// The writer's own.
	dataLen  int
	wordsLen int
	rnd      uint64
}

func newSkiplist(dataCap, wordsCap int) *skiplist {
	s := &skiplist{
		data:     make([]byte, dataCap),
		words:    make([]atomic.Uint32, wordsCap),
		wordsLen: 1 + maxHeight,
		rnd:      0x9e3779b97f4a7c15,
	}
	s.height.Store(1)
	return s
}

// room says whether entries of n key and value bytes in all fit whatever
// heights they get.
func (s *skiplist) room(entries, n int) bool {
	return n+entries*(entryHeaderLen+trailerLen) <= len(s.data)-s.dataLen &&
		entries*(1+maxHeight) <= len(s.words)-s.wordsLen
}

func (s *skiplist) next(node uint32, level int) uint32 {
	return s.words[int(node)+1+level].Load()
}

// key returns the internal key of a node other than the head.
func (s *skiplist) key(node uint32) []byte {
	off := int(s.words[node].Load())
	n := int(binary.LittleEndian.Uint32(s.data[off:]))
	off += entryHeaderLen
	return s.data[off : off+n : off+n]
}

func (s *skiplist) value(node uint32) []byte {
	off := int(s.words[node].Load())
	k := int(binary.LittleEndian.Uint32(s.data[off:]))
	v := int(binary.LittleEndian.Uint32(s.data[off+4:]))
	off += entryHeaderLen + k
	return s.data[off : off+v : off+v]
}

// before says whether the node's key sorts before (ukey, tr).
func (s *skiplist) before(node uint32, ukey []byte, tr uint64) bool {
	k := s.key(node)
	n := len(k) - trailerLen
	if c := bytes.Compare(k[:n], ukey); c != 0 {
		return c < 0
	}
	return binary.LittleEndian.Uint64(k[n:]) > tr
}

// insert adds an entry. It requires room, and a key not in the list yet.
func (s *skiplist) insert(ukey []byte, seq SeqNum, kind Kind, value []byte) {
	tr := packTrailer(seq, kind)
	var prev [maxHeight]uint32
	height := int(s.height.Load())
	s.findBefore(ukey, tr, &prev)

	h := s.randomHeight()
	if h > height {
		// Readers that see the new height early find the end of the list
		// at the new levels, which is right.
		s.height.Store(int32(h))
	}

	off := s.dataLen
	d := s.data[off:]
	binary.LittleEndian.PutUint32(d, uint32(len(ukey)+trailerLen))
	binary.LittleEndian.PutUint32(d[4:], uint32(len(value)))
	n := entryHeaderLen
	n += copy(d[n:], ukey)
	binary.LittleEndian.PutUint64(d[n:], tr)
	n += trailerLen
	n += copy(d[n:], value)
	s.dataLen += n

	node := uint32(s.wordsLen)
	s.wordsLen += 1 + h
	s.words[node].Store(uint32(off))
	for l := range h {
		s.words[int(node)+1+l].Store(s.next(prev[l], l))
	}
	for l := range h {
		s.words[int(prev[l])+1+l].Store(node)
	}
}

// findBefore returns the last node that sorts before (ukey, tr), listHead if
// none does. If prev is given it gets that node for every level.
func (s *skiplist) findBefore(ukey []byte, tr uint64, prev *[maxHeight]uint32) uint32 {
	node := uint32(listHead)
	checked := uint32(listHead) // known not to sort before
	for l := int(s.height.Load()) - 1; l >= 0; l-- {
		for {
			next := s.next(node, l)
			if next == listHead || next == checked {
				break
			}
			if !s.before(next, ukey, tr) {
				checked = next
				break
			}
			node = next
		}
		if prev != nil {
			prev[l] = node
		}
	}
	return node
}

// findGE returns the first node at or after (ukey, tr), listHead if none.
func (s *skiplist) findGE(ukey []byte, tr uint64) uint32 {
	return s.next(s.findBefore(ukey, tr, nil), 0)
}

// findLast returns the last node, listHead of an empty list.
func (s *skiplist) findLast() uint32 {
	node := uint32(listHead)
	for l := int(s.height.Load()) - 1; l >= 0; l-- {
		for next := s.next(node, l); next != listHead; next = s.next(node, l) {
			node = next
		}
	}
	return node
}

// randomHeight is geometric with p = 1/4. The sequence is the same for every
// list: the shape depends on it and on nothing else.
func (s *skiplist) randomHeight() int {
	s.rnd ^= s.rnd << 13
	s.rnd ^= s.rnd >> 7
	s.rnd ^= s.rnd << 17
	return min(1+bits.TrailingZeros64(s.rnd|1<<62)/2, maxHeight)
}

// skiplistIter is the internalIterator of a skiplist. Entries that come in
// behind its back are seen or not; an iterator user filters by sequence.
type skiplistIter struct {
	s    *skiplist
	node uint32
}

func (i *skiplistIter) First() bool {
	i.node = i.s.next(listHead, 0)
	return i.Valid()
}

func (i *skiplistIter) Last() bool {
	i.node = i.s.findLast()
	return i.Valid()
}

func (i *skiplistIter) SeekGE(ikey []byte) bool {
	i.node = i.s.findGE(userKey(ikey), trailer(ikey))
	return i.Valid()
}

func (i *skiplistIter) SeekLT(ikey []byte) bool {
	i.node = i.s.findBefore(userKey(ikey), trailer(ikey), nil)
	return i.Valid()
}

func (i *skiplistIter) Next() bool {
	i.node = i.s.next(i.node, 0)
	return i.Valid()
}

func (i *skiplistIter) Prev() bool {
	return i.SeekLT(i.s.key(i.node))
}

func (i *skiplistIter) Valid() bool   { return i.node != listHead }
func (i *skiplistIter) Key() []byte   { return i.s.key(i.node) }
func (i *skiplistIter) Value() []byte { return i.s.value(i.node) }
func (i *skiplistIter) Err() error    { return nil }
func (i *skiplistIter) Close() error  { return nil }
