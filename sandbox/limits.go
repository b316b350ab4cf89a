package sandbox

import (
	"fmt"
	"math"

	"golang.org/x/sys/unix"
)

// rlimit is a bound that the kernel keeps for each process.
type rlimit struct {
	Resource int // RLIMIT_…
	Max      uint64
}

// set lowers a bound; one that is lower already stays.
func (l rlimit) set() error {
	var now unix.Rlimit
	if err := unix.Getrlimit(l.Resource, &now); err != nil {
		return fmt.Errorf("read a limit: %w", err)
	}
	max := min(l.Max, now.Max)
	if err := unix.Setrlimit(l.Resource, &unix.Rlimit{Cur: min(max, now.Cur), Max: max}); err != nil {
		return fmt.Errorf("set a limit: %w", err)
	}
	return nil
}

// rlimits are the bounds of l that the kernel keeps process by process, as far as a cgroup does not keep them for all together.
// In a user namespace of our own the processes in it are counted, else all of the user's, which is no use. A privileged user's are not counted.
func (l *Limits) rlimits(g *cgroup, root, userSpace bool) (set []rlimit, notes []string) {
	if l.FileBytes > 0 {
		set = append(set, rlimit{unix.RLIMIT_FSIZE, uint64(l.FileBytes)})
	}
	if l.MemoryBytes > 0 && !g.bounds("memory") {
		set = append(set, rlimit{unix.RLIMIT_DATA, uint64(l.MemoryBytes)})
		notes = append(notes, "no cgroup can be made here: the memory of each process is bounded, not that of all together")
	}
	if l.Processes > 0 && !g.bounds("pids") {
		if root || !userSpace {
			notes = append(notes, "no cgroup can be made here: the number of processes is not bounded")
		} else {
			set = append(set, rlimit{unix.RLIMIT_NPROC, uint64(min(l.Processes, math.MaxInt32)) + ownThreads})
		}
	}
	if l.CPUs > 0 && !g.bounds("cpu") {
		notes = append(notes, "no cgroup can be made here: the use of processors is not bounded")
	}
	return set, notes
}

// ownThreads is room for the threads of the first process of a pid namespace, which count.
const ownThreads = 16
