package engine

import (
	"bytes"
	"sync/atomic"
)

// memTable holds the newest updates of a store, all of which are in the logs
// from logNum on until the table that it is flushed to is installed.
type memTable struct {
	list   *skiplist
	logNum FileNum // first log with its records
	size   int     // bytes asked for

	// Written on the write lane (or in recovery) only; read by the flush once
	// the memtable is immutable.
	lastSeq SeqNum // of its newest record, 0 when it took none
	entries int

	used atomic.Int64 // bytes; stored by the writer
}

// minMemTableSize keeps the reserve of a memtable useful.
const minMemTableSize = 16 << 10

// reserveShare is the part of a memtable that only the batch of OnRotate uses.
const reserveShare = 16

// newMemTable makes a memtable that takes some size bytes of memory, one eighth
// of it for links: that matches entries of about 64 bytes.
func newMemTable(size int) *memTable {
	size = max(size, minMemTableSize)
	return &memTable{list: newSkiplist(size-size/8, size/8/4), size: size}
}

// memTableSizeFor is a size for newMemTable that a batch surely fits.
func memTableSizeFor(b *Batch) int {
	data := b.Len() + int(b.count)*(entryHeaderLen+trailerLen)
	words := (1 + int(b.count)) * (1 + maxHeight)
	size := max(data*8/7, words*4*8)
	// The reserve takes a sixteenth of either arena and a header for each of
	// its entries: together less than an eighth.
	return size + size/8 + 1024
}

// room says whether b fits; reserve leaves out the part kept for rotation.
func (m *memTable) room(b *Batch, reserve bool) bool {
	n, entries := b.Len(), int(b.count)
	if reserve {
		n += len(m.list.data) / reserveShare
		entries += len(m.list.words) / reserveShare / (1 + maxHeight)
	}
	return m.list.room(entries, n)
}

// apply inserts the updates of a well-formed batch with sequence numbers from
// seq on. It requires room.
func (m *memTable) apply(r BatchReader, seq SeqNum) {
	for r.Next() {
		if r.kind == KindNote {
			continue
		}
		m.list.insert(r.key, seq, r.kind, r.value)
		m.entries++
		seq++
	}
	m.used.Store(int64(m.list.dataLen + 4*m.list.wordsLen))
}

func (m *memTable) empty() bool { return m.entries == 0 }

// get finds the newest version of ukey at or below seq. The value aliases the
// memtable and never changes.
func (m *memTable) get(ukey []byte, seq SeqNum) (value []byte, kind Kind, ok bool) {
	node := m.list.findGE(ukey, packTrailer(seq, kindSeek))
	if node == listHead {
		return nil, 0, false
	}
	k := m.list.key(node)
	if !bytes.Equal(userKey(k), ukey) {
		return nil, 0, false
	}
	return m.list.value(node), trailerKind(trailer(k)), true
}

func (m *memTable) newIter() internalIterator { return &skiplistIter{s: m.list} }

// bytes is the memory in use.
func (m *memTable) bytes() int64 { return m.used.Load() }
