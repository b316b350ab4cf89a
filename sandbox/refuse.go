package sandbox

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// refusals finds out which writes of a command were refused, for the user to read. It decides nothing: that
// is for the mounts and for Landlock, so it does no harm that a process may change what was seen here.
type refusals struct {
	listener int
	table    *callTable
	write    []string
	view     *view // nil where attributes can be changed anywhere
	groups   []int
	found    []Refusal
	seen     map[string]int // index into found, by path
}

// watch begins to listen. stop is for running.stop, stand for running.stand. goesOn is set where processes of the command may outlive us.
func (l *layout) watch(listener int, goesOn bool) (stop func() []Refusal, stand func(bool)) {
	r := &refusals{listener: listener, table: &callTables[0], write: l.write, seen: make(map[string]int)}
	if l.view.ReadOnly {
		r.view = &l.view
	}
	r.groups, _ = os.Getgroups()
	var wake [2]int
	if err := unix.Pipe2(wake[:], unix.O_CLOEXEC); err != nil {
		wake = [2]int{-1, -1} // then nobody can stop it before its end
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		serve(listener, wake[0], r.look)
	}()
	heir := &heir{listener: listener}
	if goesOn {
		heir.timer = time.AfterFunc(heirAfter, heir.start)
	}
	return func() []Refusal {
		unix.Close(wake[1])
		<-done
		unix.Close(wake[0])
		heir.leave()
		return r.found
	}, heir.stand
}

// look notes a call if it is going to be refused.
func (r *refusals) look(n *notification) {
	for i := range r.table.watched {
		w := &r.table.watched[i]
		if w.nr != uint32(n.NR) || n.Arch != r.table.arch {
			continue
		}
		for j, name := range w.names {
			op := w.op
			if op == moves {
				op = removes
				if j == 1 {
					op = makes
				}
			}
			r.lookAt(n, op, name, w)
		}
		return
	}
}

// lookAt notes one of the names of a call.
func (r *refusals) lookAt(n *notification, op op, name [2]int, w *watched) {
	if len(r.found) >= MaxRefused || (op == changes || op == marks) && r.view == nil {
		return
	}
	path, ok := readString(int(n.PID), uintptr(n.Args[name[1]]))
	if !ok || path == "" {
		return
	}
	if !strings.HasPrefix(path, "/") {
		dir, ok := r.directory(n, name[0])
		if !ok {
			return
		}
		path = dir + "/" + path
	}
	path = filepath.Clean(path)
	// Symlinks further up are not looked for: that costs more than it tells.
	if r.allowed(path) && (op != opens || !isLink(process(int(n.PID))+"/root"+path)) || !n.valid(r.listener) {
		return
	}
	flags := uint64(unix.O_WRONLY | unix.O_CREAT)
	if w.op == opens && w.flags >= 0 {
		flags = n.Args[w.flags]
	} else if n.NR == unix.SYS_OPENAT2 {
		var ok bool
		if flags, ok = readWord(int(n.PID), uintptr(n.Args[2])); !ok || flags&writing == 0 {
			return
		}
	}
	if path = r.refused(int(n.PID), op, path, flags); path != "" {
		r.note(Refusal{Path: path, Flag: r.flag(int(n.PID), op, path)})
	}
}

// note adds a refusal. Of several for one path the flag counts that allows most.
func (r *refusals) note(n Refusal) {
	i, seen := r.seen[n.Path]
	switch {
	case !seen:
		r.seen[n.Path] = len(r.found)
		r.found = append(r.found, n)
	case len(n.Flag) < len(r.found[i].Flag):
		r.found[i].Flag = n.Flag
	}
}

// directory is what a descriptor of a directory, or cwd, stands for.
func (r *refusals) directory(n *notification, arg int) (string, bool) {
	link := "/cwd"
	if arg != cwd && int32(n.Args[arg]) != unix.AT_FDCWD {
		link = "/fd/" + strconv.Itoa(int(int32(n.Args[arg])))
	}
	dir, err := os.Readlink(process(int(n.PID)) + link)
	return dir, err == nil && strings.HasPrefix(dir, "/")
}

func process(pid int) string { return "/proc/" + strconv.Itoa(pid) }

// allowed reports whether a clean path is in a writable place, for whoever takes it literally.
func (r *refusals) allowed(path string) bool {
	if r.view != nil {
		if p := r.view.at(path); p != nil && p.What == bind && p.ReadOnly {
			return false
		}
	}
	for _, w := range r.write {
		if within(path, w) {
			return true
		}
	}
	return false
}

// refused is the path that an operation leads to if it is refused for where it is, "" if it succeeds or fails otherwise.
func (r *refusals) refused(pid int, op op, path string, flags uint64) string {
	root := process(pid) + "/root"
	dir, base := filepath.Split(path)
	real, ok := realPath(root + filepath.Clean(dir))
	if !ok {
		return ""
	}
	path = filepath.Join(real, base)
	follows := op == changes || op == opens && flags&unix.O_NOFOLLOW == 0 && flags&unix.O_EXCL == 0
	var st unix.Stat_t
	there := unix.Lstat(root+path, &st) == nil
	if there && follows && st.Mode&unix.S_IFMT == unix.S_IFLNK {
		// What it leads to may be missing, and is then made: that is left out.
		if path, there = realPath(root + path); !there || unix.Lstat(root+path, &st) != nil {
			return ""
		}
	}
	if r.allowed(path) {
		return ""
	}
	switch {
	case op == opens && there:
		kind := st.Mode & unix.S_IFMT
		if kind == unix.S_IFDIR || flags&unix.O_CREAT != 0 && flags&unix.O_EXCL != 0 || !r.permitted(&st) {
			return ""
		}
		return path
	case op == opens && flags&unix.O_CREAT == 0, (op == makes) == there && op != opens:
		return "" // ENOENT and EEXIST
	case op == changes || op == marks:
		if euid := os.Geteuid(); euid != 0 && int(st.Uid) != euid {
			return ""
		}
		return path
	}
	var parent unix.Stat_t
	if unix.Lstat(root+filepath.Dir(path), &parent) != nil || !r.permitted(&parent) {
		return ""
	}
	return path
}

// permitted reports whether the user may write to a file by its owner and mode.
func (r *refusals) permitted(st *unix.Stat_t) bool {
	switch {
	case os.Geteuid() == 0:
		return true
	case int(st.Uid) == os.Geteuid():
		return st.Mode&0o200 != 0
	case int(st.Gid) == os.Getegid():
		return st.Mode&0o020 != 0
	}
	for _, g := range r.groups {
		if int(st.Gid) == g {
			return st.Mode&0o020 != 0
		}
	}
	return st.Mode&0o002 != 0
}

// flag is what would allow an operation: for what is there itself, else for the directory that it is to be made in.
func (r *refusals) flag(pid int, op op, path string) string {
	var st unix.Stat_t
	there := unix.Lstat(process(pid)+"/root"+path, &st) == nil
	if !there || op == removes {
		path = filepath.Dir(path)
	}
	return "--allow " + path
}

func isLink(path string) bool {
	_, err := unix.Readlink(path, make([]byte, 1))
	return err == nil
}

// realPath is a directory or file without symlinks, of one that is given below /proc/PID/root.
func realPath(path string) (string, bool) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", false
	}
	defer unix.Close(fd)
	real, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
	return real, err == nil && strings.HasPrefix(real, "/")
}

// readString reads a path from a process's memory.
func readString(pid int, addr uintptr) (string, bool) {
	var path []byte
	for len(path) < unix.PathMax {
		// Not over the end of a page: the next one may be missing.
		var buf [256]byte
		size := min(len(buf), 4096-int(addr%4096))
		n, ok := readMemory(pid, addr, buf[:size])
		if !ok {
			return "", false
		}
		for i, c := range buf[:n] {
			if c == 0 {
				return string(append(path, buf[:i]...)), true
			}
		}
		path = append(path, buf[:n]...)
		addr += uintptr(n)
	}
	return "", false
}

// readWord reads the first field of struct open_how.
func readWord(pid int, addr uintptr) (word uint64, ok bool) {
	n, ok := readMemory(pid, addr, (*[8]byte)(unsafe.Pointer(&word))[:])
	return word, ok && n == 8
}

func readMemory(pid int, addr uintptr, buf []byte) (int, bool) {
	local := []unix.Iovec{{Base: &buf[0]}}
	local[0].SetLen(len(buf))
	n, err := unix.ProcessVMReadv(pid, local, []unix.RemoteIovec{{Base: addr, Len: len(buf)}}, 0)
	return n, err == nil && n > 0
}
