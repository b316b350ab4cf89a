package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/paths"
	"github.com/rewindfs/rewindfs/sandbox"
	"github.com/rewindfs/rewindfs/session"
)

// The outcomes of a check. Only statusFail stops a mount.
const (
	statusOK   = "ok"
	statusWarn = "warn"
	statusFail = "FAIL"
)

// finding is one thing that doctor looked at.
type finding struct {
	Name   string `json:"name"`
	Status string `json:"status"`
	Detail string `json:"detail"`
	Fix    string `json:"fix,omitempty"` // the command, or the line, that mends it
}

func ok(name, format string, args ...any) finding {
	return finding{name, statusOK, fmt.Sprintf(format, args...), ""}
}

func warn(name, fix, format string, args ...any) finding {
	return finding{name, statusWarn, fmt.Sprintf(format, args...), fix}
}

func fail(name, fix, format string, args ...any) finding {
	return finding{name, statusFail, fmt.Sprintf(format, args...), fix}
}

// machine is what doctor examines; tests make up their own.
type machine struct {
	device    string // /dev/fuse
	fuseConf  string
	release   string // of the kernel
	status    string // /proc/self/status
	root      bool   // we are uid 0, here
	container bool
	storeRoot func() (string, error)
	helper    func() (string, error) // finds fusermount3
	statfs    func(string) (kind int64, free uint64, err error)
	sessions  func(context.Context) ([]session.Listed, error)
	engine    func(cli string) (*sandbox.Engine, error)
	rules     func() (sandbox.Rules, error)
	sandboxes func() sandbox.Machine
}

func thisMachine() *machine {
	return &machine{
		sandboxes: sandbox.Examine,
		device:    "/dev/fuse",
		fuseConf:  "/etc/fuse.conf",
		release:   kernelRelease(),
		status:    readText("/proc/self/status"),
		root:      os.Geteuid() == 0,
		container: inContainer(),
		storeRoot: session.StateRoot,
		helper: func() (string, error) {
			if p, err := exec.LookPath("fusermount3"); err == nil {
				return p, nil
			}
			return exec.LookPath("/usr/bin/fusermount3")
		},
		statfs: func(dir string) (int64, uint64, error) {
			var st unix.Statfs_t
			err := unix.Statfs(dir, &st)
			return int64(st.Type), st.Bavail * uint64(st.Bsize), err
		},
		sessions: func(ctx context.Context) ([]session.Listed, error) {
			reg, err := registry()
			if err != nil {
				return nil, err
			}
			return reg.List(ctx)
		},
		engine: func(cli string) (*sandbox.Engine, error) { return sandbox.FindEngine(cli, os.Environ()) },
		rules:  func() (sandbox.Rules, error) { return sandbox.HostRules(os.Environ()) },
	}
}

func kernelRelease() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}

func readText(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return string(b)
}

func inContainer() bool {
	for _, p := range []string{"/.dockerenv", "/run/.containerenv"} {
		if _, err := os.Lstat(p); err == nil {
			return true
		}
	}
	return false
}

func (m *machine) examine(ctx context.Context) []finding {
	out := append([]finding{m.checkDevice(), m.checkRight(), m.checkAllowOther()}, m.checkDocker(ctx)...)
	out = append(out, m.checkKernel()...)
	out = append(out, m.checkStore()...)
	out = append(out, m.checkSandboxes()...)
	return append(append(out, m.checkMounts(ctx)...), m.checkRules(ctx)...)
}

const dockerFlags = "docker run --device /dev/fuse --cap-add SYS_ADMIN --security-opt apparmor=unconfined …"

// checkDevice: without /dev/fuse there is nothing to talk to the kernel through.
func (m *machine) checkDevice() finding {
	const name = "/dev/fuse"
	fix := func(host string) string {
		if m.container {
			return dockerFlags
		}
		return host
	}
	f, err := os.OpenFile(m.device, os.O_RDWR, 0)
	switch {
	case err == nil:
		f.Close()
		return ok(name, "is there and may be opened")
	case errors.Is(err, fs.ErrNotExist):
		return fail(name, fix("sudo modprobe fuse"), "does not exist")
	case errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENXIO):
		return fail(name, fix("sudo modprobe fuse"), "is there, but the kernel has no FUSE loaded")
	case errors.Is(err, unix.EPERM):
		return fail(name, dockerFlags, "may not be opened: a container forbids the device")
	case errors.Is(err, fs.ErrPermission):
		return fail(name, "sudo chmod 0666 /dev/fuse", "may not be opened by you")
	}
	return fail(name, "", "cannot be opened: %v", err)
}

// capSysAdmin is the number of the capability that mount(2) asks for.
const capSysAdmin = 21

// checkRight: root mounts by itself, everybody else through fusermount3.
func (m *machine) checkRight() finding {
	const name = "the right to mount"
	if caps, err := strconv.ParseUint(m.statusField("CapEff"), 16, 64); err == nil && caps&(1<<capSysAdmin) != 0 {
		return ok(name, "this user may mount (CAP_SYS_ADMIN)")
	}
	path, err := m.helper()
	switch {
	case err != nil && m.root:
		return fail(name, dockerFlags, "root without CAP_SYS_ADMIN, and no fusermount3: a container forbids mounting")
	case err != nil:
		return fail(name, "sudo apt install fuse3", "fusermount3 is not installed")
	case m.statusField("NoNewPrivs") == "1":
		return fail(name, "", "%s cannot gain its rights: this process was started with no_new_privs (by a sandbox, or docker --security-opt no-new-privileges)", path)
	}
	fi, err := os.Stat(path)
	if err == nil && fi.Mode()&os.ModeSetuid == 0 {
		return fail(name, "sudo chmod u+s "+path, "%s is not setuid root", path)
	}
	return ok(name, "through %s", path)
}

// statusField reads a field of /proc/self/status.
func (m *machine) statusField(name string) string {
	for line := range strings.SplitSeq(m.status, "\n") {
		if v, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// checkAllowOther: needed only for --allow-other, and not by root.
func (m *machine) checkAllowOther() finding {
	const name = "--allow-other"
	if m.root {
		return ok(name, "root needs no leave for it")
	}
	f, err := os.Open(m.fuseConf)
	if err == nil {
		defer f.Close()
		for sc := bufio.NewScanner(f); sc.Scan(); {
			if strings.TrimSpace(sc.Text()) == "user_allow_other" {
				return ok(name, "allowed by %s", m.fuseConf)
			}
		}
	}
	return warn(name, "echo user_allow_other | sudo tee -a "+m.fuseConf,
		"user_allow_other is missing in %s: root, docker and other users cannot enter your mounts", m.fuseConf)
}

// kernelFeatures says what an older kernel costs.
var kernelFeatures = []struct {
	major, minor int
	status       string
	cost         string
}{
	{5, 6, statusFail, "openat2: the base cannot be read safely"},
	{5, 12, statusWarn, "HANDLE_KILLPRIV_V2: each write asks for security.capability first"},
	{6, 2, statusWarn, "O_TMPFILE on FUSE: programs fall back to named temporary files"},
	{6, 6, statusWarn, "STATX on FUSE: birth times are not shown"},
	{6, 16, statusWarn, "NOTIFY_INC_EPOCH: a rollback of very many names takes longer"},
}

func (m *machine) checkKernel() []finding {
	const name = "the kernel"
	parts := strings.FieldsFunc(m.release, func(r rune) bool { return r < '0' || r > '9' })
	if len(parts) < 2 {
		return []finding{warn(name, "", "its version %q cannot be read", m.release)}
	}
	major, _ := strconv.Atoi(parts[0])
	minor, _ := strconv.Atoi(parts[1])
	var out []finding
	for _, f := range kernelFeatures {
		if major < f.major || major == f.major && minor < f.minor {
			out = append(out, finding{name, f.status, fmt.Sprintf("%s lacks %s", m.release, f.cost), fmt.Sprintf("run Linux %d.%d or newer", f.major, f.minor)})
		}
	}
	if len(out) == 0 {
		out = append(out, ok(name, "%s has all that is used", m.release))
	}
	return out
}

// badKinds are file systems (statfs(2)) that a store should not be on.
var badKinds = map[int64]struct{ name, status, why string }{
	0x6969:     {"NFS", statusFail, "locks and durability are not the disk's"},
	0x517b:     {"SMB", statusFail, "locks and durability are not the disk's"},
	0xff534d42: {"SMB", statusFail, "locks and durability are not the disk's"},
	0xfe534d42: {"SMB", statusFail, "locks and durability are not the disk's"},
	0x01021997: {"9p", statusWarn, "a share of the host is slow, and may lose a durable checkpoint"},
	0x65735546: {"FUSE", statusWarn, "slow, and it must outlive the session"},
	0x01021994: {"tmpfs", statusWarn, "it is gone after a reboot"},
}

// Free space below which a store is in trouble, or soon will be.
const (
	tooLittle = 256 << 20
	little    = 2 << 30
)

func (m *machine) checkStore() []finding {
	const name = "the place of stores"
	root, err := m.storeRoot()
	if err != nil {
		return []finding{fail(name, "export HOME=/home/you", "%v", err)}
	}
	dir := root
	for {
		if fi, err := os.Stat(dir); err == nil && fi.IsDir() {
			break
		}
		if dir == "/" {
			break
		}
		dir = filepath.Dir(dir)
	}
	const elsewhere = "export XDG_STATE_HOME=DIR-ON-A-LOCAL-DISK, or mount --store DIR"
	var out []finding
	if err := unix.Access(dir, unix.W_OK|unix.X_OK); err != nil {
		out = append(out, fail(name, elsewhere, "%s: no permission to write to %s", root, dir))
	}
	kind, free, err := m.statfs(dir)
	if err != nil {
		return append(out, warn(name, "", "%s: %v", dir, err))
	}
	if b, found := badKinds[kind&0xffffffff]; found {
		out = append(out, finding{name, b.status, fmt.Sprintf("%s is on %s: %s", root, b.name, b.why), elsewhere})
	}
	switch {
	case free < tooLittle:
		out = append(out, fail(name, "df -h "+dir+"   (delete something), or mount --store DIR", "%s: only %s free", root, size(int64(free))))
	case free < little:
		out = append(out, warn(name, "df -h "+dir, "%s: only %s free", root, size(int64(free))))
	}
	if len(out) == 0 {
		out = append(out, ok(name, "%s, %s free", root, size(int64(free))))
	}
	return out
}

// checkMounts names dead and orphaned mounts.
// checkRules looks for files of rules that keep a session from being mounted again.
func (m *machine) checkRules(ctx context.Context) []finding {
	all, err := m.sessions(ctx)
	if err != nil {
		return nil // checkMounts says so
	}
	var out []finding
	for i := range all {
		l := &all[i]
		if l.Store == "" || l.Fork {
			continue
		}
		dirs := []string{l.Store}
		if l.Mountpoint != l.Base { // else what is there may be the mount's
			dirs = append(dirs, l.Base)
		}
		if _, err := paths.Load(dirs...); err != nil {
			out = append(out, fail("rules", "", "%s cannot be mounted anew: %s", show(l.Name), show(err.Error())))
		}
	}
	return out
}

func (m *machine) checkMounts(ctx context.Context) []finding {
	const name = "mounts"
	all, err := m.sessions(ctx)
	if err != nil {
		return []finding{warn(name, "", "%v", err)}
	}
	var out []finding
	live := 0
	for i := range all {
		l := &all[i]
		switch l.Record.State {
		case session.StateLive:
			live++
		case session.StateDead:
			out = append(out, warn(name, remount(l), "the daemon of %s at %s is gone (nothing acknowledged is lost)", show(l.Name), show(l.Mountpoint)))
		case session.StateHanging:
			if l.Store == "" {
				out = append(out, warn(name, "fusermount3 -uz "+show(l.Mountpoint), "%s is a mount of no known session that does not answer", show(l.Mountpoint)))
				continue
			}
			fix, why := "rewindfs unmount --force -s "+quoteArg(show(l.Name)), "does not answer"
			if session.Stopped(l.PID) {
				fix, why = fmt.Sprintf("kill -CONT %d   (or %s)", l.PID, fix), "is stopped and does not answer"
			}
			out = append(out, warn(name, fix, "the daemon of %s at %s (pid %d) %s", show(l.Name), show(l.Mountpoint), l.PID, why))
		case session.StateOrphan:
			out = append(out, warn(name, "rewindfs list --prune --all", "%s is a dead mount of no known session", show(l.Mountpoint)))
		}
	}
	if len(out) == 0 {
		out = append(out, ok(name, "%s, none dead", count(int64(live), "live session")))
	}
	return out
}
