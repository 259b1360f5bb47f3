package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const workPrefix = "prismfs-bench-"

// image is the ext4 on which everything is measured.
//
//	work/image  file, written through once: the disk below then has no blocks
//	            to allocate while we measure
//	/dev/loopN  direct I/O, so that nothing is cached twice
//	work/ext4   where it is mounted
type image struct {
	work   string
	device string // /dev/loopN
	mnt    string
	up     bool
}

func newImage(base string, size int64) (*image, error) {
	removeLeftovers(base)
	work, err := os.MkdirTemp(base, fmt.Sprintf("%s%d-", workPrefix, os.Getpid()))
	if err != nil {
		return nil, err
	}
	m := &image{work: work, mnt: filepath.Join(work, "ext4")}
	if err := m.create(size); err != nil {
		m.remove()
		return nil, err
	}
	return m, nil
}

func (m *image) create(size int64) error {
	file := filepath.Join(m.work, "image")
	var st unix.Statfs_t
	if err := unix.Statfs(m.work, &st); err != nil {
		return err
	}
	if free := int64(st.Bavail) * st.Bsize; free < size+4<<30 {
		return fmt.Errorf("%s has %d GiB free: an image of %d GiB needs more (-size, -dir)", m.work, free>>30, size>>30)
	}
	if err := run("", "dd", "if=/dev/zero", "of="+file, "bs=4M", "oflag=direct", "status=none", fmt.Sprintf("count=%d", size>>22)); err != nil {
		return err
	}
	out, err := exec.Command("losetup", "--find", "--show", "--direct-io=on", file).Output()
	if err != nil {
		return fmt.Errorf("losetup: %w", err)
	}
	m.device = strings.TrimSpace(string(out))
	// Initialized now, so that no thread of ext4's does it while we measure;
	// without discard, which would punch holes into the image.
	if err := run("", "mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard", m.device); err != nil {
		return err
	}
	if err := os.Mkdir(m.mnt, 0o755); err != nil {
		return err
	}
	return m.mount()
}

func (m *image) deviceName() string { return filepath.Base(m.device) }

func (m *image) mount() error {
	if err := unix.Mount(m.device, m.mnt, "ext4", 0, ""); err != nil {
		return fmt.Errorf("mount %s: %w", m.device, err)
	}
	m.up = true
	return nil
}

func (m *image) unmount() error {
	if err := unix.Unmount(m.mnt, 0); err != nil {
		return fmt.Errorf("unmount %s: %w", m.mnt, err)
	}
	m.up = false
	return nil
}

func (m *image) sync() error {
	fd, err := unix.Open(m.mnt, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Syncfs(fd)
}

// remove gives everything back, whatever state it is in.
func (m *image) remove() {
	removeWork(m.work)
}

// removeLeftovers clears away what a killed run left: daemons, in whose mount
// namespace the mounts go on, the loop device and the image.
func removeLeftovers(base string) {
	old, _ := filepath.Glob(filepath.Join(base, workPrefix+"*"))
	for _, dir := range old {
		pid, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(dir), workPrefix), "-")
		if n, err := strconv.Atoi(pid); err == nil && unix.Kill(n, 0) == unix.ESRCH {
			killDaemons(dir)
			removeWork(dir)
		}
	}
}

// killDaemons ends the processes whose command line names a file below dir.
func killDaemons(dir string) {
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range lines {
		words, err := os.ReadFile(file)
		if err != nil || !strings.Contains(string(words), dir+"/") {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file))); err == nil && unix.Kill(pid, unix.SIGKILL) == nil {
			for deadline := time.Now().Add(5 * time.Second); unix.Kill(pid, 0) == nil && time.Now().Before(deadline); {
				time.Sleep(5 * time.Millisecond)
			}
		}
	}
}

func removeWork(dir string) {
	b, _ := os.ReadFile("/proc/self/mountinfo")
	lines := strings.Split(string(b), "\n")
	for i := len(lines) - 1; i >= 0; i-- {
		if f := strings.Fields(lines[i]); len(f) > 4 && strings.HasPrefix(f[4], dir+"/") {
			unix.Unmount(f[4], unix.MNT_DETACH)
		}
	}
	// A device that a daemon still uses goes when that ends.
	if out, err := exec.Command("losetup", "--noheadings", "--output", "NAME", "--associated", filepath.Join(dir, "image")).Output(); err == nil {
		for _, device := range strings.Fields(string(out)) {
			exec.Command("losetup", "--detach", device).Run()
		}
	}
	os.RemoveAll(dir)
}
