package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The control socket: STORE/control.sock, mode 0600, one JSON object a line
// each way. A request is {"op":"status"}; the answer {"ok":true,"data":...} or
// {"ok":false,"error":"...","code":2}. "wait" is answered once, when the store
// is closed, just before the daemon exits.

const (
	controlSocket = "control.sock"
	runDirectory  = "/run/prismfs" // for stores on a read-only file system
)

type controlRequest struct {
	Op string `json:"op"`
}

type controlReply struct {
	OK    bool            `json:"ok"`
	Data  json.RawMessage `json:"data,omitempty"`
	Error string          `json:"error,omitempty"`
	Code  exitCode        `json:"code,omitempty"`
}

// socketAddress names the socket without regard to how long the path of the
// store is (sun_path holds 108 bytes): through a descriptor of its directory.
// The caller closes the directory when it has used the name.
func socketAddress(store string) (name string, dir *os.File, err error) {
	where, file := store, controlSocket
	if readOnlyDirectory(store) {
		var st unix.Stat_t
		if err := unix.Stat(store, &st); err != nil {
			return "", nil, err
		}
		where, file = runDirectory, fmt.Sprintf("%x-%x.sock", st.Dev, st.Ino)
	}
	dir, err = os.Open(where)
	if err != nil {
		return "", nil, err
	}
	return fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), file), dir, nil
}

// controlServer answers on the control socket of one store.
type controlServer struct {
	listener *net.UnixListener
	handle   func(op string) (any, error)

	mu      sync.Mutex
	conns   map[net.Conn]bool
	waiters map[net.Conn]bool // connections that asked "wait"
	closed  bool
	done    sync.WaitGroup
}

// listenControl replaces a socket that a killed daemon left behind: the caller
// holds the store's lock, so nobody else listens there.
func listenControl(store string, handle func(op string) (any, error)) (*controlServer, error) {
	if readOnlyDirectory(store) {
		if err := os.MkdirAll(runDirectory, 0o700); err != nil {
			return nil, err
		}
	}
	name, dir, err := socketAddress(store)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	// Nothing else of this process creates files yet, so the process-wide
	// umask is ours to change.
	old := unix.Umask(0o177)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: name, Net: "unix"})
	unix.Umask(old)
	if err != nil {
		return nil, err
	}
	// The name is only good while dir is open; close() removes the file itself.
	l.SetUnlinkOnClose(false)
	s := &controlServer{listener: l, handle: handle, conns: map[net.Conn]bool{}, waiters: map[net.Conn]bool{}}
	s.done.Add(1)
	go s.accept()
	return s, nil
}

func (s *controlServer) accept() {
	defer s.done.Done()
	for {
		c, err := s.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			// Out of descriptors, most likely: they come back.
			time.Sleep(100 * time.Millisecond)
			continue
		}
		s.mu.Lock()
		if s.closed {
			s.mu.Unlock()
			c.Close()
			return
		}
		s.conns[c] = true
		s.done.Add(1)
		s.mu.Unlock()
		go s.serve(c)
	}
}

func (s *controlServer) serve(c net.Conn) {
	defer s.done.Done()
	defer func() {
		s.mu.Lock()
		delete(s.conns, c)
		delete(s.waiters, c)
		s.mu.Unlock()
		c.Close()
	}()
	lines := bufio.NewScanner(c)
	for lines.Scan() {
		var req controlRequest
		if err := json.Unmarshal(lines.Bytes(), &req); err != nil {
			writeReply(c, nil, usagef("not a request: %v", err))
			continue
		}
		if req.Op == "wait" {
			s.mu.Lock()
			s.waiters[c] = true
			s.mu.Unlock()
			if _, err := io.WriteString(c, "{\"ok\":true}\n"); err != nil {
				return
			}
			continue
		}
		data, err := s.handle(req.Op)
		if writeReply(c, data, err) != nil {
			return
		}
	}
}

func writeReply(w io.Writer, data any, err error) error {
	r := controlReply{OK: err == nil}
	if err != nil {
		r.Error, r.Code = oneLine(err), codeOf(err)
	} else if data != nil {
		b, merr := json.Marshal(data)
		if merr != nil {
			return writeReply(w, nil, merr)
		}
		r.Data = b
	}
	b, merr := json.Marshal(r)
	if merr != nil {
		return merr
	}
	_, werr := w.Write(append(b, '\n'))
	return werr
}

// unlink removes the socket's name. It must happen while the store's lock is
// still held: later the name may be a successor's.
func (s *controlServer) unlink(store string) {
	name, dir, err := socketAddress(store)
	if err != nil {
		return
	}
	os.Remove(name)
	dir.Close()
}

// finish tells the waiters how closing the store went and ends every
// connection.
func (s *controlServer) finish(result error) {
	s.mu.Lock()
	s.closed = true
	for c := range s.waiters {
		c.SetWriteDeadline(time.Now().Add(time.Second))
		writeReply(c, nil, result)
	}
	for c := range s.conns {
		c.Close()
	}
	s.mu.Unlock()
	s.listener.Close()
	s.done.Wait()
}

// controlClient is a connection to a daemon.
type controlClient struct {
	conn  *net.UnixConn
	lines *bufio.Reader
}

// errNoDaemon says that nobody listens on the store's socket.
var errNoDaemon = errors.New("no daemon answers")

func dialControl(store string) (*controlClient, error) {
	name, dir, err := socketAddress(store)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, errNoDaemon
		}
		return nil, err
	}
	defer dir.Close()
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: name, Net: "unix"})
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ECONNREFUSED):
		return nil, errNoDaemon
	case err != nil:
		return nil, err
	}
	return &controlClient{conn: c, lines: bufio.NewReaderSize(c, 64<<10)}, nil
}

func (c *controlClient) Close() { c.conn.Close() }

// call sends one request and decodes its answer into out (nil: no data
// wanted). Waiting is bounded by limit; 0 waits as long as it takes.
func (c *controlClient) call(op string, out any, limit time.Duration) error {
	b, err := json.Marshal(controlRequest{Op: op})
	if err != nil {
		return err
	}
	if _, err := c.conn.Write(append(b, '\n')); err != nil {
		return err
	}
	return c.answer(out, limit)
}

// answer reads one reply. io.EOF means that the daemon went away without one.
func (c *controlClient) answer(out any, limit time.Duration) error {
	var deadline time.Time
	if limit > 0 {
		deadline = time.Now().Add(limit)
	}
	if err := c.conn.SetReadDeadline(deadline); err != nil {
		return err
	}
	line, err := c.lines.ReadBytes('\n')
	if errors.Is(err, unix.ECONNRESET) {
		return io.EOF
	}
	if err != nil {
		return err
	}
	var r controlReply
	if err := json.Unmarshal(line, &r); err != nil {
		return fmt.Errorf("the daemon's answer is not understood: %w", err)
	}
	if !r.OK {
		return &failure{r.Code, r.Error}
	}
	if out == nil || len(r.Data) == 0 {
		return nil
	}
	return json.Unmarshal(r.Data, out)
}

// controlCall is one request on a connection of its own.
func controlCall(store, op string, out any, limit time.Duration) error {
	c, err := dialControl(store)
	if err != nil {
		return err
	}
	defer c.Close()
	err = c.call(op, out, limit)
	if errors.Is(err, io.EOF) || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) {
		return errNoDaemon // it ended meanwhile
	}
	return err
}

// plain is the reason inside err without Go's "open /path:" in front, as the
// path is in our message already.
func plain(err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	var le *os.LinkError
	if errors.As(err, &le) {
		return le.Err
	}
	return err
}

// inside says whether path is dir or lies below it; both are real paths.
func inside(path, dir string) bool {
	rel, err := filepath.Rel(dir, path)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, "../")
}
