package fs

import "prismfs/metadata"

// FirstOpenName is the name in the root directory under which a file is found
// until the first OPEN. The kernel learns only from an OPEN that opens are
// refused, and until then sends a RELEASE for each file that it has created;
// opening this file once, right after mounting, ends that. It must be another
// process than the daemon that does so.
const FirstOpenName = ".prismfs-first-open"

// firstOpenIno is above every number that a store gives out.
const firstOpenIno = metadata.Ino(1) << 63

var firstOpenAttr = metadata.Attr{Ino: firstOpenIno, Mode: 0100444, Nlink: 1}

// isFirstOpen says whether a lookup is the one of FirstOpenName.
func (d *Dispatcher) isFirstOpen(parent uint64, name []byte) bool {
	return parent == uint64(metadata.RootIno) && len(name) == len(FirstOpenName) &&
		d.o.NoOpen && !d.opened.Load() && string(name) == FirstOpenName
}

// putFirstOpen answers it; nothing of it is to be remembered.
func putFirstOpen(out []byte) int {
	clear(out[:entryLen])
	le.PutUint64(out, uint64(firstOpenIno))
	le.PutUint64(out[8:], generation)
	putAttr(out[40:], &firstOpenAttr)
	return entryLen
}
