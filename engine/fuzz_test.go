package engine

import (
	"bytes"
	"errors"
	"reflect"
	"testing"
)

// FuzzBatch: no bytes make the decoder panic or read beyond its input, and
// what it accepts survives a rebuild.
func FuzzBatch(f *testing.F) {
	b := NewBatch()
	b.Put([]byte("key"), []byte("value"))
	b.Delete([]byte("gone"))
	b.Note([]byte("note"))
	good := bytes.Clone(b.data)
	good[8] = 2
	f.Add(good)
	f.Add(good[:len(good)-1])
	f.Add([]byte{})
	f.Add(append(make([]byte, 12), 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := decodeBatch(data)
		if err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Fatal(err)
			}
			return
		}
		if err := r.check(); err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Fatal(err)
			}
			return
		}
		again := NewBatch()
		for c := r; c.Next(); {
			switch c.Kind() {
			case KindSet:
				again.Put(c.Key(), c.Value())
			case KindDelete:
				again.Delete(c.Key())
			case KindNote:
				again.Note(c.Value())
			}
		}
		if again.Count() != r.Count() {
			t.Fatalf("%d updates, then %d", r.Count(), again.Count())
		}
		second := again.Reader()
		for r.Next() {
			if !second.Next() || second.Kind() != r.Kind() || !bytes.Equal(second.Key(), r.Key()) || !bytes.Equal(second.Value(), r.Value()) {
				t.Fatal("a rebuilt batch differs")
			}
		}
	})
}

// FuzzVersionEdit: the same for the records of a manifest.
func FuzzVersionEdit(f *testing.F) {
	num, seq := FileNum(9), SeqNum(1<<40)
	e := &versionEdit{
		comparator: defaultComparator, logNumber: &num, prevLog: &num, nextFile: &num, lastSeq: &seq,
		pointers: []compactPointer{{3, makeInternal(nil, []byte("p"), 7, KindSet)}},
		deleted:  []deletedFile{{1, 5}},
		added: []newFile{{2, &fileMeta{num: 6, size: 1 << 33,
			smallest: makeInternal(nil, []byte("a"), 1, KindSet), largest: makeInternal(nil, []byte("b"), 2, KindDelete)}}},
	}
	good := e.encode(nil)
	f.Add(good)
	f.Add(good[:len(good)-3])
	f.Add([]byte{tagNewFile, 200})
	f.Fuzz(func(t *testing.T, data []byte) {
		e, err := decodeVersionEdit(data)
		if err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Fatal(err)
			}
			return
		}
		again, err := decodeVersionEdit(e.encode(nil))
		if err != nil || !reflect.DeepEqual(e, again) {
			t.Fatalf("%+v came back as %+v, %v", e, again, err)
		}
	})
}

// TestFileNames: every name parses to what made it, and nothing else does.
func TestFileNames(t *testing.T) {
	for name, want := range map[string]fileKind{
		"CURRENT": currentFile, "LOCK": lockFile, "MANIFEST-000007": manifestFile, "000007.log": logFile,
		"000007.ldb": tableFile, "000007.sst": tableFile, "000007.dbtmp": tempFile, "1234567890.ldb": tableFile,
		"BALLAST": unknownFile, "MANIFEST-": unknownFile, "MANIFEST-x": unknownFile, ".ldb": unknownFile,
		"7": unknownFile, "-7.ldb": unknownFile, "+7.ldb": unknownFile, "7.ldb.bak": unknownFile,
		"99999999999999999999.log": unknownFile, "CURRENT.1": unknownFile, "": unknownFile,
	} {
		if kind, _ := parseFileName(name); kind != want {
			t.Errorf("%q is of kind %d, want %d", name, kind, want)
		}
	}
	if _, n := parseFileName("000123.log"); n != 123 {
		t.Errorf("number %d", n)
	}
}

// TestEpochs: nothing retired is free while a reader that may have seen it is
// inside, and everything is soon after.
func TestEpochs(t *testing.T) {
	var e epochs
	r := e.enter()
	retired := e.cur.Load()
	for range 5 {
		if e.advance() >= retired+2 {
			t.Fatal("free with a reader inside")
		}
	}
	late := e.enter() // after the retirement: it keeps nothing
	r.Add(-1)
	if e.advance() < retired+2 {
		t.Fatal("not free with only a later reader inside")
	}
	late.Add(-1)
}
