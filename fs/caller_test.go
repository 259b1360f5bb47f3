package fs

import (
	"os"
	"testing"
)

func TestCaller(t *testing.T) {
	c := caller{[]byte("Name:\tx\nUid:\t5\t5\t5\t5\nGid:\t7\t8\t9\t10\nGroups:\t4 24 100 \nCapInh:\t0000000000000000\nCapEff:\t0000000000200000\n")}
	for gid, want := range map[uint32]bool{7: false, 10: true, 24: true, 100: true, 2: false, 0: false} {
		if c.in(gid) != want {
			t.Errorf("in group %d: %v", gid, !want)
		}
	}
	if !c.has(capSysAdmin) || c.has(capFsetid) {
		t.Error("capabilities are wrong")
	}
	var nobody caller
	if nobody.in(0) || nobody.has(capSysAdmin) {
		t.Error("a thread that can't be seen was allowed something")
	}
	r := &Request{In: make([]byte, inHeaderLen)}
	le.PutUint32(r.In[32:], uint32(os.Getpid()))
	if me := callerOf(r); !me.in(uint32(os.Getegid())) {
		t.Error("this process is not in its own group")
	}
}
