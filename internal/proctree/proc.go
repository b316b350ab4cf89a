package proctree

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// search is a Tree that is found in /proc.
type search struct {
	mark   string // entry of the environment that the command was started with; "" for none
	adopts bool   // orphans become children of this process, see Adopt
	away   bool   // the command is none of them, see Elsewhere
	leader int    // the command's pid
	// session is that of this process: who is in it need not be ours.
	session int
	// before are the children, with their start times, that this process had before the command was started.
	before map[int]string
	// seen are processes once found, with their start times: a parent that ends takes away the reason why its child was found.
	seen map[int]string
	// bare are processes, with their start times, that have no environment and were given time to get one.
	bare  map[int]string
	since int64 // start time of the command
}

// commands are the pids that were given to any Tree: whose parent we are without having adopted them.
var commands sync.Map

// ByMark finds processes of the command's session, with mark in their environment, or descended from such a one. It
// misses those that have left the session, cleared their environment, and whose parents have ended.
func ByMark(mark string) Tree { return &search{mark: mark} }

// ByDescent finds all descendants of the command, and those of orphans that this process has adopted since the
// command was started. It serves a process that calls Adopt, and starts nothing else while the command runs.
func ByDescent() Tree { return &search{adopts: true} }

// Elsewhere finds processes with mark in their environment, and those descended from one, anywhere on the machine: those that a
// daemon starts for a command, which is not one of them. It can be used without a start.
func Elsewhere(mark string) Tree {
	b := &search{mark: mark, away: true, seen: make(map[int]string), bare: make(map[int]string)}
	if s, err := readStat(os.Getpid()); err == nil {
		b.since = s.ticks() // they are younger than who asked for them
	}
	return b
}

func (b *search) Name() string { return "proc" }
func (b *search) Close()       { commands.Delete(b.leader) }

func (b *search) prepare(*syscall.SysProcAttr) {
	if !b.adopts || b.before != nil { // another try
		return
	}
	b.before = make(map[int]string)
	for _, s := range children() {
		b.before[s.pid] = s.start
	}
}

func (b *search) started(pid int) {
	b.leader = pid
	b.seen, b.bare = make(map[int]string), make(map[int]string)
	if s, err := readStat(pid); err == nil {
		b.since = s.ticks()
	}
	commands.Store(pid, true)
	b.session, _ = unix.Getsid(0) // it cannot fail for the caller itself
}

// procStat is what is needed of /proc/PID/stat.
type procStat struct {
	pid, parent, group, session int
	state                       byte
	threads                     int
	kernel                      bool   // a kernel thread
	start                       string // in clock ticks since boot; with the pid it names a process for good
}

// runs is true as well of one whose first thread alone has ended: it then looks like one that waits to be reaped.
func (s procStat) runs() bool { return s.state != 'X' && (s.state != 'Z' || s.threads > 1) }

func (s procStat) ticks() int64 {
	n, _ := strconv.ParseInt(s.start, 10, 64) // the kernel writes a number
	return n
}

// Runs says whether process pid runs.
func Runs(pid int) bool {
	s, err := readStat(pid)
	return err == nil && s.runs()
}

// Born returns when process pid was started, in clock ticks since boot, and whether it runs. Together with the pid that names a
// process until the next boot. The error is that of /proc, which may hide processes of other users.
func Born(pid int) (start string, runs bool, err error) {
	s, err := readStat(pid)
	return s.start, s.runs(), err
}

// Stopped says whether process pid is kept from running by a signal, as Ctrl-Z sends one.
func Stopped(pid int) bool {
	s, err := readStat(pid)
	return err == nil && s.state == 'T'
}

// Group lists the processes of a process group that run.
func Group(group int) []int {
	var in []int
	for _, pid := range allPIDs() {
		if s, err := readStat(pid); err == nil && s.group == group && s.runs() {
			in = append(in, pid)
		}
	}
	return in
}

// kernelThread is PF_KTHREAD of the kernel's task flags.
const kernelThread = 0x00200000

// readStat reads a process's state. The name in it is in brackets and may hold anything.
func readStat(pid int) (procStat, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return procStat{}, err
	}
	return parseStat(pid, data)
}

func parseStat(pid int, data []byte) (procStat, error) {
	fields := bytes.Fields(data[bytes.LastIndexByte(data, ')')+1:])
	if len(fields) < 20 {
		return procStat{}, fmt.Errorf("read the state of process %d: only %d fields", pid, len(fields))
	}
	s := procStat{pid: pid, state: fields[0][0], start: string(fields[19])}
	flags := 0
	var err error
	for i, to := range map[int]*int{1: &s.parent, 2: &s.group, 3: &s.session, 6: &flags, 17: &s.threads} {
		if *to, err = strconv.Atoi(string(fields[i])); err != nil {
			return procStat{}, fmt.Errorf("read the state of process %d: %w", pid, err)
		}
	}
	s.kernel = flags&kernelThread != 0
	return s, nil
}

// lastPID is the number that the newest process got.
func lastPID() int {
	data, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0
	}
	n, _ := strconv.Atoi(string(bytes.TrimSpace(data[bytes.LastIndexByte(data, ' ')+1:]))) // 0 where it is something else
	return n
}

// allPIDs lists the processes.
func allPIDs() []int {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	names, err := dir.Readdirnames(-1)
	dir.Close()
	if err != nil {
		return nil
	}
	var pids []int
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// scanPasses bounds how often a scan looks for processes that were started meanwhile.
const scanPasses = 100

// scan calls visit for every process that runs, except this one and the first. Processes that start
// meanwhile are visited too, until none does during a pass: so a program that goes on living in ever new
// processes is not missed between two looks.
func scan(visit func(procStat)) {
	look := func(pid int) {
		if pid <= 1 || pid == os.Getpid() {
			return
		}
		if s, err := readStat(pid); err == nil && s.runs() && !s.kernel {
			visit(s)
		}
	}
	last := lastPID()
	for _, pid := range allPIDs() {
		look(pid)
	}
	for range scanPasses {
		newest := lastPID()
		if newest <= last { // less when the numbers have begun anew: the next scan will see those
			return
		}
		for pid := last + 1; pid <= newest; pid++ {
			look(pid)
		}
		last = newest
	}
}

// Members takes those of the command's session and those with the mark, then their
// descendants and those in sessions of any of them.
func (b *search) Members() []int {
	return b.find(func(procStat) {})
}

// find is Members, and calls found for each as soon as it is known to be one.
func (b *search) find(found func(procStat)) []int {
	if b.allGone() {
		return nil
	}
	var others []procStat
	in := make(map[int]bool)       // by pid
	sessions := make(map[int]bool) // of members
	add := func(s procStat) {
		found(s)
		in[s.pid], sessions[s.session], b.seen[s.pid] = true, s.session != b.session, s.start
	}
	scan(func(s procStat) {
		if b.own(s) || b.seen[s.pid] == s.start || in[s.parent] || sessions[s.session] || b.adopted(s) || b.marked(s) {
			add(s)
		} else {
			others = append(others, s)
		}
	})
	for grown := true; grown; {
		grown = false
		for _, s := range others {
			if !in[s.pid] && (in[s.parent] || sessions[s.session]) {
				add(s)
				grown = true
			}
		}
	}
	pids := make([]int, 0, len(in))
	for pid := range in {
		pids = append(pids, pid)
	}
	return pids
}

// own says whether the process is the command, or of its session or group.
func (b *search) own(s procStat) bool {
	return !b.away && (s.pid == b.leader || s.session == b.leader || s.group == b.leader)
}

// allGone is a quick look: with the command gone, what it has left descends from one that came to us.
func (b *search) allGone() bool {
	if !b.adopts || Runs(b.leader) {
		return false
	}
	for _, s := range children() {
		if s.runs() && b.adopted(s) {
			return false
		}
	}
	return true
}

// adopted says whether the process is an orphan that came to us while the command ran.
func (b *search) adopted(s procStat) bool {
	if !b.adopts || s.parent != os.Getpid() || b.before[s.pid] == s.start {
		return false
	}
	_, ours := commands.Load(s.pid)
	return !ours
}

// marked says whether the process has the mark in the environment it was started with. That
// of another user's cannot be read. While a process loads a program it has none for
// an instant, which on a busy machine can be long: if it may be one of ours, that is waited for, once.
func (b *search) marked(s procStat) bool {
	if b.mark == "" {
		return false
	}
	const tries, wait = 500, 200 * time.Microsecond
	for try := 0; ; try++ {
		env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", s.pid))
		if err != nil {
			return false
		}
		if len(env) > 0 || s.ticks() < b.since || b.bare[s.pid] == s.start {
			return bytes.HasPrefix(env, []byte(b.mark+"\x00")) || bytes.Contains(env, []byte("\x00"+b.mark+"\x00"))
		}
		if now, err := readStat(s.pid); err != nil || now.start != s.start || !now.runs() {
			return false
		}
		if try == tries {
			b.bare[s.pid] = s.start
			return false
		}
		time.Sleep(wait)
	}
}

func (b *search) Signal(sig syscall.Signal) {
	group := func() {
		if !b.away {
			syscall.Kill(-b.leader, sig)
		}
	}
	same := func(s procStat) func() bool {
		return func() bool {
			now, err := readStat(s.pid)
			return err == nil && now.start == s.start
		}
	}
	if sig == syscall.SIGKILL {
		// The group first, if it is the command's own: the kernel does that in one go, so that none of it can fork its way
		// out. The others at once, not after the scan: they may have become somebody else by then.
		group()
		b.find(func(s procStat) { signalIf(s.pid, sig, same(s)) })
		return
	}
	// Others are asked, once and those that are there now: what one of them starts in answer, to clean up, is left alone.
	var held []*os.Process
	b.find(func(s procStat) {
		if !b.away && s.group == b.leader {
			return // with the group
		}
		if p := hold(s.pid, same(s)); p != nil {
			held = append(held, p)
		}
	})
	group()
	for _, p := range held {
		p.Signal(sig)
		p.Release()
	}
}

// signalIf sends sig to pid if that is still the process that is meant.
func signalIf(pid int, sig syscall.Signal, same func() bool) {
	if p := hold(pid, same); p != nil {
		p.Signal(sig) // ends in vain where it has ended, or is another user's: it then remains a member
		p.Release()
	}
}

// hold is a handle on pid, to be released, if that is still the process that is meant; nil if not. The
// handle is taken first (a pidfd, where the kernel has them) and the question asked then, so that a pid used
// anew is not hit.
func hold(pid int, same func() bool) *os.Process {
	p, err := os.FindProcess(pid)
	if err != nil {
		return nil
	}
	if !same() {
		p.Release()
		return nil
	}
	return p
}
