package sandbox

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/csv"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// container is the long-lived container in which the commands of a session run. Who starts it first
// makes it: its name is the lock.
type container struct {
	engine *Engine
	name   string
	image  string
	mount  string // of the host
	args   []string
	denied []string // paths in the container that show a part of the mount again, read-only
}

// What a container has where the user has set no bound; its memory is then most of the machine's.
const (
	containerProcesses = 2048
	containerTmpBytes  = 2 << 30
)

// most is three quarters of the memory of this machine, in bytes; 0 when that cannot be told.
func most() int64 {
	var si unix.Sysinfo_t
	if err := unix.Sysinfo(&si); err != nil {
		return 0
	}
	return int64(si.Totalram) * int64(si.Unit) / 4 * 3
}

// markDir is where a command that has begun leaves a file named by its mark.
const markDir = "/run/rewindfs"

// keepAlive is what the container itself does: wait, which reaps orphans, until it is told to end.
const keepAlive = `trap 'exit 0' TERM INT; while :; do sleep 86400 & wait $!; done`

// openContainer settles what the container of s is like and has it registered. It starts nothing.
func openContainer(ctx context.Context, s *Spec) (*container, error) {
	r := &s.Rules.Docker
	if r.Image == "" {
		return nil, failed(nil, `give --image NAME, or put a line image = "NAME" under [docker] into sandbox.toml`, "no image is set for --sandbox docker")
	}
	engine, err := FindEngine(r.CLI, os.Environ())
	if err != nil {
		return nil, err
	}
	c := &container{engine: engine, image: r.Image, mount: s.Mount}
	if err := c.describe(s, os.Getuid(), os.Getgid()); err != nil {
		return nil, err
	}
	if os.Getuid() != 0 && engine.isPodman(ctx) {
		c.args = append(c.args, "--userns", "keep-id") // else our uid in it would be another one outside
	}
	// Before a container is announced, so that nobody tries for ever to remove one that never was.
	if err := engine.HasImage(ctx, r.Image); err != nil {
		return nil, err
	}
	settings := sha256.Sum256([]byte(strings.Join(append(c.args, c.image), "\x00")))
	if c.name, err = r.Register(engine, hex.EncodeToString(settings[:4])); err != nil {
		return nil, fmt.Errorf("register a container: %w", err)
	}
	return c, nil
}

// describe makes the arguments of "run" that say what the container may do and see.
func (c *container) describe(s *Spec, uid, gid int) error {
	l := s.Rules.Limits
	l.TmpBytes = cmp.Or(l.TmpBytes, containerTmpBytes)
	l.Processes = cmp.Or(l.Processes, containerProcesses)
	l.MemoryBytes = cmp.Or(l.MemoryBytes, most())
	c.args = []string{
		"--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--read-only",
		"--user", fmt.Sprintf("%d:%d", uid, gid), "--workdir", "/", "--env", "HOME=/tmp",
		"--network", networkOf(s),
		"--pids-limit", strconv.Itoa(l.Processes),
		"--tmpfs", fmt.Sprintf("/tmp:rw,exec,nosuid,nodev,mode=1777,size=%d", l.TmpBytes),
		"--tmpfs", "/var/tmp:rw,exec,nosuid,nodev,mode=1777,size=64m",
		"--tmpfs", markDir + ":rw,noexec,nosuid,nodev,mode=1777,size=1m",
	}
	if l.MemoryBytes > 0 {
		n := strconv.FormatInt(l.MemoryBytes, 10)
		c.args = append(c.args, "--memory", n, "--memory-swap", n)
	}
	if l.CPUs > 0 {
		c.args = append(c.args, "--cpus", strconv.FormatFloat(l.CPUs, 'f', -1, 64))
	}
	if l.FileBytes > 0 {
		c.args = append(c.args, "--ulimit", fmt.Sprintf("fsize=%d", l.FileBytes))
	}
	return c.binds(s)
}

func networkOf(s *Spec) string {
	if s.Rules.Network == "host" {
		return "host"
	}
	return "none"
}

// binds adds the arguments for what the container sees of the host: the mount, what is allowed, and the
// sockets. What must not be written or seen in the mount is covered.
func (c *container) binds(s *Spec) error {
	var errs []error
	bind := func(source, target string, more ...string) {
		field, err := mountFlag(append([]string{"type=bind", "source=" + source, "target=" + target}, more...))
		errs = append(errs, err)
		c.args = append(c.args, "--mount", field)
	}
	bind(s.Mount, workspaceOf(s))
	for _, p := range s.Rules.Allow {
		p = absolute(p, s)
		if _, in := seenAt(s, p); in {
			continue
		}
		if !exists(p) {
			errs = append(errs, failed(nil, "make it first", "--allow %s: there is nothing", p))
		}
		bind(p, p)
	}
	for _, target := range slices.Sorted(maps.Keys(s.Sockets)) {
		bind(s.Sockets[target], target)
	}
	for _, p := range s.Rules.Deny {
		p = absolute(p, s)
		if at, in := seenAt(s, p); in && exists(onHost(s, p)) {
			bind(onHost(s, p), at, "readonly")
			c.denied = append(c.denied, at)
		}
	}
	for _, p := range s.Rules.Hide {
		p = absolute(p, s)
		at, in := seenAt(s, p)
		fi, err := os.Lstat(onHost(s, p))
		switch {
		case !in || err != nil:
		case fi.IsDir():
			c.args = append(c.args, "--tmpfs", at+":ro,size=4k,mode=555")
		default:
			bind(os.DevNull, at, "readonly")
		}
	}
	return errors.Join(errs...)
}

// mountFlag makes the value of --mount, which is a line of CSV.
func mountFlag(fields []string) (string, error) {
	for _, f := range fields {
		if !utf8.ValidString(f) {
			return "", failed(nil, "mount the project elsewhere: rewindfs mount BASE MOUNTPOINT", "no container can show a path that is not UTF-8: %q", f)
		}
	}
	var b bytes.Buffer
	w := csv.NewWriter(&b)
	if err := w.Write(fields); err != nil {
		return "", fmt.Errorf("describe a mount of the container: %w", err)
	}
	w.Flush()
	return strings.TrimSuffix(b.String(), "\n"), nil
}

// workspaceOf is where the project is in the container.
func workspaceOf(s *Spec) string {
	if w := s.Rules.Docker.Workspace; w != "" {
		return w
	}
	return s.Project
}

// seenAt is where the container has a path of the project, which may be given as it is in the mount, too.
func seenAt(s *Spec, path string) (string, bool) {
	for _, root := range []string{s.Project, s.Mount, workspaceOf(s)} {
		if rel, err := filepath.Rel(root, path); err == nil && filepath.IsLocal(rel) {
			return filepath.Join(workspaceOf(s), rel), true
		}
	}
	return "", false
}

// onHost is the path in the mount of what the command sees at path in the project.
func onHost(s *Spec, path string) string {
	for _, root := range []string{s.Project, workspaceOf(s)} {
		if rel, err := filepath.Rel(root, path); err == nil && filepath.IsLocal(rel) {
			return filepath.Join(s.Mount, rel)
		}
	}
	return path
}

// start has the container run, whoever makes it. While another process makes it, or has it removed, it has a name and cannot be
// started; the end of that can only be looked for.
func (c *container) start(ctx context.Context) error {
	const wait = 50 * time.Millisecond
	for {
		err := c.tryStart(ctx)
		if !saysAny(err, saysTaken...) && !saysAny(err, saysGone...) {
			return c.explain(err)
		}
		select {
		case <-ctx.Done():
			return c.explain(err)
		case <-time.After(wait):
		}
	}
}

func (c *container) tryStart(ctx context.Context) error {
	state, err := c.engine.do(ctx, "container", "inspect", "--format", "{{.State.Running}}", c.name)
	switch {
	case err == nil && state == "true":
		return nil
	case err == nil:
		_, err := c.engine.do(ctx, "start", c.name)
		return err
	case !saysAny(err, saysGone...):
		return err
	}
	args := append([]string{"run", "--detach", "--pull", "never", "--name", c.name, "--label", "rewindfs=1"}, c.args...)
	args = append(args, "--entrypoint", "sh", c.image, "-c", keepAlive)
	_, err = c.engine.do(ctx, args...)
	if err != nil && !saysAny(err, saysTaken...) {
		// One that was made and could not be started would stand in the way of the next.
		_, _ = c.engine.do(ctx, "rm", "--force", c.name)
	}
	if err == nil {
		err = c.checkDenied(ctx)
	}
	return err
}

// checkDenied makes sure that what is shown read-only in the container is of the mount: a symlink there leads the engine, which has
// more rights than we, anywhere on the host. Nothing of the session runs in the container yet.
func (c *container) checkDenied(ctx context.Context) error {
	if len(c.denied) == 0 {
		return nil
	}
	var st unix.Stat_t
	err := unix.Stat(c.mount, &st)
	var devices string
	if err == nil {
		devices, err = c.engine.do(ctx, append([]string{"exec", c.name, "stat", "-L", "-c", "%d"}, c.denied...)...)
	}
	for _, dev := range strings.Fields(devices) {
		if dev != strconv.FormatUint(st.Dev, 10) {
			err = errors.New("a symlink leads out of the project")
		}
	}
	if err != nil {
		_, _ = c.engine.do(ctx, "rm", "--force", c.name)
		return failed(err, "remove it, or leave it out", "--deny of a path in the project")
	}
	return nil
}

// remove ends all that runs in the container.
func (c *container) remove(ctx context.Context) error {
	_, err := c.engine.do(ctx, "rm", "--force", c.name)
	return c.explain(err)
}

func (c *container) explain(err error) error {
	if saysAny(err, "permission denied", "invalid mount config", "mount source") && saysAny(err, c.mount) && !openToOthers(c.mount) {
		return failed(err, "mount it so that others may enter: rewindfs mount --allow-other (needs user_allow_other in /etc/fuse.conf)", "the daemon of %s may not enter the mount %s", c.engine.name(), c.mount)
	}
	return c.engine.explain(err, c.image, "the container of the session cannot be started")
}

// openToOthers reports whether the file system mounted at path lets other users in, as far as mountinfo tells.
func openToOthers(path string) bool {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return true
	}
	escaped := strings.NewReplacer(`\`, `\134`, " ", `\040`, "\t", `\011`, "\n", `\012`).Replace(path)
	open := true
	for line := range strings.Lines(string(b)) {
		fields, special, _ := strings.Cut(strings.TrimSpace(line), " - ")
		if f := strings.Fields(fields); len(f) > 4 && f[4] == escaped { // the last one is on top
			open = !strings.HasPrefix(special, "fuse") || strings.Contains(special, "allow_other") || unix.Geteuid() == 0
		}
	}
	return open
}
