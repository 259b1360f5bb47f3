package fs_test

import (
	"encoding/binary"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"

	"prismfs/fs"
	"prismfs/lanes"
)

var le = binary.LittleEndian

// ramFS is the file system of the tests' daemons: one directory of files in
// memory. Some names make it answer in a special way:
//
//	later*       LOOKUP and READ are answered by another goroutine
//	meetN-*      a LOOKUP is held until N of them have come, then all get ENOENT
//	hold*        a LOOKUP is held until the daemon is told "release"
//	twice        is given back to the kernel twice over io_uring
//	disk         is a file of the backing disk, read with SubmitRead if possible
type ramFS struct {
	mu    sync.Mutex
	nodes map[uint64]*ramNode
	names map[string]uint64
	last  uint64
	met   []*fs.Request
	held  []*fs.Request

	backing *os.File
	onRing  int // READs served by SubmitRead
}

type ramNode struct {
	name string
	mode uint32
	data []byte
}

const rootNode = 1

func newRAMFS(backing string) (*ramFS, error) {
	f := &ramFS{nodes: map[uint64]*ramNode{rootNode: {mode: syscall.S_IFDIR | 0o755}}, names: map[string]uint64{}, last: rootNode}
	if backing != "" {
		var err error
		if f.backing, err = os.Open(backing); err != nil {
			return nil, err
		}
		st, err := f.backing.Stat()
		if err != nil {
			return nil, err
		}
		f.create("disk", syscall.S_IFREG|0o444).data = make([]byte, st.Size())
	}
	return f, nil
}

func (f *ramFS) create(name string, mode uint32) *ramNode {
	f.last++
	n := &ramNode{name: name, mode: mode}
	f.nodes[f.last], f.names[name] = n, f.last
	return n
}

// release answers all held requests.
func (f *ramFS) release() int {
	f.mu.Lock()
	held := f.held
	f.held = nil
	f.mu.Unlock()
	for _, r := range held {
		r.Reply(0, syscall.ENOENT)
	}
	return len(held)
}

func (f *ramFS) holding() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.held)
}

func (f *ramFS) putAttr(b []byte, id uint64, n *ramNode) {
	clear(b[:88])
	le.PutUint64(b, id)
	le.PutUint64(b[8:], uint64(len(n.data)))
	le.PutUint32(b[60:], n.mode)
	le.PutUint32(b[64:], 1)
	le.PutUint32(b[80:], 4096)
}

// putEntry writes a fuse_entry_out. Attributes are never cached, so that each
// stat is a GETATTR; names are, for an hour.
func (f *ramFS) putEntry(b []byte, id uint64, n *ramNode) int {
	clear(b[:128])
	le.PutUint64(b, id)
	le.PutUint64(b[16:], 3600)
	f.putAttr(b[40:], id, n)
	return 128
}

func (f *ramFS) Handle(r *fs.Request) {
	switch r.Opcode() {
	case fs.OpForget, fs.OpBatchForget, fs.OpInterrupt:
		r.NoReply()
		return
	case fs.OpLookup:
		name, _, _ := fs.CutName(r.Data)
		if f.special(r, string(name)) {
			return
		}
	case fs.OpRead:
		f.mu.Lock()
		n := f.nodes[r.Node()]
		f.mu.Unlock()
		if n != nil && strings.HasPrefix(n.name, "later") {
			go func() { r.Reply(f.do(r)) }()
			return
		}
		if n != nil && n.name == "disk" {
			f.readDisk(r)
			return
		}
	case fs.OpFsync:
		go func() { r.Reply(0, 0) }()
		return
	}
	r.Reply(f.do(r))
}

// special starts the names that aren't answered at once.
func (f *ramFS) special(r *fs.Request, name string) bool {
	var want int
	switch {
	case strings.HasPrefix(name, "later"):
		go func() { r.Reply(f.do(r)) }()
		return true
	case name == "twice":
		fs.CommitTwice(r)
		r.Reply(0, syscall.ENOENT)
		return true
	case strings.HasPrefix(name, "hold"):
		f.mu.Lock()
		f.held = append(f.held, r)
		f.mu.Unlock()
		return true
	case scan(name, "meet%d-", &want):
		f.mu.Lock()
		f.met = append(f.met, r)
		var all []*fs.Request
		if len(f.met) == want {
			all, f.met = f.met, nil
		}
		f.mu.Unlock()
		// Not from Handle: this very request is then answered while it is
		// still being handled, the others when they are parked.
		for _, r := range all {
			go r.Reply(0, syscall.ENOENT)
		}
		return true
	}
	return false
}

func scan(s, format string, v ...any) bool {
	n, err := fmt.Sscanf(s, format, v...)
	return err == nil && n == len(v)
}

func (f *ramFS) readDisk(r *fs.Request) {
	off, size := int64(le.Uint64(r.Op()[8:])), int(le.Uint32(r.Op()[16:]))
	r.Job.Arg = r
	r.Job.Run = func(j *lanes.Job) {
		r := j.Arg.(*fs.Request)
		if r.ReadErr != nil {
			r.Reply(0, r.ReadErr.(syscall.Errno))
			return
		}
		r.Reply(r.ReadN, 0)
	}
	if r.SubmitRead(int(f.backing.Fd()), off, r.Out[:size], &r.Job) {
		f.mu.Lock()
		f.onRing++
		f.mu.Unlock()
		return
	}
	n, err := syscall.Pread(int(f.backing.Fd()), r.Out[:size], off)
	if err != nil {
		r.Reply(0, err.(syscall.Errno))
		return
	}
	r.Reply(n, 0)
}

func (f *ramFS) do(r *fs.Request) (int, syscall.Errno) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.nodes[r.Node()]
	if n == nil {
		return 0, syscall.ESTALE
	}
	op, out := r.Op(), r.Out
	switch r.Opcode() {
	case fs.OpLookup:
		name, _, _ := fs.CutName(r.Data)
		id, ok := f.names[string(name)]
		if !ok {
			return 0, syscall.ENOENT
		}
		return f.putEntry(out, id, f.nodes[id]), 0
	case fs.OpGetattr:
		clear(out[:16])
		f.putAttr(out[16:], r.Node(), n)
		return 104, 0
	case fs.OpSetattr:
		if le.Uint32(op)&8 != 0 { // FATTR_SIZE
			n.data = append(n.data[:min(uint64(len(n.data)), le.Uint64(op[16:]))], make([]byte, max(0, int(le.Uint64(op[16:]))-len(n.data)))...)
		}
		clear(out[:16])
		f.putAttr(out[16:], r.Node(), n)
		return 104, 0
	case fs.OpCreate:
		name, _, _ := fs.CutName(r.Data)
		f.create(string(name), le.Uint32(op[4:]))
		k := f.putEntry(out, f.last, f.nodes[f.last])
		clear(out[k : k+16])
		return k + 16, 0
	case fs.OpUnlink:
		name, _, _ := fs.CutName(r.Data)
		if _, ok := f.names[string(name)]; !ok {
			return 0, syscall.ENOENT
		}
		delete(f.names, string(name))
		return 0, 0
	case fs.OpRead:
		off, size := le.Uint64(op[8:]), int(le.Uint32(op[16:]))
		if off >= uint64(len(n.data)) {
			return 0, 0
		}
		return copy(out[:size], n.data[off:]), 0
	case fs.OpWrite:
		off := int(le.Uint64(op[8:]))
		if end := off + len(r.Data); end > len(n.data) {
			n.data = append(n.data, make([]byte, end-len(n.data))...)
		}
		size := copy(n.data[off:], r.Data)
		le.PutUint64(out, uint64(size))
		return 8, 0
	case fs.OpReaddir:
		return f.readdir(out[:le.Uint32(op[16:])], le.Uint64(op[8:]), false), 0
	case fs.OpReaddirplus:
		return f.readdir(out[:le.Uint32(op[16:])], le.Uint64(op[8:]), true), 0
	case fs.OpStatfs:
		clear(out[:80])
		le.PutUint32(out[40:], 4096)
		le.PutUint32(out[44:], 255)
		return 80, 0
	}
	return 0, syscall.ENOSYS // among them OPEN, OPENDIR, FLUSH
}

// readdir lists in order of node id, which is the cookie too.
func (f *ramFS) readdir(out []byte, after uint64, plus bool) (n int) {
	for id := after + 1; id <= f.last; id++ {
		node := f.nodes[id]
		if node == nil || f.names[node.name] != id {
			continue
		}
		size := (24 + len(node.name) + 7) &^ 7
		if plus {
			size += 128
		}
		if n+size > len(out) {
			break
		}
		b := out[n : n+size]
		clear(b)
		if plus {
			b = b[f.putEntry(b, id, node):]
		}
		le.PutUint64(b, id)
		le.PutUint64(b[8:], id)
		le.PutUint32(b[16:], uint32(len(node.name)))
		le.PutUint32(b[20:], node.mode>>12)
		copy(b[24:], node.name)
		n += size
	}
	return n
}
