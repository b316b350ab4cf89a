package session

import (
	"os"
	"runtime/debug"
	"time"
)

// How the daemon treats memory. It lives beside builds that need memory more, so
// it collects a little earlier than Go would, has a soft limit well above what
// it needs, and gives memory back after a quiet minute.
const (
	gcPercent = 75
	softLimit = 512 << 20
	idleEvery = time.Minute
)

// tuneMemory applies the above to the process, where the user has not said otherwise.
func tuneMemory() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(softLimit)
	}
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
