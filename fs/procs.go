package fs

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// process is one in /proc. What it refuses to show, or what ends while looked at, is
// treated as not there.
type process struct {
	proc int // descriptor of /proc
	pid  int
}

// eachProcess calls fn for every process but this one and the kernel's own threads,
// from several goroutines at once.
func eachProcess(fn func(*process)) error {
	proc, err := os.Open("/proc")
	if err != nil {
		return err
	}
	defer proc.Close()
	names, err := proc.Readdirnames(-1)
	if err != nil {
		return err
	}
	skip := kernelThreads()
	skip[strconv.Itoa(os.Getpid())] = true
	var pids []int
	for _, n := range names {
		if n[0] < '0' || n[0] > '9' || skip[n] {
			continue
		}
		if pid, err := strconv.Atoi(n); err == nil {
			pids = append(pids, pid)
		}
	}
	var done sync.WaitGroup
	fd, next := int(proc.Fd()), atomic.Int64{}
	for range min(runtime.GOMAXPROCS(0), 4, max(1, len(pids)/8)) {
		done.Go(func() {
			for i := next.Add(1); int(i) <= len(pids); i = next.Add(1) {
				fn(&process{proc: fd, pid: pids[i-1]})
			}
		})
	}
	done.Wait()
	return nil
}

// kernelThreads returns the pids of kernel threads, which map no files: most of
// /proc on a small machine. They are the children of process 2, unless this is a pid
// namespace of its own, which has none.
func kernelThreads() map[string]bool {
	const kthread = 0x00200000 // PF_KTHREAD in the flags of /proc/PID/stat
	out := map[string]bool{}
	stat, err := os.ReadFile("/proc/2/stat")
	if err != nil {
		return out
	}
	// Behind the name, which is in parentheses: state ppid pgrp session tty tpgid flags.
	f := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(f) < 7 {
		return out
	}
	if flags, err := strconv.ParseUint(f[6], 10, 64); err != nil || flags&kthread == 0 {
		return out
	}
	children, _ := os.ReadFile("/proc/2/task/2/children")
	for pid := range strings.FieldsSeq(string(children)) {
		out[pid] = true
	}
	return out
}

func (p *process) path(name string) string { return strconv.Itoa(p.pid) + "/" + name }

func (p *process) open(name string) (int, error) {
	return unix.Openat(p.proc, p.path(name), unix.O_RDONLY|unix.O_CLOEXEC, 0)
}

// procmapQuery is struct procmap_query of include/uapi/linux/fs.h (Linux 6.11).
type procmapQuery struct {
	size, queryFlags, queryAddr                                  uint64
	vmaStart, vmaEnd, vmaFlags, vmaPageSize, vmaOffset, vmaInode uint64
	devMajor, devMinor, nameSize, buildIDSize                    uint32
	nameAddr, buildIDAddr                                        uint64
}

const (
	ioctlProcmapQuery = 3<<30 | uint(unsafe.Sizeof(procmapQuery{}))<<16 | 'f'<<8 | 17

	procmapWritable = 0x02
	procmapShared   = 0x08
	procmapNext     = 0x10 // the first that fits at or after the address
	procmapFile     = 0x20
)

// sharedMappings calls fn with the inode number of each file of device dev that p
// has mapped shared and writable.
func (p *process) sharedMappings(dev uint64, fn func(ino uint64)) {
	fd, err := p.open("maps")
	if err != nil {
		return
	}
	defer unix.Close(fd)
	q := procmapQuery{size: uint64(unsafe.Sizeof(procmapQuery{}))}
	for {
		q.queryFlags = procmapWritable | procmapShared | procmapNext | procmapFile
		q.queryAddr = q.vmaEnd
		_, _, errno := unix.RawSyscall(unix.SYS_IOCTL, uintptr(fd), uintptr(ioctlProcmapQuery), uintptr(unsafe.Pointer(&q)))
		switch errno {
		case 0:
			if unix.Mkdev(q.devMajor, q.devMinor) == dev {
				fn(q.vmaInode)
			}
		case unix.ENOENT, unix.ESRCH:
			return // no more, or no memory of its own
		default: // an older kernel
			eachMapping(fd, func(m mapping) {
				if m.dev == dev && m.shared && m.writable {
					fn(m.ino)
				}
			})
			return
		}
	}
}

type mapping struct {
	shared, writable bool
	dev, ino         uint64
	path             string
}

// eachMapping parses /proc/PID/maps, see proc_pid_maps(5).
func eachMapping(fd int, fn func(mapping)) {
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return
	}
	f := os.NewFile(uintptr(dup), "maps")
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 64<<10)
	for lines.Scan() {
		if m, ok := parseMapping(lines.Bytes()); ok {
			fn(m)
		}
	}
}

// parseMapping parses "start-end perms offset major:minor inode path".
func parseMapping(line []byte) (m mapping, ok bool) {
	f := bytes.Fields(line)
	if len(f) < 5 || len(f[1]) < 4 {
		return m, false
	}
	major, minor, _ := strings.Cut(string(f[3]), ":")
	ma, err1 := strconv.ParseUint(major, 16, 32)
	mi, err2 := strconv.ParseUint(minor, 16, 32)
	ino, err3 := strconv.ParseUint(string(f[4]), 10, 64)
	m = mapping{
		shared: f[1][3] == 's', writable: f[1][1] == 'w',
		dev: unix.Mkdev(uint32(ma), uint32(mi)), ino: ino,
	}
	if len(f) > 5 { // the rest of the line, which may have spaces of its own
		m.path = string(line[bytes.Index(line, f[5]):])
	}
	return m, errors.Join(err1, err2, err3) == nil
}

// fds calls fn with the name of each descriptor of p in /proc and the device and inode of
// its file. The kernel answers from what it has cached; no request goes out.
func (p *process) fds(fn func(fd string, dev, ino uint64)) {
	dir, err := p.open("fd")
	if err != nil {
		return
	}
	d := os.NewFile(uintptr(dir), "fd")
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return
	}
	for _, n := range names {
		if dev, ino, ok := cachedStat(dir, n); ok {
			fn(n, dev, ino)
		}
	}
}

// cachedStat looks at a file, or with an empty name at dir itself, without asking its
// file system.
func cachedStat(dir int, name string) (dev, ino uint64, ok bool) {
	var st unix.Statx_t
	err := unix.Statx(dir, name, unix.AT_STATX_DONT_SYNC|unix.AT_NO_AUTOMOUNT|unix.AT_EMPTY_PATH, unix.STATX_INO, &st)
	return unix.Mkdev(st.Dev_major, st.Dev_minor), st.Ino, err == nil
}

// openForWriting calls fn with the inode number of each file of device dev that p
// has open for writing.
func (p *process) openForWriting(dev uint64, fn func(ino uint64)) {
	p.fds(func(fd string, d, ino uint64) {
		if d != dev {
			return
		}
		info, err := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%s", p.pid, fd))
		if err != nil {
			return
		}
		for line := range strings.Lines(string(info)) {
			if octal, ok := strings.CutPrefix(line, "flags:"); ok {
				flags, err := strconv.ParseUint(strings.TrimSpace(octal), 8, 32)
				if err == nil && flags&unix.O_ACCMODE != unix.O_RDONLY {
					fn(ino)
				}
			}
		}
	})
}

// Process is a program that uses a mount.
type Process struct {
	PID     int
	Command string
	Uses    []string // "cwd", "root", "exe", "open: path", "mapped: path"; paths are below the mount
}

// Users lists the processes that use the mount on dir, with st_dev dev, as far as this
// one may look at them.
func Users(dir string, dev uint64) ([]Process, error) {
	var mu sync.Mutex
	var out []Process
	err := eachProcess(func(p *process) {
		if uses := p.uses(dir, dev); len(uses) > 0 {
			mu.Lock()
			defer mu.Unlock()
			out = append(out, Process{p.pid, p.command(), uses})
		}
	})
	slices.SortFunc(out, func(a, b Process) int { return a.PID - b.PID })
	return out, err
}

// maxUses is how many uses of one process are told.
const maxUses = 20

// uses says in which ways p uses the mount.
func (p *process) uses(dir string, dev uint64) (uses []string) {
	add := func(use string) {
		if len(uses) < maxUses && !slices.Contains(uses, use) {
			uses = append(uses, use)
		}
	}
	below := func(path string) string {
		return strings.TrimPrefix(strings.TrimPrefix(path, dir), "/")
	}
	for _, link := range []string{"cwd", "root", "exe"} {
		if d, _, ok := cachedStat(p.proc, p.path(link)); ok && d == dev {
			add(link)
		}
	}
	p.fds(func(fd string, d, _ uint64) {
		if d == dev {
			target, _ := os.Readlink("/proc/" + p.path("fd/"+fd))
			add("open: " + below(target))
		}
	})
	if fd, err := p.open("maps"); err == nil {
		eachMapping(fd, func(m mapping) {
			if m.dev == dev {
				add("mapped: " + below(m.path))
			}
		})
		unix.Close(fd)
	}
	return uses
}

// command is the command line or, without one, the name in brackets.
func (p *process) command() string {
	line, _ := os.ReadFile("/proc/" + p.path("cmdline"))
	if line = bytes.TrimRight(line, "\x00"); len(line) > 0 {
		return string(bytes.ReplaceAll(line, []byte{0}, []byte{' '}))
	}
	comm, _ := os.ReadFile("/proc/" + p.path("comm"))
	return "[" + strings.TrimSpace(string(comm)) + "]"
}

// Busy lists the processes that use the mount, as far as this one may look at them.
func (m *Mount) Busy() []Process {
	users, err := Users(m.Mountpoint(), m.Dev())
	if err != nil {
		m.log.Warn("cannot tell who uses the mount", "error", err)
	}
	return users
}
