package fs

import (
	"prismfs/metadata"
)

const statfsOutLen = 80 // fuse_kstatfs

func (d *Dispatcher) opStatfs(c *call, _ metadata.Wait) (int, error) {
	s := &c.statfs
	if err := d.st.Statfs(s); err != nil {
		return 0, err
	}
	b := c.r.Out[:statfsOutLen]
	clear(b)
	le.PutUint64(b, s.Blocks)
	le.PutUint64(b[8:], s.Free)
	le.PutUint64(b[16:], s.Avail)
	le.PutUint64(b[24:], s.Files)
	le.PutUint64(b[32:], s.FilesFree)
	le.PutUint32(b[40:], s.BlockSize)
	le.PutUint32(b[44:], s.NameMax)
	le.PutUint32(b[48:], s.BlockSize) // frsize: the unit of the counts
	return statfsOutLen, nil
}
