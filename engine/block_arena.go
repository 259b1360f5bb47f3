package engine

import (
	"runtime"
	"sync"

	"prismfs/uring"
)

const (
	slabLen   = 64 << 10
	arenaUnit = 4 * slabLen // what is mapped at a time

	// maxChunk is the longest block that an arena holds.
	maxChunk = slabLen / 2
)

// slabChunks says into how many chunks a slab of each size class is cut:
// classes lie closest around the usual block of 4 KiB and a bit.
var slabChunks = [...]int{128, 64, 48, 32, 24, 20, 16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2}

func chunkLen(class int) int { return slabLen / slabChunks[class] &^ 7 }

// blockArena hands out memory for cached blocks that the Go heap doesn't see:
// the collector neither scans nor doubles it, and the budget is hard. A slab
// belongs to one size class for as long as any of its chunks is in use.
type blockArena struct {
	mu      sync.Mutex
	limit   int                      // bytes that may be mapped
	mapped  int                      // bytes; guarded by mu
	used    int                      // bytes in chunks handed out; guarded by mu
	empty   []*slab                  // of no class; guarded by mu
	partial [len(slabChunks)][]*slab // with free chunks; guarded by mu
}

// slab is one piece of an arena.
type slab struct {
	arena *blockArena
	mem   []byte
	class int     // fixed while chunks are in use; guarded by arena.mu
	free  []uint8 // chunks not handed out; guarded by arena.mu
	pos   int     // its place in partial[class] while it has free chunks; guarded by arena.mu

	cached []*cachedBlock // those in the cache; guarded by the shard's mu
}

// chunkClass returns the class of the shortest chunks that hold n bytes.
func chunkClass(n int) int {
	class := len(slabChunks) - 1
	for class > 0 && chunkLen(class-1) >= n {
		class--
	}
	return class
}

// inUse returns the number of chunks handed out.
func (s *slab) inUse() int {
	s.arena.mu.Lock()
	defer s.arena.mu.Unlock()
	return slabChunks[s.class] - len(s.free)
}

// alloc returns n bytes and the chunk they are in, or a nil slab if there is
// no room in n's class.
func (a *blockArena) alloc(n int) (buf []byte, s *slab, chunk uint8) {
	class := chunkClass(n)
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.partial[class]
	if len(p) == 0 {
		if s = a.takeEmptyLocked(); s == nil {
			return nil, nil, 0
		}
		s.class, s.pos = class, 0
		for i := slabChunks[class] - 1; i >= 0; i-- {
			s.free = append(s.free, uint8(i))
		}
		p = append(p, s)
	} else {
		s = p[len(p)-1]
	}
	last := len(s.free) - 1
	chunk, s.free = s.free[last], s.free[:last]
	if last == 0 {
		p[s.pos] = nil // s is the last of the list
		p = p[:s.pos]
	}
	a.partial[class] = p
	size := chunkLen(class)
	a.used += size
	off := int(chunk) * size
	return s.mem[off : off+n : off+size], s, chunk
}

// takeEmptyLocked returns a slab without a class, mapping more memory if the
// limit allows. Without memory from the system there is just none.
func (a *blockArena) takeEmptyLocked() *slab {
	if len(a.empty) == 0 {
		if a.mapped+arenaUnit > a.limit {
			return nil
		}
		mem, err := uring.Alloc(arenaUnit)
		if err != nil {
			return nil
		}
		// A reader may outlive the cache, so the memory goes when nothing
		// refers to the arena any more, be it through a block.
		runtime.AddCleanup(a, func(mem []byte) { _ = uring.Free(mem) }, mem)
		a.mapped += arenaUnit
		for off := arenaUnit - slabLen; off >= 0; off -= slabLen {
			a.empty = append(a.empty, &slab{arena: a, mem: mem[off : off+slabLen : off+slabLen]})
		}
	}
	last := len(a.empty) - 1
	s := a.empty[last]
	a.empty = a.empty[:last]
	return s
}

// release takes a chunk back.
func (a *blockArena) release(s *slab, chunk uint8) {
	size := chunkLen(s.class)
	if invariants {
		off := int(chunk) * size
		for i := range size {
			s.mem[off+i] = 0xdb // a reader that still looks finds garbage
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.used -= size
	s.free = append(s.free, chunk)
	p := a.partial[s.class]
	if len(s.free) == 1 {
		s.pos = len(p)
		p = append(p, s)
	}
	if len(s.free) == slabChunks[s.class] {
		last := len(p) - 1
		p[s.pos], p[last].pos = p[last], s.pos
		p[last] = nil
		p = p[:last]
		s.free = s.free[:0]
		a.empty = append(a.empty, s)
		a.partial[s.class] = p
		return
	}
	a.partial[s.class] = p
}
