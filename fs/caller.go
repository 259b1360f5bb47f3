package fs

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
)

// Bits of the sets of /proc/PID/status.
//
//   - Source: linux/capability.h.
const (
	capFsetid   = 1 << 4
	capSysAdmin = 1 << 21
)

// caller is what /proc tells of the thread that made a request: more than the
// request does, and for what is asked seldom. Of a thread that can't be seen
// from here nothing is known, and it may nothing.
type caller struct{ status []byte }

func callerOf(r *Request) caller {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", r.Pid()))
	if err != nil {
		return caller{}
	}
	return caller{status}
}

// field is what follows a name at the beginning of a line.
func (c caller) field(name string) []byte {
	_, rest, _ := bytes.Cut(c.status, []byte("\n"+name+":"))
	value, _, _ := bytes.Cut(rest, []byte("\n"))
	return value
}

// has tells whether the capability is in effect.
func (c caller) has(capability uint64) bool {
	set, err := strconv.ParseUint(string(bytes.TrimSpace(c.field("CapEff"))), 16, 64)
	return err == nil && set&capability != 0
}

// in tells whether the group is the thread's own or one of its others.
func (c caller) in(gid uint32) bool {
	want := strconv.FormatUint(uint64(gid), 10)
	if own := bytes.Fields(c.field("Gid")); len(own) == 4 && string(own[3]) == want { // that of the file system
		return true
	}
	for _, g := range bytes.Fields(c.field("Groups")) {
		if string(g) == want {
			return true
		}
	}
	return false
}
