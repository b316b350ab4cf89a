package session

import (
	"context"

	"github.com/rewindfs/rewindfs/control"
	"github.com/rewindfs/rewindfs/layers"
	"github.com/rewindfs/rewindfs/patch"
)

// Patch sends what differs between two states as a patch.
func (s *Session) Patch(ctx context.Context, r *control.PatchRequest, out *control.Stream[control.FilePatch]) (*control.DiffSummary, error) {
	d, err := s.comparison(ctx, &r.DiffRequest)
	if err != nil {
		return nil, err
	}
	sum := &control.DiffSummary{From: d.fromName, To: d.toName, Counts: map[string]int{}}
	err = s.patch(ctx, d.from, d.to, patch.Options{Binary: r.Binary, Keep: d.keep}, func(f *patch.File) error {
		sum.Total++
		return out.Emit(wirePatch(f, r.Stat))
	})
	return sum, d.failed(err)
}

// patch makes the patch between two layers and gives each entry to fn.
func (s *Session) patch(ctx context.Context, from, to layers.Layer, o patch.Options, fn func(*patch.File) error) error {
	a, b, err := s.tree.Sides(from, to)
	if err != nil {
		return err
	}
	defer a.Close()
	defer b.Close()
	var changes []patch.Change
	err = s.tree.Diff(from, to, func(c layers.Change) error {
		changes = append(changes, patch.Change{Status: string(c.Status), Path: c.Path, OldPath: c.OldPath})
		return ctx.Err()
	})
	if err != nil {
		return err
	}
	return patch.Write(patch.View{V: a}, patch.View{V: b}, changes, o, func(f *patch.File) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		return fn(f)
	})
}

func wirePatch(f *patch.File, stat bool) control.FilePatch {
	out := control.FilePatch{
		PathName: control.NameOf(f.Path), Added: f.Added, Removed: f.Removed, Note: f.Note, Binary: f.Binary, OldSize: f.OldSize, NewSize: f.NewSize,
	}
	if f.OldPath != "" {
		old := control.NameOf(f.OldPath)
		out.OldPath, out.OldPathB64 = old.Path, old.PathB64
	}
	if !stat {
		out.SetText(f.Text)
	}
	return out
}
