package session

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/apply"
	"github.com/rewindfs/rewindfs/hunks"
	"github.com/rewindfs/rewindfs/patch"
)

// hunkEdits reads which parts of which files a commit is to bring: the paths that it is about, and their edits.
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
		// What is removed and made again, as another kind of object, is there twice.
		if before, twice := edits[f.Path()]; twice && !(before.Gone && f.Old == "") {
			return nil, nil, badRequest("the patch is about %s twice", quotePath(f.Path()))
		}
		if edits[f.Path()], err = hunkEdit(f); err != nil {
			return nil, nil, err
		}
	}
	return paths, edits, nil
}

// hunkEdit is what a patch says of one file. One whose hunks were all taken out says nothing that could be meant: neither all of it, nor an empty file.
func hunkEdit(f *hunks.File) (e apply.Edit, err error) {
	onlyMode := f.Mode && f.Old == f.New
	if !f.Binary && len(f.Hunks) == 0 && !onlyMode && (f.Text || f.Old == f.New) {
		return e, badRequest("the patch has no hunk of %s: leave some in, or take all lines about it out", quotePath(f.Path()))
	}
	e = apply.Edit{New: f.Old == "", Gone: f.New == "", Mode: f.Mode || f.Old == ""}
	if f.Old != f.New && !e.New && !e.Gone {
		e.From = f.Old
	}
	if !f.Binary && !(e.Gone && !f.Text) {
		e.Text = f.Apply
	}
	return e, nil
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
