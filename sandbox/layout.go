package sandbox

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// layout is how a command is to see the files, and where it may write. It is made from what the host shows now.
type layout struct {
	s     *Spec
	view  view
	write []string // as the command sees them
	// private are directories of the command's own, in the place of the host's.
	private []string
	notes   []string
}

// resolve follows the symlinks of a path as the command will see it. at is where it leads, from where that is on the host.
func (l *layout) resolve(path string) (at, from string) {
	path = filepath.Clean(path)
	from = follow(l.onHost(path))
	if l.s.Project != l.s.Mount && within(from, l.s.Mount) {
		return l.s.Project + from[len(l.s.Mount):], from
	}
	return from, l.onHost(from)
}

// onHost is where on the host what a command sees at path is.
func (l *layout) onHost(path string) string {
	if within(path, l.s.Project) {
		return filepath.Join(l.s.Mount, path[len(l.s.Project):])
	}
	return path
}

// follow follows the symlinks of a path of which the end may be missing.
func follow(path string) string {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	if path == "/" {
		return path
	}
	return filepath.Join(follow(filepath.Dir(path)), filepath.Base(path))
}

// twice calls fn with a path and, if it is in the project, with the same one below the mountpoint, where it can be seen too.
func (l *layout) twice(at string, fn func(at string)) {
	fn(at)
	if host := l.onHost(at); host != at {
		fn(host)
	}
}

// writable has a path without symlinks stay writable. One that comes to lie in the way is not followed, see clone.
func (l *layout) writable(at string) {
	l.view.set(point{At: at, What: bind, From: l.onHost(at)})
	l.write = append(l.write, at)
}

// readOnly has a path that lies in a writable one be read-only.
func (l *layout) readOnly(path string) {
	at, from := l.resolve(path)
	if !exists(from) {
		if l.mayWrite(at) {
			l.notes = append(l.notes, fmt.Sprintf("%s is not there: that it is made cannot be refused", path))
		}
		return
	}
	if p := l.view.at(at); p != nil && p.What == hidden {
		return
	}
	l.twice(at, func(at string) {
		l.view.Points = slices.DeleteFunc(l.view.Points, func(p point) bool { return p.What == bind && within(p.At, at) })
		l.view.set(point{At: at, What: bind, From: from, ReadOnly: true})
	})
	l.write = slices.DeleteFunc(l.write, func(w string) bool { return within(w, at) })
}

// hide has nothing be seen at a path.
func (l *layout) hide(path string) {
	at, from := l.resolve(path)
	if exists(from) {
		l.twice(at, func(at string) { l.view.set(point{At: at, What: hidden, From: from}) })
	}
}

// mayWrite reports whether a path lies where writing is allowed.
func (l *layout) mayWrite(at string) bool {
	return slices.ContainsFunc(l.write, func(w string) bool { return within(at, w) })
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// project shows the project at its own path. Its mountpoint stays in its place, too.
func (l *layout) project() {
	s := l.s
	from := follow(s.Mount)
	l.view.set(point{At: s.Mount, What: bind, From: from})
	l.view.set(point{At: s.Project, What: bind, From: from})
	l.write = append(l.write, s.Project, s.Mount)
}

// own gives the command a directory of its own in the place of the host's.
func (l *layout) own(p point) {
	if p.At = follow(p.At); exists(p.At) {
		l.view.set(p)
		l.write = append(l.write, p.At)
		l.private = append(l.private, p.At)
	}
}

// needed keeps in sight, read-only, what of the host's the command is started from, should it lie in a directory that is replaced.
func (l *layout) needed() {
	s := l.s
	paths := append([]string{s.Dir, getenv(s.Env, "HOME")}, filepath.SplitList(getenv(s.Env, "PATH"))...)
	if filepath.IsAbs(s.Argv[0]) {
		paths = append(paths, s.Argv[0])
	}
	for _, path := range paths {
		if !filepath.IsAbs(path) {
			continue
		}
		at, from := l.resolve(path)
		if within(at, s.Project) {
			continue // that is the mount
		}
		p := l.view.at(at)
		if p != nil && slices.Contains(l.private, p.At) && p.At != at && exists(from) {
			l.view.set(point{At: at, What: bind, From: from, ReadOnly: true})
		}
	}
}

// unseen hides stores and sockets of ours, and shows the sockets that are made for commands.
func (l *layout) unseen() {
	for _, path := range l.s.Unseen {
		l.hide(path)
	}
	for at, from := range l.s.Sockets {
		at, _ = l.resolve(at)
		l.view.set(point{At: at, What: bind, From: follow(from)})
	}
}

// sockets closes the doors to processes that act for the user. env is the environment before it was scrubbed. What of it the user lets
// through by its variable stays open, wherever it is.
func (l *layout) sockets(env []string) {
	for _, path := range expand(DefaultSockets, env, true) {
		l.hide(path)
	}
	if path := getenv(env, "SSH_AUTH_SOCK"); filepath.IsAbs(path) && slices.Contains(l.s.Rules.Env, "SSH_AUTH_SOCK") && exists(path) {
		at, from := l.resolve(path)
		l.view.set(point{At: at, What: bind, From: from})
	}
}

// rules adds what the user says: Allow over what is refused by default, Deny over everything.
func (l *layout) rules() error {
	for _, path := range l.s.Rules.Allow {
		if err := l.allow(path); err != nil {
			return err
		}
	}
	for _, path := range l.s.Rules.Deny {
		l.readOnly(absolute(path, l.s))
	}
	return nil
}

// allow makes a path writable. One that is missing is made if it ends in a slash.
func (l *layout) allow(path string) error {
	if absolute(path, l.s) == "/" {
		return &Error{ExitCode: ExitSandbox, Err: errors.New("--allow /: that is everything"), Do: "use --sandbox none to have nothing refused"}
	}
	at, err := l.allowed(path)
	if err != nil {
		return err
	}
	from := l.onHost(at)
	if !exists(from) {
		if !strings.HasSuffix(path, "/") {
			return &Error{ExitCode: ExitSandbox, Err: fmt.Errorf("--allow %s: there is nothing", path), Do: fmt.Sprintf("make it first, or say --allow %s/ for a directory that is made", path)}
		}
		if err := os.MkdirAll(from, 0o755); err != nil {
			return &Error{ExitCode: ExitSandbox, Err: fmt.Errorf("--allow %s: %w", path, err)}
		}
	}
	l.writable(at)
	return nil
}

// makeRoom makes room in hidden directories for what is to be shown there all the same.
func (l *layout) makeRoom() {
	for _, inner := range l.view.Points {
		if inner.What == hidden {
			continue
		}
		for i := range l.view.Points {
			if p := &l.view.Points[i]; p.What == hidden && inner.At != p.At && within(inner.At, p.At) {
				p.What, p.ReadOnly, p.Size = tmpfs, true, 1<<20
			}
		}
	}
}

// absolute is a path that a user named: ~ is the home directory, and others start from the working directory.
func absolute(path string, s *Spec) string {
	if rest, ok := strings.CutPrefix(path, "~"); ok && (rest == "" || rest[0] == '/') {
		if home := getenv(s.Env, "HOME"); home != "" {
			return filepath.Join(home, rest)
		}
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(s.Dir, path)
	}
	return filepath.Clean(path)
}

// hostTmp is the directory for temporary files on the host, which the system cleans: $TMPDIR where that is one, and does not lie in
// the project, whose copy on the host stays as it is, or where commands may write, who would find those of other sessions there.
func hostTmp(s *Spec) string {
	dir := follow(os.TempDir())
	places := append(expand(s.Rules.writable(), s.Env, true), s.Project, s.Mount)
	for _, path := range s.Rules.Allow {
		places = append(places, absolute(path, s))
	}
	inside := func(place string) bool { return within(dir, place) || within(dir, follow(place)) }
	if !filepath.IsAbs(dir) || likeness(dir) != "dir" || slices.ContainsFunc(places, inside) {
		return follow("/tmp")
	}
	return dir
}

// tmpTop holds the private temporary directories of this user, in that of the host.
func tmpTop(host string) string { return filepath.Join(host, "rewindfs-"+strconv.Itoa(os.Geteuid())) }

// tmpDir is the directory on the host that is /tmp in Local: one for each mount, so that commands of a session find what others left there.
func tmpDir(top, mount string) (string, error) {
	// Anybody can make a directory of this name first.
	var st unix.Stat_t
	if err := unix.Lstat(top, &st); err != nil {
		return "", err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || int(st.Uid) != os.Geteuid() || st.Mode&0o077 != 0 {
		return "", fmt.Errorf("%s is not a directory that is yours alone", top)
	}
	sum := sha256.Sum256([]byte(mount))
	return filepath.Join(top, hex.EncodeToString(sum[:8])), nil
}

// makeTmp makes the private directories for a command's mount that are missing.
func makeTmp(s *Spec) (tmp, varTmp string, err error) {
	top := tmpTop(hostTmp(s))
	if err := os.Mkdir(top, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", "", err
	}
	dir, err := tmpDir(top, s.Mount)
	if err != nil {
		return "", "", err
	}
	tmp, varTmp = filepath.Join(dir, "tmp"), filepath.Join(dir, "var-tmp")
	for _, d := range []string{dir, tmp, varTmp} {
		if err := os.Mkdir(d, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return "", "", err
		}
		if likeness(d) != "dir" || follow(d) != d {
			return "", "", fmt.Errorf("%s is not a directory: remove it", d)
		}
	}
	// As /tmp is: a privileged command may run programs as other users. Nobody gets to it on the host.
	return tmp, varTmp, errors.Join(os.Chmod(tmp, os.ModeSticky|0o777), os.Chmod(varTmp, os.ModeSticky|0o777))
}

// RemoveTemp removes the private temporary directory of commands that ran in a mount.
func RemoveTemp(mount string) error {
	for _, host := range []string{os.TempDir(), "/tmp"} {
		top := tmpTop(host)
		if !exists(top) {
			continue
		}
		dir, err := tmpDir(top, mount)
		if err == nil {
			err = os.RemoveAll(dir)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
