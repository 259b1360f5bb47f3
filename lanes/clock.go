package lanes

import (
	"runtime"
	"time"
)

var epoch = time.Now()

// now is monotonic nanoseconds. It costs some 40 ns, which is why the short
// lanes sample (sampleShort).
func now() int64 { return int64(time.Since(epoch)) }

// goid is the number of the calling goroutine, 0 if the runtime's format is
// not understood. It costs microseconds and is used where correctness needs
// to know whether the caller is one of a lane's own workers AND time does not
// matter: submitting to a closing lane, closing, Pool.Current. The way to pass
// a worker's identity on a fast path is Job.Context.
func goid() uint64 {
	var buf [64]byte
	s := buf[:runtime.Stack(buf[:], false)]
	const prefix = "goroutine "
	if len(s) < len(prefix) || string(s[:len(prefix)]) != prefix {
		return 0
	}
	var id uint64
	for _, c := range s[len(prefix):] {
		if c < '0' || c > '9' {
			break
		}
		id = id*10 + uint64(c-'0')
	}
	return id
}
