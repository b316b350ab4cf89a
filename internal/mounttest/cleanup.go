package mounttest

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/internal/fstree"
)

// Guard holds a directory against what it was.
type Guard struct {
	t      testing.TB
	dir    string
	before *fstree.Tree
}

// NewGuard looks at dir now; Check looks again.
func NewGuard(t testing.TB, dir string) *Guard {
	t.Helper()
	return &Guard{t: t, dir: dir, before: Snapshot(t, dir)}
}

// Check fails the test if anything but access times changed.
func (g *Guard) Check() {
	g.t.Helper()
	Same(g.t, g.before, Snapshot(g.t, g.dir), fstree.Exact, "base before", "base after")
}

// mountMinor returns the device minor of what is mounted at dir, which is the
// number of its FUSE connection.
func mountMinor(dir string) (minor string, mounted bool) {
	eachMount(func(at, m string) {
		if at == dir {
			minor, mounted = m, true
		}
	})
	return minor, mounted
}

// eachMount calls fn with the mount point and the device minor of every mount.
func eachMount(fn func(dir, minor string)) {
	info, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return
	}
	for line := range bytes.Lines(info) {
		if f := strings.Fields(string(line)); len(f) > 4 {
			_, minor, _ := strings.Cut(f[2], ":")
			fn(unescape(f[4]), minor)
		}
	}
}

// mountsBelow lists what is mounted below dir.
func mountsBelow(dir string) (all []string) {
	eachMount(func(at, _ string) {
		if strings.HasPrefix(at, dir+"/") {
			all = append(all, at)
		}
	})
	return all
}

// unescape undoes the octal escapes of mountinfo.
func unescape(s string) string {
	for i := 0; i+3 < len(s); i++ {
		if s[i] == '\\' {
			if c, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				s = s[:i] + string([]byte{byte(c)}) + s[i+4:]
			}
		}
	}
	return s
}

// Mounted reports whether something is mounted at dir.
func Mounted(dir string) bool {
	_, ok := mountMinor(dir)
	return ok
}

// WaitGone waits until a process has ended.
func WaitGone(t testing.TB, pid int) {
	t.Helper()
	WaitFor(t, fmt.Sprintf("process %d to end", pid), func() bool { return !Alive(pid) })
}

// Alive reports whether a process runs; a zombie does not.
func Alive(pid int) bool {
	st, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	i := bytes.LastIndexByte(st, ')')
	return i < 0 || i+2 >= len(st) || st[i+2] != 'Z' && st[i+2] != 'X'
}

// WaitFor waits until a condition holds, and fails the test if it never does.
func WaitFor(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(Timeout); !cond(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited %v for %s", Timeout, what)
		}
	}
}

// Close ends the mount by all means, then looks at the base and removes all.
// The end of the test does it too.
func (m *Mount) Close() {
	if m.ended {
		return
	}
	m.ended = true
	if m.T.Failed() {
		m.dumpLogs()
	}
	if Mounted(m.Dir) {
		r := m.exec(20*time.Second, "", "unmount")
		if r.Code != 0 || Mounted(m.Dir) {
			m.T.Errorf("the mount had to be aborted: %s", r)
			if !m.T.Failed() {
				m.dumpLogs()
			}
		}
	}
	m.endDaemons()
	for left := mountsBelow(m.Top); len(left) > 0; left = mountsBelow(m.Top) {
		for _, dir := range left { // forks, too
			Abort(dir)
		}
	}
	if m.guard != nil {
		m.guard.Check()
	}
	if err := os.RemoveAll(m.Top); err != nil {
		m.T.Errorf("remove the test's directory: %v", err)
	}
}

// Abort ends a FUSE connection and takes its mount away.
func Abort(dir string) {
	if minor, ok := mountMinor(dir); ok {
		_ = os.WriteFile("/sys/fs/fuse/connections/"+minor+"/abort", []byte("1"), 0)
		_ = unix.Unmount(dir, unix.MNT_DETACH|unix.MNT_FORCE)
	}
}

// endDaemons ends what still runs with this test's directory among its
// arguments, which only this test's daemons have.
func (m *Mount) endDaemons() {
	for _, pid := range m.daemons() {
		for end := time.Now().Add(5 * time.Second); Alive(pid) && time.Now().Before(end); {
			time.Sleep(2 * time.Millisecond)
		}
		if Alive(pid) {
			m.T.Errorf("daemon %d still runs after the unmount", pid)
			_ = unix.Kill(pid, unix.SIGQUIT) // leaves its goroutines in the log
			Abort(m.Dir)
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}
}

func (m *Mount) daemons() []int {
	var out []int
	procs, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, p := range procs {
		cmd, err := os.ReadFile(p)
		if err != nil {
			continue
		}
		args := bytes.Split(cmd, []byte{0})
		if string(args[0]) != Binary() && filepath.Base(string(args[0])) != "rewindfs" || !bytes.Contains(cmd, []byte(m.Top+"/")) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(p))); err == nil && Alive(pid) {
			out = append(out, pid)
		}
	}
	return out
}

// dumpLogs prints the end of each log in the store.
func (m *Mount) dumpLogs() {
	_ = filepath.WalkDir(m.Store, func(p string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.Contains(d.Name(), "log") || strings.Contains(p, "/kv/") {
			return nil
		}
		f, err := os.Open(p)
		if err != nil {
			return nil
		}
		defer f.Close()
		var lines []string
		s := bufio.NewScanner(f)
		s.Buffer(nil, 1<<20)
		for s.Scan() {
			lines = append(lines, s.Text())
		}
		m.T.Logf("%s (last lines):\n%s", p, strings.Join(lines[max(0, len(lines)-60):], "\n"))
		return nil
	})
}
