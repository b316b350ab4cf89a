package sandbox

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// bars are what a process may not do, from the moment they are raised, nor any that it starts. They are those of the calling thread.
type bars struct {
	Limits []rlimit
	// Landlock refuses writes elsewhere; nil where the kernel knows nothing of it.
	Landlock *ruleset
	// Caps are the capabilities that a privileged user keeps.
	Caps []int
	// Tight refuses system calls that programs seldom need and attacks often do.
	Tight bool
	// Watch has the calls that may change files told to Run: see watch.
	Watch bool
}

// rootCaps are what a privileged user keeps in Local: power over files and processes, as far as they are of its user namespace.
var rootCaps = []int{
	unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE, unix.CAP_DAC_READ_SEARCH, unix.CAP_FOWNER, unix.CAP_FSETID, unix.CAP_KILL,
	unix.CAP_SETGID, unix.CAP_SETUID, unix.CAP_NET_BIND_SERVICE, unix.CAP_SYS_CHROOT, unix.CAP_SETFCAP,
}

func (b *bars) raise() error {
	for _, l := range b.Limits {
		if err := l.set(); err != nil {
			return err
		}
	}
	// A setuid program would leave the bars behind.
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("set no_new_privs: %w", err)
	}
	if b.Landlock != nil {
		if err := b.Landlock.enforce(); err != nil {
			return fmt.Errorf("landlock: %w", err)
		}
	}
	if err := keepCaps(b.Caps); err != nil {
		return fmt.Errorf("give capabilities up: %w", err)
	}
	return b.filter()
}

// filter installs the system call filter. A listener goes to Run; where there can be none nobody is told what was refused.
func (b *bars) filter() error {
	prog := program(b.Tight, b.Watch)
	if prog == nil { // an architecture that we have no numbers for
		return nil
	}
	if b.Watch {
		fd, err := install(prog, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER|unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV)
		if errors.Is(err, unix.EINVAL) { // before Linux 5.19
			fd, err = install(prog, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER)
		}
		if err == nil {
			tell(report{}, fd)
			unix.Close(fd)
			return nil
		}
		prog = program(b.Tight, false)
	}
	_, err := install(prog, 0)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) { // as in some containers
		tell(report{Notes: []string{"this kernel filters no system calls: a command could type into your terminal"}})
		return nil
	}
	if err != nil {
		return fmt.Errorf("seccomp: %w", err)
	}
	return nil
}

// keepCaps gives up all capabilities but these, now and after exec.
func keepCaps(keep []int) error {
	var sets [2]unix.CapUserData // the first 32, and the others
	for _, c := range keep {
		sets[c/32].Effective |= 1 << (c % 32)
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var now [2]unix.CapUserData
	if err := unix.Capget(&header, &now[0]); err != nil {
		return err
	}
	if now[0].Effective&(1<<unix.CAP_SETPCAP) != 0 {
		for c := range 64 {
			if slices.Contains(keep, c) {
				continue
			}
			if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0); err != nil {
				if errors.Is(err, unix.EINVAL) { // the kernel knows no further ones
					break
				}
				return err
			}
		}
	}
	for i := range sets {
		sets[i].Effective &= now[i].Permitted
		sets[i].Permitted = sets[i].Effective
	}
	return unix.Capset(&header, &sets[0])
}
