package engine

// mergingIter merges sorted sources into one sorted sequence. Sources share no
// internal key. An error of any source invalidates the whole: without that
// source the others would show older versions as current.
type mergingIter struct {
	iters   []internalIterator
	heap    []internalIterator // the valid ones; heap[0] is the current entry
	reverse bool               // heap[0] is the largest, all others stand before it
	keyBuf  []byte
	err     error
}

func newMergingIter(iters []internalIterator) *mergingIter {
	return &mergingIter{iters: iters, heap: make([]internalIterator, 0, len(iters))}
}

func (m *mergingIter) less(a, b internalIterator) bool {
	c := compareInternal(a.Key(), b.Key())
	if m.reverse {
		return c > 0
	}
	return c < 0
}

// begin forgets all positions.
func (m *mergingIter) begin(reverse bool) {
	m.heap = m.heap[:0]
	m.reverse = reverse
	m.err = nil
}

// collect takes a source that was just moved into the (unordered) heap.
func (m *mergingIter) collect(it internalIterator, ok bool) bool {
	if ok {
		m.heap = append(m.heap, it)
		return true
	}
	return m.note(it.Err())
}

// note records an error of a source and says whether there is none.
func (m *mergingIter) note(err error) bool {
	if err == nil {
		return true
	}
	m.err = err
	m.heap = m.heap[:0]
	return false
}

func (m *mergingIter) heapify() bool {
	for i := len(m.heap)/2 - 1; i >= 0; i-- {
		m.down(i)
	}
	return m.Valid()
}

func (m *mergingIter) down(i int) {
	h := m.heap
	for {
		c := 2*i + 1
		if c >= len(h) {
			return
		}
		if c+1 < len(h) && m.less(h[c+1], h[c]) {
			c++
		}
		if !m.less(h[c], h[i]) {
			return
		}
		h[i], h[c] = h[c], h[i]
		i = c
	}
}

func (m *mergingIter) First() bool {
	m.begin(false)
	for _, it := range m.iters {
		if !m.collect(it, it.First()) {
			return false
		}
	}
	return m.heapify()
}

func (m *mergingIter) Last() bool {
	m.begin(true)
	for _, it := range m.iters {
		if !m.collect(it, it.Last()) {
			return false
		}
	}
	return m.heapify()
}

func (m *mergingIter) SeekGE(ikey []byte) bool {
	m.begin(false)
	for _, it := range m.iters {
		if !m.collect(it, it.SeekGE(ikey)) {
			return false
		}
	}
	return m.heapify()
}

func (m *mergingIter) SeekLT(ikey []byte) bool {
	m.begin(true)
	for _, it := range m.iters {
		if !m.collect(it, it.SeekLT(ikey)) {
			return false
		}
	}
	return m.heapify()
}

// moved restores the heap after heap[0] moved.
func (m *mergingIter) moved(ok bool) bool {
	if !ok {
		if !m.note(m.heap[0].Err()) {
			return false
		}
		last := len(m.heap) - 1
		m.heap[0] = m.heap[last]
		m.heap = m.heap[:last]
	}
	if len(m.heap) > 1 {
		m.down(0)
	}
	if invariants {
		for _, it := range m.heap {
			assert(!m.less(it, m.heap[0]), "heap top %q isn't first", m.heap[0].Key())
		}
	}
	return m.Valid()
}

// turn reverses the direction: every source but the current one goes to the
// other side of the current key, the current one makes a step.
func (m *mergingIter) turn() bool {
	cur := m.heap[0]
	m.keyBuf = append(m.keyBuf[:0], cur.Key()...)
	m.begin(!m.reverse)
	for _, it := range m.iters {
		var ok bool
		switch {
		case it == cur && m.reverse:
			ok = it.Prev()
		case it == cur:
			ok = it.Next()
		case m.reverse:
			ok = it.SeekLT(m.keyBuf)
		default:
			ok = it.SeekGE(m.keyBuf)
		}
		if !m.collect(it, ok) {
			return false
		}
	}
	return m.heapify()
}

func (m *mergingIter) Next() bool {
	if m.reverse {
		return m.turn()
	}
	return m.moved(m.heap[0].Next())
}

func (m *mergingIter) Prev() bool {
	if !m.reverse {
		return m.turn()
	}
	return m.moved(m.heap[0].Prev())
}

func (m *mergingIter) Valid() bool   { return len(m.heap) > 0 }
func (m *mergingIter) Key() []byte   { return m.heap[0].Key() }
func (m *mergingIter) Value() []byte { return m.heap[0].Value() }
func (m *mergingIter) Err() error    { return m.err }

func (m *mergingIter) Close() error {
	m.heap = m.heap[:0]
	var first error
	for _, it := range m.iters {
		if err := it.Close(); err != nil && first == nil {
			first = err
		}
	}
	m.iters = nil
	return first
}
