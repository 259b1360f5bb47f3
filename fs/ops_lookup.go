package fs

import (
	"time"

	"prismfs/metadata"
)

const (
	entryLen = 128 // fuse_entry_out
	attrLen  = 88  // fuse_attr

	// generation of every inode: numbers are never reused, so one will do.
	generation = 1
)

// validity is a timeout as the kernel wants it.
type validity struct {
	sec  uint64
	nsec uint32
}

// validityOf applies the rule of HandlerOptions: 0 is a day, negative is none.
func validityOf(t time.Duration) validity {
	switch {
	case t == 0:
		t = 24 * time.Hour
	case t < 0:
		t = 0
	}
	return validity{uint64(t / time.Second), uint32(t % time.Second)}
}

// putEntry writes a fuse_entry_out.
func (d *Dispatcher) putEntry(b []byte, a *metadata.Attr) {
	_ = b[entryLen-1]
	le.PutUint64(b, uint64(a.Ino))
	le.PutUint64(b[8:], generation)
	le.PutUint64(b[16:], d.entryValid.sec)
	le.PutUint64(b[24:], d.attrValid.sec)
	le.PutUint32(b[32:], d.entryValid.nsec)
	le.PutUint32(b[36:], d.attrValid.nsec)
	putAttr(b[40:], a)
}

// fileName takes the first name out of a request's data and hands on what
// follows. The kernel forwards names that are longer than any may be.
func fileName(data []byte) (name, rest []byte, err error) {
	name, rest, ok := CutName(data)
	switch {
	case !ok || len(name) == 0:
		return nil, nil, metadata.ErrInvalid
	case len(name) > nameMax:
		return nil, nil, metadata.ErrNameTooLong
	}
	return name, rest, nil
}

// opLookup answers LOOKUP. "." and ".." come from NFS exports, by node id:
// what is gone is then stale. An absent name is an answer too, and remembered.
func (d *Dispatcher) opLookup(c *call, w metadata.Wait) (int, error) {
	name, _, err := fileName(c.r.Data)
	if err != nil {
		return 0, err
	}
	node := metadata.Ino(c.r.Node())
	switch {
	case d.isFirstOpen(c.r.Node(), name):
		return putFirstOpen(c.r.Out), nil
	case len(name) == 1 && name[0] == '.':
		err = d.st.LookupIno(w, node, &c.attr)
	case len(name) == 2 && name[0] == '.' && name[1] == '.':
		err = d.st.LookupParent(w, node, &c.attr)
	default:
		err = d.st.Lookup(w, node, name, &c.attr)
		if err == metadata.ErrNotFound && d.negativeValid != (validity{}) {
			out := c.r.Out[:entryLen]
			clear(out)
			le.PutUint64(out[16:], d.negativeValid.sec)
			le.PutUint32(out[32:], d.negativeValid.nsec)
			return entryLen, nil
		}
	}
	if err != nil {
		return 0, err
	}
	d.putEntry(c.r.Out, &c.attr)
	return entryLen, nil
}

// opForget takes back the kernel's references to one inode.
func (d *Dispatcher) opForget(c *call, _ metadata.Wait) (int, error) {
	d.st.Forget(metadata.Ino(c.r.Node()), le.Uint64(c.r.Op()))
	return 0, errNoReply
}

// opBatchForget does so for many.
func (d *Dispatcher) opBatchForget(c *call, _ metadata.Wait) (int, error) {
	b := c.r.Data
	for n := le.Uint32(c.r.Op()); n > 0; n-- {
		d.st.Forget(metadata.Ino(le.Uint64(b)), le.Uint64(b[8:]))
		b = b[16:]
	}
	return 0, errNoReply
}
