package session

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"time"
)

// How the daemon treats memory. What it holds is little beside what passes through
// it, so it collects later than Go would (unpacking a source tree: 5 % faster), has a soft limit well above what
// it needs, and gives memory back after a quiet minute.
const (
	gcPercent = 200
	softLimit = 512 << 20
	idleEvery = time.Minute
)

// spareProcs is how many goroutines may run at once besides one per processor. As
// many of them as there are processors sit in reads of /dev/fuse. Were that all that
// may run, the Go scheduler would look every 20 µs whether to take their places
// away (runtime.retake): measured as 26 % of the daemon's processor time while
// 6,000 files were made on two processors, against 11 % with two to spare.
const spareProcs = 2

// tuneRuntime applies the above to the process, where the user has not said otherwise.
func tuneRuntime() {
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(runtime.NumCPU() + spareProcs)
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(softLimit)
	}
}

// residentBytes is the memory that the process has in use, as ps(1) and top(1) show
// it; 0 where /proc does not say.
func residentBytes() uint64 {
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	var size, resident uint64 // pages (proc_pid_statm(5))
	if _, err := fmt.Sscan(string(b), &size, &resident); err != nil {
		return 0
	}
	return resident * uint64(os.Getpagesize())
}

// memoryKeeper returns memory to the system once per quiet period.
type memoryKeeper struct {
	last uint64 // requests at the last tick
	done bool   // memory was given back since the last request
}

// tick is called every idleEvery with the request counters.
func (k *memoryKeeper) tick(counters map[string]uint64) {
	var sum uint64
	for _, n := range counters {
		sum += n
	}
	quiet := sum == k.last
	k.last = sum
	switch {
	case !quiet:
		k.done = false
	case !k.done:
		k.done = true
		debug.FreeOSMemory()
	}
}
