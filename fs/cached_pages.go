package fs

import (
	"sync/atomic"

	"prismfs/metadata"
)

// cachedPages remembers which inodes the kernel may have pages of in its cache:
// all that were read or written through it, and, as several inodes share a bit,
// some others. Bits are never cleared.
//
//   - Concurrency: safe for concurrent use.
type cachedPages struct {
	bits [cachedBits / 64]atomic.Uint64
}

const (
	cachedShift = 20
	cachedBits  = 1 << cachedShift // 128 KiB of them
)

func (p *cachedPages) at(ino metadata.Ino) (word *atomic.Uint64, bit uint64) {
	h := uint64(ino) * 0x9e3779b97f4a7c15 >> (64 - cachedShift)
	return &p.bits[h/64], 1 << (h % 64)
}

func (p *cachedPages) add(ino metadata.Ino) {
	if word, bit := p.at(ino); word.Load()&bit == 0 {
		word.Or(bit)
	}
}

func (p *cachedPages) has(ino metadata.Ino) bool {
	word, bit := p.at(ino)
	return word.Load()&bit != 0
}

// finishDirectWrite answers an O_DIRECT write of a file that may have pages in
// the kernel's cache. The kernel drops them before it sends the write, but not
// again after an asynchronous one (io_submit(2)); a read of meanwhile would
// leave the old bytes there for good. It runs on a goroutine of its own, as the
// kernel waits for pages whose READ is under way, in whatever lane.
//
//   - Source: generic_file_direct_write, fuse_aio_complete in the kernel.
func (c *call) finishDirectWrite(durable bool) {
	in := c.r.Op()
	off, n := le.Uint64(in[8:]), le.Uint32(in[16:])
	if err := c.d.kernel.InvalInode(c.r.Node(), int64(off), int64(n)); err != nil {
		c.log(err)
	}
	if durable {
		c.startSync(8)
		return
	}
	c.r.Reply(8, 0)
}
