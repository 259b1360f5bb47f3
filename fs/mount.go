package fs

import (
	"bytes"
	"errors"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// What can be wrong about mounting.
var (
	ErrNoMountpoint   = errors.New("mount point does not exist")
	ErrNotDirectory   = errors.New("mount point is not a directory")
	ErrMountpointBusy = errors.New("mount point is busy")
	ErrStaleMount     = errors.New("mount point holds a dead mount; unmount it first")
	ErrNotPermitted   = errors.New("not permitted to mount")
	ErrNoFuse         = errors.New("no FUSE in this kernel (/dev/fuse)")
	ErrNoFusermount   = errors.New("fusermount3 is not installed")
	ErrBadOption      = errors.New("unknown mount option")
	ErrNoURing        = errors.New("FUSE over io_uring is not available")
	ErrNotMounted     = errors.New("not mounted")
	// ErrAborted is Serve's result when the connection was cut off by way of
	// /sys/fs/fuse/connections instead of unmounted.
	ErrAborted = errors.New("fs: connection to the kernel aborted")
)

// URingMode says whether requests travel over io_uring.
type URingMode string

// The modes of MountOptions.URing.
const (
	URingAuto URingMode = "auto" // where kernel and administrator allow it
	URingOn   URingMode = "on"   // or Mount fails with ErrNoURing
	URingOff  URingMode = "off"
)

// MountOptions says where and how to mount. The zero value of a field is its
// default.
type MountOptions struct {
	Source     string // the first column of /proc/mounts, to the letter
	Mountpoint string
	Subtype    string // file system type fuse.Subtype; "prismfs"
	RootMode   uint32 // mode of the root directory until it is asked for; S_IFDIR|0755

	AllowOther         bool
	DefaultPermissions bool
	ReadOnly           bool
	Suid, Dev          bool // honour set-id bits, device nodes: else nosuid, nodev
	// Flags are further mount(2) flags: ro rw suid nosuid dev nodev exec noexec
	// sync async dirsync atime noatime diratime nodiratime relatime norelatime
	// strictatime nosymfollow. Later ones win.
	Flags []string

	MaxWrite      int  // bytes, a multiple of 4096 from 64 KiB to 1 MiB; 1 MiB
	MaxBackground int  // 128
	Writeback     bool // the kernel's writeback cache
	EnableACL     bool // POSIX ACLs, and umask left to the daemon
	AtomicTrunc   bool // OPEN carries O_TRUNC: never when OPEN is answered ENOSYS

	URing   URingMode // URingAuto
	Readers int       // threads of the devfuse transport; 4
	Memory  int64     // budget for request buffers in bytes; 64 MiB, or 8 MiB a CPU

	ReadAheadKB   int  // of the bdi, set as root; 4096, negative leaves it alone
	MaxRatio      int  // of the bdi; 0 leaves it alone
	NoStrictLimit bool // clears the bdi's strict_limit

	Logf func(format string, args ...any) // log.Printf
}

func (o *MountOptions) setDefaults() error {
	def := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	def(&o.MaxWrite, 1<<20)
	def(&o.MaxBackground, 128)
	def(&o.Readers, 4)
	def(&o.ReadAheadKB, 4096)
	if o.Memory == 0 {
		o.Memory = max(64<<20, int64(runtime.NumCPU())*8<<20)
	}
	if o.Subtype == "" {
		o.Subtype = "prismfs"
	}
	if o.RootMode == 0 {
		o.RootMode = syscall.S_IFDIR | 0o755
	}
	if o.URing == "" {
		o.URing = URingAuto
	}
	if o.Logf == nil {
		o.Logf = log.Printf
	}
	switch {
	case o.MaxWrite < 64<<10 || o.MaxWrite > 1<<20 || o.MaxWrite%4096 != 0:
		return fmt.Errorf("%w: max_write=%d", ErrBadOption, o.MaxWrite)
	case o.MaxBackground < 1 || o.MaxBackground > 1<<16-1:
		return fmt.Errorf("%w: max_background=%d", ErrBadOption, o.MaxBackground)
	case o.URing != URingAuto && o.URing != URingOn && o.URing != URingOff:
		return fmt.Errorf("%w: uring=%s", ErrBadOption, o.URing)
	case o.Readers < 1:
		return fmt.Errorf("%w: readers=%d", ErrBadOption, o.Readers)
	}
	return nil
}

// mountFlag is what a mount option does to mount(2)'s flags.
type mountFlag struct {
	name       string
	set, clear uintptr
}

var mountFlags = []mountFlag{
	{"ro", unix.MS_RDONLY, 0}, {"rw", 0, unix.MS_RDONLY},
	{"nosuid", unix.MS_NOSUID, 0}, {"suid", 0, unix.MS_NOSUID},
	{"nodev", unix.MS_NODEV, 0}, {"dev", 0, unix.MS_NODEV},
	{"noexec", unix.MS_NOEXEC, 0}, {"exec", 0, unix.MS_NOEXEC},
	{"sync", unix.MS_SYNCHRONOUS, 0}, {"async", 0, unix.MS_SYNCHRONOUS},
	{"dirsync", unix.MS_DIRSYNC, 0},
	{"noatime", unix.MS_NOATIME, unix.MS_RELATIME | unix.MS_STRICTATIME}, {"atime", 0, unix.MS_NOATIME},
	{"nodiratime", unix.MS_NODIRATIME, 0}, {"diratime", 0, unix.MS_NODIRATIME},
	{"relatime", unix.MS_RELATIME, unix.MS_NOATIME | unix.MS_STRICTATIME}, {"norelatime", 0, unix.MS_RELATIME},
	{"strictatime", unix.MS_STRICTATIME, unix.MS_NOATIME | unix.MS_RELATIME},
	{"nosymfollow", unix.MS_NOSYMFOLLOW, 0},
}

// flags are mount(2)'s flags for the options.
func (o *MountOptions) flags() (uintptr, error) {
	fl := uintptr(unix.MS_NOSUID | unix.MS_NODEV)
	if o.Suid {
		fl &^= unix.MS_NOSUID
	}
	if o.Dev {
		fl &^= unix.MS_NODEV
	}
	if o.ReadOnly {
		fl |= unix.MS_RDONLY
	}
next:
	for _, name := range o.Flags {
		for _, f := range mountFlags {
			if f.name == name {
				fl = fl&^f.clear | f.set
				continue next
			}
		}
		return 0, fmt.Errorf("%w: %s", ErrBadOption, name)
	}
	return fl, nil
}

// flagNames spells flags for fusermount3.
func flagNames(fl uintptr) []string {
	var s []string
	for _, f := range mountFlags {
		if f.set != 0 && fl&f.set == f.set {
			s = append(s, f.name)
		}
	}
	return s
}

// Server is a mounted file system.
type Server struct {
	o          MountOptions
	transport  Transport
	handler    Handler
	negotiated Negotiated
	direct     bool   // mounted by mount(2), not by fusermount3
	dev        string // major:minor of the mount

	fdMu sync.RWMutex
	fd   int // /dev/fuse; -1 once Serve has returned

	ready  chan struct{} // closed when requests are served
	served chan struct{} // closed when Serve has returned
}

// Mount mounts the file system and settles INIT with the kernel. Requests wait
// until Serve is called, which the caller must do: it also releases everything,
// when the file system is unmounted already too.
//
//   - As root it calls mount(2), else fusermount3.
//   - Errors: the sentinels of this file, wrapped with the mount point.
func Mount(o MountOptions, h Handler) (*Server, error) {
	s, err := mount(o, h)
	if err != nil {
		return nil, fmt.Errorf("fs: mount %s: %w", o.Mountpoint, err)
	}
	return s, nil
}

func mount(o MountOptions, h Handler) (*Server, error) {
	if err := o.setDefaults(); err != nil {
		return nil, err
	}
	fl, err := o.flags()
	if err != nil {
		return nil, err
	}
	if o.Mountpoint, err = checkMountpoint(o.Mountpoint); err != nil {
		return nil, err
	}
	typ := "fuse." + o.Subtype
	if m, ok, err := mountOf(o.Mountpoint); err != nil {
		return nil, err
	} else if ok && m.fsType == typ && m.source == o.Source {
		return nil, fmt.Errorf("%w: %s is already mounted there", ErrMountpointBusy, o.Source)
	}
	s := &Server{o: o, handler: h, direct: os.Geteuid() == 0, ready: make(chan struct{}), served: make(chan struct{})}
	if s.direct {
		s.fd, err = mountDirect(&o, typ, fl)
	} else {
		s.fd, err = mountHelper(&o, fl)
	}
	if err != nil {
		return nil, err
	}
	if err := s.start(); err != nil {
		if s.transport != nil {
			s.transport.Close()
		}
		// The kernel side first: it answers nobody any more once fd is closed.
		if e := s.umount(unix.MNT_DETACH); e != nil {
			s.o.Logf("fs: mount %s failed and stays behind: %v", o.Mountpoint, e)
		}
		syscall.Close(s.fd)
		return nil, err
	}
	return s, nil
}

// start settles INIT and chooses the transport.
func (s *Server) start() error {
	in, err := readInit(s.fd)
	if err != nil {
		return err
	}
	n, err := negotiate(in, &s.o)
	if err != nil {
		return err
	}
	if s.transport, err = s.newTransport(&n); err != nil {
		return err
	}
	s.negotiated = n
	if _, err := syscall.Write(s.fd, initReply(in.unique, &n)); err != nil {
		return fmt.Errorf("answer INIT: %w", err)
	}
	if m, ok, err := mountOf(s.o.Mountpoint); err == nil && ok {
		s.dev = m.dev
	}
	if s.direct && s.dev != "" {
		if err := tuneBDI(s.dev, &s.o); err != nil {
			s.o.Logf("%v", err) // slower, nothing else
		}
	}
	return nil
}

// newTransport prepares the transport before INIT is answered: a promise of
// io_uring that isn't kept would hang the mount. It clears the capability in n
// when it settles for devfuse.
func (s *Server) newTransport(n *Negotiated) (Transport, error) {
	if n.Has(fuse.CAP_OVER_IO_URING) {
		t, err := newURing(s.fd, n.MaxWrite, s.o.Memory, s.o.Logf, s.markReady, s.Abort)
		switch {
		case err == nil:
			return t, nil
		case s.o.URing == URingOn:
			return nil, fmt.Errorf("%w: %w", ErrNoURing, err)
		}
		s.o.Logf("fs: %s: not over io_uring: %v", s.o.Mountpoint, err)
		n.Flags &^= fuse.CAP_OVER_IO_URING
	} else if s.o.URing == URingOn {
		return nil, fmt.Errorf("%w: the kernel doesn't offer it (/sys/module/fuse/parameters/enable_uring)", ErrNoURing)
	}
	return newDevfuse(s.fd, s.o.Readers, n.MaxWrite, s.o.Memory, s.o.Logf, s.markReady), nil
}

// checkMountpoint returns the absolute path without symlinks.
func checkMountpoint(p string) (string, error) {
	classify := func(err error) error {
		switch {
		case errors.Is(err, os.ErrNotExist):
			return ErrNoMountpoint
		case errors.Is(err, syscall.ENOTDIR):
			return ErrNotDirectory
		case errors.Is(err, syscall.ENOTCONN), errors.Is(err, syscall.ECONNABORTED):
			return ErrStaleMount
		}
		return err
	}
	if p == "" {
		return "", ErrNoMountpoint
	}
	abs, err := filepath.Abs(p)
	if err == nil {
		abs, err = filepath.EvalSymlinks(abs)
	}
	if err != nil {
		return "", classify(err)
	}
	st, err := os.Stat(abs)
	if err != nil {
		return "", classify(err)
	}
	if !st.IsDir() {
		return "", ErrNotDirectory
	}
	return abs, nil
}

// mountDirect mounts with mount(2) and returns the fd of /dev/fuse.
func mountDirect(o *MountOptions, typ string, fl uintptr) (int, error) {
	fd, err := syscall.Open("/dev/fuse", syscall.O_RDWR|syscall.O_CLOEXEC, 0)
	if err != nil {
		if errors.Is(err, os.ErrNotExist) || err == syscall.ENODEV || err == syscall.ENXIO {
			err = ErrNoFuse
		}
		return -1, err
	}
	data := fmt.Sprintf("fd=%d,rootmode=%o,user_id=%d,group_id=%d,max_read=%d", fd, o.RootMode, os.Geteuid(), os.Getegid(), o.MaxWrite)
	if o.AllowOther {
		data += ",allow_other"
	}
	if o.DefaultPermissions {
		data += ",default_permissions"
	}
	err = unix.Mount(o.Source, o.Mountpoint, typ, fl, data)
	switch err {
	case nil:
		return fd, nil
	case unix.EBUSY:
		err = ErrMountpointBusy
	case unix.EPERM, unix.EACCES:
		err = fmt.Errorf("%w: %w", ErrNotPermitted, err)
	case unix.ENODEV:
		err = ErrNoFuse
	case unix.ENOENT:
		err = ErrNoMountpoint
	case unix.ENOTDIR:
		err = ErrNotDirectory
	}
	syscall.Close(fd)
	return -1, err
}

var fusermountPaths = []string{"fusermount3", "/usr/bin/fusermount3", "/bin/fusermount3"}

// FindFusermount returns the path of fusermount3: from PATH, or from where
// Debian has it, since mount(8) starts its helpers without a PATH.
func FindFusermount() (string, error) {
	for _, name := range fusermountPaths {
		if bin, err := exec.LookPath(name); err == nil {
			return bin, nil
		}
	}
	return "", ErrNoFusermount
}

// mountHelper mounts with fusermount3, which passes the fd of /dev/fuse back
// over the socket whose number is in _FUSE_COMMFD.
//
//   - Source: fusermount3(1), libfuse lib/mount.c.
func mountHelper(o *MountOptions, fl uintptr) (int, error) {
	bin, err := FindFusermount()
	if err != nil {
		return -1, err
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("socketpair: %w", err)
	}
	local, remote := os.NewFile(uintptr(pair[0]), "fusermount"), os.NewFile(uintptr(pair[1]), "fusermount")
	defer local.Close()
	escape := strings.NewReplacer(`\`, `\\`, `,`, `\,`)
	opts := append(flagNames(fl), "fsname="+escape.Replace(o.Source), "subtype="+escape.Replace(o.Subtype), fmt.Sprintf("max_read=%d", o.MaxWrite))
	if o.AllowOther {
		opts = append(opts, "allow_other")
	}
	if o.DefaultPermissions {
		opts = append(opts, "default_permissions")
	}
	var msg bytes.Buffer
	cmd := exec.Command(bin, "-o", strings.Join(opts, ","), "--", o.Mountpoint)
	cmd.Env = append(os.Environ(), "_FUSE_COMMFD=3")
	cmd.ExtraFiles = []*os.File{remote}
	cmd.Stderr = &msg
	err = cmd.Run()
	remote.Close()
	if err != nil {
		return -1, fmt.Errorf("%w: %s: %w", ErrNotPermitted, strings.TrimSpace(msg.String()), err)
	}
	return receiveFd(int(local.Fd()))
}

// receiveFd takes the one descriptor that comes over a socket.
func receiveFd(sock int) (int, error) {
	var b [1]byte
	oob := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(sock, b[:], oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("receive /dev/fuse from fusermount3: %w", err)
	}
	msgs, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(msgs) != 1 {
		return -1, fmt.Errorf("receive /dev/fuse from fusermount3: %d control messages: %w", len(msgs), errors.Join(err, ErrNotPermitted))
	}
	fds, err := unix.ParseUnixRights(&msgs[0])
	if err != nil || len(fds) != 1 {
		return -1, fmt.Errorf("receive /dev/fuse from fusermount3: %d descriptors: %w", len(fds), errors.Join(err, ErrNotPermitted))
	}
	return fds[0], nil
}

// Serve answers requests until the file system is unmounted. It is called
// once; everything is released when it returns. Its errors are Transport's.
func (s *Server) Serve() error {
	err := s.transport.Serve(s.handler)
	s.transport.Close()
	s.fdMu.Lock()
	syscall.Close(s.fd)
	s.fd = -1
	s.fdMu.Unlock()
	close(s.served)
	return err
}

func (s *Server) markReady() { close(s.ready) }

// WaitMounted blocks until requests are answered: the mount can be used, by
// other processes. It fails when Serve has ended before.
func (s *Server) WaitMounted() error {
	select {
	case <-s.ready:
		return nil
	case <-s.served:
		return fmt.Errorf("fs: %s: %w", s.o.Mountpoint, ErrNotMounted)
	}
}

// Unmount asks the kernel to unmount; Serve returns then.
//
//   - Concurrency: blocks while the kernel writes back dirty pages and the
//     last requests are answered, so never call it from Handle.
//   - Errors: ErrMountpointBusy while files are open; ErrNotMounted.
func (s *Server) Unmount() error { return s.unmount(0) }

// Detach takes the mount out of the tree at once and lets it end when the last
// file is closed (umount -l). Errors: ErrNotMounted.
func (s *Server) Detach() error { return s.unmount(unix.MNT_DETACH) }

func (s *Server) unmount(flags int) error {
	if err := s.umount(flags); err != nil {
		return fmt.Errorf("fs: unmount %s: %w", s.o.Mountpoint, err)
	}
	return nil
}

func (s *Server) umount(flags int) error {
	if !s.direct {
		arg := "-u"
		if flags&unix.MNT_DETACH != 0 {
			arg = "-uz"
		}
		out, err := exec.Command("fusermount3", arg, "--", s.o.Mountpoint).CombinedOutput()
		if err != nil {
			if bytes.Contains(out, []byte("busy")) {
				return ErrMountpointBusy
			}
			return fmt.Errorf("%s: %w", bytes.TrimSpace(out), err)
		}
		return nil
	}
	switch err := unix.Unmount(s.o.Mountpoint, flags|unix.UMOUNT_NOFOLLOW); err {
	case nil:
		return nil
	case unix.EBUSY:
		return ErrMountpointBusy
	case unix.EINVAL, unix.ENOENT:
		return ErrNotMounted
	default:
		return err
	}
}

// Abort cuts the connection: every request, also those under way, fails with
// ECONNABORTED or ENOTCONN, and Serve returns. The dead mount stays in the
// tree until it is unmounted.
func (s *Server) Abort() error {
	if _, minor, ok := strings.Cut(s.dev, ":"); ok {
		if err := os.WriteFile("/sys/fs/fuse/connections/"+minor+"/abort", []byte("1"), 0); err == nil {
			return nil
		}
	}
	// Without fusectl: a forced unmount aborts first, and may then be busy.
	if err := s.umount(unix.MNT_FORCE); err != nil && !errors.Is(err, ErrMountpointBusy) {
		return fmt.Errorf("fs: abort %s: %w", s.o.Mountpoint, err)
	}
	return nil
}

// Remount gives the file system that is mounted at o.Mountpoint new mount(2)
// flags; everything else of o is settled at mounting and ignored here. It is
// for another process than the daemon, whose own mount it may be.
func Remount(o MountOptions) error {
	fl, err := o.flags()
	if err == nil {
		err = unix.Mount("", o.Mountpoint, "", fl|unix.MS_REMOUNT, "")
	}
	switch {
	case err == unix.EINVAL || err == unix.ENOENT:
		err = ErrNotMounted
	case err == unix.EBUSY:
		err = ErrMountpointBusy // a file is open for writing
	case err == unix.EPERM:
		err = fmt.Errorf("%w: %w", ErrNotPermitted, err)
	}
	if err != nil {
		return fmt.Errorf("fs: remount %s: %w", o.Mountpoint, err)
	}
	return nil
}

// TransportName is "io_uring" or "devfuse".
func (s *Server) TransportName() string { return s.transport.Name() }

// Negotiated is what INIT settled.
func (s *Server) Negotiated() Negotiated { return s.negotiated }

// Mountpoint is the absolute path of the mount, free of symlinks.
func (s *Server) Mountpoint() string { return s.o.Mountpoint }
