package ordered

import (
	"errors"
	"fmt"
	"io"
	"path"
	"strconv"
	"strings"
	"sync"

	"prismfs/uring"
)

// maxOpenSegments bounds the descriptors of segments that nobody uses.
const maxOpenSegments = 128

// Segment is a file of the data log. What DataLog.Locate returns is pinned: it
// stays readable until Release, even if it is removed meanwhile.
type Segment struct {
	d    *DataLog
	num  uint32
	name string

	openMu sync.Mutex // held while the file is being opened; taken before segMu

	// Guarded by d.segMu.
	file    uring.File // nil while closed
	pins    int
	removed bool
	used    uint64 // d.segTick of the last pin

	// Guarded by d.mu.
	size   int64 // length of the file
	fill   int64 // end of the last record, for segments of this opening
	base   int64 // stream position of offset 0, for segments of this opening
	synced int64 // offset up to which this opening has synced
	sealed bool  // no record will be added
}

// Number of the segment.
func (s *Segment) Number() uint32 { return s.num }

// File is valid until Release.
func (s *Segment) File() uring.File {
	s.d.segMu.Lock()
	defer s.d.segMu.Unlock()
	return s.file
}

// Release undoes one pin.
func (s *Segment) Release() {
	s.d.segMu.Lock()
	s.pins--
	var f uring.File
	if s.pins == 0 && s.removed {
		f, s.file = s.file, nil
	}
	s.d.segMu.Unlock()
	if f != nil {
		f.Close()
	}
}

func segmentName(dir string, num uint32) string {
	return path.Join(dir, fmt.Sprintf("%010d.seg", num))
}

// parseSegmentName is the inverse of segmentName's last element.
func parseSegmentName(name string) (num uint32, ok bool) {
	s, ok := strings.CutSuffix(name, ".seg")
	if !ok || len(s) != 10 {
		return 0, false
	}
	n, err := strconv.ParseUint(s, 10, 32)
	return uint32(n), err == nil && n > 0
}

// pin finds and opens segment num. ErrNoSegment; uring.ErrWouldBlock if it is
// not open and nowait is set.
func (d *DataLog) pin(num uint32, nowait bool) (*Segment, uring.File, error) {
	d.segMu.Lock()
	s := d.segs[num]
	if d.segsClosed {
		d.segMu.Unlock()
		return nil, nil, fmt.Errorf("ordered: segment %d: %w", num, ErrClosed)
	}
	if s == nil {
		d.segMu.Unlock()
		return nil, nil, fmt.Errorf("ordered: segment %d: %w", num, ErrNoSegment)
	}
	f := s.file
	if f == nil && nowait {
		d.segMu.Unlock()
		return nil, nil, uring.ErrWouldBlock
	}
	s.pins++
	d.segTick++
	s.used = d.segTick
	d.segMu.Unlock()
	if f != nil {
		return s, f, nil
	}
	f, err := s.open()
	if err != nil {
		s.Release()
		return nil, nil, err
	}
	return s, f, nil
}

// open opens the file unless somebody else has. Caller holds a pin.
func (s *Segment) open() (uring.File, error) {
	s.openMu.Lock()
	defer s.openMu.Unlock()
	if f := s.File(); f != nil {
		return f, nil
	}
	f, err := s.d.o.Disk.Open(s.name)
	if err != nil {
		return nil, fmt.Errorf("ordered: open segment %d: %w", s.num, err)
	}
	s.d.segMu.Lock()
	s.file = f
	idle := s.d.evictLocked()
	s.d.segMu.Unlock()
	if idle != nil {
		idle.Close()
	}
	return f, nil
}

// evictLocked takes the file of the least recently used idle segment if too
// many are open. Caller holds segMu and closes the file.
func (d *DataLog) evictLocked() uring.File {
	open := 0
	var oldest *Segment
	for _, s := range d.segs {
		if s.file == nil {
			continue
		}
		open++
		if s.pins == 0 && (oldest == nil || s.used < oldest.used) {
			oldest = s
		}
	}
	if open <= maxOpenSegments || oldest == nil {
		return nil
	}
	f := oldest.file
	oldest.file = nil
	return f
}

// createSegment makes segment num and everything about it durable. On a nearly
// full disk the segment is smaller. The caller gets one pin. A failed write or
// sync fails the log.
func (d *DataLog) createSegment(num uint32) (*Segment, error) {
	name := segmentName(d.o.Dir, num)
	f, err := d.o.Disk.Create(name)
	if err != nil {
		return nil, fmt.Errorf("ordered: create segment %d: %w", num, err)
	}
	size, err := d.allocateSegment(f)
	harmless := err != nil // nothing written yet
	if err == nil {
		_, err = f.WriteAt(appendSegmentHeader(nil, num), 0)
		harmless = errors.Is(err, uring.ErrNoSpace)
	}
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = d.o.Disk.SyncDir(d.o.Dir)
	}
	if err != nil {
		f.Close()
		d.o.Disk.Remove(name) // else it is an empty segment for GC
		err = fmt.Errorf("ordered: create segment %d: %w", num, err)
		if !harmless {
			err = d.fail(err)
		}
		return nil, err
	}
	s := &Segment{d: d, num: num, name: name, file: f, pins: 1, size: size, fill: segmentHeader, synced: segmentHeader}
	d.segMu.Lock()
	d.segs[num] = s
	d.segMu.Unlock()
	return s, nil
}

// allocateSegment reserves SegmentSize, or the largest half, quarter ... that
// fits.
func (d *DataLog) allocateSegment(f uring.File) (size int64, err error) {
	for size = d.o.SegmentSize; ; size /= 2 {
		size = max(size, minSegmentSize)
		err = f.Allocate(0, size, false)
		if err == nil || !errors.Is(err, uring.ErrNoSpace) || size == minSegmentSize {
			return size, err
		}
	}
}

// SegmentInfo describes a segment.
type SegmentInfo struct {
	Number uint32
	Size   int64 // bytes of the file
	// Used is the end of the last record for a segment of this opening, else
	// Size.
	Used   int64
	Sealed bool // never written to again; Remove accepts it
}

// Segments lists all segments by number.
func (d *DataLog) Segments() []SegmentInfo {
	segs := d.sortedSegments()
	list := make([]SegmentInfo, 0, len(segs))
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, s := range segs {
		info := SegmentInfo{Number: s.num, Size: s.size, Used: s.size, Sealed: d.removableLocked(s)}
		if s.fill > 0 {
			info.Used = s.fill
		}
		list = append(list, info)
	}
	return list
}

// Remove deletes a segment for good. The caller has made durable whatever made
// it unnecessary. Pinned segments stay readable.
//
// Errors: ErrInUse unless SegmentInfo.Sealed.
func (d *DataLog) Remove(num uint32) error {
	if d.o.ReadOnly {
		return fmt.Errorf("ordered: remove segment %d: %w", num, uring.ErrReadOnly)
	}
	s := d.lookup(num)
	if s == nil {
		return fmt.Errorf("ordered: remove segment %d: %w", num, ErrNoSegment)
	}
	d.mu.Lock()
	removable := d.removableLocked(s)
	unsynced := s.fill > s.synced
	d.mu.Unlock()
	if !removable {
		return fmt.Errorf("ordered: remove segment %d: %w", num, ErrInUse)
	}
	if unsynced {
		// Bytes still on their way must not meet a closed file.
		if _, err := d.Sync(); err != nil {
			return err
		}
	}
	if err := d.o.Disk.Remove(s.name); err != nil && !errors.Is(err, uring.ErrNotExist) {
		return fmt.Errorf("ordered: remove segment %d: %w", num, err)
	}
	d.segMu.Lock()
	delete(d.segs, num)
	s.removed = true
	s.pins++
	d.segMu.Unlock()
	s.Release()
	if err := d.o.Disk.SyncDir(d.o.Dir); err != nil {
		return fmt.Errorf("ordered: remove segment %d: %w", num, err)
	}
	return nil
}

// removableLocked excludes what is or will be written to, and the newest
// segment: the next session would use its number again. Caller holds mu.
func (d *DataLog) removableLocked(s *Segment) bool {
	return s.sealed && s != d.next && s.num+1 != d.nextNum
}

// Scan calls fn with every record of a segment in order. It ends without error
// at the end of the records, and with ErrCorrupt at the first header that is
// neither good nor blank: after a crash, what was never synced may be anything.
// Payloads are not checked.
func (d *DataLog) Scan(num uint32, fn func(h RecordHeader, e Extent) error) error {
	if err := d.Flush(); err != nil {
		return err
	}
	s, f, err := d.pin(num, false)
	if err != nil {
		return err
	}
	defer s.Release()
	size, err := f.Size()
	if err != nil {
		return fmt.Errorf("ordered: scan segment %d: %w", num, err)
	}
	r := segmentReader{f: f, size: size, buf: make([]byte, 0, 64<<10)}
	b, err := r.at(0, segmentHeader)
	if err != nil {
		return fmt.Errorf("ordered: scan segment %d: %w", num, err)
	}
	if blank(b) {
		return nil // a crash interrupted its creation
	}
	if err := decodeSegmentHeader(b, num); err != nil {
		return err
	}
	for off := int64(segmentHeader); off < size; {
		b, err := r.at(off, maxRecordHeader)
		if err != nil {
			return fmt.Errorf("ordered: scan segment %d: %w", num, err)
		}
		if blank(b[:min(len(b), recordHeader)]) {
			return nil
		}
		h, e, n, err := decodeRecordHeader(b, MakePos(num, uint32(off)))
		if err == nil && off+int64(n) > size {
			err = fmt.Errorf("ordered: segment %d offset %d: record of %d bytes cut off: %w", num, off, n, ErrCorrupt)
		}
		if err != nil {
			return err
		}
		if err := fn(h, e); err != nil {
			return err
		}
		off += int64(n)
	}
	return nil
}

func blank(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}

// segmentReader reads small pieces of a file through a buffer.
type segmentReader struct {
	f    uring.File
	size int64
	buf  []byte
	off  int64 // of buf[0]
}

// at returns n bytes from off on, fewer at the end of the file.
func (r *segmentReader) at(off int64, n int) ([]byte, error) {
	n = int(max(min(int64(n), r.size-off), 0))
	if off < r.off || off+int64(n) > r.off+int64(len(r.buf)) {
		b := r.buf[:max(min(int64(cap(r.buf)), r.size-off), 0)]
		got, err := r.f.ReadAt(b, off)
		if err != nil && !(errors.Is(err, io.EOF) && got == len(b)) {
			return nil, err
		}
		r.buf, r.off = b, off
	}
	return r.buf[off-r.off:][:n], nil
}
