package verify

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"
)

// procBox finds the processes of a verifier in /proc.
type procBox struct {
	mark   string // entry of the environment that the command was started with
	leader int    // the command's pid, its session's id
	// seen are processes once found, with their start times: a parent that ends takes away the reason why its child was found.
	seen map[int]string
	// bare are processes, with their start times, that have no environment and were given time to get one.
	bare  map[int]string
	since int64 // start time of the command
}

func (b *procBox) name() string                 { return "proc" }
func (b *procBox) prepare(*syscall.SysProcAttr) {}
func (b *procBox) close()                       {}

func (b *procBox) started(pid int) {
	b.leader = pid
	b.seen, b.bare = make(map[int]string), make(map[int]string)
	if s, err := readStat(pid); err == nil {
		b.since = s.ticks()
	}
}

// procStat is what is needed of /proc/PID/stat.
type procStat struct {
	pid, parent, group, session int
	state                       byte
	kernel                      bool   // a kernel thread
	start                       string // in clock ticks since boot; with the pid it names a process for good
}

func (s procStat) runs() bool { return s.state != 'Z' && s.state != 'X' }

func (s procStat) ticks() int64 {
	n, _ := strconv.ParseInt(s.start, 10, 64) // the kernel writes a number
	return n
}

// kernelThread is PF_KTHREAD of the kernel's task flags.
const kernelThread = 0x00200000

// readStat reads a process's state. The name in it is in brackets and may hold anything.
func readStat(pid int) (procStat, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return procStat{}, err
	}
	fields := bytes.Fields(data[bytes.LastIndexByte(data, ')')+1:])
	if len(fields) < 20 {
		return procStat{}, fmt.Errorf("read the state of process %d: only %d fields", pid, len(fields))
	}
	s := procStat{pid: pid, state: fields[0][0], start: string(fields[19])}
	flags := 0
	for i, to := range map[int]*int{1: &s.parent, 2: &s.group, 3: &s.session, 6: &flags} {
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
	dir, err := os.Open("/proc")
	if err != nil {
		return
	}
	names, err := dir.Readdirnames(-1)
	dir.Close()
	if err != nil {
		return
	}
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			look(pid)
		}
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

// members takes those of the session and those with the mark, then their
// descendants and those in sessions of any of them.
func (b *procBox) members() []int {
	return b.find(func(procStat) {})
}

// find is members, and calls found for each as soon as it is known to be one.
func (b *procBox) find(found func(procStat)) []int {
	var others []procStat
	in := make(map[int]bool)       // by pid
	sessions := make(map[int]bool) // of members
	add := func(s procStat) {
		found(s)
		in[s.pid], sessions[s.session], b.seen[s.pid] = true, true, s.start
	}
	scan(func(s procStat) {
		if s.session == b.leader || s.group == b.leader || b.seen[s.pid] == s.start || in[s.parent] || sessions[s.session] || b.marked(s) {
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

// marked says whether the process has the mark in the environment it was started with. That
// of another user's cannot be read. While a process loads a program it has none for
// an instant, which on a busy machine can be long: if it may be one of ours, that is waited for, once.
func (b *procBox) marked(s procStat) bool {
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

func (b *procBox) signal(sig syscall.Signal) {
	// The group first: the kernel does that in one go, so that none of it can fork its way out.
	syscall.Kill(-b.leader, sig)
	// At once, not after the scan: it may have become somebody else by then.
	b.find(func(s procStat) {
		signalIf(s.pid, sig, func() bool {
			now, err := readStat(s.pid)
			return err == nil && now.start == s.start
		})
	})
}

// signalIf sends sig to pid if that is still the process that is meant. The
// handle is taken first (a pidfd, where the kernel has them) and the question asked then, so that a pid used
// anew is not hit.
func signalIf(pid int, sig syscall.Signal, same func() bool) {
	p, err := os.FindProcess(pid)
	if err != nil {
		return
	}
	defer p.Release()
	if same() {
		p.Signal(sig) // ends in vain where it has ended, or is another user's: it then remains a member
	}
}
