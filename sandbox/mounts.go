package sandbox

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// view is how the tree of files differs from the host's, for a process in a mount namespace of its own. Nothing of it is undone
// at the end: the namespace goes with its last process.
type view struct {
	// ReadOnly makes everything read-only that is not one of Points.
	ReadOnly bool
	Points   []point
}

// point is a path at which something else is to be seen than on the host. Paths are absolute and without symlinks.
type point struct {
	At   string
	What what
	// From is what a bind shows and what hidden takes out of sight, as a path on the host.
	From     string
	ReadOnly bool
	// Of a tmpfs: its size in bytes, 0 is the kernel's bound, half of the memory; and its mode, 0 is 0755.
	Size int64
	Mode uint32
}

type what string

const (
	bind    what = "bind"
	tmpfs   what = "tmpfs"   // an empty directory, in memory
	hidden  what = "hidden"  // an empty directory or file that nothing can be written to
	procfs  what = "proc"    // of a pid namespace of our own
	devices what = "devices" // a /dev with what every program may use
)

// set says what is to be seen at p.At; what was said before for the same path holds no more.
func (v *view) set(p point) {
	v.Points = slices.DeleteFunc(v.Points, func(q point) bool { return q.At == p.At })
	v.Points = append(v.Points, p)
}

// at is the point that a path lies at or below, nil for none.
func (v *view) at(path string) *point {
	var best *point
	for i := range v.Points {
		if p := &v.Points[i]; within(path, p.At) && (best == nil || len(p.At) > len(best.At)) {
			best = p
		}
	}
	return best
}

// within reports whether path is dir or below it. Both are clean.
func within(path, dir string) bool {
	return path == dir || dir == "/" || strings.HasPrefix(path, dir) && path[len(dir)] == '/'
}

// make makes it so. What must fail where this machine cannot do such things fails first, with stageSpaces.
func (v *view) make() error {
	// The host's mounts go on to come and go here too, ours do not there.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return &failure{stageSpaces, ExitSandbox, fmt.Errorf("set the mounts apart: %w", err)}
	}
	// Outer points first. All that is to be shown is taken hold of before anything covers it, or becomes read-only.
	slices.SortFunc(v.Points, func(a, b point) int { return cmp.Compare(depth(a.At), depth(b.At)) })
	held, err := v.hold()
	if err != nil {
		return err
	}
	if v.ReadOnly {
		err := unix.MountSetattr(unix.AT_FDCWD, "/", unix.AT_RECURSIVE, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
		if err != nil {
			return &failure{stageSpaces, ExitSandbox, fmt.Errorf("make the host read-only: %w", err)}
		}
	}
	var covers []string
	for i, p := range v.Points {
		if err := p.put(held[i]); err != nil {
			return fmt.Errorf("show %s: %w", p.At, err)
		}
		if p.What == tmpfs && p.ReadOnly || p.What == devices {
			covers = append(covers, p.At)
		}
	}
	for _, at := range covers { // now that the points in them are made
		if err := unix.MountSetattr(unix.AT_FDCWD, at, 0, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}); err != nil {
			return fmt.Errorf("make %s read-only: %w", at, err)
		}
	}
	return nil
}

func depth(path string) int {
	if path == "/" {
		return 0
	}
	return strings.Count(path, "/")
}

// hold makes a detached mount for each point that shows something that there is, -1 for the others.
func (v *view) hold() ([]int, error) {
	held := make([]int, len(v.Points))
	var hide []int // of Points
	like := make(map[int]string)
	for i, p := range v.Points {
		held[i] = -1
		if name := likeness(p.From); p.What == hidden && name != "" {
			hide, like[i] = append(hide, i), name
		}
		if p.What != bind {
			continue
		}
		fd, err := clone(p.From, p.ReadOnly)
		if err != nil {
			err = fmt.Errorf("take hold of %s: %w", p.From, err)
			if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) {
				err = &failure{stageSpaces, ExitSandbox, err}
			}
			return nil, err
		}
		held[i] = fd
	}
	if len(hide) == 0 {
		return held, nil
	}
	if err := makeNothing(); err != nil {
		return nil, &failure{stageSpaces, ExitSandbox, fmt.Errorf("make an empty directory: %w", err)}
	}
	defer unix.Unmount(nothing, unix.MNT_DETACH) // what was cloned of it stays
	for _, i := range hide {
		fd, err := clone(nothing+"/"+like[i], true)
		if err != nil {
			return nil, fmt.Errorf("hide %s: %w", v.Points[i].At, err)
		}
		held[i] = fd
	}
	return held, nil
}

// clone is a mount of what is at path and of all that is mounted below it, which is nowhere yet. The path was looked at before: a symlink on
// the way has come there since, from a command that still runs, and is an error.
func clone(path string, readOnly bool) (int, error) {
	at, err := openPlain(path)
	if err != nil {
		return -1, err
	}
	defer unix.Close(at)
	fd, err := unix.OpenTree(at, "", unix.AT_EMPTY_PATH|unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil || !readOnly {
		return fd, err
	}
	err = unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// openPlain is a handle of what is at a path on which there is no symlink.
func openPlain(path string) (int, error) {
	return unix.Openat2(unix.AT_FDCWD, path, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS})
}

// put makes one point.
func (p *point) put(held int) error {
	if held >= 0 {
		defer unix.Close(held)
	}
	switch p.What {
	case bind, hidden:
		if held < 0 || p.What == hidden && !exists(p.At) {
			return nil // there is nothing to show, or to hide
		}
		if err := p.place(held); err != nil {
			return err
		}
		return unix.MoveMount(held, "", unix.AT_FDCWD, p.At, unix.MOVE_MOUNT_F_EMPTY_PATH)
	case tmpfs:
		if err := os.MkdirAll(p.At, 0o755); err != nil {
			return err
		}
		return mountTmpfs(p.At, cmp.Or(p.Mode, 0o755), p.Size)
	case procfs:
		flags := uintptr(unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC)
		if p.ReadOnly {
			flags |= unix.MS_RDONLY
		}
		if err := unix.Mount("proc", p.At, "proc", flags, ""); err != nil { // not where parts of the host's are covered
			return &failure{stageSpaces, ExitSandbox, err}
		}
		return nil
	case devices:
		return makeDev(p.At, p.Size)
	}
	return fmt.Errorf("nothing is known of %q", p.What)
}

// place makes the mount point where it is missing, which it may only be in directories of our own.
func (p *point) place(held int) error {
	var st unix.Stat_t
	if err := unix.Fstatat(held, "", &st, unix.AT_EMPTY_PATH); err != nil {
		return err
	}
	if unix.Lstat(p.At, new(unix.Stat_t)) == nil {
		return nil
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return os.MkdirAll(p.At, 0o755)
	}
	if err := os.MkdirAll(filepath.Dir(p.At), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(p.At, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}

func mountTmpfs(at string, mode uint32, size int64) error {
	options := fmt.Sprintf("mode=%o", mode)
	if size > 0 {
		options += fmt.Sprintf(",size=%d", size)
	}
	return unix.Mount("tmpfs", at, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, options)
}

// nothing is where an empty directory and an empty file are for a moment, for what is hidden. Of /proc nothing is needed meanwhile.
const nothing = "/proc"

func makeNothing() error {
	if err := mountTmpfs(nothing, 0o755, 1<<20); err != nil {
		return err
	}
	err := os.Mkdir(nothing+"/dir", 0o555)
	if err == nil {
		err = os.WriteFile(nothing+"/file", nil, 0o444)
	}
	if err != nil {
		unix.Unmount(nothing, unix.MNT_DETACH)
	}
	return err
}

// likeness says which of both is like what is at path, "" if nothing is.
func likeness(path string) string {
	var st unix.Stat_t
	if unix.Lstat(path, &st) != nil {
		return ""
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return "dir"
	}
	return "file"
}
