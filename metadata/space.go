package metadata

import (
	"sync"
	"sync/atomic"
	"time"

	"prismfs/uring"
)

// space watches the room on the store's disk. Operations that grow the store
// are refused while less than the reserve is free, so that flushes, compactions
// and deletions always find room.
type space struct {
	disk    uring.Disk
	total   int64        // bytes, at the start
	reserve int64        // bytes kept back
	left    atomic.Int64 // bytes that may still be taken before asking again
	until   atomic.Int64 // when the answer is too old, in nanoseconds of time
	mu      sync.Mutex
}

const spaceTTL = 200 * time.Millisecond

func (p *space) init(d uring.Disk) error {
	p.disk = d
	sp, err := d.Free()
	if err != nil {
		return err
	}
	p.total = int64(sp.Total)
	return nil
}

// take asks for n bytes; false means that the disk is full, but for what is
// promised to others.
func (p *space) take(n int64, promised func() int64, now time.Time) bool {
	left := p.left.Add(-n)
	if left >= 0 && now.UnixNano() < p.until.Load() {
		return true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if left < 0 || now.UnixNano() >= p.until.Load() {
		sp, err := p.disk.Free()
		if err != nil {
			return true // the write itself will say
		}
		p.left.Store(int64(sp.Free) - p.reserve - promised())
		p.until.Store(now.Add(spaceTTL).UnixNano())
	}
	return p.left.Add(-n) >= 0
}

// expire makes the next take ask the disk.
func (p *space) expire() { p.until.Store(0) }

// needSpace refuses an operation that would grow the store by about n bytes when
// the disk is full. A blocking caller first waits for deletions under way and
// collects what garbage there is.
func (s *Store) needSpace(w Wait, n int64) error {
	if err := s.needRoom(w); err != nil {
		return err
	}
	if !s.db.Low() && s.space.take(n, s.promised, s.now()) {
		return nil
	}
	if w == NoWait {
		return ErrWouldBlock
	}
	s.makeRoom()
	if !s.db.Low() && s.space.take(n, s.promised, s.now()) {
		return nil
	}
	return ErrNoSpace
}

// makeRoom waits for deletions under way and collects what garbage there is. It
// says whether to try again is worth while. The caller holds no lock.
func (s *Store) makeRoom() bool {
	waited := s.reclaimer.drain(s)
	dead, _ := s.unusedSpace()
	if dead > 0 {
		// A segment can only go once it is durable.
		if _, err := s.dlog.Sync(); err != nil {
			s.noteFailure(err)
			return false
		}
		s.collectGarbage()
	}
	s.space.expire() // somebody else may have collected meanwhile
	return waited || dead > 0
}

// needRoom lets a caller that may wait do so before it takes locks, when the
// engine is behind with flushing: what waits holds up nobody else.
func (s *Store) needRoom(w Wait) error {
	if w == NoWait {
		return nil
	}
	return s.db.WaitRoom()
}

// unusedSpace is what segments take without needing it, in bytes: dead is what
// a collection gives back, spare what is still to be written.
func (s *Store) unusedSpace() (dead, spare int64) {
	list := s.dlog.Segments()
	s.counters.mu.Lock() // the write lane takes it: not while listing
	defer s.counters.mu.Unlock()
	for i, info := range list {
		live := s.counters.live[info.Number]
		switch {
		case i == len(list)-1: // still written to
			spare += info.Size - info.Used
		case live >= 0 && live*gcLiveDen < info.Size*gcLiveNum:
			dead += info.Size - live
		}
	}
	return dead, spare
}

// promised is the room that fallocate(2) has reserved and nothing has filled
// yet, in bytes.
func (s *Store) promised() int64 {
	s.counters.mu.Lock()
	defer s.counters.mu.Unlock()
	return s.counters.live[noSegment]
}

// freeSpace is what can be written and what there is in all, in bytes. What is
// deleted counts as free at once, though the disk has it back only after a
// collection.
func (s *Store) freeSpace() (free, total int64, err error) {
	sp, err := s.disk.Free()
	if err != nil {
		return 0, 0, err
	}
	dead, spare := s.unusedSpace()
	free = int64(sp.Free) + dead + spare + s.reclaimer.owing() - s.space.reserve - s.promised()
	return clamp(free, 0, int64(sp.Total)), int64(sp.Total), nil
}

// Statfs implements FS.
func (s *Store) Statfs(out *Statfs) error {
	free, total, err := s.freeSpace()
	if err != nil {
		return err
	}
	s.counters.mu.Lock()
	inodes := s.counters.inodes
	s.counters.mu.Unlock()
	*out = Statfs{BlockSize: BlockSize, NameMax: NameMax}
	out.Blocks = uint64(total) / BlockSize
	out.Free = uint64(free) / BlockSize
	out.Avail = out.Free
	// Inodes take space like anything else: as many are free as would fit.
	out.FilesFree = uint64(free) / 512
	out.Files = uint64(max(inodes, 0)) + out.FilesFree
	return nil
}
