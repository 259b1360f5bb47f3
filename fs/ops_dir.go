package fs

import (
	"errors"

	"prismfs/metadata"
)

const direntLen = 24 // fuse_dirent without its name

// dirWriter lays the entries of a directory out as the kernel wants them.
type dirWriter struct {
	d    *Dispatcher
	add  func(*metadata.Dirent) bool // entry, bound once
	out  []byte
	n    int
	plus bool
	refs bool // an entry with a reference has been laid out
	full bool
}

// entry appends one entry and reports whether it fitted.
func (w *dirWriter) entry(e *metadata.Dirent) bool {
	head := direntLen
	if w.plus {
		head += entryLen
	}
	size := (head + len(e.Name) + 7) &^ 7
	if size > len(w.out)-w.n {
		w.full = true
		return false
	}
	b := w.out[w.n : w.n+size]
	w.n += size
	if w.plus {
		if e.Attr != nil {
			w.d.putEntry(b, e.Attr)
			w.refs = true
		} else { // no reference is handed over
			clear(b[:entryLen])
		}
		b = b[entryLen:]
	}
	le.PutUint64(b, uint64(e.Ino))
	le.PutUint64(b[8:], e.Cookie)
	le.PutUint32(b[16:], uint32(len(e.Name)))
	le.PutUint32(b[20:], uint32(e.Type))
	clear(b[direntLen+copy(b[direntLen:], e.Name):])
	return true
}

func (d *Dispatcher) opReaddir(c *call, w metadata.Wait) (int, error) {
	return d.readdir(c, w, false)
}

func (d *Dispatcher) opReaddirplus(c *call, w metadata.Wait) (int, error) {
	return d.readdir(c, w, true)
}

// readdir fills the reply with the entries after the request's cookie. Entries
// that are laid out count, references and all, even if the store then fails: the
// kernel comes back for the rest. If the store would have to wait and no
// reference has been handed over, all of it is done again where it may.
func (d *Dispatcher) readdir(c *call, w metadata.Wait, plus bool) (int, error) {
	in := c.r.Op()
	dw := &c.dir
	dw.out, dw.n, dw.plus, dw.refs, dw.full = c.r.Out[:le.Uint32(in[16:])], 0, plus, false, false
	err := d.st.Readdir(w, metadata.Ino(c.r.Node()), le.Uint64(in[8:]), plus, dw.add)
	dw.out = nil
	switch {
	case w == metadata.NoWait && !dw.refs && errors.Is(err, metadata.ErrWouldBlock):
		return 0, err
	case dw.n > 0:
		return dw.n, nil
	case err != nil:
		return 0, err
	case dw.full: // an empty answer would mean the end
		return 0, metadata.ErrInvalid
	}
	return 0, nil
}
