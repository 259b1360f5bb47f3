package metadata_test

import (
	"fmt"
	"slices"

	"prismfs/metadata"
)

// The workloads of the crash campaign beside random operations: what programs
// do that people lose work to. Each step is one operation of the file system, on
// the store and on the model.

func (d *driver) mk(dir *mnode, name string, mode uint32) (*mnode, error) {
	var a metadata.Attr
	err := d.try(func(w metadata.Wait) error {
		return d.s.Make(w, dir.ino, []byte(name), &metadata.MakeReq{Mode: mode}, &a)
	})
	if err != nil {
		return nil, err
	}
	d.s.Forget(a.Ino, 1)
	n := &mnode{ino: a.Ino, mode: mode, nlink: 1, xattrs: map[string]string{}}
	if n.dir() {
		n.nlink, n.names, n.parent = 2, map[string]*mnode{}, dir
		dir.nlink++
	}
	dir.names[name] = n
	d.m.all = append(d.m.all, n)
	return n, nil
}

func (d *driver) wr(n *mnode, off uint64, b []byte) error {
	n.data = grow(n.data, off+uint64(len(b)))
	copy(n.data[off:], b)
	return d.try(func(w metadata.Wait) error { return d.s.Write(w, n.ino, off, b, 0) })
}

func (d *driver) rm(dir *mnode, name string) error {
	n := dir.names[name]
	delete(dir.names, name)
	d.unlinked(n)
	return d.try(func(w metadata.Wait) error { return d.s.Unlink(w, dir.ino, []byte(name)) })
}

// mv moves a file, over another if there is one.
func (d *driver) mv(dir *mnode, from, to string) error {
	n, old := dir.names[from], dir.names[to]
	delete(dir.names, from)
	dir.names[to] = n
	if old != nil {
		d.unlinked(old)
	}
	return d.try(func(w metadata.Wait) error {
		return d.s.Rename(w, dir.ino, []byte(from), dir.ino, []byte(to), 0)
	})
}

// untar fills a tree: directories, files of all sizes in one or more writes, and
// their times.
func untar() func(d *driver) (string, error) {
	var dir, file *mnode
	var left, files int
	return func(d *driver) (string, error) {
		switch {
		case dir == nil || files%20 == 0 && left == 0 && file == nil:
			files++
			var err error
			dir, err = d.mk(d.m.root, fmt.Sprintf("dir%d", files), 0040755)
			return "mkdir", err
		case file == nil:
			files++
			left = d.size()
			var err error
			file, err = d.mk(dir, fmt.Sprintf("file%d", files), 0100644)
			return "create", err
		case left > 0:
			n := min(left, 64<<10)
			left -= n
			return "write", d.wr(file, uint64(len(file.data)), d.bytes(n))
		}
		n := file
		file = nil
		var a metadata.Attr
		return "utimes", d.try(func(w metadata.Wait) error {
			return d.s.Setattr(w, n.ino, &metadata.SetAttr{Mask: metadata.SetMtime | metadata.SetAtime, Mtime: metadata.Time{Sec: -5}}, &a)
		})
	}
}

// gitGC writes loose objects by way of a temporary name, then packs them: one
// large file, synced and renamed into place, after which the loose ones go.
func gitGC() func(d *driver) (string, error) {
	var temp, pack *mnode
	var packed int
	round, next := 0, 0
	return func(d *driver) (string, error) {
		root := d.m.root
		loose := func() []string {
			var l []string
			for name := range root.names {
				if name[0] == 'o' {
					l = append(l, name)
				}
			}
			slices.Sort(l)
			return l
		}
		switch {
		case temp != nil && len(temp.data) == 0:
			return "write object", d.wr(temp, 0, d.bytes(1+d.rng.IntN(9000)))
		case temp != nil:
			temp = nil
			next++
			return "name object", d.mv(root, "tmp_obj", fmt.Sprintf("o%05d", next))
		case pack == nil && packed == 0 && len(loose()) < 12:
			var err error
			temp, err = d.mk(root, "tmp_obj", 0100444)
			return "create object", err
		case pack == nil && packed == 0:
			var err error
			pack, err = d.mk(root, "tmp_pack", 0100444)
			return "create pack", err
		case pack != nil && len(pack.data) < 200<<10:
			return "write pack", d.wr(pack, uint64(len(pack.data)), d.bytes(50<<10))
		case pack != nil:
			pack = nil
			round++
			packed = 1
			if err := d.s.Sync(); err != nil {
				return "sync pack", err
			}
			return "name pack", d.mv(root, "tmp_pack", fmt.Sprintf("pack%d", round%2))
		}
		l := loose()
		if len(l) <= 1 {
			packed = 0
		}
		return "prune object", d.rm(root, l[0])
	}
}

// overwrite changes a few files again and again, so that memtables are flushed,
// tables compacted and segments emptied all the time.
func overwrite() func(d *driver) (string, error) {
	var files []*mnode
	return func(d *driver) (string, error) {
		if len(files) < 6 {
			n, err := d.mk(d.m.root, fmt.Sprintf("f%d", len(files)), 0100644)
			files = append(files, n)
			return "create", err
		}
		n := files[d.rng.IntN(len(files))]
		return "overwrite", d.wr(n, uint64(d.rng.IntN(60))*4096, d.bytes(4096*(1+d.rng.IntN(12))))
	}
}
