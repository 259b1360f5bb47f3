package main

import (
	"encoding/json"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// readyVariable tells the second process the descriptor of the pipe on
	// which it reports. Its presence is what makes it the daemon.
	readyVariable = "PRISMFS_READY_FD"
	logFile       = "log"
	logKeep       = 4 << 20 // a longer log is moved to log.old at the next mount
	lockPatience  = 10 * time.Second
	lockPoll      = 20 * time.Millisecond
	stopGrace     = 5 * time.Second // for the users of a mount that must end
)

// readiness is what the daemon writes to the pipe, once.
type readiness struct {
	Error string   `json:"error,omitempty"`
	Code  exitCode `json:"code,omitempty"`
}

// spawnDaemon starts this program again, detached from the terminal and the
// session, and returns when the daemon serves or has failed. The daemon gets
// the same command line.
func spawnDaemon(words []string) error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	cmd := exec.Command("/proc/self/exe", append([]string{"mount"}, words...)...)
	cmd.Args[0] = "prismfs"
	cmd.Env = append(os.Environ(), readyVariable+"=3")
	cmd.ExtraFiles = []*os.File{w}
	// Until the log is open the daemon may die only of a fault in the Go
	// runtime; that should be seen.
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}

	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(interrupted)
	err = cmd.Start()
	w.Close()
	if err != nil {
		return failf(exitSystem, "starting the daemon: %v", plain(err))
	}
	go func() {
		if _, ok := <-interrupted; ok {
			cmd.Process.Signal(syscall.SIGTERM)
		}
	}()
	// The pipe ends when the daemon has reported or is gone, whichever is
	// first: every other copy of its writing end is closed.
	var report readiness
	report.Code = exitInternal
	b, _ := io.ReadAll(r)
	if len(b) == 0 || json.Unmarshal(b, &report) != nil {
		cmd.Wait()
		return failf(exitInternal, "the daemon ended before it was ready (%v): see its log", cmd.ProcessState)
	}
	if report.Error != "" {
		cmd.Wait()
		return &failure{report.Code, report.Error}
	}
	return cmd.Process.Release()
}

// readyPipe is the daemon's end of the pipe; nil in the foreground.
func readyPipe() (*os.File, error) {
	v, ok := os.LookupEnv(readyVariable)
	if !ok {
		return nil, nil
	}
	os.Unsetenv(readyVariable)
	fd, err := strconv.Atoi(v)
	if err != nil || fd < 3 {
		return nil, usagef("%s is for prismfs's own use", readyVariable)
	}
	unix.CloseOnExec(fd)
	return os.NewFile(uintptr(fd), "ready"), nil
}

// reportReady says how starting went, to the first process if there is one.
// What it returns is nil or what is left to say on our own stderr.
func reportReady(pipe *os.File, err error) error {
	if pipe == nil {
		return err
	}
	var r readiness
	if err != nil {
		r.Error, r.Code = oneLine(err), codeOf(err)
	}
	if b, merr := json.Marshal(r); merr == nil {
		pipe.Write(b)
	}
	pipe.Close()
	if err != nil {
		return &failure{r.Code, ""}
	}
	return nil
}

// volume is the store as the daemon sees it.
type volume interface {
	ReadOnly() bool // opened so, or turned so by an error
	Sync() error
	Status() (any, error) // marshals to a JSON object
	Stats() (any, error)
	GC() error
	Compact() error
	Close() error
}

// mountServer is the FUSE server as the daemon sees it.
type mountServer interface {
	Serve() error       // returns when unmounted or aborted
	WaitMounted() error // returns when requests are answered
	Unmount() error     // fails while it is in use
	Detach() error      // ends when its users do
	Abort() error       // its users get errors
	TransportName() string
}

// daemonState is where a daemon is in its life, as `status` shows it.
//
//	starting -> running -> stopping -> (gone)
//	     `-> (gone)
type daemonState int32

const (
	stateStarting daemonState = iota
	stateRunning
	stateStopping
)

func (s daemonState) String() string {
	return [...]string{"starting", "running", "stopping"}[s]
}

// daemonStatus is the answer to "status".
type daemonStatus struct {
	State      string    `json:"state"`
	Store      string    `json:"store"`
	MountPoint string    `json:"mount_point"`
	ReadOnly   bool      `json:"read_only"`
	Pid        int       `json:"pid"`
	Version    string    `json:"version"`
	Started    time.Time `json:"started"`
	Transport  string    `json:"transport,omitempty"`
	Details    any       `json:"details,omitempty"`
}

// daemon is one mount of one store.
type daemon struct {
	store    string
	mnt      string
	settings mountSettings
	log      *log.Logger
	backend  backend
	// openFirst, if set, has another process open a file on the new mount.
	openFirst func(d *daemon)

	state   atomic.Int32 // daemonState
	started time.Time
	// volume and server are set before state becomes running and not changed.
	volume volume
	server mountServer
}

// runDaemon serves until the mount ends.
func runDaemon(d *daemon, pipe *os.File) error {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	signal.Ignore(syscall.SIGHUP)
	defer signal.Stop(signals)
	d.started = time.Now()
	// Not the "exe" of the link that it was started from.
	os.WriteFile("/proc/self/comm", []byte("prismfs"), 0)

	v, err := d.openVolume(signals)
	if err != nil {
		return reportReady(pipe, err)
	}
	d.volume = v
	control, err := listenControl(d.store, d.control)
	if err != nil {
		v.Close()
		return reportReady(pipe, failf(exitSystem, "%s: control socket: %v", d.store, plain(err)))
	}
	// From here on every way out goes through shutdown: the waiters on the
	// socket and the next mount depend on it.
	err = d.serve(pipe, signals)
	d.state.Store(int32(stateStopping))
	control.unlink(d.store)
	cerr := v.Close()
	if cerr != nil {
		cerr = failf(exitSystem, "%s: the last commit failed: %v: run `prismfs fsck %s`", d.store, cerr, d.store)
	}
	if cerr != nil {
		d.log.Print(oneLine(cerr))
	} else {
		d.log.Printf("%s: closed", d.store)
	}
	control.finish(cerr)
	if err == nil {
		err = cerr
	}
	return err
}

// openVolume locks and opens the store.
func (d *daemon) openVolume(signals <-chan os.Signal) (v volume, err error) {
	err = whenUnlocked(d.backend, d.store, signals, func() error {
		v, err = d.backend.open(d.store, &d.settings, d.log)
		return err
	})
	return v, err
}

// whenUnlocked tries until the store is not locked. A holder that is about to
// end is waited for; one that lives is an error at once.
func whenUnlocked(b backend, store string, interrupt <-chan os.Signal, try func() error) error {
	deadline := time.Now().Add(lockPatience)
	for {
		err := try()
		if err == nil || !b.isLocked(err) {
			return err
		}
		var st daemonStatus
		cerr := controlCall(store, "status", &st, time.Second)
		if cerr == nil && st.State != stateStopping.String() && !unmounted(&st) {
			return failf(exitBusy, "%s is mounted at %s by process %d: `prismfs umount %s` first", store, st.MountPoint, st.Pid, st.MountPoint)
		}
		if time.Now().After(deadline) {
			return failf(exitBusy, "%s is locked by another process: wait for it to end (`fuser %s` shows it)", store, filepath.Join(store, "lock"))
		}
		select {
		case <-interrupt:
			return failf(exitInterrupt, "interrupted")
		case <-time.After(lockPoll):
		}
	}
}

// unmounted says whether a daemon that calls itself running has lost its mount
// and only not noticed yet: umount(2) does not wait for the daemon. (A mount in
// another namespace looks the same; its lock then runs into lockPatience.)
func unmounted(st *daemonStatus) bool {
	mounts, err := readMounts()
	return err == nil && st.State == stateRunning.String() && len(mountsOfStore(mounts, st.Store)) == 0
}

// serve mounts and stays until the mount has ended.
func (d *daemon) serve(pipe *os.File, signals <-chan os.Signal) error {
	srv, err := d.backend.mount(d.volume, d.store, d.mnt, &d.settings, d.log)
	if err != nil {
		return reportReady(pipe, failf(codeOf(err), "mounting at %s: %v", d.mnt, err))
	}
	d.server = srv
	served := make(chan struct{})
	var serveErr error // read after served is closed
	go func() {
		defer close(served)
		if serveErr = srv.Serve(); serveErr != nil {
			// Cut off (umount -f, say) or broken: what is left of the mount
			// serves nobody.
			d.log.Printf("%s: %v", d.mnt, serveErr)
			srv.Detach()
		}
	}()
	if err := srv.WaitMounted(); err != nil {
		if <-served; serveErr != nil {
			err = serveErr
		}
		return reportReady(pipe, failf(exitSystem, "mounting at %s: %v", d.mnt, err))
	}
	if d.openFirst != nil {
		d.openFirst(d)
	}
	d.state.Store(int32(stateRunning))
	d.log.Printf("%s: mounted at %s (pid %d, %s, %s)", d.store, d.mnt, os.Getpid(), version, srv.TransportName())
	reportReady(pipe, nil)

	select {
	case <-served:
		d.log.Printf("%s: unmounted", d.mnt)
		return nil
	case s := <-signals:
		d.log.Printf("%s: %v: unmounting", d.mnt, s)
	}
	d.state.Store(int32(stateStopping))
	return d.stop(served, signals)
}

// stop ends the mount, whoever uses it. A mount in use is detached, and its
// users, who may keep it alive for long, are cut off after a grace: whatever
// they were told is done is in the store's hands already. What the kernel
// still holds back for a writeback mount is pushed out first, by another
// process (C1).
func (d *daemon) stop(served <-chan struct{}, signals <-chan os.Signal) error {
	if err := d.server.Unmount(); err != nil {
		if d.settings.writeback {
			flush := exec.Command("sync", "-f", d.mnt)
			if err := flush.Start(); err == nil {
				timer := time.AfterFunc(stopGrace, func() { flush.Process.Kill() })
				flush.Wait()
				timer.Stop()
			}
		}
		if derr := d.server.Detach(); derr != nil {
			d.log.Printf("%s: %v; %v", d.mnt, err, derr)
		}
	}
	select {
	case <-served:
		return nil
	case <-signals:
	case <-time.After(stopGrace):
	}
	d.log.Printf("%s: still in use: its users get errors from now on", d.mnt)
	if err := d.server.Abort(); err != nil {
		return failf(exitSystem, "%s: %v", d.mnt, err)
	}
	<-served
	return nil
}

// control answers one request on the socket.
func (d *daemon) control(op string) (any, error) {
	if op == "status" {
		return d.status()
	}
	switch op {
	case "sync", "stats", "gc", "compact", profileStart, profileStop:
	default:
		return nil, usagef("unknown request %q", op)
	}
	if s := daemonState(d.state.Load()); s != stateRunning {
		return nil, failf(exitNotMounted, "the daemon is %v: try again", s)
	}
	switch op {
	case "sync":
		return nil, d.volume.Sync()
	case "stats":
		return d.volume.Stats()
	case "gc":
		return nil, d.volume.GC()
	case profileStart:
		return nil, startProfile(d.store)
	case profileStop:
		return nil, stopProfile()
	}
	return nil, d.volume.Compact()
}

func (d *daemon) status() (any, error) {
	st := daemonStatus{
		State:      daemonState(d.state.Load()).String(),
		Store:      d.store,
		MountPoint: d.mnt,
		Pid:        os.Getpid(),
		Version:    version,
		Started:    d.started.UTC().Truncate(time.Second),
	}
	if st.State != stateRunning.String() {
		return st, nil
	}
	st.ReadOnly = d.volume.ReadOnly()
	st.Transport = d.server.TransportName()
	details, err := d.volume.Status()
	if err != nil {
		return nil, err
	}
	st.Details = details
	return st, nil
}

// openLog is where the daemon writes. In the background stderr becomes the log
// as well, so that a crash leaves its trace there.
func openLog(store string, s *mountSettings, foreground bool) (*log.Logger, error) {
	if foreground && s.log == "" {
		return log.New(os.Stderr, "", log.LstdFlags), nil
	}
	path := s.log
	if path == "" {
		if readOnlyDirectory(store) {
			path = os.DevNull
		} else {
			path = filepath.Join(store, logFile)
			if fi, err := os.Stat(path); err == nil && fi.Size() > logKeep {
				os.Rename(path, path+".old")
			}
		}
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, failf(exitSystem, "log file %s: %v: choose another with -o log=FILE", path, plain(err))
	}
	if !foreground {
		if err := unix.Dup2(int(f.Fd()), 2); err != nil {
			return nil, fmt.Errorf("log file %s: %w", path, err)
		}
	}
	return log.New(f, "", log.LstdFlags), nil
}
