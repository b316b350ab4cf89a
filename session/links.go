package session

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/control"
	"github.com/rewindfs/rewindfs/layers"
)

// eachChange calls fn for what differs between two layers, with what the rules say of each path, and of a symlink that leads out of
// the project, where to.
func (s *Session) eachChange(ctx context.Context, from, to layers.Layer, keep func(*layers.Change) bool, fn func(control.Change) error) error {
	before, after, err := s.tree.Sides(from, to)
	if err != nil {
		return err
	}
	defer before.Close()
	defer after.Close()
	return s.tree.Diff(from, to, func(c layers.Change) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		if !keep(&c) {
			return nil
		}
		out := s.markedChange(&c)
		if c.Type == unix.S_IFLNK && c.Status != layers.Deleted {
			target, err := readlinkAt(after, c.Path)
			if err != nil {
				return fmt.Errorf("read the symlink %q: %w", c.Path, err)
			}
			if s.leadsOut(c.Path, target) {
				name := control.NameOf(target)
				out.LeadsOut = &name
			}
		}
		return fn(out)
	})
}

// Bounds of what status says of symlinks: a store may hold a million changes, and status is to answer at once.
const (
	maxLinksOut  = 100
	linksOutTime = 100 * time.Millisecond
)

// linksOut are the symlinks changed since the base that lead out of the project. cut says that there may be more.
func (s *Session) linksOut(ctx context.Context) (out []control.Change, cut bool, err error) {
	looking, cancel := context.WithTimeout(ctx, linksOutTime)
	defer cancel()
	enough := errors.New("enough")
	out = []control.Change{}
	isLink := func(c *layers.Change) bool { return c.Type == unix.S_IFLNK && c.Status != layers.Deleted }
	err = s.eachChange(looking, layers.BaseLayer, s.branch.HeadLayer(), isLink, func(c control.Change) error {
		switch {
		case c.LeadsOut == nil:
		case len(out) == maxLinksOut:
			return enough
		default:
			out = append(out, c)
		}
		return nil
	})
	if errors.Is(err, enough) || errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return out, true, nil
	}
	return out, err != nil, err
}

// readlinkAt is where the symlink at a path leads. The directories above it are no symlinks.
func readlinkAt(v *layers.View, path string) (string, error) {
	at := layers.RootIno
	for name := range strings.SplitSeq(path, "/") {
		a, err := v.Lookup(at, name)
		if err != nil {
			return "", err
		}
		defer v.Forget(a.Ino, 1)
		at = a.Ino
	}
	return v.Readlink(at)
}

// leadsOut reports whether a symlink at path, below the root of the mount, with this target leads out of the mount, by what it says: where
// other symlinks on its way lead is not followed. What is written through such a one is in no layer. The base's own path is outside: in the mount, it is
// the directory on the host.
func (s *Session) leadsOut(path, target string) bool {
	if filepath.IsAbs(target) {
		return !below(filepath.Clean(target), s.o.Mountpoint)
	}
	depth := strings.Count(path, "/")
	for part := range strings.SplitSeq(target, "/") {
		switch part {
		case "", ".":
		case "..":
			if depth--; depth < 0 {
				return true
			}
		default:
			depth++
		}
	}
	return false
}
