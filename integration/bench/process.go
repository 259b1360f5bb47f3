package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// cpuTime is what a process has used so far, all its threads together, also
// those that have ended (clock_getcpuclockid(3)).
func cpuTime(pid int) time.Duration {
	const scheduler = 2
	var ts unix.Timespec
	if pid == 0 || unix.ClockGettime(int32(^pid<<3|scheduler), &ts) != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}

// peakRSS is the largest resident size of a process so far, in bytes.
func peakRSS(pid int) int64 {
	if pid == 0 {
		return 0
	}
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, _ := strconv.ParseInt(strings.Fields(v)[0], 10, 64)
			return kib << 10
		}
	}
	return 0
}

// deviceCount is what a block device has done so far
// (Documentation/block/stat.rst).
type deviceCount struct{ flushes, writtenBytes int64 }

func (d deviceCount) sub(o deviceCount) deviceCount {
	return deviceCount{d.flushes - o.flushes, d.writtenBytes - o.writtenBytes}
}

func countDevice(name string) deviceCount {
	b, _ := os.ReadFile("/sys/block/" + name + "/stat")
	f := strings.Fields(string(b))
	if len(f) < 17 {
		return deviceCount{}
	}
	num := func(i int) int64 { n, _ := strconv.ParseInt(f[i], 10, 64); return n }
	return deviceCount{flushes: num(15), writtenBytes: num(6) * 512}
}
