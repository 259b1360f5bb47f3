package metadata_test

import (
	"errors"
	"testing"

	"prismfs/metadata"
	"prismfs/uring/simdisk"
)

// TestChattr goes through what immutable and append-only inodes refuse.
func TestChattr(t *testing.T) {
	const immutable, appendOnly = 0x10, 0x20
	l := newLanes(t)
	s := newStore(t, simdisk.New(1), l)
	defer s.Close()
	var a metadata.Attr
	w := metadata.Block
	n := func(s string) []byte { return []byte(s) }
	dir := makeInode(t, s, metadata.RootIno, "dir", 0040755, 0)
	inside := makeInode(t, s, dir, "inside", 0100644, 0)
	f := makeInode(t, s, metadata.RootIno, "f", 0100644, 0)
	if err := s.Write(w, f, 0, []byte("0123456789"), 0); err != nil {
		t.Fatal(err)
	}
	makeInode(t, s, metadata.RootIno, "victim", 0100644, 0)
	setFlags := func(ino metadata.Ino, flags uint32) {
		t.Helper()
		if err := s.Setattr(w, ino, &metadata.SetAttr{Mask: metadata.SetFlags, Flags: flags}, &a); err != nil {
			t.Fatal(err)
		}
	}
	set := func(ino metadata.Ino, sa metadata.SetAttr) func() error {
		return func() error { return s.Setattr(w, ino, &sa, &a) }
	}
	root := metadata.RootIno
	for _, tt := range []struct {
		name                   string
		do                     func() error
		refusedByI, refusedByA bool
		undo                   func() error
	}{
		{"overwrite", func() error { return s.Write(w, f, 0, []byte("x"), 0) }, true, true, nil},
		{"append", func() error { return s.Write(w, f, attrOf(t, s, f).Size, []byte("x"), 0) }, true, false, nil},
		{"write back", func() error { return s.Write(w, f, 0, []byte("x"), metadata.WriteCached) }, false, false, nil},
		{"truncate", set(f, metadata.SetAttr{Mask: metadata.SetSize, Size: 3}), true, true, nil},
		{"chmod", set(f, metadata.SetAttr{Mask: metadata.SetMode, Mode: 0600}), true, true, nil},
		{"chown", set(f, metadata.SetAttr{Mask: metadata.SetUid, Uid: 1}), true, true, nil},
		{"utimes", set(f, metadata.SetAttr{Mask: metadata.SetAtime | metadata.SetMtime}), true, true, nil},
		{"touch", set(f, metadata.SetAttr{Mask: metadata.SetAtimeNow | metadata.SetMtimeNow}), true, false, nil},
		{"drop privileges", set(f, metadata.SetAttr{Mask: metadata.SetKillPriv}), false, false, nil},
		{"punch", func() error { return s.Fallocate(w, f, metadata.FallocKeepSize|metadata.FallocPunchHole, 0, 4096) }, true, true, nil},
		{"reserve", func() error { return s.Fallocate(w, f, metadata.FallocKeepSize, 0, 4096) }, true, false, nil},
		{"setxattr", func() error { return s.Setxattr(w, f, n("user.a"), n("b"), 0) }, true, true, nil},
		{"link", func() error { return s.Link(w, f, root, n("l"), &a) }, true, true, func() error { return s.Unlink(w, root, n("l")) }},
		{"rename", func() error { return s.Rename(w, root, n("f"), root, n("g"), 0) }, true, true, func() error { return s.Rename(w, root, n("g"), root, n("f"), 0) }},
		{"exchange", func() error { return s.Rename(w, root, n("victim"), root, n("f"), metadata.RenameExchange) }, true, true, func() error { return s.Rename(w, root, n("victim"), root, n("f"), metadata.RenameExchange) }},
		{"create in", func() error { return s.Make(w, dir, n("new"), &metadata.MakeReq{Mode: 0100644}, &a) }, true, false, func() error { return s.Unlink(w, dir, n("new")) }},
		{"nameless in", func() error { return s.Tmpfile(w, dir, &metadata.MakeReq{Mode: 0100644}, &a) }, true, false, nil},
		{"link in", func() error { return s.Link(w, inside, dir, n("new"), &a) }, true, false, func() error { return s.Unlink(w, dir, n("new")) }},
		{"rename into", func() error { return s.Rename(w, root, n("victim"), dir, n("new"), 0) }, true, false, func() error { return s.Rename(w, dir, n("new"), root, n("victim"), 0) }},
		{"rename out of", func() error { return s.Rename(w, dir, n("inside"), root, n("out"), 0) }, true, true, func() error { return s.Rename(w, root, n("out"), dir, n("inside"), 0) }},
		{"unlink in", func() error { return s.Unlink(w, dir, n("inside")) }, true, true, func() error { inside = makeInode(t, s, dir, "inside", 0100644, 0); return nil }},
		{"unlink", func() error { return s.Unlink(w, root, n("f")) }, true, true, func() error {
			f = makeInode(t, s, root, "f", 0100644, 0)
			return s.Write(w, f, 0, []byte("0123456789"), 0)
		}},
	} {
		for _, flags := range []uint32{immutable, appendOnly, 0} {
			refused := flags == immutable && tt.refusedByI || flags == appendOnly && tt.refusedByA
			setFlags(f, flags)
			setFlags(dir, flags)
			err := tt.do()
			if refused != errors.Is(err, metadata.ErrPerm) || !refused && err != nil {
				t.Fatalf("%s with flags %#x: %v", tt.name, flags, err)
			}
			if f2 := attrOf(t, s, dir); f2.Flags != flags {
				t.Fatalf("%s: flags %#x, want %#x", tt.name, f2.Flags, flags)
			}
			setFlags(dir, 0)
			var fa metadata.Attr
			if s.Lookup(w, root, n("f"), &fa) == nil {
				setFlags(fa.Ino, 0)
				s.Forget(fa.Ino, 1)
			}
			if !refused && tt.undo != nil {
				setFlags(f, 0)
				if err := tt.undo(); err != nil {
					t.Fatalf("undo %s: %v", tt.name, err)
				}
			}
		}
	}
}
