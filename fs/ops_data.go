package fs

import (
	"fmt"
	"io"
	"syscall"

	"prismfs/lanes"
	"prismfs/metadata"
	"prismfs/uring"
)

// opRead answers from memory if it can. Under NoWait the store may leave a plan
// instead, whose pieces then come from the disk without anybody waiting.
func (d *Dispatcher) opRead(c *call, w metadata.Wait) (int, error) {
	in := c.r.Op()
	ino, off, dst := metadata.Ino(c.r.Node()), le.Uint64(in[8:]), c.r.Out[:le.Uint32(in[16:])]
	if le.Uint32(in[32:])&syscall.O_DIRECT == 0 {
		d.cached.add(ino)
	}
	// A parked read leaves its lane's worker as soon as it knows where the bytes
	// are; only the transport's own thread may use the transport's ring.
	inHandle := w == metadata.NoWait
	c.plan.Ring = inHandle && c.r.HasRing()
	n, err := d.st.Read(w, ino, off, dst, &c.plan)
	if err != nil || len(c.plan.Pieces) == 0 {
		return n, err
	}
	c.startRead(inHandle)
	return 0, errAsync
}

// maxKeptPieces is how many pieces' worth of memory a request keeps for the
// next one.
const maxKeptPieces = 32

// inlineFinish is how much a transport's thread may verify by itself; more than
// that goes to the CPU pool, for the sake of the thread's other requests.
const inlineFinish = 128 << 10

// startRead reads the pieces of the plan: one that goes right into the reply on
// the transport's own ring if it has one, else all at once through the disk. The
// call may be over and in use for another request when the last piece has been
// submitted.
func (c *call) startRead(inHandle bool) {
	c.d.async.Add(1)
	pieces := c.plan.Pieces
	if inHandle && len(pieces) == 1 {
		p := &pieces[0]
		c.readDone.Run = ringReadDone
		if fd := p.File.Fd(); fd >= 0 && within(p.Buf, c.r.Out) && c.r.SubmitRead(fd, p.Off, p.Buf, &c.readDone) {
			return
		}
	}
	for len(c.pieces) < len(pieces) {
		c.pieces = append(c.pieces, pieceRead{})
	}
	reads := c.pieces[:len(pieces)] // jobs are in flight by address: no append from here on
	c.failed.Store(false)
	c.pending.Store(int32(len(pieces)))
	for i := range reads {
		r := &reads[i]
		r.c, r.file = c, pieces[i].File
		r.done.Run, r.done.Arg = pieceDone, r
		r.P, r.Off, r.N, r.Err, r.Done = pieces[i].Buf, pieces[i].Off, 0, nil, &r.done
	}
	for i := range reads {
		r := &reads[i]
		if err := r.file.ReadAsync(&r.Read); err != nil {
			r.Err = err
			r.ended()
		}
	}
}

// within tells whether b is a part of out, by the end that slices of one array
// have in common. A slice whose capacity was cut counts as elsewhere.
func within(b, out []byte) bool {
	return cap(b) > 0 && cap(out) >= cap(b) && &b[:cap(b)][cap(b)-1] == &out[:cap(out)][cap(out)-1]
}

// ringReadDone continues a read of the transport's ring, on its thread.
func ringReadDone(j *lanes.Job) {
	c := j.Arg.(*call)
	p := &c.plan.Pieces[0]
	if err := readError(p.File, p.Off, len(p.Buf), c.r.ReadN, c.r.ReadErr); err != nil {
		c.log(err)
		c.abortRead()
		return
	}
	if c.plan.N > inlineFinish {
		j.Run = finishJob
		if c.d.cpu.Submit(j) == nil {
			return
		}
	}
	c.finishRead()
}

func finishJob(j *lanes.Job) { j.Arg.(*call).finishRead() }

// pieceDone is told by the CPU pool that one piece is over.
func pieceDone(j *lanes.Job) { j.Arg.(*pieceRead).ended() }

// ended counts one piece down; the last one ends the read.
func (r *pieceRead) ended() {
	c := r.c
	if err := readError(r.file, r.Off, len(r.P), r.N, r.Err); err != nil {
		c.log(err)
		c.failed.Store(true)
	}
	r.file, r.P = nil, nil
	if c.pending.Add(-1) > 0 {
		return
	}
	if cap(c.pieces) > maxKeptPieces {
		c.pieces = nil
	}
	if c.failed.Load() {
		c.abortRead()
		return
	}
	c.finishRead()
}

// readError says what was wrong with a read of a store's file. The end of the
// file is not to be met: the store knows where its bytes are.
func readError(f uring.File, off int64, want, n int, err error) error {
	if err == nil && n != want {
		err = io.ErrUnexpectedEOF
	}
	if err == nil {
		return nil
	}
	return fmt.Errorf("read %s at %d: %w", f.Name(), off, err)
}

// abortRead gives the plan up and answers EIO.
func (c *call) abortRead() {
	c.plan.Abort()
	c.d.errors.Add(1)
	c.r.Reply(0, syscall.EIO)
}

// finishRead verifies and assembles what has been read, and answers.
func (c *call) finishRead() {
	n := c.plan.N
	if err := c.plan.Finish(); err != nil {
		c.fail(err, errnoOf(err))
		return
	}
	c.r.Reply(n, 0)
}

// flags of fuse_write_in
//
// A lock owner comes with direct I/O alone. O_DIRECT doesn't tell it apart: what
// a direct write could not do is done through the cache, and fcntl(2) can change
// it at any time. The pages of a write through the cache are locked until it is
// answered, so that to have them dropped before would wait for ever.
//
//   - Source: fuse_send_write, fuse_send_write_pages in the kernel's fs/fuse/file.c.
const (
	writeCache       = 1 << 0
	writeLockOwner   = 1 << 1
	writeKillSuidgid = 1 << 2
)

// opWrite writes at the offset that the kernel gives, also for O_APPEND: it
// knows the size. With O_DSYNC, which O_SYNC includes, the answer waits for
// durability.
func (d *Dispatcher) opWrite(c *call, w metadata.Wait) (int, error) {
	in := c.r.Op()
	size := le.Uint32(in[16:])
	var flags metadata.WriteFlags
	wf := le.Uint32(in[20:])
	if wf&writeKillSuidgid != 0 {
		flags |= metadata.WriteKillPriv
	}
	if wf&writeCache != 0 {
		flags |= metadata.WriteCached
		if d.o.Writeback {
			flags |= metadata.WriteKeepTimes
		}
	}
	ino, how := metadata.Ino(c.r.Node()), le.Uint32(in[32:])
	direct := wf&(writeCache|writeLockOwner) == writeLockOwner
	if !direct {
		d.cached.add(ino)
	}
	if err := d.st.Write(w, ino, le.Uint64(in[8:]), c.r.Data[:size], flags); err != nil {
		return 0, err
	}
	le.PutUint32(c.r.Out, size)
	le.PutUint32(c.r.Out[4:], 0)
	durable := how&syscall.O_DSYNC != 0
	if direct && d.kernel != nil && d.cached.has(ino) {
		d.async.Add(1)
		go c.finishDirectWrite(durable)
		return 0, errAsync
	}
	if durable {
		c.startSync(8)
		return 0, errAsync
	}
	return 8, nil
}

// opSync answers FSYNC, FSYNCDIR and SYNCFS once everything acknowledged so far
// is durable: a crash keeps a prefix, so there is nothing less to sync.
func (d *Dispatcher) opSync(c *call, _ metadata.Wait) (int, error) {
	c.startSync(0)
	return 0, errAsync
}

// startSync waits for durability without a thread and then replies with n bytes.
func (c *call) startSync(n int) {
	c.d.async.Add(1)
	c.syncN = n
	c.sync.Err = nil
	c.d.st.SyncAsync(&c.sync)
}

// syncDone answers, on the goroutine of the barriers.
func syncDone(j *lanes.Job) {
	c := j.Arg.(*call)
	if err := c.sync.Err; err != nil {
		c.fail(err, syncErrno(err))
		return
	}
	c.r.Reply(c.syncN, 0)
}

func (d *Dispatcher) opFallocate(c *call, w metadata.Wait) (int, error) {
	in := c.r.Op()
	return 0, d.st.Fallocate(w, metadata.Ino(c.r.Node()), le.Uint32(in[24:]), le.Uint64(in[8:]), le.Uint64(in[16:]))
}

// opLseek finds data and holes; the kernel does all other seeking.
func (d *Dispatcher) opLseek(c *call, w metadata.Wait) (int, error) {
	in := c.r.Op()
	whence := le.Uint32(in[16:])
	if whence != metadata.SeekData && whence != metadata.SeekHole {
		return 0, metadata.ErrInvalid
	}
	off, err := d.st.Lseek(w, metadata.Ino(c.r.Node()), le.Uint64(in[8:]), whence)
	if err != nil {
		return 0, err
	}
	le.PutUint64(c.r.Out, off)
	return 8, nil
}

const (
	// copyMax is how much one COPY_FILE_RANGE copies: copy_file_range(2) may do
	// less than it was asked for, and callers come back for the rest.
	copyMax = 16 << 20
	// copyChunk is how much of it is in memory at a time.
	copyChunk = 1 << 20
)

// opCopyFileRange copies bytes from file to file without their passing through
// the kernel, which has written back what it holds of both. Like read(2) and
// write(2) it is not atomic.
func (d *Dispatcher) opCopyFileRange(c *call, w metadata.Wait) (int, error) {
	if w == metadata.NoWait {
		return 0, metadata.ErrWouldBlock
	}
	in := c.r.Op()
	src, from := metadata.Ino(c.r.Node()), le.Uint64(in[8:])
	dst, to := metadata.Ino(le.Uint64(in[16:])), le.Uint64(in[32:])
	left := min(le.Uint64(in[40:]), copyMax)
	if le.Uint64(in[48:]) != 0 {
		return 0, metadata.ErrInvalid
	}
	buf := make([]byte, min(left, copyChunk))
	var copied uint64
	for left > 0 {
		n, err := d.st.Read(w, src, from+copied, buf[:min(left, uint64(len(buf)))], nil)
		if err == nil && n > 0 {
			err = d.st.Write(w, dst, to+copied, buf[:n], 0)
		}
		if err != nil && copied == 0 {
			return 0, err
		}
		if err != nil || n == 0 {
			break
		}
		copied += uint64(n)
		left -= uint64(n)
	}
	// fuse_write_out, fuse_copy_file_range_out: the same for these sizes.
	le.PutUint64(c.r.Out, copied)
	return 8, nil
}
