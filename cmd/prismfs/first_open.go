package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"prismfs/fs"
)

// openFirst has another process open a file on the mount: it proves that the
// mount answers, and tells the kernel that opens need not be asked for.
func openFirst(d *daemon) {
	cmd := exec.Command("/proc/self/exe", openFirstCommand.name, d.mnt)
	if err := cmd.Start(); err != nil {
		d.log.Printf("%s: first open: %v", d.mnt, plain(err))
		return
	}
	timer := time.AfterFunc(openFirstPatience, func() { cmd.Process.Kill() })
	defer timer.Stop()
	if err := cmd.Wait(); err != nil {
		d.log.Printf("%s: first open: %v", d.mnt, err)
	}
}

const openFirstPatience = 10 * time.Second

var openFirstCommand = &command{
	name: "first-open", args: "MNT",
	min: 1, max: 1,
	details: "The daemon runs this on its new mount.",
	run: func(in *invocation) error {
		f, err := os.Open(filepath.Join(in.positional[0], fs.FirstOpenName))
		if errors.Is(err, os.ErrNotExist) {
			return nil // the mount answers opens, or has seen one
		}
		if err != nil {
			return err
		}
		return f.Close()
	},
}
