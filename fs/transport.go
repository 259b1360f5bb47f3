package fs

import (
	"sync"
	"unsafe"
)

// Handler answers requests.
type Handler interface {
	// Handle is called on a transport's thread with a request that is whole:
	// its struct complete, its names terminated, its sizes in bounds. It must
	// not block; it answers at once, or leaves the request with someone who
	// answers later.
	Handle(r *Request)
}

// Transport carries requests from the kernel to a Handler and replies back.
type Transport interface {
	// Serve runs until the file system is unmounted, when it returns nil, or
	// the connection is aborted, when it returns ErrAborted or what broke it.
	// It returns only when every request has been answered, so that nothing of
	// the transport is in use any more.
	Serve(h Handler) error
	// Name is "io_uring" or "devfuse".
	Name() string
	// Close frees what the transport holds. Not while Serve runs.
	Close()
}

// smallOut is the room that every reply has, whatever the request. It suits a
// symlink's target and a page of a directory.
const smallOut = 4096

// headBytes is the memory behind In.
func (r *Request) headBytes() []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(&r.head)), len(r.head)*8)
}

// requestPool bounds how many requests of one size are in use.
type requestPool struct {
	make func() *Request

	mu   sync.Mutex
	cond sync.Cond // free is not empty, or made < max, or all are back
	free []*Request
	made int
	max  int
}

func newRequestPool(limit int, mk func() *Request) *requestPool {
	p := &requestPool{max: limit, make: mk}
	p.cond.L = &p.mu
	return p
}

// get blocks until fewer than max requests are in use.
func (p *requestPool) get() *Request {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.free) == 0 && p.made >= p.max {
		p.cond.Wait()
	}
	if n := len(p.free); n > 0 {
		r := p.free[n-1]
		p.free = p.free[:n-1]
		return r
	}
	p.made++
	r := p.make()
	r.pool = p
	return r
}

func (p *requestPool) put(r *Request) {
	p.mu.Lock()
	p.free = append(p.free, r)
	p.mu.Unlock()
	p.cond.Broadcast()
}

// waitAll blocks until no request is in use.
func (p *requestPool) waitAll() {
	p.mu.Lock()
	for len(p.free) != p.made {
		p.cond.Wait()
	}
	p.mu.Unlock()
}
