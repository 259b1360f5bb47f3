package simdisk

import (
	"maps"
	"slices"
)

const (
	pageSize   = 4096
	sectorSize = 512
)

// page is a piece of a file. Once frozen it is shared between images, maybe of
// several disks, and never changes again.
type page struct {
	frozen bool
	b      [pageSize]byte
}

// image is the content of a file; pages not in the map are zeros.
type image struct {
	size  int64
	pages map[int64]*page
}

func newImage() image { return image{pages: make(map[int64]*page)} }

// clone shares all pages with the new image.
func (m *image) clone() image {
	for i := range m.pages {
		m.freeze(i)
	}
	return image{size: m.size, pages: maps.Clone(m.pages)}
}

// freeze makes page i shareable and returns it, nil for a hole.
func (m *image) freeze(i int64) *page {
	p := m.pages[i]
	if p != nil && !p.frozen {
		p.frozen = true
	}
	return p
}

func (m *image) writable(i int64) *page {
	p := m.pages[i]
	switch {
	case p == nil:
		p = new(page)
	case p.frozen:
		p = &page{b: p.b}
	default:
		return p
	}
	m.pages[i] = p
	return p
}

// readAt fills p from the bytes at off, zeros beyond the size included.
func (m *image) readAt(p []byte, off int64) {
	for len(p) > 0 {
		i, in := off/pageSize, off%pageSize
		n := min(int64(len(p)), pageSize-in)
		if pg := m.pages[i]; pg != nil {
			copy(p[:n], pg.b[in:])
		} else {
			clear(p[:n])
		}
		p, off = p[n:], off+n
	}
}

// writeAt stores p at off and leaves the size alone.
func (m *image) writeAt(p []byte, off int64) {
	for len(p) > 0 {
		i, in := off/pageSize, off%pageSize
		n := copy(m.writable(i).b[in:], p)
		p, off = p[n:], off+int64(n)
	}
}

// zero clears the bytes of [from, to).
func (m *image) zero(from, to int64) {
	for from < to {
		i, in := from/pageSize, from%pageSize
		n := min(to-from, pageSize-in)
		if m.pages[i] != nil {
			clear(m.writable(i).b[in : in+n])
		}
		from += n
	}
}

// zeroFrom clears everything from off on.
func (m *image) zeroFrom(off int64) {
	whole := (off + pageSize - 1) / pageSize
	for i := range m.pages {
		if i >= whole {
			delete(m.pages, i)
		}
	}
	m.zero(off, whole*pageSize)
}

// ranges is a sorted list of disjoint, non-adjacent half-open page ranges: what
// a file has allocated.
type ranges []pageRange

type pageRange struct{ from, to int64 }

func pagesOf(off, n int64) pageRange {
	return pageRange{off / pageSize, (off + n + pageSize - 1) / pageSize}
}

// missing is the number of pages of r that are not in the list.
func (l ranges) missing(r pageRange) int64 {
	n := r.to - r.from
	for _, x := range l {
		n -= max(0, min(x.to, r.to)-max(x.from, r.from))
	}
	return n
}

func (l ranges) add(r pageRange) ranges {
	if r.from >= r.to {
		return l
	}
	i := 0
	for i < len(l) && l[i].to < r.from {
		i++
	}
	j := i
	for j < len(l) && l[j].from <= r.to {
		r.from, r.to = min(r.from, l[j].from), max(r.to, l[j].to)
		j++
	}
	return slices.Replace(l, i, j, r)
}

// cut drops all pages from p on.
func (l ranges) cut(p int64) ranges {
	for len(l) > 0 && l[len(l)-1].from >= p {
		l = l[:len(l)-1]
	}
	if len(l) > 0 {
		l[len(l)-1].to = min(l[len(l)-1].to, p)
	}
	return l
}

func (l ranges) count() int64 {
	n := int64(0)
	for _, x := range l {
		n += x.to - x.from
	}
	return n
}
