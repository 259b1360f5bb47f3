package metadata_test

import (
	"encoding/binary"
	"errors"
	"testing"

	"prismfs/metadata"
	"prismfs/uring/simdisk"
)

// aclOf makes an ACL of {tag, permissions, id} triples.
func aclOf(entries ...[3]uint32) []byte {
	b := binary.LittleEndian.AppendUint32(nil, 2)
	for _, e := range entries {
		b = binary.LittleEndian.AppendUint16(b, uint16(e[0]))
		b = binary.LittleEndian.AppendUint16(b, uint16(e[1]))
		b = binary.LittleEndian.AppendUint32(b, e[2])
	}
	return b
}

const (
	userObj  = 1
	userID   = 2
	groupObj = 4
	groupID  = 8
	mask     = 16
	other    = 32

	noID = 1<<32 - 1

	aclAccess  = "system.posix_acl_access"
	aclDefault = "system.posix_acl_default"
)

func setxattr(t *testing.T, s *metadata.Store, ino metadata.Ino, name string, v []byte, flags uint32) {
	t.Helper()
	if err := s.Setxattr(metadata.Block, ino, []byte(name), v, flags); err != nil {
		t.Fatalf("set %s: %v", name, err)
	}
}

// wantXattr checks an attribute's value; nil: it must be absent.
func wantXattr(t *testing.T, s *metadata.Store, ino metadata.Ino, name string, want []byte) {
	t.Helper()
	v, err := s.Getxattr(metadata.Block, ino, []byte(name))
	if want == nil {
		if !errors.Is(err, metadata.ErrNoData) {
			t.Fatalf("%s is %x, %v, want none", name, v, err)
		}
		return
	}
	if err != nil || string(v) != string(want) {
		t.Fatalf("%s is %x, %v, want %x", name, v, err, want)
	}
}

func attrOf(t *testing.T, s *metadata.Store, ino metadata.Ino) (a metadata.Attr) {
	t.Helper()
	if err := s.Getattr(metadata.Block, ino, &a); err != nil {
		t.Fatal(err)
	}
	return a
}

func makeInode(t *testing.T, s *metadata.Store, dir metadata.Ino, name string, mode, umask uint32) metadata.Ino {
	t.Helper()
	var a metadata.Attr
	if err := s.Make(metadata.Block, dir, []byte(name), &metadata.MakeReq{Mode: mode, Umask: umask}, &a); err != nil {
		t.Fatal(err)
	}
	return a.Ino
}

func TestACLs(t *testing.T) {
	l := newLanes(t)
	s := newStore(t, simdisk.New(1), l)
	defer s.Close()
	const dirMode, fileMode = 0040000, 0100000

	// Without a default ACL the umask counts.
	f := makeInode(t, s, metadata.RootIno, "plain", fileMode|0666, 0022)
	if a := attrOf(t, s, f); a.Mode != fileMode|0644 {
		t.Fatalf("mode %o under the umask", a.Mode)
	}

	// An access ACL gives the mode its group bits by the mask, chmod the mask
	// its bits by the mode.
	acl := aclOf([3]uint32{userObj, 7, noID}, [3]uint32{userID, 7, 12}, [3]uint32{groupObj, 5, noID}, [3]uint32{mask, 6, noID}, [3]uint32{other, 1, noID})
	setxattr(t, s, f, aclAccess, acl, 0)
	if a := attrOf(t, s, f); a.Mode != fileMode|0761 || a.Xattrs != 1 {
		t.Fatalf("mode %o, %d xattrs with an ACL", a.Mode, a.Xattrs)
	}
	wantXattr(t, s, f, aclAccess, acl)
	var a metadata.Attr
	if err := s.Setattr(metadata.Block, f, &metadata.SetAttr{Mask: metadata.SetMode, Mode: 0610}, &a); err != nil {
		t.Fatal(err)
	}
	wantXattr(t, s, f, aclAccess, aclOf([3]uint32{userObj, 6, noID}, [3]uint32{userID, 7, 12}, [3]uint32{groupObj, 5, noID}, [3]uint32{mask, 1, noID}, [3]uint32{other, 0, noID}))

	// One that says no more than a mode is not kept; S_ISGID goes when asked.
	if err := s.Setattr(metadata.Block, f, &metadata.SetAttr{Mask: metadata.SetMode, Mode: 02610}, &a); err != nil {
		t.Fatal(err)
	}
	base := aclOf([3]uint32{userObj, 6, noID}, [3]uint32{groupObj, 4, noID}, [3]uint32{other, 4, noID})
	setxattr(t, s, f, aclAccess, base, metadata.XattrKillSgid)
	wantXattr(t, s, f, aclAccess, nil)
	if a := attrOf(t, s, f); a.Mode != fileMode|0644 || a.Xattrs != 0 {
		t.Fatalf("mode %o, %d xattrs after a minimal ACL", a.Mode, a.Xattrs)
	}
	if err := s.Removexattr(metadata.Block, f, []byte(aclAccess)); err != nil {
		t.Fatalf("removing an ACL that is not there: %v", err)
	}

	// A directory's default ACL is inherited; the umask then doesn't count.
	dir := makeInode(t, s, metadata.RootIno, "dir", dirMode|0777, 0)
	def := aclOf([3]uint32{userObj, 7, noID}, [3]uint32{groupObj, 7, noID}, [3]uint32{groupID, 7, 9}, [3]uint32{mask, 7, noID}, [3]uint32{other, 5, noID})
	setxattr(t, s, dir, aclDefault, def, 0)
	f = makeInode(t, s, dir, "f", fileMode|0640, 0077)
	if a := attrOf(t, s, f); a.Mode != fileMode|0640 {
		t.Fatalf("mode %o with an inherited ACL", a.Mode)
	}
	wantXattr(t, s, f, aclAccess, aclOf([3]uint32{userObj, 6, noID}, [3]uint32{groupObj, 7, noID}, [3]uint32{groupID, 7, 9}, [3]uint32{mask, 4, noID}, [3]uint32{other, 0, noID}))
	wantXattr(t, s, f, aclDefault, nil)
	sub := makeInode(t, s, dir, "sub", dirMode|0777, 0077)
	if a := attrOf(t, s, sub); a.Mode != dirMode|0775 {
		t.Fatalf("mode %o of a directory with an inherited ACL", a.Mode)
	}
	wantXattr(t, s, sub, aclDefault, def)
	var tmp metadata.Attr
	if err := s.Tmpfile(metadata.Block, dir, &metadata.MakeReq{Mode: fileMode | 0600, Umask: 0077}, &tmp); err != nil {
		t.Fatal(err)
	}
	if tmp.Mode != fileMode|0600 || tmp.Xattrs != 1 {
		t.Fatalf("mode %o, %d xattrs of a nameless file", tmp.Mode, tmp.Xattrs)
	}
	link := makeInode(t, s, dir, "link", 0120777, 0)
	if a := attrOf(t, s, link); a.Xattrs != 0 {
		t.Fatal("a symlink inherited an ACL")
	}

	for name, bad := range map[string][]byte{
		"cut":          acl[:9],
		"no version":   append([]byte{1}, acl[1:]...),
		"no other":     aclOf([3]uint32{userObj, 7, noID}, [3]uint32{groupObj, 7, noID}),
		"no mask":      aclOf([3]uint32{userObj, 7, noID}, [3]uint32{userID, 7, 12}, [3]uint32{groupObj, 7, noID}, [3]uint32{other, 5, noID}),
		"out of order": aclOf([3]uint32{groupObj, 7, noID}, [3]uint32{userObj, 7, noID}, [3]uint32{other, 5, noID}),
		"twice":        aclOf([3]uint32{userObj, 7, noID}, [3]uint32{userObj, 7, noID}, [3]uint32{groupObj, 7, noID}, [3]uint32{other, 5, noID}),
		"permissions":  aclOf([3]uint32{userObj, 8, noID}, [3]uint32{groupObj, 7, noID}, [3]uint32{other, 5, noID}),
	} {
		if err := s.Setxattr(metadata.Block, f, []byte(aclAccess), bad, 0); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if err := s.Setxattr(metadata.Block, f, []byte(aclDefault), def, 0); err == nil {
		t.Error("a file was given a default ACL")
	}
	s.Forget(tmp.Ino, 1)
	check(t, s)
}

// TestCapabilitiesGoWithAnyChange: what changes bytes, size or owner of a file
// drops its file capabilities; other attributes stay.
func TestCapabilitiesGoWithAnyChange(t *testing.T) {
	l := newLanes(t)
	s := newStore(t, simdisk.New(1), l)
	defer s.Close()
	f := makeInode(t, s, metadata.RootIno, "f", 0100755, 0)
	const capability = "security.capability"
	var a metadata.Attr
	set := func(sa metadata.SetAttr) func() error {
		return func() error { return s.Setattr(metadata.Block, f, &sa, &a) }
	}
	setxattr(t, s, f, "user.other", []byte("stays"), 0)
	for _, tt := range []struct {
		name  string
		do    func() error
		stays bool
	}{
		{"write", func() error { return s.Write(metadata.Block, f, 0, []byte("x"), 0) }, false},
		{"write again", func() error { return s.Write(metadata.Block, f, 0, []byte("y"), 0) }, false},
		{"truncate", set(metadata.SetAttr{Mask: metadata.SetSize, Size: 5}), false},
		{"chown", set(metadata.SetAttr{Mask: metadata.SetUid, Uid: 5}), false},
		{"chgrp", set(metadata.SetAttr{Mask: metadata.SetGid, Gid: 5}), false},
		{"drop privileges", set(metadata.SetAttr{Mask: metadata.SetKillPriv}), false},
		{"fallocate", func() error { return s.Fallocate(metadata.Block, f, 0, 0, 8192) }, false},
		{"chmod", set(metadata.SetAttr{Mask: metadata.SetMode, Mode: 0700}), true},
		{"utimes", set(metadata.SetAttr{Mask: metadata.SetMtimeNow}), true},
	} {
		setxattr(t, s, f, capability, []byte("caps"), 0)
		if err := tt.do(); err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		want := []byte(nil)
		if tt.stays {
			want = []byte("caps")
		}
		wantXattr(t, s, f, capability, want)
		wantXattr(t, s, f, "user.other", []byte("stays"))
	}
	check(t, s)
}
