package engine

import (
	"bytes"
	"encoding/binary"
)

// SeqNum orders all updates of a database; 56 bits are usable.
type SeqNum uint64

// Kind tells what an internal key stands for. Smaller kinds sort after larger
// ones of the same user key and sequence number.
type Kind uint8

const (
	KindDelete Kind = 0
	KindSet    Kind = 1

	// kindSeek is the kind of a search key: the largest, so that a search key
	// sorts at or before every entry of its sequence number.
	kindSeek = KindSet

	maxSeqNum SeqNum = 1<<56 - 1

	trailerLen = 8
)

// An internal key is the user key followed by an 8-byte little-endian trailer
// that holds seq<<8 | kind. Functions below require len(ik) >= trailerLen;
// decoders check that before they hand a key out.

// makeInternal appends the internal key of (ukey, seq, kind) to dst.
func makeInternal(dst, ukey []byte, seq SeqNum, kind Kind) []byte {
	dst = append(dst, ukey...)
	return binary.LittleEndian.AppendUint64(dst, packTrailer(seq, kind))
}

func packTrailer(seq SeqNum, kind Kind) uint64 { return uint64(seq)<<8 | uint64(kind) }

func trailerSeq(t uint64) SeqNum { return SeqNum(t >> 8) }

func trailerKind(t uint64) Kind { return Kind(t) }

// userKey returns the user key of ik; it aliases ik.
func userKey(ik []byte) []byte { return ik[: len(ik)-trailerLen : len(ik)-trailerLen] }

// trailer returns seq<<8 | kind of ik.
func trailer(ik []byte) uint64 { return binary.LittleEndian.Uint64(ik[len(ik)-trailerLen:]) }

// compareInternal orders by user key ascending, then by trailer descending, so
// that the newest version of a key comes first.
func compareInternal(a, b []byte) int {
	na, nb := len(a)-trailerLen, len(b)-trailerLen
	if c := bytes.Compare(a[:na], b[:nb]); c != 0 {
		return c
	}
	ta, tb := binary.LittleEndian.Uint64(a[na:]), binary.LittleEndian.Uint64(b[nb:])
	switch {
	case ta > tb:
		return -1
	case ta < tb:
		return 1
	}
	return 0
}

// separator appends to dst an internal key s with last <= s < next that is as
// short as LevelDB's BytewiseComparator makes it. It requires last < next.
func separator(dst, last, next []byte) []byte {
	a, b := userKey(last), userKey(next)
	n := min(len(a), len(b))
	i := 0
	for i < n && a[i] == b[i] {
		i++
	}
	// When one user key is a prefix of the other there is nothing to shorten.
	// A shortened key must be shorter than a (as LevelDB asks) to be worth it.
	if i < n && a[i] < 0xff && a[i]+1 < b[i] && i+1 < len(a) {
		dst = append(dst, a[:i]...)
		dst = append(dst, a[i]+1)
		return binary.LittleEndian.AppendUint64(dst, packTrailer(maxSeqNum, kindSeek))
	}
	return append(dst, last...)
}

// successor appends to dst a short internal key s >= last.
func successor(dst, last []byte) []byte {
	a := userKey(last)
	for i, c := range a {
		if c == 0xff {
			continue
		}
		if i+1 == len(a) {
			break // not shorter than the key itself
		}
		dst = append(dst, a[:i]...)
		dst = append(dst, c+1)
		return binary.LittleEndian.AppendUint64(dst, packTrailer(maxSeqNum, kindSeek))
	}
	return append(dst, last...)
}
