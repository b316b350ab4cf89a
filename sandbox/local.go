package sandbox

import (
	"errors"
	"fmt"
	"os"
	"os/exec"

	"golang.org/x/sys/unix"
)

// local runs a command that may read what the user may, and write in the project, in the caches, and in temporary directories of its own.
// Writes elsewhere are refused twice: the mounts are read-only, and Landlock refuses them.
type local struct{}

// machine is what a kernel can do. Tests take some of it away.
type machine struct {
	landlock int  // its ABI, 0 for nothing
	spaces   bool // namespaces can be tried
}

func thisMachine() machine { return machine{landlock: landlockABI(), spaces: true} }

func (local) start(s *Spec, prepare func(*exec.Cmd)) (*running, error) {
	return thisMachine().local(s, prepare)
}

func (m machine) local(s *Spec, prepare func(*exec.Cmd)) (*running, error) {
	env, _ := Scrub(s.Env, s.Rules.Env)
	own := *s
	own.Env = env
	err := error(&failure{stageSpaces, ExitSandbox, errors.New("switched off")})
	if m.spaces {
		var run *running
		run, err = m.localApart(&own, s.Env, prepare)
		if !isStage(err, stageSpaces) {
			return run, userError(err, Local)
		}
	}
	run, err := m.localBare(&own, err, prepare)
	return run, userError(err, Local)
}

// devicesOf are the devices that programs open for writing.
var devicesOf = []string{
	"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/ptmx", "/dev/pts",
	"/dev/dri/*", "/dev/nvidia*", "/dev/kfd",
}

// temporary are the variables that name a temporary directory.
var temporary = []string{"TMPDIR", "TMP", "TEMP"}

// localApart starts a command in mounts of its own. env is the environment before it was scrubbed.
func (m machine) localApart(s *Spec, env []string, prepare func(*exec.Cmd)) (*running, error) {
	l := &layout{s: s, view: view{ReadOnly: true}}
	tmp, varTmp, err := makeTmp(s)
	if err != nil {
		return nil, fmt.Errorf("make a temporary directory: %w", err)
	}
	if s.Rules.Limits.TmpBytes > 0 {
		l.own(point{At: "/tmp", What: tmpfs, Size: s.Rules.Limits.TmpBytes, Mode: 0o1777})
		l.own(point{At: "/var/tmp", What: tmpfs, Size: s.Rules.Limits.TmpBytes, Mode: 0o1777})
	} else {
		l.own(point{At: "/tmp", What: bind, From: tmp})
		l.own(point{At: "/var/tmp", What: bind, From: varTmp})
	}
	l.own(point{At: "/dev/shm", What: tmpfs, Mode: 0o1777})
	for _, name := range temporary {
		if getenv(s.Env, name) != "" {
			s.Env = setEnv(s.Env, name+"=/tmp")
		}
	}
	l.needed()
	l.writable("/dev/pts")
	if os.Geteuid() != 0 { // files there are each process's own; root's are also the system's switches
		l.writable("/proc")
	}
	makeCaches(s)
	for _, path := range l.open(expand(s.Rules.writable(), s.Env, true)) {
		l.writable(path)
	}
	l.project()
	for _, path := range expand(DefaultGuarded, s.Env, true) {
		l.readOnly(path)
	}
	l.unseen()
	l.sockets(env)
	if err := l.rules(); err != nil {
		return nil, err
	}
	l.write = append(l.write, expand(devicesOf, nil, true)...)
	spaces := uintptr(unix.CLONE_NEWUSER | unix.CLONE_NEWNS)
	p := &plan{Argv: s.Argv, Env: s.Env, Dir: s.Dir, View: &l.view}
	if s.Rules.Network == "none" {
		spaces |= unix.CLONE_NEWNET
		p.Loopback = true
	}
	return m.launch(s, l, p, spaces, prepare)
}

// localBare starts a command without namespaces, for the reason that why gives: with Landlock alone.
func (m machine) localBare(s *Spec, why error, prepare func(*exec.Cmd)) (*running, error) {
	for flag, said := range map[string]bool{"--deny": len(s.Rules.Deny) > 0, "--network none": s.Rules.Network == "none"} {
		if said {
			return nil, &Error{ExitCode: ExitSandbox, Err: fmt.Errorf("%s takes namespaces, and this machine makes none for us (%w)", flag, why),
				Do: "leave it out, or use --sandbox docker"}
		}
	}
	bare := *s
	bare.Project = s.Mount
	bare.Dir = inMount(s)
	l := &layout{s: &bare}
	tmp, _, err := makeTmp(s)
	if err != nil {
		return nil, fmt.Errorf("make a temporary directory: %w", err)
	}
	for _, name := range temporary {
		bare.Env = setEnv(bare.Env, name+"="+tmp)
	}
	makeCaches(&bare)
	l.write = append(l.open(expand(bare.Rules.writable(), bare.Env, true)), s.Mount, tmp)
	l.write = append(l.write, expand(devicesOf, nil, true)...)
	if os.Geteuid() != 0 {
		l.write = append(l.write, "/proc")
	}
	for _, path := range bare.Rules.Allow {
		if err := l.allow(path); err != nil {
			return nil, err
		}
	}
	l.notes = append(l.notes, bareNote(s, why, m.landlock))
	return m.launch(&bare, l, &plan{Argv: s.Argv, Env: bare.Env, Dir: bare.Dir}, 0, prepare)
}

// bareNote is the one line about a machine that makes no namespaces for us.
func bareNote(s *Spec, why error, abi int) string {
	note := fmt.Sprintf("this machine makes no namespaces for us (%v)", why)
	if s.Project != s.Mount {
		note += fmt.Sprintf(": the command sees the project at %s, not at %s", s.Mount, s.Project)
	}
	switch {
	case abi == 0:
		note += "; and this kernel has no Landlock: NOTHING outside of the project is protected (use --sandbox docker)"
	case abi < abiRefer:
		note += "; with this kernel's Landlock files cannot be moved between directories, and truncate, chmod and chown outside of the project are not refused"
	case abi < abiTruncate:
		note += "; truncate, chmod and chown outside of the project are not refused, and /tmp is read-only"
	default:
		note += "; chmod and chown outside of the project are not refused, and /tmp is read-only"
	}
	return note
}

// launch starts a plan with the bars of Local.
func (m machine) launch(s *Spec, l *layout, p *plan, spaces uintptr, prepare func(*exec.Cmd)) (*running, error) {
	p.Bars = &bars{Caps: rootCaps, Watch: true}
	// Where the mounts are read-only, a Landlock that lets no file be moved between directories would harm more than it helps.
	if m.landlock >= abiRefer || m.landlock > 0 && p.View == nil {
		p.Bars.Landlock = &ruleset{ABI: m.landlock, Write: l.write}
	}
	return l.launch(s, p, spaces, prepare)
}

// launch starts a plan in a cgroup with the limits, and watches what is refused.
func (l *layout) launch(s *Spec, p *plan, spaces uintptr, prepare func(*exec.Cmd)) (*running, error) {
	l.makeRoom()
	group := newCgroup(&s.Rules.Limits)
	limits, notes := s.Rules.Limits.rlimits(group, os.Geteuid() == 0, spaces&unix.CLONE_NEWUSER != 0)
	p.Bars.Limits = limits
	start := &launcher{plan: p, spaces: spaces, cgroup: group, prepare: prepare, watch: func(listener int) (func() []Refusal, func(bool)) {
		return l.watch(listener, !p.PID1)
	}}
	run, err := start.launch(s)
	if err != nil {
		group.remove()
		return nil, err
	}
	run.notes = append(append(l.notes, notes...), run.notes...)
	return run, nil
}
