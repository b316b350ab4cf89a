package sandbox

import (
	"golang.org/x/sys/unix"
)

// Machine is what this machine can do for Local and NS.
type Machine struct {
	Landlock  int    // the kernel's version of it, 0 for none
	Spaces    error  // why no namespaces can be made for us, nil if they can
	SpacesFix string // what may help then
}

// FullLandlock is the version of Landlock from which on Local refuses all that it is to refuse without namespaces, too.
const FullLandlock = abiTruncate

// Examine tries what Local and NS are made of.
func Examine() Machine {
	m := Machine{Landlock: landlockABI()}
	l := launcher{plan: &plan{Argv: []string{"/bin/true"}, Dir: "/", View: &view{}}, spaces: unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET}
	run, err := l.launch(&Spec{})
	if err != nil {
		m.Spaces, m.SpacesFix = err, spacesHint()
		return m
	}
	_ = run.cmd.Wait() // it runs, which is all that was asked
	run.stop()
	return m
}
