package session

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/apply"
	"github.com/rewindfs/rewindfs/hunks"
	"github.com/rewindfs/rewindfs/patch"
)

// hunkEdits reads which parts of which files a commit is to bring: the paths that it is about, and the edits of those that have hunks.
func hunkEdits(text []byte) (paths [][]byte, edits map[string]apply.Edit, err error) {
	files, err := hunks.Parse(text)
	if err != nil {
		return nil, nil, badRequest("%v", err)
	}
	if len(files) == 0 {
		return nil, nil, badRequest("the patch is about no file: give what rewindfs commit --dry-run --patch prints, or a part of it")
	}
	edits = map[string]apply.Edit{}
	for _, f := range files {
		for _, p := range []string{f.Old, f.New} {
			if p == "" {
				continue
			}
			if clean, err := cleanPath(p); err != nil || clean != p {
				return nil, nil, badPath("the patch is about %s, which is no path below the base", quotePath(p))
			}
			paths = append(paths, []byte(p))
		}
		whole := f.New == "" || f.Binary || len(f.Hunks) == 0 && (f.Old != f.New || !f.Mode)
		if _, twice := edits[f.New]; twice {
			return nil, nil, badRequest("the patch is about %s twice", quotePath(f.New))
		}
		if whole {
			continue
		}
		e := apply.Edit{Mode: f.Mode || f.Old == "", Text: f.Apply}
		if f.Old != f.New {
			e.From = f.Old
		}
		edits[f.New] = e
	}
	return paths, edits, nil
}

// commitPatch makes the patch between what the host has and what a commit brings, by path.
func commitPatch(ctx context.Context, c *apply.Commit) (map[string][]byte, error) {
	var changes []patch.Change
	for _, ch := range c.Changes {
		changes = append(changes, patch.Change{Status: ch.Status, Path: ch.Path})
	}
	out := map[string][]byte{}
	err := patch.Write(hostSide{c}, patch.View{V: c.Want()}, changes, patch.Options{}, func(f *patch.File) error {
		out[f.Path] = append(out[f.Path], f.Text...)
		return ctx.Err()
	})
	if errors.Is(err, unix.ESTALE) {
		return nil, conflict("the host is being changed: try again (%v)", err)
	}
	return out, err
}

// hostSide is what the host has at the paths of a plan, as a side of a patch.
type hostSide struct{ c *apply.Commit }

// Stat implements patch.Side.
func (h hostSide) Stat(path string) (*patch.Object, error) {
	a := h.c.HostAt(path)
	if a == nil {
		return nil, nil
	}
	o := &patch.Object{Mode: a.Mode, Size: a.Size}
	var err error
	if a.Mode&unix.S_IFMT == unix.S_IFLNK {
		o.Target, err = h.c.HostTarget(path)
	}
	return o, err
}

// Leaves implements patch.Side. A plan knows of no renamed directory, so nobody asks.
func (h hostSide) Leaves(string, func(string) error) error { return nil }

// Read implements patch.Side.
func (h hostSide) Read(path string, _ int64) ([]byte, error) { return h.c.HostText(path) }
