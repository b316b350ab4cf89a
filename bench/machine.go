package bench

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// Machine is where a report was made.
type Machine struct {
	CPU            string `json:"cpu"`
	Cores          int    `json:"cores"`
	MemoryBytes    int64  `json:"memory_bytes"`
	Kernel         string `json:"kernel"`
	OS             string `json:"os"`
	FS             string `json:"fs"` // of the working directory
	Disk           string `json:"disk"`
	Virtualization string `json:"virtualization"`
	Root           bool   `json:"root"`
	LoadBefore     string `json:"load_before"` // /proc/loadavg's three figures
	LoadAfter      string `json:"load_after"`
}

// probeMachine describes this machine and the disk of dir. What cannot be found out stays empty.
func probeMachine(dir string) Machine {
	m := Machine{
		CPU:        cpuModel(),
		Cores:      runtime.NumCPU(),
		OS:         osName(),
		Root:       os.Geteuid() == 0,
		LoadBefore: loadAverage(),
	}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		m.Kernel = unix.ByteSliceToString(u.Release[:]) + " " + unix.ByteSliceToString(u.Machine[:])
	}
	var si unix.Sysinfo_t
	if unix.Sysinfo(&si) == nil {
		m.MemoryBytes = int64(si.Totalram) * int64(si.Unit)
	}
	m.FS, m.Disk = fsOf(dir)
	m.Virtualization = virtualization()
	return m
}

func cpuModel() string {
	for line := range procLines("/proc/cpuinfo") {
		if k, v, ok := strings.Cut(line, ":"); ok {
			switch strings.TrimSpace(k) {
			case "model name", "Model", "cpu model":
				return strings.TrimSpace(v)
			}
		}
	}
	return runtime.GOARCH
}

func osName() string {
	for line := range procLines("/etc/os-release") {
		if v, ok := strings.CutPrefix(line, "PRETTY_NAME="); ok {
			return strings.Trim(v, `"`)
		}
	}
	return runtime.GOOS
}

// virtualization names the hypervisor, or says that there is none to be seen.
func virtualization() string {
	if out, err := exec.Command("systemd-detect-virt", "--vm").Output(); err == nil {
		return strings.TrimSpace(string(out))
	}
	for line := range procLines("/proc/cpuinfo") {
		if strings.HasPrefix(line, "flags") && strings.Contains(line, " hypervisor") {
			return "virtual machine"
		}
	}
	return "none seen"
}

func loadAverage() string {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return ""
	}
	f := strings.Fields(string(b))
	return strings.Join(f[:min(3, len(f))], " ")
}

// Busy reports whether other work ran on the machine when the run began: more
// processes than a quarter of the processors were ready to run in the last minute.
func (m Machine) Busy() bool {
	var load float64
	if _, err := fmt.Sscan(m.LoadBefore, &load); err != nil {
		return false
	}
	return load > max(0.5, float64(m.Cores)/4)
}

// fsOf returns the type and the source of the file system that holds dir.
func fsOf(dir string) (typ, source string) {
	var st unix.Stat_t
	if unix.Stat(dir, &st) != nil {
		return "", ""
	}
	dev := fmt.Sprintf("%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev))
	for line := range procLines("/proc/self/mountinfo") {
		head, tail, ok := strings.Cut(line, " - ")
		h, t := strings.Fields(head), strings.Fields(tail)
		if ok && len(h) > 2 && len(t) > 1 && h[2] == dev {
			return t[0], t[1]
		}
	}
	return "", ""
}

// procLines yields the lines of a small file; none when it cannot be read.
func procLines(path string) func(func(string) bool) {
	return func(yield func(string) bool) {
		f, err := os.Open(path)
		if err != nil {
			return
		}
		defer f.Close()
		for sc := bufio.NewScanner(f); sc.Scan(); {
			if !yield(sc.Text()) {
				return
			}
		}
	}
}
