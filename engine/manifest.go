package engine

import (
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	"prismfs/ordered"
	"prismfs/uring"
)

const (
	strictComparator  = "leveldb.BytewiseComparator"
	defaultComparator = "prismfs.BytewiseComparator.1"

	// maxManifestSize is when a manifest is replaced by a snapshot of the
	// version it describes.
	maxManifestSize = 4 << 20
)

func comparatorName(p ordered.Profile) string {
	if p == ordered.Strict {
		return strictComparator
	}
	return defaultComparator
}

// manifest writes version edits. One caller at a time.
//
// M1: CURRENT names a manifest that was durable before, and so was its entry in
// the directory.
// M2: an edit counts once append has returned nil. After an error it may or may
// not be in the file: files it names must stay until a later edit went through.
type manifest struct {
	disk uring.Disk
	dir  string
	opts ordered.LogOptions // what all manifests share
	num  FileNum
	log  *ordered.Log // nil: the next edit must start a new manifest
}

// append makes an edit durable.
func (m *manifest) append(edit *versionEdit) error {
	end, err := m.log.Append(edit.encode(nil))
	if err == nil {
		err = m.log.Sync(end)
	}
	if err != nil {
		return fmt.Errorf("engine: write manifest %d: %w", m.num, err)
	}
	return nil
}

// start writes a manifest with one edit and makes CURRENT name it. The old
// manifest, if any, is left to be removed by the caller.
func (m *manifest) start(num FileNum, snapshot *versionEdit) error {
	o := m.opts
	o.Name, o.Number = manifestFileName(m.dir, num), uint64(num)
	log, err := ordered.CreateLog(o)
	if err != nil {
		return fmt.Errorf("engine: create manifest %d: %w", num, err)
	}
	end, err := log.Append(snapshot.encode(nil))
	if err == nil {
		err = log.Sync(end)
	}
	if err == nil {
		err = setCurrent(m.disk, m.dir, num)
	}
	if err != nil {
		log.Close()
		return fmt.Errorf("engine: start manifest %d: %w", num, err)
	}
	if m.log != nil {
		// All its edits were synced one by one; a failure here loses nothing.
		m.log.Close()
	}
	m.log, m.num = log, num
	return nil
}

func (m *manifest) close() error {
	if m.log == nil {
		return nil
	}
	err := m.log.Close()
	m.log = nil
	return err
}

// setCurrent makes CURRENT name manifest num.
func setCurrent(disk uring.Disk, dir string, num FileNum) error {
	// The manifest's own entry must be durable before CURRENT names it.
	if err := disk.SyncDir(dirName(dir)); err != nil {
		return err
	}
	tmp := tempFileName(dir, num)
	f, err := disk.Create(tmp)
	if err != nil {
		return err
	}
	_, err = f.WriteAt([]byte(path.Base(manifestFileName(dir, num))+"\n"), 0)
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = disk.Rename(tmp, currentFileName(dir))
	}
	if err == nil {
		err = disk.SyncDir(dirName(dir))
	}
	return err
}

// readCurrent returns the number of the manifest that CURRENT names.
func readCurrent(disk uring.Disk, dir string) (FileNum, error) {
	name := currentFileName(dir)
	b, err := readFile(disk, name, 4096)
	if err != nil {
		return 0, fmt.Errorf("engine: read %s: %w", name, err)
	}
	base, ok := strings.CutSuffix(string(b), "\n")
	kind, num := parseFileName(base)
	if !ok || kind != manifestFile {
		return 0, fmt.Errorf("engine: %s holds %q: %w", name, b, ErrCorrupt)
	}
	return num, nil
}

// readFile reads a whole file of at most limit bytes.
func readFile(disk uring.Disk, name string, limit int64) ([]byte, error) {
	f, err := disk.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	n, err := f.Size()
	if err != nil {
		return nil, err
	}
	if n > limit {
		return nil, fmt.Errorf("%d bytes, expected at most %d: %w", n, limit, ErrCorrupt)
	}
	b := make([]byte, n)
	if _, err := f.ReadAt(b, 0); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return b, nil
}

// manifestState is what a manifest says.
type manifestState struct {
	comparator string
	version    *version
	logNumber  FileNum
	prevLog    FileNum
	nextFile   FileNum
	lastSeq    SeqNum
	pointers   [numLevels][]byte
}

// readManifest replays a manifest. Its end may be torn: an edit counts only
// once it was synced.
func readManifest(disk uring.Disk, dir string, num FileNum, p ordered.Profile) (*manifestState, error) {
	name := manifestFileName(dir, num)
	s := &manifestState{}
	seenLog, seenNext, seenSeq := false, false, false
	live := map[[2]uint64]*fileMeta{} // level, number
	_, err := ordered.ReadLog(disk, name, uint64(num), p, func(rec []byte, off int64) error {
		e, err := decodeVersionEdit(rec)
		if err != nil {
			return fmt.Errorf("at %d: %w", off, err)
		}
		if e.comparator != "" {
			s.comparator = e.comparator
		}
		if e.logNumber != nil {
			s.logNumber, seenLog = *e.logNumber, true
		}
		if e.prevLog != nil {
			s.prevLog = *e.prevLog
		}
		if e.nextFile != nil {
			s.nextFile, seenNext = *e.nextFile, true
		}
		if e.lastSeq != nil {
			s.lastSeq, seenSeq = *e.lastSeq, true
		}
		for _, p := range e.pointers {
			s.pointers[p.level] = p.key
		}
		for _, d := range e.deleted {
			k := [2]uint64{uint64(d.level), uint64(d.num)}
			if live[k] == nil {
				return fmt.Errorf("at %d: edit deletes table %d, not in level %d: %w", off, d.num, d.level, ErrCorrupt)
			}
			delete(live, k)
		}
		for _, a := range e.added {
			live[[2]uint64{uint64(a.level), uint64(a.meta.num)}] = a.meta
		}
		return nil
	})
	if err == nil && (!seenLog || !seenNext || !seenSeq) {
		err = fmt.Errorf("log number, next file or last sequence missing: %w", ErrCorrupt)
	}
	if err != nil {
		return nil, fmt.Errorf("engine: read %s: %w", name, err)
	}
	all := &versionEdit{}
	for k, f := range live {
		all.added = append(all.added, newFile{int(k[0]), f})
	}
	if s.version, err = newVersion(nil, all); err != nil {
		return nil, fmt.Errorf("engine: read %s: %w", name, err)
	}
	return s, nil
}
