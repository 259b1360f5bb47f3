package metadata

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"prismfs/lanes"
	"prismfs/uring"
)

// MkfsOptions describe a new store.
type MkfsOptions struct {
	Dir   string
	Disk  uring.Disk // instead of Dir, for tests
	Label string
	Force bool // remove a store that is there, and allow other files beside
	Now   func() time.Time
	Uid   uint32 // owner of the root directory
	Gid   uint32
	Lanes *lanes.Runtime
}

// Mkfs makes an empty store in a directory, which it creates if need be.
//
//   - Errors: ErrNotEmptyDir unless Force; ErrLocked if a store there is in use.
func Mkfs(o MkfsOptions) error {
	if o.Disk == nil {
		if err := os.MkdirAll(o.Dir, 0o755); err != nil {
			return fmt.Errorf("metadata: make a store: %w", err)
		}
		names, err := os.ReadDir(o.Dir)
		if err != nil {
			return fmt.Errorf("metadata: make a store: %w", err)
		}
		for _, n := range names {
			if n.Name() != "lost+found" && !o.Force {
				return fmt.Errorf("metadata: make a store in %s: %w", o.Dir, ErrNotEmptyDir)
			}
		}
	}
	s := newStore(Options{Dir: o.Dir, Disk: o.Disk, Lanes: o.Lanes, NoTimer: true, Now: o.Now})
	err := s.mkfs(o)
	if err != nil {
		s.release()
		return err
	}
	return s.Close()
}

func (s *Store) mkfs(o MkfsOptions) error {
	if o.Disk == nil {
		// The lock comes first: a store in use is not to be touched.
		f, err := os.OpenFile(filepath.Join(o.Dir, lockName), os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return fmt.Errorf("metadata: make a store: %w", err)
		}
		f.Close()
	}
	s.opts.create = true
	if err := s.attach(); err != nil {
		return err
	}
	if o.Force && o.Disk == nil {
		if err := removeStore(o.Dir); err != nil {
			return fmt.Errorf("metadata: remove the old store: %w", err)
		}
	}
	for _, dir := range []string{engineDir, dataDir} {
		if err := s.disk.MkdirAll(dir); err != nil {
			return fmt.Errorf("metadata: make a store: %w", err)
		}
	}
	if err := s.disk.SyncDir(""); err != nil {
		return fmt.Errorf("metadata: make a store: %w", err)
	}
	sb, err := newSuperblock(o.Label, s.now())
	if err != nil {
		return err
	}
	s.sb = sb
	if err := s.start(true); err != nil {
		return err
	}
	now := s.timeNow()
	a := Attr{Ino: RootIno, Mode: modeDir | 0o755, Nlink: 2, Uid: o.Uid, Gid: o.Gid, Parent: RootIno, Atime: now, Mtime: now, Ctime: now, Btime: now}
	t := s.begin()
	defer t.end()
	t.putInode(&a, nil)
	t.delta.inodes = 1
	if err := t.commit(Block); err != nil {
		return err
	}
	if err := s.Sync(); err != nil {
		return err
	}
	// The superblock last: a store that has one is complete.
	return writeSuperblock(s.disk, &sb)
}

// removeStore deletes the files of a store, and nothing else, superblock first.
func removeStore(dir string) error {
	for _, name := range []string{superblockName, engineDir, dataDir} {
		if err := os.RemoveAll(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// UUIDOf returns the identity of the store in a directory without opening it.
func UUIDOf(dir string) (uuid, label string, err error) {
	b, err := os.ReadFile(filepath.Join(dir, superblockName))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", "", err
	}
	sb, err := decodeSuperblock(b)
	if errors.Is(err, ErrNotAStore) {
		_, derr := os.Stat(filepath.Join(dir, engineDir, "CURRENT"))
		_, serr := os.Stat(filepath.Join(dir, dataDir))
		if derr == nil && serr == nil {
			err = fmt.Errorf("superblock missing or overwritten: %w", ErrCorrupt)
		}
	}
	return sb.uuid(), strings.TrimSpace(sb.Label), err
}
