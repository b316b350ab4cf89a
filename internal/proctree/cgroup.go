package proctree

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// cgroup is a Tree that the kernel keeps: a cgroup below our own, with no limits of its own.
type cgroup struct {
	dir string
	fd  *os.File // open until the command is started
}

var errNoCgroup = errors.New("no cgroup of version 2 can be made here")

// NewCgroup makes an empty cgroup whose name begins with prefix. No process escapes it by changing its
// session, its parent or its environment.
func NewCgroup(prefix string) (Tree, error) {
	parent, err := OwnCgroup()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(parent, prefix)
	if err != nil {
		return nil, fmt.Errorf("make a cgroup: %w", err)
	}
	g := &cgroup{dir: dir}
	// Without this file (before Linux 5.14) members cannot be ended all at once.
	if _, err := os.Stat(filepath.Join(dir, "cgroup.kill")); err != nil {
		g.Close()
		return nil, errNoCgroup
	}
	if g.fd, err = os.Open(dir); err != nil {
		g.Close()
		return nil, fmt.Errorf("open a cgroup: %w", err)
	}
	return g, nil
}

// OwnCgroup is the directory of the cgroup that this process is in.
func OwnCgroup() (string, error) {
	lines, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", err
	}
	var own string
	for line := range strings.Lines(string(lines)) {
		if path, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "0::"); ok {
			own = path
		}
	}
	// Outside of the cgroup namespace the path begins with /.. and has no directory here.
	if own == "" || strings.HasPrefix(own, "/..") {
		return "", errNoCgroup
	}
	mounts, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return "", err
	}
	defer mounts.Close()
	for lines := bufio.NewScanner(mounts); lines.Scan(); {
		root, point, ok := cgroup2Mount(lines.Text())
		if !ok {
			continue
		}
		if rel, err := filepath.Rel(root, own); err == nil && rel != ".." && !strings.HasPrefix(rel, "../") {
			return filepath.Join(point, rel), nil
		}
	}
	return "", errNoCgroup
}

// cgroup2Mount reads a line of mountinfo: "ID PARENT DEV ROOT POINT OPTIONS [TAGS] - TYPE SOURCE OPTIONS".
func cgroup2Mount(line string) (root, point string, ok bool) {
	left, right, found := strings.Cut(line, " - ")
	fields := strings.Fields(left)
	if !found || len(fields) < 5 || !strings.HasPrefix(right, "cgroup2 ") {
		return "", "", false
	}
	// Names with white space are written with octal escapes; nobody mounts a cgroup there.
	return fields[3], fields[4], !strings.Contains(fields[3]+fields[4], `\`)
}

func (g *cgroup) Name() string { return "cgroup" }

func (g *cgroup) prepare(attr *syscall.SysProcAttr) {
	attr.UseCgroupFD = true
	attr.CgroupFD = int(g.fd.Fd())
}

func (g *cgroup) started(int) {
	g.fd.Close() // opened for reading
	g.fd = nil
}

func (g *cgroup) Members() []int {
	var pids []int
	// Children may be cgroups too, if the command may make some: what runs a container tool as root does.
	filepath.WalkDir(g.dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return nil
		}
		list, err := os.ReadFile(filepath.Join(path, "cgroup.procs"))
		if err != nil {
			return nil // gone meanwhile
		}
		for field := range strings.FieldsSeq(string(list)) {
			if pid, err := strconv.Atoi(field); err == nil && pid > 0 {
				pids = append(pids, pid)
			}
		}
		return nil
	})
	return pids
}

func (g *cgroup) Signal(sig syscall.Signal) {
	if sig == syscall.SIGKILL {
		// All at once, with those that are being forked and those in cgroups below. Who remains shows in Members.
		os.WriteFile(filepath.Join(g.dir, "cgroup.kill"), []byte("1"), 0)
		return
	}
	for _, pid := range g.Members() {
		signalIf(pid, sig, func() bool { return g.has(pid) })
	}
}

func (g *cgroup) has(pid int) bool {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	return err == nil && strings.Contains(string(data), "/"+filepath.Base(g.dir))
}

// Close removes the cgroup. One with processes in it cannot be removed and stays behind, empty once they end.
func (g *cgroup) Close() {
	if g.fd != nil {
		g.fd.Close()
		g.fd = nil
	}
	// A process that has ended may still be on its way out of its cgroup.
	for wait := time.Millisecond; wait < time.Second; wait *= 2 {
		if g.remove() {
			return
		}
		time.Sleep(wait)
	}
}

// remove removes the cgroup and those below it, deepest first.
func (g *cgroup) remove() bool {
	var dirs []string
	filepath.WalkDir(g.dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append(dirs, path)
		}
		return nil
	})
	for i := len(dirs) - 1; i >= 0; i-- {
		if err := syscall.Rmdir(dirs[i]); err != nil && !errors.Is(err, syscall.ENOENT) {
			return false
		}
	}
	return true
}
