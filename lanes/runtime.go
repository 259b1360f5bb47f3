package lanes

import "runtime"

// Config sizes a Runtime; zero fields take the defaults.
type Config struct {
	CPU        int // max(2, cores)
	BlockingIO int // max(4, cores)
	DBRead     int // max(4, cores)
	Compaction int // 1
}

// Runtime owns the process's lanes. Whoever needs one is given it at
// construction; nobody asks at run time where to go.
type Runtime struct {
	CPU        *Pool     // continuations of completed reads, compression, timers
	BlockingIO *Blocking // operations that may block and that the ring can't do
	DBRead     *Blocking // engine reads that may touch the disk
	Compaction *Blocking // flush, compaction, segment GC: single flight for those who Enter
	DBWrite    *Serial   // the single writer: planning and commit of write groups
	File       *Serial   // order of append, flush, sync and close on the logs
}

// NewRuntime starts the lanes.
func NewRuntime(c Config) *Runtime {
	// The cores, not GOMAXPROCS: that is raised above them so that goroutines
	// in system calls don't hold up the others.
	cores := runtime.NumCPU()
	size := func(n, def int) int {
		if n > 0 {
			return n
		}
		return def
	}
	return &Runtime{
		CPU:        NewPool("CPU", size(c.CPU, max(2, cores))),
		BlockingIO: NewBlocking("BlockingIO", size(c.BlockingIO, max(4, cores)), true),
		DBRead:     NewBlocking("DBRead", size(c.DBRead, max(4, cores)), true),
		Compaction: NewBlocking("Compaction", size(c.Compaction, 1), false),
		DBWrite:    NewSerial("DBWrite"),
		File:       NewSerial("File"),
	}
}

// Close drains and joins the lanes, producers before those they submit to:
// Compaction, BlockingIO, DBRead, DBWrite, File, CPU. The users above (mount,
// metadata, engine, logs, disk) must have been closed before.
func (r *Runtime) Close() {
	r.Compaction.Close()
	r.BlockingIO.Close()
	r.DBRead.Close()
	r.DBWrite.Close()
	r.File.Close()
	r.CPU.Close()
}

// Stats returns a snapshot per lane.
func (r *Runtime) Stats() []LaneStats {
	return []LaneStats{
		r.CPU.Stats(), r.BlockingIO.Stats(), r.DBRead.Stats(),
		r.Compaction.Stats(), r.DBWrite.Stats(), r.File.Stats(),
	}
}
