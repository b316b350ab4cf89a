package sandbox

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// maxLinks bounds how many symlinks are followed, as the kernel does.
const maxLinks = 40

// planted follows the symlinks of a path as the command sees it. It returns where the path leads, and the first of them that a command may
// have made, "" for none: one that lies in one of the places. What that leads to is not to become writable: a command would choose it
// for the next one. In the project a link that the host's copy has as well was not made by a command.
func (l *layout) planted(path string, places []string) (at, link string) {
	rest := strings.Split(filepath.Clean(path), "/")[1:]
	at = "/"
	for links := 0; len(rest) > 0 && links <= maxLinks; {
		next := filepath.Join(at, rest[0])
		rest = rest[1:]
		target, err := os.Readlink(l.onHost(next))
		if err != nil { // something else, or nothing
			at = next
			continue
		}
		inside := func(place string) bool { return next != place && within(next, place) }
		if slices.ContainsFunc(places, inside) && !l.ofTheHost(next, target) {
			link = cmp.Or(link, next)
		}
		links++
		if filepath.IsAbs(target) {
			at = "/"
		}
		rest = append(strings.Split(target, "/"), rest...)
	}
	return at, link
}

// ofTheHost reports whether the host's copy of the project has the same symlink at a path that a command sees.
func (l *layout) ofTheHost(path, target string) bool {
	s := l.s
	if s.Project == s.Mount || !within(path, s.Project) {
		return false
	}
	host, err := os.Readlink(path)
	return err == nil && host == target
}

// open returns where those of the paths lead that can be made writable, to whom no planted symlink leads. What is in the project is writable anyway.
func (l *layout) open(paths []string) (kept []string) {
	places := []string{l.s.Project, l.s.Mount}
	for _, path := range paths {
		at, _ := l.resolve(path)
		places = append(places, path, at)
	}
	for _, path := range paths {
		at, link := l.planted(path, places)
		switch {
		case link != "":
			l.notes = append(l.notes, fmt.Sprintf("%s is not writable: the symlink %s lies where commands can make one; name what it leads to with --allow", path, link))
		case !within(at, l.s.Project) && !within(at, l.s.Mount):
			kept = append(kept, at)
		}
	}
	return kept
}

// allowed is where a path leads that the user names in --allow.
func (l *layout) allowed(path string) (at string, err error) {
	places := slices.DeleteFunc(slices.Clone(l.write), func(w string) bool { // what is seen there is not the host's
		p := l.view.at(w)
		return p != nil && slices.Contains(l.private, p.At) || within(w, "/dev") || within(w, "/proc")
	})
	at, link := l.planted(absolute(path, l.s), append(places, l.s.Project, l.s.Mount))
	if link != "" {
		return "", &Error{ExitCode: ExitSandbox, Err: fmt.Errorf("--allow %s: the symlink %s lies where commands can make one", path, link),
			Do: fmt.Sprintf("if it leads where you want, name that: --allow %s", at)}
	}
	return at, nil
}
