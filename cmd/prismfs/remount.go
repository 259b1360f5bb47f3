package main

import (
	"strings"

	"golang.org/x/sys/unix"
)

// remount changes the flags that the kernel keeps of a live mount: `mount -o
// remount,ro MNT` ends here. The daemon's own options stay as they are.
//
//   - Source: mount(2), MS_REMOUNT: flags not named are kept by naming them
//     again.
func remount(in *invocation, s *mountSettings) error {
	mnt, err := realPath(in.positional[1])
	if err != nil {
		return failf(exitUsage, "mount point %s: %v", in.positional[1], plain(err))
	}
	mounts, err := readMounts()
	if err != nil {
		return err
	}
	m := topMountAt(mounts, mnt)
	if m == nil || !m.isPrismfs() {
		return failf(exitNotMounted, "%s is not a prismfs mount: mount it first", mnt)
	}
	var st daemonStatus
	if err := controlCall(m.source, "status", &st, controlPatience); err != nil {
		return failf(exitNotMounted, "%s: %v: `prismfs umount %s` and mount it again", mnt, err, mnt)
	}
	if st.ReadOnly && !s.readOnly {
		return failf(exitUsage, "%s was mounted read-only: umount and mount it again without ro", mnt)
	}
	if s.readOnly {
		// What is acknowledged becomes durable before the mount is at rest.
		if err := controlCall(m.source, "sync", nil, 0); err != nil {
			return failf(codeOf(err), "%s: %v", mnt, err)
		}
	}
	if err := unix.Mount(m.source, mnt, fsType, unix.MS_REMOUNT|remountFlags(m.options, s), ""); err != nil {
		return failf(exitSystem, "%s: %v", mnt, err)
	}
	return nil
}

// remountFlags starts from what is mounted now and applies what was asked:
// only ro and rw replace the current state, other words add to it.
func remountFlags(current string, s *mountSettings) uintptr {
	var flags uintptr
	for _, word := range strings.Split(current, ",") {
		switch word {
		case "nosuid":
			flags |= unix.MS_NOSUID
		case "nodev":
			flags |= unix.MS_NODEV
		case "noexec":
			flags |= unix.MS_NOEXEC
		case "noatime":
			flags |= unix.MS_NOATIME
		case "nodiratime":
			flags |= unix.MS_NODIRATIME
		case "relatime":
			flags |= unix.MS_RELATIME
		}
	}
	if s.readOnly {
		flags |= unix.MS_RDONLY
	}
	if s.sync {
		flags |= unix.MS_SYNCHRONOUS
	}
	if s.suid {
		flags &^= unix.MS_NOSUID
	}
	if s.dev {
		flags &^= unix.MS_NODEV
	}
	if !s.exec {
		flags |= unix.MS_NOEXEC
	}
	switch s.atime {
	case "noatime":
		flags = flags&^(unix.MS_RELATIME|unix.MS_STRICTATIME) | unix.MS_NOATIME
	case "relatime":
		flags = flags&^(unix.MS_NOATIME|unix.MS_STRICTATIME) | unix.MS_RELATIME
	case "strictatime":
		flags = flags&^(unix.MS_NOATIME|unix.MS_RELATIME) | unix.MS_STRICTATIME
	}
	if s.noDirAtime {
		flags |= unix.MS_NODIRATIME
	}
	return flags
}
