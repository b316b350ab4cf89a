package session

import (
	"errors"
	"fmt"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/layers"
)

// rewindDir is the hidden directory that fs shows in the root of the mount.
const rewindDir = ".rewind"

// maxSymlinks is the kernel's limit on symlinks in one look-up.
const maxSymlinks = 40

// cleanPath makes a path relative to the root of the tree without empty and "."
// parts. ".." stays: what it means depends on symlinks.
func cleanPath(p string) (string, error) {
	if strings.IndexByte(p, 0) >= 0 {
		return "", badPath("the path %q holds a NUL byte", p)
	}
	if strings.HasPrefix(p, "/") {
		return "", badPath("the path %q is absolute: give it relative to the root of the session", p)
	}
	var parts []string
	for part := range strings.SplitSeq(p, "/") {
		if part != "" && part != "." {
			parts = append(parts, part)
		}
	}
	return strings.Join(parts, "/"), nil
}

// place is where a path leads: the object, when there is one, and its name in its directory.
type place struct {
	exists bool
	attr   layers.Attr
	dir    layers.Ino
	name   string
}

// walker follows paths in a view without ever leaving it: symlinks are read
// here, absolute ones and ".." above the root are refused. It holds a reference to
// all it met, until release.
type walker struct {
	v    *layers.View
	held []layers.Ino
}

func (w *walker) release() {
	for _, ino := range w.held {
		w.v.Forget(ino, 1)
	}
	w.held = nil
}

// find follows path, its last part too when that is a symlink.
func (w *walker) find(path string) (place, error) {
	root, err := w.v.Getattr(layers.RootIno)
	if err != nil {
		return place{}, fmt.Errorf("look at the root: %w", err)
	}
	stack := []layers.Attr{root}
	todo := strings.Split(path, "/")
	links := 0
	at := place{exists: true, attr: root, dir: layers.RootIno}
	for len(todo) > 0 {
		name := todo[0]
		todo = todo[1:]
		top := stack[len(stack)-1]
		switch {
		case name == "" || name == ".":
			continue
		case name == "..":
			if len(stack) == 1 {
				return place{}, badPath("%s leads out of the session", quotePath(path))
			}
			stack = stack[:len(stack)-1]
			at = place{exists: true, attr: stack[len(stack)-1]}
			continue
		case !top.IsDir():
			return place{}, badPath("%s: a part of it is not a directory", quotePath(path))
		case name == rewindDir && len(stack) == 1:
			return place{}, badPath("%s: %s is not part of the tree; read files of a checkpoint with: rewindfs cat REF:PATH", quotePath(path), rewindDir)
		}
		attr, err := w.v.Lookup(top.Ino, name)
		if errors.Is(err, syscall.ENOENT) && nothingMore(todo) {
			return place{dir: top.Ino, name: name}, nil
		}
		if err != nil {
			return place{}, pathError(path, err)
		}
		w.held = append(w.held, attr.Ino)
		if attr.Mode&unix.S_IFMT != unix.S_IFLNK {
			stack = append(stack, attr)
			at = place{exists: true, attr: attr, dir: top.Ino, name: name}
			continue
		}
		if links++; links > maxSymlinks {
			return place{}, badPath("%s: more than %d symlinks", quotePath(path), maxSymlinks)
		}
		target, err := w.v.Readlink(attr.Ino)
		if err != nil {
			return place{}, pathError(path, err)
		}
		if strings.HasPrefix(target, "/") {
			return place{}, badPath("%s goes through the absolute symlink %s -> %s, which leads out of the session", quotePath(path), quotePath(name), quotePath(target))
		}
		todo = append(strings.Split(target, "/"), todo...)
	}
	return at, nil
}

func nothingMore(parts []string) bool {
	for _, p := range parts {
		if p != "" && p != "." {
			return false
		}
	}
	return true
}

// file is find for a path that must lead to a regular file.
func (w *walker) file(path string) (place, error) {
	p, err := w.find(path)
	if err != nil {
		return p, err
	}
	if !p.exists {
		return p, badPath("%s does not exist", quotePath(path))
	}
	return p, regular(path, p.attr.Mode)
}

func regular(path string, mode uint32) error {
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		return nil
	case unix.S_IFDIR:
		return badPath("%s is a directory", quotePath(path))
	}
	return badPath("%s is a %s, not a file", quotePath(path), typeName(mode))
}

// pathError gives an error about a path the code for bad paths, when it is one.
func pathError(path string, err error) error {
	for _, e := range []syscall.Errno{syscall.ENOENT, syscall.ENOTDIR, syscall.ENAMETOOLONG, syscall.EINVAL, syscall.EACCES, syscall.EPERM, syscall.EROFS} {
		if errors.Is(err, e) {
			return badPath("%s: %v", quotePath(path), e)
		}
	}
	return apiError(fmt.Errorf("%s: %w", quotePath(path), err))
}

// quotePath shows a path that may hold anything.
func quotePath(p string) string { return fmt.Sprintf("%q", p) }
