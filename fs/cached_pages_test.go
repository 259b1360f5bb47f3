package fs

import (
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"

	"prismfs/metadata"
)

// notifications records what the kernel is told.
type notifications struct {
	mu   sync.Mutex
	list []string
}

func (n *notifications) InvalInode(ino uint64, off, size int64) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.list = append(n.list, fmt.Sprintf("%d %d %d", ino, off, size))
	return nil
}

// TestAsyncDirectWriteLeavesNoStalePages: the kernel's own pages of a file would
// keep what an asynchronous O_DIRECT write has replaced, so that it must be told
// before it sees the answer; not, though, of files that it has no pages of.
func TestAsyncDirectWriteLeavesNoStalePages(t *testing.T) {
	f := newFakeFS(t)
	direct := func(size, writeFlags, more uint32) []byte {
		return opIn(fuse.WriteIn{Offset: 4096, Size: size, WriteFlags: writeFlags, Flags: syscall.O_DIRECT | more})
	}
	for _, tt := range []struct {
		name string
		op   uint32 // the request before
		in   []byte
		last []byte // the write
		want string
	}{
		{"not cached", OpGetattr, make([]byte, 16), direct(5, fuse.WRITE_LOCKOWNER, 0), ""},
		{"read directly", OpRead, opIn(fuse.ReadIn{Size: 8, Flags: syscall.O_DIRECT}), direct(5, fuse.WRITE_LOCKOWNER, 0), ""},
		{"read", OpRead, opIn(fuse.ReadIn{Size: 8}), direct(5, fuse.WRITE_LOCKOWNER, 0), "5 4096 5"},
		{"read, durable", OpRead, opIn(fuse.ReadIn{Size: 8}), direct(5, fuse.WRITE_LOCKOWNER, syscall.O_DSYNC), "5 4096 5"},
		{"written", OpWrite, opIn(fuse.WriteIn{Size: 5}), direct(5, fuse.WRITE_LOCKOWNER, 0), "5 4096 5"},
		{"written back", OpRead, opIn(fuse.ReadIn{Size: 8}), direct(5, fuse.WRITE_CACHE, 0), ""},
		// generic/036: O_DIRECT was set while a write went through the cache.
		{"through the cache", OpRead, opIn(fuse.ReadIn{Size: 8}), direct(5, 0, 0), ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			*f = fakeFS{lanes: f.lanes, attr: sampleAttr, data: []byte("12345678")}
			d := NewHandler(f, HandlerOptions{})
			var n notifications
			d.SetNotifier(&n)
			do(t, d, apart, tt.op, 5, tt.in, []byte("hello"))
			a := do(t, d, apart, OpWrite, 5, tt.last, []byte("hello"))
			if a.errno != 0 || le.Uint32(a.body) != 5 {
				t.Fatalf("errno %v, reply %x", a.errno, a.body)
			}
			n.mu.Lock()
			defer n.mu.Unlock()
			if got := strings.Join(n.list, "; "); got != tt.want {
				t.Errorf("the kernel was told %q, want %q", got, tt.want)
			}
		})
	}
}

func TestCachedPages(t *testing.T) {
	var p cachedPages
	for ino := metadata.Ino(1); ino < 2000; ino += 2 {
		p.add(ino)
	}
	wrong := 0
	for ino := metadata.Ino(1); ino < 2000; ino++ {
		if ino%2 == 1 && !p.has(ino) {
			t.Fatalf("inode %d is forgotten", ino)
		}
		if ino%2 == 0 && p.has(ino) {
			wrong++
		}
	}
	if wrong > 50 {
		t.Errorf("%d of 1000 inodes share a bit", wrong)
	}
}
