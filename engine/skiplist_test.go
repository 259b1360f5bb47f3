package engine

import (
	"bytes"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
)

// TestSkiplistAgainstModel compares a list with a sorted slice, by every way of
// moving.
func TestSkiplistAgainstModel(t *testing.T) {
	rng := seededRand(t, 0)
	s := newSkiplist(1<<20, 1<<16)
	var keys [][]byte
	for seq := SeqNum(1); seq <= 2000; seq++ {
		ukey := fmt.Appendf(nil, "%03d", rng.IntN(500))
		kind := Kind(rng.IntN(2))
		s.insert(ukey, seq, kind, fmt.Append(nil, seq))
		keys = append(keys, makeInternal(nil, ukey, seq, kind))
	}
	slices.SortFunc(keys, compareInternal)
	it := &skiplistIter{s: s}
	i := 0
	for ok := it.First(); ok; ok = it.Next() {
		if !bytes.Equal(it.Key(), keys[i]) || string(it.Value()) != fmt.Sprint(trailerSeq(trailer(keys[i]))) {
			t.Fatalf("entry %d: %q = %q, want %q", i, it.Key(), it.Value(), keys[i])
		}
		i++
	}
	if i != len(keys) {
		t.Fatalf("%d entries, want %d", i, len(keys))
	}
	for ok := it.Last(); ok; ok = it.Prev() {
		if i--; !bytes.Equal(it.Key(), keys[i]) {
			t.Fatalf("backwards, entry %d: %q, want %q", i, it.Key(), keys[i])
		}
	}
	if i != 0 {
		t.Fatalf("backwards: %d entries missing", i)
	}
	for range 2000 {
		target := makeInternal(nil, fmt.Appendf(nil, "%03d", rng.IntN(510)), SeqNum(rng.IntN(2100)), kindSeek)
		at, _ := slices.BinarySearchFunc(keys, target, compareInternal)
		if ok := it.SeekGE(target); ok != (at < len(keys)) || ok && !bytes.Equal(it.Key(), keys[at]) {
			t.Fatalf("SeekGE %q: %v", target, ok)
		}
		if ok := it.SeekLT(target); ok != (at > 0) || ok && !bytes.Equal(it.Key(), keys[at-1]) {
			t.Fatalf("SeekLT %q: %v", target, ok)
		}
	}
}

// TestSkiplistReadersSeeWholeEntries: a reader beside the writer finds each
// entry whole, in order, and everything that was published before.
func TestSkiplistReadersSeeWholeEntries(t *testing.T) {
	const n = 20000
	s := newSkiplist(4<<20, 1<<20)
	var published atomic.Uint64
	go func() {
		for seq := uint64(1); seq <= n; seq++ {
			key := fmt.Appendf(nil, "%05d", seq*7919%n)
			s.insert(key, SeqNum(seq), KindSet, key)
			published.Store(seq)
		}
	}()
	for done := false; !done; {
		low := published.Load()
		done = low == n
		it := &skiplistIter{s: s}
		var last []byte
		seen := uint64(0)
		for ok := it.First(); ok; ok = it.Next() {
			if last != nil && compareInternal(last, it.Key()) >= 0 {
				t.Fatalf("%q after %q", it.Key(), last)
			}
			if !bytes.Equal(userKey(it.Key()), it.Value()) {
				t.Fatalf("%q = %q", it.Key(), it.Value())
			}
			last = it.Key()
			if uint64(trailerSeq(trailer(it.Key()))) <= low {
				seen++
			}
		}
		if seen != low {
			t.Fatalf("%d of %d entries", seen, low)
		}
	}
}

// TestMemTableRoom: a batch for which there is room fits whatever heights its
// nodes get, and a memtable of the size that a batch asks for has the room.
func TestMemTableRoom(t *testing.T) {
	rng := seededRand(t, 0)
	for range 300 {
		b := NewBatch()
		for range rng.IntN(rng.IntN(2000) + 2) {
			b.Put(make([]byte, rng.IntN(20)), make([]byte, rng.IntN(rng.IntN(300)+1)))
		}
		if rng.IntN(2) == 0 {
			b.Put(nil, make([]byte, rng.IntN(1<<20)))
		}
		m := newMemTable(memTableSizeFor(b))
		if !m.room(b, true) {
			t.Fatalf("no room for %d records, %d bytes in %d", b.Count(), b.Len(), m.size)
		}
	}
	m := newMemTable(minMemTableSize)
	seq := SeqNum(1)
	for {
		b := NewBatch()
		for i := range rng.IntN(4) + 1 {
			b.Put(fmt.Appendf(nil, "%d-%d", seq, i), make([]byte, rng.IntN(60)))
		}
		if !m.room(b, false) {
			break
		}
		m.apply(*b.Reader(), seq)
		seq += SeqNum(b.Count())
	}
	if used := m.bytes(); used < minMemTableSize/2 {
		t.Fatalf("full with %d bytes", used)
	}
}

func BenchmarkSkiplistInsert(b *testing.B) {
	key, value := make([]byte, 0, 32), make([]byte, 45)
	s := newSkiplist(16<<20, 1<<20)
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		if !s.room(1, 100) {
			s = newSkiplist(16<<20, 1<<20)
		}
		n++
		key = benchKey(key[:0], (n*7919)&0xfffff)
		s.insert(key, SeqNum(n), KindSet, value)
	}
}
