package main

import (
	"errors"
	"log"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"

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
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		return failf(exitSystem, "%s: permission denied: run as the store's owner or as root", dir)
	}
	return failf(exitSystem, "%s: %v", dir, err)
}

// checkFailure is storeFailure for fsck, which does not advise fsck.
func checkFailure(dir string, err error) error {
	if errors.Is(err, metadata.ErrCorrupt) {
		return failf(exitDamaged, "%s is damaged so that it cannot be opened: %v: keep a copy of the store", dir, err)
	}
	return storeFailure(dir, err)
}

func (storeBackend) mkfs(dir string, s *mkfsSettings) error {
	return storeFailure(dir, metadata.Mkfs(metadata.MkfsOptions{Dir: dir, Label: s.label, Force: s.force, Uid: uint32(os.Getuid()), Gid: uint32(os.Getgid())}))
}

func (storeBackend) isStore(dir string) error {
	_, _, err := metadata.UUIDOf(dir)
	return storeFailure(dir, err)
}

func (storeBackend) isLocked(err error) bool { return errors.Is(err, metadata.ErrLocked) }

func (storeBackend) open(dir string, s *mountSettings, l *log.Logger) (volume, error) {
	// Threads that wait in the kernel for requests keep their share of
	// GOMAXPROCS; what they hand over must not wait for them.
	runtime.GOMAXPROCS(max(8, 2*runtime.NumCPU()))
	// The Go heap holds the inode cache, a quarter of the budget, and buffers of
	// a fixed size; blocks and requests lie outside. Without a limit it would
	// double before each collection.
	memory := s.cache
	if memory == 0 {
		memory = metadata.DefaultMemory
	}
	debug.SetMemoryLimit(memory/4 + fixedHeap)
	o := metadata.Options{
		Dir: dir, ReadOnly: s.readOnly, Commit: s.commit, Memory: s.cache,
		NoAtime: s.atime == "noatime", StrictAtime: s.atime == "strictatime", Logf: l.Printf,
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

// fixedHeap is what the Go heap needs beside the caches, with room for garbage:
// memtables, the data log's tail, the kernel's references.
const fixedHeap = 128 << 20

// requestMemory is the budget for the transport's buffers: each queue wants a
// few of a megabyte.
func requestMemory() int64 { return max(32<<20, int64(runtime.NumCPU())*8<<20) }

// storeVolume is an open store with its handler, once it is mounted.
type storeVolume struct {
	*metadata.Store
	handler *fs.Dispatcher
}

// storeStatus is the part of a store's figures that people ask for; Stats has
// the rest.
type storeStatus struct {
	UUID        string `json:"uuid"`
	Label       string `json:"label,omitempty"`
	Format      uint32 `json:"format"`
	IO          string `json:"io"`
	Failure     string `json:"failure,omitempty"` // why the store turned read-only
	Inodes      int64  `json:"inodes"`
	DataBytes   int64  `json:"data_bytes"`
	Segments    int    `json:"segments"`
	Maintenance string `json:"maintenance,omitempty"` // the last gc
}

func (v *storeVolume) Status() (any, error) {
	s := v.Store.Status()
	return storeStatus{UUID: s.UUID, Label: s.Label, Format: s.Format, IO: s.IO, Failure: s.Failure, Inodes: s.Inodes, DataBytes: s.Bytes, Segments: s.Segments, Maintenance: s.Maintenance}, nil
}

func (v *storeVolume) Stats() (any, error) {
	stats := map[string]any{"store": v.Store.Status()}
	if v.handler != nil {
		h := v.handler.Stats()
		requests := map[string]uint64{}
		for op, n := range h.Requests {
			if n > 0 {
				requests[strings.ToLower(fs.OpName(uint32(op)))] = n
			}
		}
		stats["requests"] = requests
		stats["parked"], stats["async"], stats["errors"] = h.Parked, h.Async, h.Errors
	}
	return stats, nil
}

func (v *storeVolume) GC() error { return v.CollectGarbage() }

func (storeBackend) mount(v volume, store, mnt string, s *mountSettings, l *log.Logger) (mountServer, error) {
	sv := v.(*storeVolume)
	readOnly := s.readOnly || sv.ReadOnly() // also on a read-only disk
	sv.handler = fs.NewHandler(sv.Store, fs.HandlerOptions{ReadOnly: readOnly, Writeback: s.writeback, ACL: s.acl, NoOpen: !s.opens && s.atime != "strictatime", DropCache: s.atime == "strictatime", Logf: l.Printf})
	srv, err := fs.Mount(fs.MountOptions{
		Source: store, Mountpoint: mnt, Subtype: fsSubtype,
		AllowOther: s.allowOther, DefaultPermissions: s.defaultPermissions,
		ReadOnly: readOnly, Suid: s.suid, Dev: s.dev, Flags: s.kernelFlags(),
		EnableACL: s.acl,
		Writeback: s.writeback, NoStrictLimit: s.writeback, MaxRatio: map[bool]int{true: 100}[s.writeback],
		URing:  map[string]fs.URingMode{"on": fs.URingOn, "off": fs.URingOff}[s.fuseURing],
		Memory: requestMemory(),
		Logf:   l.Printf,
	}, sv.handler)
	switch {
	case err == nil:
		sv.handler.SetNotifier(srv)
		return srv, nil
	case errors.Is(err, fs.ErrNoFuse):
		return nil, failf(exitSystem, "this kernel offers no FUSE: load it with `modprobe fuse`")
	case errors.Is(err, fs.ErrNoFusermount):
		return nil, failf(exitSystem, "only root can mount without fusermount3: install the package fuse3")
	case errors.Is(err, fs.ErrNoURing):
		return nil, failf(exitSystem, "FUSE over io_uring is off: `echo Y >/sys/module/fuse/parameters/enable_uring`, or use -o fuse_uring=auto")
	case errors.Is(err, fs.ErrNotPermitted):
		return nil, failf(exitSystem, "%v: mount as root, or with access to /dev/fuse, at a directory of yours, without allow_other", err)
	case errors.Is(err, fs.ErrMountpointBusy):
		return nil, failf(exitBusy, "it is in use: unmount what is there first")
	}
	return nil, failf(exitSystem, "%v", err)
}

func (storeBackend) check(dir string, report func(problem string)) (details any, err error) {
	// What a killed daemon left in the log is replayed first, as by a mount;
	// on a read-only disk in memory only.
	st, err := metadata.Open(metadata.Options{Dir: dir, ReadOnly: readOnlyDirectory(dir), NoTimer: true})
	if errors.Is(err, metadata.ErrLocked) {
		return nil, err
	}
	if err != nil {
		return nil, checkFailure(dir, err)
	}
	rep, err := st.Check(report)
	if cerr := st.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return rep, checkFailure(dir, err)
	}
	return rep, nil
}
