package simdisk

// OpKind is a kind of operation.
type OpKind int

const (
	OpCreate OpKind = iota
	OpOpen
	OpRemove
	OpRename
	OpMkdir
	OpList
	OpStat
	OpSyncDir
	OpLock
	OpRead
	OpWrite
	OpDatasync // Sync as well
	OpAllocate
	OpTruncate
)

var opNames = [...]string{"create", "open", "remove", "rename", "mkdir", "list", "stat", "sync directory",
	"lock", "read", "write", "datasync", "allocate", "truncate"}

func (k OpKind) String() string { return opNames[k] }

// changes says whether the operation changes the volatile or durable state.
func (k OpKind) changes() bool {
	switch k {
	case OpOpen, OpList, OpStat, OpLock, OpRead:
		return false
	}
	return true
}

// Op is an operation about to happen.
type Op struct {
	Index  int // from 1, over all operations of this disk
	Change int // from 1, over those that change something; 0 for the others
	Kind   OpKind
	Name   string
	Off    int64 // position, or the new size of a Truncate
	Len    int64 // bytes
}

// OnOp shows every operation to fn before it has an effect; an error fails the
// operation, which then has none (a Datasync marks its data clean). fn may call
// Crash. Only one hook is held; nil removes it.
func (d *Disk) OnOp(fn func(Op) error) { d.set(func() { d.hook = fn }) }

// FailAt fails the operation of that index, once.
func (d *Disk) FailAt(index int, err error) { d.set(func() { d.failAt[index] = err }) }

// Ops is the number of operations so far, and of those that change something.
func (d *Disk) Ops() (all, changes int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ops, d.changes
}

func (d *Disk) begin(op Op) error {
	d.mu.Lock()
	d.ops++
	op.Index = d.ops
	if op.Kind.changes() {
		d.changes++
		op.Change = d.changes
	}
	err := d.failAt[op.Index]
	delete(d.failAt, op.Index)
	hook := d.hook
	d.mu.Unlock()
	if err == nil && hook != nil {
		err = hook(op)
	}
	return err
}
