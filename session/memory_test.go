package session

import (
	"os"
	"runtime"
	"runtime/debug"
	"testing"
)

// The settings are the process's: put them back when the test is over.
func keepRuntime(t *testing.T) {
	t.Helper()
	procs := runtime.GOMAXPROCS(0)
	limit := debug.SetMemoryLimit(-1)
	gc := debug.SetGCPercent(100)
	debug.SetGCPercent(gc)
	t.Cleanup(func() {
		runtime.GOMAXPROCS(procs)
		debug.SetMemoryLimit(limit)
		debug.SetGCPercent(gc)
	})
}

func TestProcessorsToSpare(t *testing.T) {
	keepRuntime(t)
	t.Setenv("GOMAXPROCS", "") // Setenv restores it
	os.Unsetenv("GOMAXPROCS")
	runtime.GOMAXPROCS(1)
	tuneRuntime()
	if got, want := runtime.GOMAXPROCS(0), runtime.NumCPU()+spareProcs; got != want {
		t.Errorf("%d goroutines may run at once, want %d", got, want)
	}
}

func TestUsersSettingsStand(t *testing.T) {
	keepRuntime(t)
	for _, name := range []string{"GOMAXPROCS", "GOGC", "GOMEMLIMIT"} {
		t.Setenv(name, "1")
	}
	runtime.GOMAXPROCS(1)
	debug.SetGCPercent(33)
	debug.SetMemoryLimit(1 << 40)
	tuneRuntime()
	if procs, gc, limit := runtime.GOMAXPROCS(0), debug.SetGCPercent(33), debug.SetMemoryLimit(-1); procs != 1 || gc != 33 || limit != 1<<40 {
		t.Errorf("changed to %d, %d, %d", procs, gc, limit)
	}
}
