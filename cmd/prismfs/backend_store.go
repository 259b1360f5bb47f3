package main

import (
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"prismfs/fs"
	"prismfs/metadata"
	"prismfs/uring"
)

// storeBackend is the backend of the program: stores in directories, mounted
// through the kernel.
type storeBackend struct{}

func newBackend() backend { return storeBackend{} }

// storeFailure gives a lower layer's error its exit code and says what to do.
func storeFailure(dir string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, metadata.ErrNotAStore):
		return failf(exitNotStore, "%s is not a prismfs store: make one with `prismfs mkfs %s`", dir, dir)
	case errors.Is(err, metadata.ErrNewerFormat):
		return failf(exitNotStore, "%s: %v: use a newer prismfs", dir, err)
	case errors.Is(err, metadata.ErrNotEmptyDir):
		return failf(exitBusy, "%s is not empty: choose an empty directory, or --force to put a store in it all the same", dir)
	case errors.Is(err, metadata.ErrLocked):
		return failf(exitBusy, "%s is in use by another prismfs: unmount it first", dir)
	case errors.Is(err, metadata.ErrCorrupt):
		return failf(exitDamaged, "%s is damaged: %v: run `prismfs fsck %s`", dir, err, dir)
	case errors.Is(err, metadata.ErrNoSpace):
		return failf(exitSystem, "%s: %v: make room on the disk below it", dir, err)
	case errors.Is(err, metadata.ErrReadOnly):
		return failf(exitSystem, "%s: %v: mount it with -o ro", dir, err)
	}
	return failf(exitSystem, "%s: %v", dir, err)
}

func (storeBackend) mkfs(dir string, s *mkfsSettings) error {
	return storeFailure(dir, metadata.Mkfs(metadata.MkfsOptions{Dir: dir, Force: s.force, Uid: uint32(os.Getuid()), Gid: uint32(os.Getgid())}))
}

func (storeBackend) isStore(dir string) error {
	_, _, err := metadata.UUIDOf(dir)
	return storeFailure(dir, err)
}

func (storeBackend) isLocked(err error) bool { return errors.Is(err, metadata.ErrLocked) }

func (storeBackend) open(dir string, s *mountSettings, l *log.Logger) (volume, error) {
	o := metadata.Options{
		Dir: dir, ReadOnly: s.readOnly, Commit: s.commit, Memory: s.cache,
		NoAtime: s.atime == "noatime", Logf: l.Printf,
	}
	switch s.io {
	case "io_uring":
		o.IO = uring.RingOnly
	case "pread":
		o.IO = uring.Pread
	}
	st, err := metadata.Open(o)
	if errors.Is(err, metadata.ErrLocked) {
		return nil, err
	}
	if err != nil {
		return nil, storeFailure(dir, err)
	}
	return &storeVolume{Store: st}, nil
}

// storeVolume is an open store with its front end, once there is one.
type storeVolume struct {
	*metadata.Store
	handler *fs.Dispatcher
	server  *fs.Server
}

func (v *storeVolume) Status() (any, error) {
	st := struct {
		metadata.Status
		Transport string `json:"transport"`
	}{Status: v.Store.Status()}
	if v.server != nil {
		st.Transport = v.server.TransportName()
	}
	return st, nil
}

func (v *storeVolume) Stats() (any, error) {
	var requests any
	if v.handler != nil {
		requests = v.handler.Stats()
	}
	return map[string]any{"store": v.Store.Status(), "requests": requests}, nil
}

func (v *storeVolume) GC() error { return v.CollectGarbage() }

func (storeBackend) mount(v volume, store, mnt string, s *mountSettings, l *log.Logger) (mountServer, error) {
	sv := v.(*storeVolume)
	flags := []string{}
	add := func(on bool, name string) {
		if on {
			flags = append(flags, name)
		}
	}
	add(!s.exec, "noexec")
	add(s.sync, "sync")
	add(s.dirSync, "dirsync")
	add(s.atime != "", s.atime)
	add(s.noDirAtime, "nodiratime")
	sv.handler = fs.NewHandler(sv.Store, fs.HandlerOptions{ReadOnly: s.readOnly, Writeback: s.writeback, NoOpen: true, Logf: l.Printf})
	srv, err := fs.Mount(fs.MountOptions{
		Source: store, Mountpoint: mnt, Subtype: "prismfs",
		AllowOther: s.allowOther, DefaultPermissions: s.defaultPermissions,
		ReadOnly: s.readOnly, Suid: s.suid, Dev: s.dev, Flags: flags,
		Writeback: s.writeback, NoStrictLimit: s.writeback, MaxRatio: map[bool]int{true: 100}[s.writeback],
		URing: map[string]fs.URingMode{"on": fs.URingOn, "off": fs.URingOff}[s.fuseURing],
		Logf:  l.Printf,
	}, sv.handler)
	switch {
	case err == nil:
		sv.server = srv
		return srv, nil
	case errors.Is(err, fs.ErrNoMountpoint):
		return nil, failf(exitUsage, "%s: no such directory: make the mount point with `mkdir %s`", mnt, mnt)
	case errors.Is(err, fs.ErrMountpointBusy):
		return nil, failf(exitBusy, "%v: unmount what is there first", err)
	}
	return nil, failf(exitSystem, "mount %s: %v", mnt, err)
}

func (storeBackend) check(dir string, report func(problem string)) (details any, err error) {
	st, err := metadata.Open(metadata.Options{Dir: dir, NoTimer: true, Logf: func(f string, a ...any) {
		fmt.Fprintf(os.Stderr, "prismfs: "+f+"\n", a...)
	}})
	if err != nil {
		return nil, storeFailure(dir, err)
	}
	rep, err := st.Check(report)
	if cerr := st.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return rep, storeFailure(filepath.Clean(dir), err)
	}
	return rep, nil
}
