package metadata

// bucketEdit is a directory bucket under change. Two names of one operation may
// share a bucket, so edits go through here before they are put into the batch.
type bucketEdit struct {
	dir   Ino
	hash  uint64
	bytes []byte // nil: none
}

type bucketEdits struct {
	e [2]bucketEdit
	n int
}

// load returns the edit of name's bucket, read from the engine at first use.
func (x *bucketEdits) load(s *Store, w Wait, dir Ino, name []byte) (*bucketEdit, error) {
	hash := s.nameHash(name)
	for i := range x.e[:x.n] {
		if x.e[i].dir == dir && x.e[i].hash == hash {
			return &x.e[i], nil
		}
	}
	b, err := s.bucket(w, nil, dir, hash)
	if err != nil {
		return nil, err
	}
	x.e[x.n] = bucketEdit{dir, hash, b}
	x.n++
	return &x.e[x.n-1], nil
}

func (x *bucketEdits) put(t *txn) {
	for i := range x.e[:x.n] {
		t.putBucket(x.e[i].dir, x.e[i].hash, x.e[i].bytes)
	}
}

// find looks a name up in its bucket.
func (s *Store) find(b *bucketEdit, name []byte) (dirent, bool, error) {
	e, ok, err := findDirent(b.bytes, name)
	if err != nil {
		err = s.damage("directory", b.dir, b.hash<<8, err)
	}
	return e, ok, err
}

// newAttr is the attributes of an inode about to be made in directory d.
func (s *Store) newAttr(ino Ino, d *Attr, req *MakeReq, now Time) Attr {
	a := Attr{
		Ino: ino, Mode: req.Mode, Nlink: 1, Uid: req.Uid, Gid: req.Gid, Rdev: req.Rdev,
		Atime: now, Mtime: now, Ctime: now, Btime: now, Project: d.Project, Flags: d.Flags & inheritedFlags,
	}
	if d.Mode&modeSetgid != 0 {
		a.Gid = d.Gid
		if a.isDir() {
			a.Mode |= modeSetgid
		}
	}
	if a.isDir() {
		a.Nlink = 2
		a.Parent = d.Ino
	}
	if t := req.Mode & modeType; t != modeChar && t != modeBlock {
		a.Rdev = 0
	}
	if t := req.Mode & modeType; t == modeSymlink {
		a.Size = uint64(len(req.Target))
		a.Flags = 0
	}
	return a
}

// inheritedFlags are the chattr flags that a new inode takes from its directory:
// noatime, nodump, sync, dirsync and project inheritance.
const inheritedFlags = 0x80 | 0x40 | 0x08 | 0x10000 | 0x20000000

// Make implements FS.
func (s *Store) Make(w Wait, parent Ino, name []byte, req *MakeReq, out *Attr) error {
	if err := checkName(name); err != nil {
		return err
	}
	if err := s.writable(); err != nil {
		return err
	}
	if len(req.Target) > 4095 {
		return ErrNameTooLong
	}
	if err := s.needSpace(w, int64(1024+len(name)+len(req.Target))); err != nil {
		return err
	}
	d, err := s.wlock(w, parent)
	if err != nil {
		return err
	}
	defer s.wunlock(d)
	if !d.attr.isDir() {
		return ErrNotDir
	}
	if d.attr.Nlink == 0 {
		return ErrNotFound
	}
	var edits bucketEdits
	b, err := edits.load(s, w, parent, name)
	if err != nil {
		return err
	}
	if _, ok, err := s.find(b, name); err != nil || ok {
		if err == nil {
			err = ErrExist
		}
		return err
	}
	if err := d.attr.mayAdd(); err != nil {
		return err
	}
	ino, err := s.allocIno(w)
	if err != nil {
		return err
	}
	now := s.timeNow()
	a := s.newAttr(ino, &d.attr, req, now)
	if b.bytes, err = insertDirent(b.bytes, b.hash, name, ino, a.dirType()); err != nil {
		return err
	}
	t := s.begin()
	defer t.end()
	if err := s.inheritACLs(w, t, d, &a, req.Umask); err != nil {
		return err
	}
	da := d.attr
	da.Mtime, da.Ctime = now, now
	da.Entries++
	if a.isDir() {
		da.Nlink++
	}
	edits.put(t)
	t.putInode(&a, req.Target)
	t.putInode(&da, nil)
	t.delta.inodes = 1

	n := s.adopt(ino)
	s.refs.add(ino, 1)
	if err := t.commit(w); err != nil {
		s.refs.sub(ino, 1)
		s.inodes.kill(n)
		s.wunlock(n)
		return err
	}
	n.attr = a
	n.target = append([]byte(nil), req.Target...)
	d.attr = da
	*out = a
	s.wunlock(n)
	return nil
}

// Tmpfile implements FS.
func (s *Store) Tmpfile(w Wait, parent Ino, req *MakeReq, out *Attr) error {
	if err := s.writable(); err != nil {
		return err
	}
	if err := s.needSpace(w, 1024); err != nil {
		return err
	}
	d, err := s.rlock(w, parent)
	if err != nil {
		return err
	}
	defer s.runlock(d)
	if !d.attr.isDir() {
		return ErrNotDir
	}
	if d.attr.Nlink == 0 {
		return ErrNotFound
	}
	if err := d.attr.mayAdd(); err != nil {
		return err
	}
	ino, err := s.allocIno(w)
	if err != nil {
		return err
	}
	a := s.newAttr(ino, &d.attr, req, s.timeNow())
	a.Nlink = 0
	t := s.begin()
	defer t.end()
	if err := s.inheritACLs(w, t, d, &a, req.Umask); err != nil {
		return err
	}
	t.putInode(&a, nil)
	t.b.Put(orphanKey(t.key[:0], ino), orphanUnlinked)
	t.delta.inodes = 1

	n := s.adopt(ino)
	s.refs.add(ino, 1)
	s.refs.orphan(ino)
	if err := t.commit(w); err != nil {
		s.refs.adopt(ino)
		s.refs.sub(ino, 1)
		s.inodes.kill(n)
		s.wunlock(n)
		return err
	}
	n.attr = a
	*out = a
	s.wunlock(n)
	return nil
}

// maxLinks is the most names an inode may have.
const maxLinks = 1 << 31

// Link implements FS.
func (s *Store) Link(w Wait, ino, newParent Ino, name []byte, out *Attr) error {
	if err := checkName(name); err != nil {
		return err
	}
	if err := s.writable(); err != nil {
		return err
	}
	if err := s.needSpace(w, int64(512+len(name))); err != nil {
		return err
	}
	var set lockSet
	if err := s.lockAll(w, &set, ino, newParent); err != nil {
		return err
	}
	defer s.unlockAll(&set)
	n, d := set.get(ino), set.get(newParent)
	switch {
	case !d.attr.isDir():
		return ErrNotDir
	case n.attr.isDir():
		return ErrPerm
	case d.attr.Nlink == 0:
		return ErrNotFound
	case n.attr.Nlink >= maxLinks:
		return ErrMaxLinks
	}
	var edits bucketEdits
	b, err := edits.load(s, w, newParent, name)
	if err != nil {
		return err
	}
	if _, ok, err := s.find(b, name); err != nil || ok {
		if err == nil {
			err = ErrExist
		}
		return err
	}
	if n.attr.kept() {
		return ErrPerm
	}
	if err := d.attr.mayAdd(); err != nil {
		return err
	}
	if b.bytes, err = insertDirent(b.bytes, b.hash, name, ino, n.attr.dirType()); err != nil {
		return err
	}
	now := s.timeNow()
	a, da := n.attr, d.attr
	a.Nlink++
	a.Ctime = now
	da.Mtime, da.Ctime = now, now
	da.Entries++
	t := s.begin()
	defer t.end()
	edits.put(t)
	t.putInode(&a, n.target)
	t.putInode(&da, nil)
	if n.attr.Nlink == 0 {
		t.b.Delete(orphanKey(t.key[:0], ino))
	}
	s.refs.add(ino, 1)
	if err := t.commit(w); err != nil {
		s.refs.sub(ino, 1)
		return err
	}
	if n.attr.Nlink == 0 {
		s.refs.adopt(ino)
	}
	n.attr, d.attr = a, da
	*out = a
	return nil
}

// Unlink implements FS.
func (s *Store) Unlink(w Wait, parent Ino, name []byte) error {
	return s.remove(w, parent, name, false)
}

// Rmdir implements FS.
func (s *Store) Rmdir(w Wait, parent Ino, name []byte) error { return s.remove(w, parent, name, true) }

func (s *Store) remove(w Wait, parent Ino, name []byte, dir bool) error {
	if err := checkName(name); err != nil {
		return err
	}
	if err := s.writable(); err != nil {
		return err
	}
	if err := s.needRoom(w); err != nil {
		return err
	}
	var child Ino // known from the round before
	for {
		var set lockSet
		if err := s.lockAll(w, &set, parent, child); err != nil {
			if err == ErrStale && child != 0 {
				child = 0 // it went meanwhile
				continue
			}
			return err
		}
		next, err := s.removeLocked(w, &set, parent, name, dir)
		s.unlockAll(&set)
		if err != errRelock {
			return err
		}
		child = next
	}
}

// lockChild returns the inode of ino, locked: one of the set, or one that could
// be locked without waiting, which joins the set. Else errRelock: the caller
// gives up its locks and takes them all again in order, or, where it may not
// wait, ErrWouldBlock.
func (s *Store) lockChild(w Wait, set *lockSet, ino Ino) (*inode, error) {
	if n := set.get(ino); n != nil {
		return n, nil
	}
	n, err := s.wlock(NoWait, ino)
	switch {
	case err == nil:
		set.n[set.len] = n
		set.len++
	case err == ErrWouldBlock && w == Block:
		err = errRelock
	}
	return n, err
}

func (s *Store) removeLocked(w Wait, set *lockSet, parent Ino, name []byte, dir bool) (relock Ino, err error) {
	d := set.get(parent)
	if !d.attr.isDir() {
		return 0, ErrNotDir
	}
	var edits bucketEdits
	b, err := edits.load(s, w, parent, name)
	if err != nil {
		return 0, err
	}
	e, ok, err := s.find(b, name)
	if err != nil {
		return 0, err
	}
	if !ok {
		return 0, ErrNotFound
	}
	n, err := s.lockChild(w, set, e.ino)
	if err != nil {
		return e.ino, err
	}
	switch {
	case dir && !n.attr.isDir():
		return 0, ErrNotDir
	case !dir && n.attr.isDir():
		return 0, ErrIsDir
	}
	if err := d.attr.mayRemove(&n.attr); err != nil {
		return 0, err
	}
	if dir && n.attr.Entries > 0 {
		return 0, ErrNotEmpty
	}
	if b.bytes, err = removeDirent(b.bytes, name); err != nil {
		return 0, s.damage("directory", parent, b.hash<<8, err)
	}
	now := s.timeNow()
	da := d.attr
	da.Mtime, da.Ctime = now, now
	da.Entries--
	if dir {
		da.Nlink--
	}
	t := s.begin()
	defer t.end()
	edits.put(t)
	t.putInode(&da, nil)
	drop := s.dropLink(t, n, now)
	if err := t.commit(w); err != nil {
		return 0, err
	}
	d.attr = da
	drop.done(s)
	return 0, nil
}

// linkDrop is the loss of one name of an inode, under way in a txn.
type linkDrop struct {
	n *inode
	a Attr
}

// dropLink puts into t what an inode looks like with one name less. A directory
// loses both of its links.
func (s *Store) dropLink(t *txn, n *inode, now Time) linkDrop {
	a := n.attr
	a.Ctime = now
	if a.isDir() {
		a.Nlink = 0
	} else {
		a.Nlink--
	}
	t.putInode(&a, n.target)
	if a.Nlink == 0 {
		t.b.Put(orphanKey(t.key[:0], n.ino), orphanUnlinked)
	}
	return linkDrop{n, a}
}

// done makes the drop visible once its txn is committed.
func (l linkDrop) done(s *Store) {
	if l.n == nil {
		return
	}
	l.n.attr = l.a
	if l.a.Nlink == 0 && s.refs.orphan(l.n.ino) == 0 {
		s.reclaimer.add(l.n.ino, int64(l.a.Blocks)*512)
	}
}

// Rename implements FS.
func (s *Store) Rename(w Wait, oldParent Ino, oldName []byte, newParent Ino, newName []byte, flags uint32) error {
	if err := checkName(oldName); err != nil {
		return err
	}
	if err := checkName(newName); err != nil {
		return err
	}
	if flags&^(RenameNoReplace|RenameExchange|RenameWhiteout) != 0 ||
		flags&RenameExchange != 0 && flags&(RenameNoReplace|RenameWhiteout) != 0 {
		return ErrInvalid
	}
	if err := s.writable(); err != nil {
		return err
	}
	if err := s.needSpace(w, int64(1024+len(newName))); err != nil {
		return err
	}
	var known [2]Ino
	for {
		var set lockSet
		if err := s.lockAll(w, &set, oldParent, newParent, known[0], known[1]); err != nil {
			if err == ErrStale && known != [2]Ino{} {
				known = [2]Ino{}
				continue
			}
			return err
		}
		next, err := s.renameLocked(w, &set, oldParent, oldName, newParent, newName, flags)
		s.unlockAll(&set)
		if err != errRelock {
			return err
		}
		known = next
	}
}

func (s *Store) renameLocked(w Wait, set *lockSet, oldParent Ino, oldName []byte, newParent Ino, newName []byte, flags uint32) (relock [2]Ino, err error) {
	od, nd := set.get(oldParent), set.get(newParent)
	if !od.attr.isDir() || !nd.attr.isDir() {
		return relock, ErrNotDir
	}
	if nd.attr.Nlink == 0 {
		return relock, ErrNotFound
	}
	var edits bucketEdits
	ob, err := edits.load(s, w, oldParent, oldName)
	if err != nil {
		return relock, err
	}
	oe, ok, err := s.find(ob, oldName)
	if err != nil {
		return relock, err
	}
	if !ok {
		return relock, ErrNotFound
	}
	nb, err := edits.load(s, w, newParent, newName)
	if err != nil {
		return relock, err
	}
	ne, exists, err := s.find(nb, newName)
	if err != nil {
		return relock, err
	}
	switch {
	case exists && flags&RenameNoReplace != 0:
		return relock, ErrExist
	case !exists && flags&RenameExchange != 0:
		return relock, ErrNotFound
	case exists && ne.ino == oe.ino:
		return relock, nil // two names of one inode: nothing to do
	}
	relock = [2]Ino{oe.ino, ne.ino}
	n, err := s.lockChild(w, set, oe.ino)
	if err != nil {
		return relock, err
	}
	var victim *inode
	if exists {
		if victim, err = s.lockChild(w, set, ne.ino); err != nil {
			return relock, err
		}
	}
	err = od.attr.mayRemove(&n.attr)
	switch {
	case err != nil:
	case exists:
		err = nd.attr.mayRemove(&victim.attr)
	default:
		err = nd.attr.mayAdd()
	}
	if err != nil {
		return relock, err
	}
	now := s.timeNow()
	a, oa, na := n.attr, od.attr, nd.attr
	pa := &na // the new parent's attributes to change
	if od == nd {
		pa = &oa
	}
	oa.Mtime, oa.Ctime, pa.Mtime, pa.Ctime = now, now, now, now
	a.Ctime = now
	t := s.begin()
	defer t.end()
	var drop linkDrop
	var va Attr
	oldType, newType := oe.typ, ne.typ
	oldIno, newIno := oe.ino, ne.ino
	switch {
	case flags&RenameExchange != 0:
		va = victim.attr
		va.Ctime = now
		if ob.bytes, err = replaceDirent(ob.bytes, oldName, newIno, newType); err == nil {
			nb.bytes, err = replaceDirent(nb.bytes, newName, oldIno, oldType)
		}
		if a.isDir() {
			a.Parent = newParent
			oa.Nlink--
			pa.Nlink++
		}
		if va.isDir() {
			va.Parent = oldParent
			pa.Nlink--
			oa.Nlink++
		}
		t.putInode(&va, victim.target)
	default:
		if exists {
			switch {
			case victim.attr.isDir() && !a.isDir():
				return relock, ErrIsDir
			case !victim.attr.isDir() && a.isDir():
				return relock, ErrNotDir
			case victim.attr.isDir() && victim.attr.Entries > 0:
				return relock, ErrNotEmpty
			}
			nb.bytes, err = replaceDirent(nb.bytes, newName, oldIno, oldType)
			if victim.attr.isDir() {
				pa.Nlink--
			}
			drop = s.dropLink(t, victim, now)
		} else {
			nb.bytes, err = insertDirent(nb.bytes, nb.hash, newName, oldIno, oldType)
			pa.Entries++
		}
		if err == nil && flags&RenameWhiteout != 0 {
			var ino Ino
			if ino, err = s.allocIno(w); err == nil {
				white := s.newAttr(ino, &oa, &MakeReq{Mode: modeChar, Uid: a.Uid, Gid: a.Gid}, now)
				t.putInode(&white, nil)
				t.delta.inodes++
				ob.bytes, err = replaceDirent(ob.bytes, oldName, ino, white.dirType())
			}
		} else if err == nil {
			ob.bytes, err = removeDirent(ob.bytes, oldName)
			oa.Entries--
		}
		if a.isDir() {
			a.Parent = newParent
			oa.Nlink--
			pa.Nlink++
		}
	}
	if err != nil {
		return relock, err
	}
	edits.put(t)
	t.putInode(&oa, nil)
	if od != nd {
		t.putInode(&na, nil)
	}
	t.putInode(&a, n.target)
	if err := t.commit(w); err != nil {
		return relock, err
	}
	n.attr, od.attr = a, oa
	if od != nd {
		nd.attr = na
	}
	if flags&RenameExchange != 0 {
		victim.attr = va
	}
	drop.done(s)
	return relock, nil
}
