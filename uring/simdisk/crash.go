package simdisk

import (
	"maps"
	"math/rand/v2"
	"slices"
)

// CrashMode says what becomes of the changes that were not synced.
type CrashMode int

const (
	// Random draws one of the other modes.
	Random CrashMode = iota
	// KeepAll keeps everything: the daemon was killed, the machine lives.
	KeepAll
	// LoseAll keeps only what was synced.
	LoseAll
	// Prefix keeps the changes of the whole disk in their order up to a random
	// one, which is torn.
	Prefix
	// Subset keeps, loses or tears every change by itself.
	Subset
	// Torn draws every sector of every change by itself.
	Torn

	crashModes = int(Torn)
)

func (m CrashMode) String() string {
	return [...]string{"random", "keep all", "lose all", "prefix", "subset", "torn"}[m]
}

// Crash returns the disk as it may be found after a power cut at this moment; d
// itself goes on. The result depends only on d's history, the generator and the
// mode. A nil rng means the disk's own. The new disk has no locks, hooks, lanes
// or injected errors, and keeps the capacity and the planted faults.
func (d *Disk) Crash(rng *rand.Rand, mode CrashMode) *Disk {
	d.mu.Lock()
	defer d.mu.Unlock()
	if rng == nil {
		rng = d.rng
	}
	if mode == Random {
		mode = KeepAll + CrashMode(rng.IntN(crashModes))
	}
	c := &crash{rng: rng, mode: mode, from: d, to: New(rng.Uint64()), nodes: make(map[*node]*node)}
	c.to.capacity, c.to.ignoreDatasync, c.to.ignoreSyncDir = d.capacity, d.ignoreDatasync, d.ignoreSyncDir
	switch mode {
	case Prefix:
		c.chooseCut()
	case Subset:
		c.keep = []float64{0.1, 0.5, 0.9}[rng.IntN(3)]
	}
	c.nodes[d.root] = c.to.root
	c.directories()
	return c.to
}

// crash is one Crash under way.
type crash struct {
	rng   *rand.Rand
	mode  CrashMode
	keep  float64 // Subset: chance of a change to be kept
	cut   uint64  // Prefix: the first change that is not kept whole
	from  *Disk
	to    *Disk
	nodes map[*node]*node // old to new
}

type fate int

const (
	lost fate = iota
	torn
	kept
)

func (c *crash) fate(seq uint64) fate {
	switch c.mode {
	case KeepAll:
		return kept
	case Prefix:
		switch {
		case seq < c.cut:
			return kept
		case seq == c.cut:
			return torn
		}
	case Subset:
		switch x := c.rng.Float64(); {
		case x < c.keep:
			return kept
		case x < c.keep+(1-c.keep)/2:
			return torn
		}
	case Torn:
		return torn
	}
	return lost
}

// keepWhole is the fate of a change that cannot be torn.
func (c *crash) keepWhole(seq uint64) bool {
	switch c.fate(seq) {
	case kept:
		return true
	case torn:
		return c.rng.IntN(2) == 0
	}
	return false
}

// chooseCut draws the end of the prefix among the changes not yet durable, or
// behind them all.
func (c *crash) chooseCut() {
	var seqs []uint64
	for _, o := range c.from.dirLog {
		seqs = append(seqs, o.seq)
	}
	for _, n := range c.allNodes() {
		for _, o := range n.log {
			seqs = append(seqs, o.seq)
		}
	}
	slices.Sort(seqs)
	seqs = append(seqs, c.from.seq+1)
	c.cut = seqs[c.rng.IntN(len(seqs))]
}

// allNodes lists, by age, the nodes that the medium may hold after the crash.
func (c *crash) allNodes() []*node {
	seen := map[*node]bool{c.from.root: true}
	var visit func(n *node)
	visit = func(n *node) {
		if seen[n] {
			return
		}
		seen[n] = true
		for _, e := range n.durable {
			visit(e)
		}
	}
	for _, e := range c.from.root.durable {
		visit(e)
	}
	for _, o := range c.from.dirLog {
		for _, s := range o.sets {
			if s.to != nil {
				visit(s.to)
			}
			visit(s.dir)
		}
	}
	return slices.SortedFunc(maps.Keys(seen), func(a, b *node) int { return int(int64(a.id) - int64(b.id)) })
}

// directories builds the new tree: durable entries and the changes kept.
func (c *crash) directories() {
	keep := c.from.closure(func(o *dirOp) bool { return c.keepWhole(o.seq) })
	all := c.allNodes()
	entries := make(map[*node]map[string]*node)
	for _, n := range all {
		if n.dir {
			entries[n] = maps.Clone(n.durable)
		}
	}
	for i, o := range c.from.dirLog {
		if keep[i] {
			for _, s := range o.sets {
				set(entries[s.dir], s)
			}
		}
	}
	// Contents are drawn by age of the node, not by name or reachability, so
	// that the draw does not depend on the order of a map.
	for _, n := range all {
		if c.nodes[n] == nil {
			c.nodes[n] = c.to.newNode(n.dir)
			if !n.dir {
				c.file(n, c.nodes[n])
			}
		}
	}
	var link func(old, n *node)
	link = func(old, n *node) {
		n.linked = true
		for name, e := range entries[old] {
			m := c.nodes[e]
			n.entries[name], n.durable[name] = m, m
			if m.dir {
				link(e, m)
			} else if !m.linked {
				m.linked = true
				c.to.used += m.volAlloc.count()
			}
		}
	}
	link(c.from.root, c.to.root)
}

// file draws the content of n into m.
func (c *crash) file(n, m *node) {
	if c.mode == KeepAll {
		m.vol = n.vol.clone()
		m.volAlloc = slices.Clone(n.volAlloc)
	} else {
		m.vol = n.dur.clone()
		m.volAlloc = slices.Clone(n.durAlloc)
		c.replay(n, m)
	}
	m.dur = m.vol.clone()
	m.durAlloc = slices.Clone(m.volAlloc)
}

// replay applies to m, the durable image, what the crash keeps of n's log.
func (c *crash) replay(n, m *node) {
	// version is the last change of each sector that reached the medium, as an
	// index into the log plus one. Earlier changes of that sector came with it.
	version := make(map[int64]int)
	meta := 0 // sizes, truncations and allocations are kept up to here, in order
	for i, o := range n.log {
		f := c.fate(o.seq)
		if f == lost {
			continue
		}
		if f == kept || c.rng.IntN(2) == 0 {
			meta = i + 1
		}
		if o.kind != OpWrite || o.abandoned {
			continue
		}
		from, to := o.off/sectorSize, (o.off+int64(len(o.data))+sectorSize-1)/sectorSize
		keep := c.sectors(f, to-from)
		for s := from; s < to; s++ {
			if keep(s - from) {
				version[s] = i + 1
			}
		}
	}

	if (c.mode == Subset || c.mode == Torn) && c.rng.IntN(2) == 0 {
		meta = c.rng.IntN(len(n.log) + 1)
	}
	if meta == len(n.log) && meta > 0 {
		m.volAlloc = slices.Clone(n.volAlloc)
	}
	size := n.dur.size
	for i, o := range n.log {
		switch o.kind {
		case OpWrite:
			for p, off := o.data, o.off; len(p) > 0; {
				s := off / sectorSize
				k := min(int64(len(p)), (s+1)*sectorSize-off)
				if version[s] > i {
					m.vol.writeAt(p[:k], off)
				}
				p, off = p[k:], off+k
			}
		case OpTruncate:
			if i < meta {
				m.vol.zeroFrom(o.off)
			}
			for s, v := range version {
				if v > i && (s+1)*sectorSize > o.off {
					m.vol.zero(max(o.off, s*sectorSize), (s+1)*sectorSize)
				}
			}
		}
		if i < meta {
			size = o.sizeAfter
		}
	}
	m.vol.size = size
	m.vol.zeroFrom(size)
	for i := range m.vol.pages {
		m.volAlloc = m.volAlloc.add(pageRange{i, i + 1})
	}
}

// sectors draws which of the n sectors of a write reach the medium.
func (c *crash) sectors(f fate, n int64) func(i int64) bool {
	if f == kept {
		return func(int64) bool { return true }
	}
	switch at := c.rng.Int64N(n + 1); c.rng.IntN(3) {
	case 0:
		return func(i int64) bool { return i < at }
	case 1:
		return func(i int64) bool { return i >= at }
	}
	return func(int64) bool { return c.rng.IntN(2) == 0 }
}
