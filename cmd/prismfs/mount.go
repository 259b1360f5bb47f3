package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"prismfs/fs"

	"golang.org/x/sys/unix"
)

var mountCommand = &command{
	name: "mount", args: "STORE MNT [-f] [-o OPTIONS]", summary: "make the store usable at the directory MNT",
	min: 2, max: 2,
	details: `Mounts STORE at the directory MNT and returns when it can be used. A daemon
stays in the background until MNT is unmounted; it logs to STORE/log.
With -f it stays in the foreground, logs to stderr, and Ctrl-C unmounts.`,
	flags: []flagDef{
		{short: 'f', long: "foreground", help: "stay in the foreground and log to stderr"},
		{short: 'o', long: "options", value: "OPTIONS", help: "mount options, see below"},
		{short: 't', value: "TYPE"}, {short: 'N', value: "NAMESPACE"},
		{short: 'n'}, {short: 's', help: "ignore unknown mount options"},
		{short: 'v', long: "verbose", help: "say what is done"},
		{short: 'r', long: "read-only", help: "same as -o ro"},
		{short: 'w', long: "rw"},
		{long: "io", value: "MODE", help: "same as -o io=MODE"},
	},
	run: runMount,
}

func runMount(in *invocation) error {
	pipe, err := readyPipe()
	if err != nil {
		return err
	}
	settings := defaultMountSettings(os.Getuid())
	if in.helper == helperMount && os.Getuid() == 0 {
		// mount(8) knows suid and dev as what holds unless told otherwise, and
		// keeps them to itself.
		in.values["options"] = append([]string{"suid,dev"}, in.values["options"]...)
	}
	if mode := in.last("io"); mode != "" {
		in.values["options"] = append(in.values["options"], "io="+mode)
	}
	for _, o := range in.values["options"] {
		if err := settings.parse(o, in.has("s")); err != nil {
			return reportReady(pipe, err)
		}
	}
	if in.has("read-only") {
		settings.readOnly = true
	}
	if settings.remount {
		return remount(in, &settings)
	}
	store, mnt, err := checkMountPaths(in.positional[0], in.positional[1], &settings)
	if err != nil {
		return reportReady(pipe, err)
	}
	// To mount(8) -f means "do everything but the mount itself".
	foreground := in.has("foreground")
	if in.helper == helperMount && foreground {
		return nil
	}
	if pipe == nil && !foreground {
		if err := spawnDaemon(daemonWords(store, mnt, in)); err != nil {
			return err
		}
		if err := probeMount(mnt); err != nil {
			return failf(exitSystem, "%s is mounted but does not answer: %v: see %s", mnt, err, logName(store, &settings))
		}
		if in.has("verbose") {
			fmt.Fprintf(in.stdout, "%s is mounted at %s; log in %s\n", store, mnt, logName(store, &settings))
		}
		return nil
	}
	logger, err := openLog(store, &settings, foreground)
	if err != nil {
		return reportReady(pipe, err)
	}
	// The daemon keeps no directory busy but the two it is about.
	if err := os.Chdir("/"); err != nil {
		return reportReady(pipe, err)
	}
	d := &daemon{store: store, mnt: mnt, settings: settings, log: logger, backend: newBackend(), openFirst: openFirst}
	return runDaemon(d, pipe)
}

// daemonWords is the daemon's command line: the same settings, with paths that
// hold in any working directory. ps(1) shows it.
func daemonWords(store, mnt string, in *invocation) []string {
	words := []string{store, mnt}
	for _, o := range in.values["options"] {
		words = append(words, "-o", o)
	}
	if in.has("read-only") {
		words = append(words, "-r")
	}
	if in.has("s") {
		words = append(words, "-s")
	}
	return words
}

func logName(store string, s *mountSettings) string {
	if s.log != "" {
		return s.log
	}
	return filepath.Join(store, logFile)
}

// checkMountPaths makes both paths real and refuses what cannot work, before
// anything is started.
func checkMountPaths(store, mnt string, s *mountSettings) (realStore, realMnt string, err error) {
	realStore, err = realPath(store)
	if errors.Is(err, os.ErrNotExist) {
		return "", "", failf(exitNotStore, "store %s does not exist: make it with `prismfs mkfs %s`", store, store)
	}
	if err != nil {
		return "", "", failf(exitSystem, "store %s: %v", store, plain(err))
	}
	if !isDirectory(realStore) {
		return "", "", failf(exitNotStore, "store %s is not a directory: a store is a directory made by `prismfs mkfs`", store)
	}
	realMnt, err = realPath(mnt)
	if errors.Is(err, os.ErrNotExist) {
		return "", "", failf(exitUsage, "mount point %s does not exist: make it with `mkdir %s`", mnt, mnt)
	}
	if err != nil {
		return "", "", failf(exitSystem, "mount point %s: %v", mnt, plain(err))
	}
	switch {
	case inside(realMnt, realStore):
		return "", "", failf(exitUsage, "mount point %s is inside the store: choose a directory outside of %s", mnt, realStore)
	case inside(realStore, realMnt):
		return "", "", failf(exitUsage, "mount point %s would hide the store: choose a directory that does not contain %s", mnt, realStore)
	}
	mounts, err := readMounts()
	if err != nil {
		return "", "", err
	}
	top := topMountAt(mounts, realMnt)
	switch {
	case top == nil:
	case top.isPrismfs() && top.source == realStore && !daemonAnswers(realStore):
		// The daemon of an earlier mount was killed; what is left serves
		// nobody, though the kernel may still show what it has cached.
		if err := detach(realMnt); err != nil {
			return "", "", failf(exitSystem, "%s: a dead mount is in the way: %v: `prismfs umount %s`", mnt, err, mnt)
		}
	case top.isPrismfs() && top.source == realStore:
		return "", "", failf(exitBusy, "%s is already mounted at %s", realStore, mnt)
	default:
		return "", "", failf(exitBusy, "mount point %s is in use (%s of type %s): unmount that or choose another directory", mnt, top.source, top.fsType)
	}
	if !isDirectory(realMnt) {
		return "", "", failf(exitUsage, "mount point %s is not a directory: choose a directory", mnt)
	}
	return realStore, realMnt, nil
}

// daemonAnswers says whether a daemon serves the store, however busy. Asking is
// needed: the socket of one that was just killed still takes connections for a
// moment. One that does not answer in time lives.
func daemonAnswers(store string) bool {
	var st daemonStatus
	return !errors.Is(controlCall(store, "status", &st, controlPatience), errNoDaemon)
}

// probeMount reads the root directory through the kernel (C2). It runs in the
// process that the user started, never in the daemon. Should the daemon hang,
// the goroutine hangs with it, and this process ends all the same.
func probeMount(mnt string) error {
	result := make(chan error, 1)
	go func() {
		var st unix.Statfs_t
		if err := unix.Statfs(mnt, &st); err != nil {
			result <- err
			return
		}
		d, err := os.Open(mnt)
		if err != nil {
			// Another user's mount answers by refusing.
			if errors.Is(err, unix.EACCES) {
				err = nil
			}
			result <- err
			return
		}
		d.Readdirnames(1)
		result <- d.Close()
	}()
	select {
	case err := <-result:
		return err
	case <-time.After(30 * time.Second):
		return errors.New("no answer for 30 seconds")
	}
}

// detach removes a mount at once, whoever still uses it.
func detach(mnt string) error {
	err := unix.Unmount(mnt, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	if errors.Is(err, unix.EPERM) {
		return fusermountUnmount(mnt, true)
	}
	return err
}

// fusermountUnmount is how a user who is not root unmounts.
func fusermountUnmount(mnt string, lazy bool) error {
	bin, err := fs.FindFusermount()
	if err != nil {
		return errors.New("only root can unmount here: install fusermount3 (package fuse3)")
	}
	args := []string{"-u", "-q"}
	if lazy {
		args = append(args, "-z")
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := exec.CommandContext(ctx, bin, append(args, "--", mnt)...).Run(); err != nil {
		return fmt.Errorf("fusermount3: %w", unix.EBUSY)
	}
	return nil
}
