package main

import (
	"errors"
	"io"
	"time"

	"golang.org/x/sys/unix"
)

var umountCommand = &command{
	name: "umount", aliases: []string{"unmount", "stop"}, args: "MNT|STORE [-f] [-l]", summary: "end a mount; returns when everything is on disk",
	min: 1, max: 1,
	details: `Unmounts and waits until the daemon has made its last commit and is gone.
A mount that is in use is left alone, unless -l detaches it at once or -f aborts
what hangs. The mount of a daemon that was killed is removed.`,
	flags: []flagDef{
		{short: 'l', long: "lazy", help: "detach now, end when its users are done"},
		{short: 'f', long: "force", help: "abort what is in flight"},
		{short: 'n'}, {short: 'r'}, {short: 'v'}, {short: 't', value: "TYPE"}, {short: 'N', value: "NAMESPACE"},
	},
	run: runUmount,
}

func runUmount(in *invocation) error {
	name := in.positional[0]
	t, err := findTarget(name)
	if err != nil {
		return err
	}
	if t.mount == nil {
		return failf(exitNotMounted, "%s is not a prismfs mount: `prismfs status STORE` shows where a store is mounted", name)
	}
	// Ask to be told of the end before causing it. Without a daemon, or
	// without the right to ask it, only the mount itself is taken away.
	daemon, err := dialControl(t.store)
	if err == nil {
		defer daemon.Close()
		if daemon.call("wait", nil, controlPatience) != nil {
			daemon = nil
		}
	} else {
		daemon = nil
	}
	flags := unix.UMOUNT_NOFOLLOW
	if in.has("lazy") || daemon == nil {
		flags |= unix.MNT_DETACH
	}
	if in.has("force") {
		flags |= unix.MNT_FORCE
	}
	err = unix.Unmount(t.mount.mountPoint, flags)
	if errors.Is(err, unix.EPERM) {
		err = fusermountUnmount(t.mount.mountPoint, flags&unix.MNT_DETACH != 0)
	}
	switch {
	case errors.Is(err, unix.EBUSY):
		return failf(exitBusy, "%s is in use: close what uses it (`fuser -vm %s` lists it) or detach it with -l", t.mount.mountPoint, t.mount.mountPoint)
	case errors.Is(err, unix.EINVAL):
		return failf(exitNotMounted, "%s is not mounted any more", t.mount.mountPoint)
	case err != nil:
		return failf(exitSystem, "%s: %v", t.mount.mountPoint, err)
	}
	if daemon == nil || in.has("lazy") {
		return nil
	}
	return awaitEnd(daemon, t)
}

// awaitEnd waits until the daemon has closed the store. It takes as long as
// the disk does, so there is no limit; but a daemon that serves another mount
// of the namespace (a bind mount, a clone of the namespace) goes on and must
// not be waited for.
func awaitEnd(c *controlClient, t *target) error {
	for {
		err := c.answer(nil, time.Second)
		switch {
		case errors.Is(err, io.EOF):
			return failf(exitSystem, "%s: the daemon ended without its last word: run `prismfs fsck %s`", t.store, t.store)
		case isTimeout(err):
			mounts, merr := readMounts()
			if merr == nil && len(mountsOfStore(mounts, t.store)) > 0 {
				return nil
			}
		default:
			return err
		}
	}
}

func isTimeout(err error) bool {
	var t interface{ Timeout() bool }
	return errors.As(err, &t) && t.Timeout()
}
