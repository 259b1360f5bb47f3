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
		err = daemon.call("wait", nil, controlPatience)
	}
	process := -1
	if err != nil {
		daemon = nil
	} else if process, err = daemon.process(); err == nil {
		defer unix.Close(process)
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
	err = awaitEnd(daemon, t)
	if err == nil && process >= 0 {
		awaitExit(process, lockPatience)
	}
	return err
}

// awaitEnd waits until the daemon has closed the store. It takes as long as
// the disk does, so there is no limit to that. But a mount can outlive its
// unmounting: in another place of this mount namespace, or in another one, which
// a container got as a copy. Then the daemon goes on and is not waited for.
func awaitEnd(c *controlClient, t *target) error {
	start := time.Now()
	for {
		err := c.answer(nil, time.Second)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, io.EOF):
			return failf(exitSystem, "%s: the daemon ended without its last word: run `prismfs fsck %s`", t.store, t.store)
		case !isTimeout(err):
			return failf(codeOf(err), "%s: %v", t.mount.mountPoint, err)
		}
		if mounts, err := readMounts(); err == nil && len(mountsOfStore(mounts, t.store)) > 0 {
			return nil
		}
		var st daemonStatus
		if time.Since(start) > lockPatience && controlCall(t.store, "status", &st, time.Second) == nil && st.State == stateRunning.String() {
			return failf(exitBusy, "%s is unmounted here, but another mount namespace (a container?) still has it: %s stays in use until that ends", t.mount.mountPoint, t.store)
		}
	}
}

func isTimeout(err error) bool {
	var t interface{ Timeout() bool }
	return errors.As(err, &t) && t.Timeout()
}

// process is a descriptor of the process at the other end, which polls
// readable when it has ended.
func (c *controlClient) process() (fd int, err error) {
	raw, err := c.conn.SyscallConn()
	if err != nil {
		return -1, err
	}
	cerr := raw.Control(func(sock uintptr) {
		var cred *unix.Ucred
		if cred, err = unix.GetsockoptUcred(int(sock), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			fd, err = unix.PidfdOpen(int(cred.Pid), 0)
		}
	})
	if cerr != nil {
		err = cerr
	}
	return fd, err
}

// awaitExit waits for the end of a process that has nothing left to do: until
// then it keeps its log file, and with it the disk below the store, busy.
func awaitExit(process int, limit time.Duration) {
	deadline := time.Now().Add(limit)
	for {
		left := time.Until(deadline)
		if left <= 0 {
			return
		}
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(process), Events: unix.POLLIN}}, int(left.Milliseconds())+1)
		if n > 0 || err != nil && !errors.Is(err, unix.EINTR) {
			return
		}
	}
}
