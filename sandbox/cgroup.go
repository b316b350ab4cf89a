package sandbox

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// cgroup bounds a tree of processes, by a directory for each controller (version 1) or one for all. A nil one bounds nothing.
type cgroup struct {
	dirs        []string
	controllers []string
}

// cgroupName begins the names of ours; the pid of the process that made it follows.
const cgroupName = "rewindfs-run-"

// bounding says which files of a cgroup keep a bound: of version 2, and of version 1.
type bounding struct {
	controller    string
	file, value   string
	file1, value1 string
}

func (l *Limits) boundings() (all []bounding) {
	if l.Processes > 0 {
		n := strconv.Itoa(l.Processes)
		all = append(all, bounding{"pids", "pids.max", n, "pids.max", n})
	}
	if l.MemoryBytes > 0 {
		n := strconv.FormatInt(l.MemoryBytes, 10)
		all = append(all, bounding{"memory", "memory.max", n, "memory.limit_in_bytes", n})
	}
	if l.CPUs > 0 {
		const period = 100_000 // microseconds
		quota := strconv.Itoa(max(1000, int(l.CPUs*period)))
		all = append(all, bounding{"cpu", "cpu.max", fmt.Sprintf("%s %d", quota, period), "cpu.cfs_quota_us", quota})
	}
	return all
}

// newCgroup makes a cgroup that keeps what of l can be kept here. It may be nil.
func newCgroup(l *Limits) *cgroup {
	want := l.boundings()
	if len(want) == 0 {
		return nil
	}
	g := &cgroup{}
	for _, h := range hierarchies() {
		var mine []bounding
		for _, b := range want {
			if h.v2 || slices.Contains(h.controllers, b.controller) {
				mine = append(mine, b)
			}
		}
		if len(mine) > 0 {
			g.makeIn(h, mine)
		}
	}
	if len(g.dirs) == 0 {
		return nil
	}
	return g
}

// makeIn makes a directory in a hierarchy, beside our own cgroup or further up: where processes are, version 2 lets
// nothing be bounded below.
func (g *cgroup) makeIn(h hierarchy, want []bounding) {
	for at := h.own; within(at, h.mount); at = filepath.Dir(at) {
		sweepCgroups(at)
		dir := filepath.Join(at, cgroupName+strconv.Itoa(os.Getpid()))
		if os.Mkdir(dir, 0o755) != nil {
			continue
		}
		var kept []string
		for _, b := range want {
			if slices.Contains(g.controllers, b.controller) {
				continue
			}
			file, value := b.file, b.value
			if !h.v2 {
				file, value = b.file1, b.value1
			}
			if put(filepath.Join(dir, file), value) == nil {
				kept = append(kept, b.controller)
			}
		}
		if len(kept) > 0 && joinable(dir, at) {
			put(filepath.Join(dir, "memory.swap.max"), "0") // where there is such a bound
			g.dirs, g.controllers = append(g.dirs, dir), append(g.controllers, kept...)
			return
		}
		os.Remove(dir)
	}
}

// joinable reports whether a process of ours may be put there: that takes the right to move it, at the directory that both are below.
func joinable(dir, at string) bool {
	return unix.Access(filepath.Join(dir, "cgroup.procs"), unix.W_OK) == nil && unix.Access(filepath.Join(at, "cgroup.procs"), unix.W_OK) == nil
}

// sweepCgroups removes those of ours that outlived the process that made them, because it left processes behind.
func sweepCgroups(at string) {
	old, _ := filepath.Glob(filepath.Join(at, cgroupName+"*"))
	for _, dir := range old {
		pid, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(dir), cgroupName))
		if err == nil && errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
			os.Remove(dir) // not if anything lives in it
		}
	}
}

func (g *cgroup) bounds(controller string) bool {
	return g != nil && slices.Contains(g.controllers, controller)
}

// add puts a process into the cgroup.
func (g *cgroup) add(pid int) error {
	if g == nil {
		return nil
	}
	for _, dir := range g.dirs {
		if err := put(filepath.Join(dir, "cgroup.procs"), strconv.Itoa(pid)); err != nil {
			return fmt.Errorf("bound the command by a cgroup: %w", err)
		}
	}
	return nil
}

// remove removes the cgroup, but for one in which processes are left: they stay bounded, and a later command sweeps it away.
func (g *cgroup) remove() {
	if g == nil {
		return
	}
	for _, dir := range g.dirs {
		os.Remove(dir)
	}
}

func put(file, value string) error {
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}

// hierarchy is a mounted tree of cgroups.
type hierarchy struct {
	v2          bool
	controllers []string // of version 1
	mount, own  string   // directories: its root, and the cgroup that this process is in
}

// hierarchies are those that can be reached from here.
func hierarchies() (all []hierarchy) {
	own := make(map[string]string) // by controller, "" for version 2
	lines, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(lines)) {
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(f) != 3 || strings.HasPrefix(f[2], "/..") { // outside of the cgroup namespace
			continue
		}
		for name := range strings.SplitSeq(f[1], ",") {
			own[name] = f[2]
		}
	}
	mounts, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil
	}
	defer mounts.Close()
	for lines := bufio.NewScanner(mounts); lines.Scan(); {
		// "ID PARENT DEV ROOT POINT OPTIONS [TAGS] - TYPE SOURCE OPTIONS"
		left, right, _ := strings.Cut(lines.Text(), " - ")
		l, r := strings.Fields(left), strings.Fields(right)
		if len(l) < 5 || len(r) < 3 {
			continue
		}
		h := hierarchy{v2: r[0] == "cgroup2", mount: l[4]}
		var path string
		var ok bool
		if h.v2 {
			path, ok = own[""]
		} else if r[0] == "cgroup" {
			h.controllers = strings.Split(r[2], ",")
			i := slices.IndexFunc(h.controllers, func(c string) bool { _, known := own[c]; return known })
			if ok = i >= 0; ok {
				path = own[h.controllers[i]]
			}
		}
		rel, err := filepath.Rel(l[3], path)
		if !ok || err != nil || strings.HasPrefix(rel, "..") {
			continue
		}
		h.own = filepath.Join(h.mount, rel)
		all = append(all, h)
	}
	return all
}
