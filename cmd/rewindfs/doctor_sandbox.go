package main

import (
	"github.com/rewindfs/rewindfs/sandbox"
)

// checkSandboxes says what run and exec can and cannot keep commands from here. Nothing of it stops a mount.
func (m *machine) checkSandboxes() []finding {
	const name = "sandboxes"
	box := m.sandboxes()
	var out []finding
	switch {
	case box.Spaces != nil && box.Landlock == 0:
		out = append(out, warn(name, box.SpacesFix, "neither namespaces nor Landlock: --sandbox local protects nothing outside of the project, ns cannot run (%v)", box.Spaces))
	case box.Spaces != nil:
		out = append(out, warn(name, box.SpacesFix, "no namespaces (%v): --sandbox local rests on Landlock alone and shows the project at the mount's path, ns cannot run", box.Spaces))
	case box.Landlock == 0:
		out = append(out, warn(name, "run Linux 5.19 or newer, with lsm=landlock,…", "no Landlock: read-only mounts alone protect the host"))
	case box.Landlock < sandbox.FullLandlock:
		out = append(out, warn(name, "run Linux 6.2 or newer", "Landlock of version %d: truncate(2) outside of the project is refused by read-only mounts alone", box.Landlock))
	default:
		out = append(out, ok(name, "namespaces and Landlock (version %d): local and ns can run", box.Landlock))
	}
	return out
}
