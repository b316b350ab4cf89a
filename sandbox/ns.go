package sandbox

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// ns runs a command in namespaces of its own: it sees the host's files, but for secrets, read-only, none of its processes, and by
// default no network.
type ns struct{}

func (ns) start(s *Spec, prepare func(*exec.Cmd)) (*running, error) {
	return thisMachine().ns(s, prepare)
}

// DefaultTmpBytes bounds each of the temporary directories of NS, which are in memory, unless Limits.TmpBytes says otherwise.
const DefaultTmpBytes = 2 << 30

// Parts of /run that names are looked up with, where there is a network.
var resolvers = []string{"/run/systemd/resolve", "/run/resolvconf", "/run/NetworkManager/resolv.conf", "/run/nscd"}

// systemViews are of use to nobody in a box, and tell about the host.
var systemViews = []string{"/sys/kernel/debug", "/sys/kernel/tracing", "/sys/kernel/security", "/sys/firmware", "/sys/fs/fuse/connections", "/sys/fs/bpf"}

func (m machine) ns(s *Spec, prepare func(*exec.Cmd)) (*running, error) {
	if s.Argv[0] == "" {
		return nil, &Error{ExitCode: ExitNotFound, Err: fmt.Errorf("%q: command not found", "")}
	}
	own := *s
	own.Env, _ = Scrub(s.Env, s.Rules.Env)
	l := &layout{s: &own, view: view{ReadOnly: true}}
	run, err := m.nsStart(&own, s.Env, l, prepare)
	if isStage(err, stageSpaces) {
		return nil, &Error{ExitCode: ExitSandbox, Err: fmt.Errorf("sandbox ns: this machine makes no such namespaces for us: %w", err), Do: spacesHint()}
	}
	return run, userError(err, NS)
}

func (m machine) nsStart(s *Spec, env []string, l *layout, prepare func(*exec.Cmd)) (*running, error) {
	if !m.spaces {
		return nil, &failure{stageSpaces, ExitSandbox, fmt.Errorf("switched off")}
	}
	network := s.Rules.Network == "host"
	size := s.Rules.Limits.TmpBytes
	if size == 0 {
		size = DefaultTmpBytes
	}
	for _, dir := range []string{"/tmp", "/var/tmp"} {
		l.own(point{At: dir, What: tmpfs, Size: size, Mode: 0o1777})
	}
	l.own(point{At: "/run", What: tmpfs, Size: 1 << 20})
	l.view.set(point{At: "/dev", What: devices, Size: size})
	l.view.set(point{At: "/proc", What: procfs, ReadOnly: os.Geteuid() == 0}) // root's files there are also the system's switches
	l.needed()
	if network {
		for _, path := range resolvers {
			if exists(path) {
				l.view.set(point{At: path, What: bind, From: follow(path), ReadOnly: true})
			}
		}
	}
	l.project()
	l.unseen()
	if dir := getenv(env, "XDG_RUNTIME_DIR"); filepath.IsAbs(dir) {
		l.hide(dir)
	}
	l.sockets(env)
	for _, path := range slices.Concat(expand(s.Rules.secrets(), s.Env, false), systemViews) {
		l.hide(path)
	}
	for _, path := range s.Rules.Hide {
		abs := absolute(path, s)
		if abs == "/" {
			return nil, &Error{ExitCode: ExitSandbox, Err: fmt.Errorf("--hide %s: that is everything", path), Do: "name what is not to be seen, or use --sandbox docker"}
		}
		l.hide(abs)
	}
	if err := l.rules(); err != nil {
		return nil, err
	}
	s.Env = nsEnv(s.Env, s.Rules.Env)
	l.write = append(l.write, "/dev/shm", "/dev/pts")
	for _, name := range plainDevices {
		l.write = append(l.write, "/dev/"+name)
	}
	spaces := uintptr(unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP)
	p := &plan{Argv: s.Argv, Env: s.Env, Dir: s.Dir, View: &l.view, PID1: true}
	if !network {
		spaces |= unix.CLONE_NEWNET
		p.Loopback = true
	}
	p.Bars = &bars{Tight: true, Watch: true}
	write := l.write
	if os.Geteuid() != 0 {
		write = append(slices.Clone(write), "/proc")
	}
	switch {
	case m.landlock >= abiRefer:
		p.Bars.Landlock = &ruleset{ABI: m.landlock, Write: write}
	case os.Geteuid() == 0:
		l.notes = append(l.notes, "this kernel's Landlock is missing or too old: read-only mounts alone protect the host")
	}
	return l.launch(s, p, spaces, prepare)
}

// nsEnv is the environment in NS: directories for caches that can be written to, unless the user has set others, and none
// that cannot be seen.
func nsEnv(env, let []string) []string {
	env = slices.DeleteFunc(slices.Clone(env), func(v string) bool {
		for _, name := range append([]string{"XDG_RUNTIME_DIR"}, temporary...) {
			if len(v) > len(name) && v[:len(name)+1] == name+"=" {
				return true
			}
		}
		return false
	})
	for name, dir := range map[string]string{"XDG_CACHE_HOME": "/tmp/.cache", "npm_config_cache": "/tmp/.npm"} {
		if getenv(env, name) == "" {
			env = setEnv(env, name+"="+dir)
		}
	}
	return setEnv(env, let...)
}

// spacesHint says what can be done where no namespaces can be made.
func spacesHint() string {
	for file, bad := range map[string]string{
		"/proc/sys/kernel/unprivileged_userns_clone":             "0",
		"/proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1",
		"/proc/sys/user/max_user_namespaces":                     "0",
	} {
		if raw, err := os.ReadFile(file); err == nil && len(raw) > 0 && string(raw[:len(raw)-1]) == bad {
			return fmt.Sprintf("%s is %s: an administrator can change that; or use --sandbox docker or local", file, bad)
		}
	}
	return "inside of a container they are often forbidden: use --sandbox local there, or docker outside"
}
