package simdisk

import (
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
)

// Materialize writes the present volatile state into an existing directory of
// the host, holes as holes, for tools that need real files.
func (d *Disk) Materialize(dir string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return materialize(d.root, dir)
}

func materialize(n *node, dir string) error {
	for _, name := range slices.Sorted(maps.Keys(n.entries)) {
		e, path := n.entries[name], filepath.Join(dir, name)
		if e.dir {
			if err := os.MkdirAll(path, 0o700); err != nil {
				return fmt.Errorf("simdisk: materialize: %w", err)
			}
			if err := materialize(e, path); err != nil {
				return err
			}
			continue
		}
		if err := e.vol.writeTo(path); err != nil {
			return fmt.Errorf("simdisk: materialize: %w", err)
		}
	}
	return nil
}

func (m *image) writeTo(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	for i, p := range m.pages {
		if _, err := f.WriteAt(p.b[:], i*pageSize); err != nil {
			return err
		}
	}
	if err := f.Truncate(m.size); err != nil {
		return err
	}
	return f.Close()
}

// Load makes a disk from a directory of the host; everything in it is durable.
func Load(seed uint64, dir string) (*Disk, error) {
	d := New(seed)
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil || rel == "." {
			return err
		}
		if e.IsDir() {
			return d.MkdirAll(filepath.ToSlash(rel))
		}
		return d.loadFile(filepath.ToSlash(rel), path)
	})
	if err != nil {
		return nil, fmt.Errorf("simdisk: load: %w", err)
	}
	loaded := d.Crash(nil, KeepAll)
	loaded.rng = d.rng
	return loaded, nil
}

func (d *Disk) loadFile(name, path string) error {
	in, err := os.Open(path)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := d.Create(name)
	if err != nil {
		return err
	}
	defer out.Close()
	buf := make([]byte, 1<<20)
	for off := int64(0); ; {
		n, err := in.ReadAt(buf, off)
		if n > 0 {
			if _, err := out.WriteAt(buf[:n], off); err != nil {
				return err
			}
			off += int64(n)
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
