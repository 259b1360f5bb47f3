package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// contender is a file system under measurement. Its files live in a directory
// of the image.
type contender interface {
	name() string
	reset() error // starts empty, as before the first mount; the image is mounted
	mount() error
	unmount() error
	programFile() string // what mount runs, "": nothing
	dir() string         // where clients see it
	pid() int            // of its daemon while mounted, 0: it has none
	sync() error         // everything done so far is durable
	// requests counts the FUSE requests so far by operation; nil: unknown.
	requests() (map[string]int64, error)
}

// run runs a program and makes its stderr part of the error.
func run(dir, name string, args ...string) error {
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if err := cmd.Run(); err != nil {
		said := strings.TrimSpace(stderr.String())
		return fmt.Errorf("%s: %w: %s", name, err, said[:min(len(said), 500)])
	}
	return nil
}

func emptyDirs(dirs ...string) error {
	for _, dir := range dirs {
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
	}
	return nil
}

// unmountPatiently bears with a program that is only just ending.
func unmountPatiently(mnt string) error {
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		err := unix.Unmount(mnt, 0)
		if !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
			return err
		}
	}
}

// native is ext4 itself.
type native struct {
	image *image
	label string
}

func (c *native) name() string                        { return c.label }
func (c *native) dir() string                         { return filepath.Join(c.image.mnt, c.label) }
func (c *native) reset() error                        { return emptyDirs(c.dir()) }
func (c *native) mount() error                        { return nil }
func (c *native) unmount() error                      { return nil }
func (c *native) pid() int                            { return 0 }
func (c *native) programFile() string                 { return "" }
func (c *native) sync() error                         { return c.image.sync() }
func (c *native) requests() (map[string]int64, error) { return nil, nil }

// prismfs is a store on the image.
type prismfs struct {
	image   *image
	label   string
	program string
	options string // of mount

	mounted   bool
	daemon    int    // its pid, once asked for
	transport string // as the daemon says
}

func (c *prismfs) name() string        { return c.label }
func (c *prismfs) programFile() string { return c.program }
func (c *prismfs) store() string       { return filepath.Join(c.image.mnt, c.label) }
func (c *prismfs) dir() string         { return filepath.Join(c.image.work, c.label) }
func (c *prismfs) sync() error         { return run("", c.program, "sync", c.dir()) }

func (c *prismfs) reset() error {
	if err := emptyDirs(c.dir(), c.store()); err != nil {
		return err
	}
	return run("", c.program, "mkfs", c.store())
}

func (c *prismfs) mount() error {
	args := []string{"mount", c.store(), c.dir()}
	if c.options != "" {
		args = append(args, "-o", c.options)
	}
	if err := run("", c.program, args...); err != nil {
		return err
	}
	c.mounted = true
	return nil
}

// pid asks when it is first wanted: mounting is timed without it.
func (c *prismfs) pid() int {
	if c.daemon == 0 && c.mounted {
		var st struct {
			Pid       int    `json:"pid"`
			Transport string `json:"transport"`
		}
		if err := c.ask("status", &st); err == nil {
			c.daemon, c.transport = st.Pid, st.Transport
		}
	}
	return c.daemon
}

func (c *prismfs) unmount() error {
	c.daemon, c.mounted = 0, false
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		err := run("", c.program, "umount", c.dir())
		const busy = 5
		var ee *exec.ExitError
		if !errors.As(err, &ee) || ee.ExitCode() != busy || time.Now().After(deadline) {
			return err
		}
	}
}

func (c *prismfs) ask(command string, into any) error {
	out, err := exec.Command(c.program, command, "--json", c.dir()).Output()
	if err != nil {
		return fmt.Errorf("prismfs %s: %w", command, err)
	}
	return json.Unmarshal(out, into)
}

// prismfsStats is what the tables use of `prismfs stats --json`.
type prismfsStats struct {
	Requests map[string]int64 `json:"requests"`
	Store    struct {
		Lanes []laneStats `json:"lanes"`
	} `json:"store"`
}

func (c *prismfs) requests() (map[string]int64, error) {
	var st prismfsStats
	if err := c.ask("stats", &st); err != nil {
		return nil, err
	}
	return st.Requests, nil
}

// loopback is go-fuse's example over a directory of the image.
type loopback struct {
	image   *image
	label   string
	program string
	cmd     *exec.Cmd
}

func (c *loopback) name() string        { return c.label }
func (c *loopback) programFile() string { return c.program }
func (c *loopback) backing() string     { return filepath.Join(c.image.mnt, c.label) }
func (c *loopback) dir() string         { return filepath.Join(c.image.work, c.label) }
func (c *loopback) sync() error         { return c.image.sync() }

func (c *loopback) pid() int {
	if c.cmd == nil {
		return 0
	}
	return c.cmd.Process.Pid
}

func (c *loopback) requests() (map[string]int64, error) { return nil, nil }

func (c *loopback) reset() error { return emptyDirs(c.dir(), c.backing()) }

func (c *loopback) mount() error {
	c.cmd = exec.Command(c.program, "-q", "-allow-other", "-directmount", c.dir(), c.backing())
	c.cmd.Stderr = os.Stderr
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // spared by Ctrl-C, which is ours to handle
	if err := c.cmd.Start(); err != nil {
		return err
	}
	for deadline := time.Now().Add(10 * time.Second); !isFuse(c.dir()); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			return errors.New("loopback does not mount")
		}
	}
	return nil
}

func isFuse(dir string) bool {
	const magic = 0x65735546 // FUSE_SUPER_MAGIC
	var st unix.Statfs_t
	return unix.Statfs(dir, &st) == nil && st.Type == magic
}

func (c *loopback) unmount() error {
	if err := unmountPatiently(c.dir()); err != nil {
		return err
	}
	err := c.cmd.Wait()
	c.cmd = nil
	return err
}
