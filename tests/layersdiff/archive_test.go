package layersdiff

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/archive"
	"github.com/rewindfs/rewindfs/internal/fsops"
	"github.com/rewindfs/rewindfs/internal/fstree"
	"github.com/rewindfs/rewindfs/internal/twin"
	"github.com/rewindfs/rewindfs/layers"
)

// archived is operations with checkpoints, rollbacks and collections, so that lines have gaps.
var archived = twin.Plan{
	Ops: fsops.GenOptions{Held: true}, Lo: 20, Hi: 80,
	Chance: map[twin.Ctl]int{twin.Seal: 150, twin.Move: 30, twin.Reopen: 3, twin.Collect: 15},
}

// TestArchives brings the history of random operations into archives and back: every state is what it was, in a
// store of another base too.
func TestArchives(t *testing.T) {
	w := newWorld(t, false)
	same := &world{store: fstree.FastTemp(t), base: w.base}
	other := &world{store: fstree.FastTemp(t), base: fstree.FastTemp(t)}
	for _, o := range []*world{same, other} {
		if err := o.open(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := o.close(); err != nil {
				t.Error(err)
			}
		})
	}
	seq := twin.FromEnv(t, twin.Sequences{Seed: 7000, Count: 30}, "REWINDFS_TEST_CHECKS")
	twin.Check(t, seq, twin.Steps(archived), func(tb twin.TB, steps []twin.Step) {
		name, b, err := w.newBranch()
		if err != nil {
			tb.Fatalf("make a branch: %v", err)
		}
		s := &subject{target: target{b: b}, w: w, name: name}
		line := lineOf(tb, s, steps)
		for _, try := range []struct {
			name     string
			to       *world
			withBase bool
			line     []layers.Layer
		}{
			{"history, the same base", same, false, line},
			{"history, another base", other, true, line},
			{"one state, over the base", w, true, line[len(line)-1:]},
			{"one state, on the base", same, false, line[len(line)-1:]},
		} {
			if err := roundTrip(w.tree, s.b, try.to, try.line, try.withBase); err != nil {
				tb.Fatalf("%s: %v", try.name, err)
			}
		}
	})
}

// lineOf carries out steps and returns the layers that lead to the last state, the oldest first.
func lineOf(tb twin.TB, s *subject, steps []twin.Step) []layers.Layer {
	for _, st := range steps {
		line, err := s.b.Line(), error(nil)
		switch {
		case st.Ctl == twin.Seal:
			_, err = s.Seal()
		case st.Ctl == twin.Reopen:
			s.dropSlots()
			err = s.Reopen()
		case st.Ctl == twin.Collect:
			var refs []string
			for _, l := range line {
				refs = append(refs, ref(l))
			}
			_, err = s.Collect(st.Pick, refs)
		case st.Ctl == twin.Move && len(line) > 0:
			s.dropSlots()
			_, _, err = s.moveTo(line[st.Pick%len(line)])
		case st.Ctl == "":
			s.Do(st.Op)
		}
		if err != nil {
			tb.Fatalf("%v: %v", st, err)
		}
	}
	s.dropSlots()
	if _, err := s.b.Seal(nil); err != nil {
		tb.Fatalf("seal: %v", err)
	}
	line := s.b.Line()
	slices.Reverse(line)
	return line
}

func roundTrip(tree *layers.Tree, b *layers.Branch, to *world, line []layers.Layer, withBase bool) error {
	var file bytes.Buffer
	if err := exportLine(&file, tree, b, line, withBase); err != nil {
		return fmt.Errorf("export: %w", err)
	}
	if _, _, err := archive.Check(bytes.NewReader(file.Bytes()), archive.Limits{}); err != nil {
		return fmt.Errorf("check: %w", err)
	}
	name, nb, err := to.newBranch()
	if err != nil {
		return err
	}
	got, err := importLine(&file, to.tree, nb)
	if err != nil {
		return fmt.Errorf("import into branch %s: %w", name, err)
	}
	if len(got) != len(line) {
		return fmt.Errorf("%d states came of %d", len(got), len(line))
	}
	for i, l := range line {
		was, err := tree.View(l)
		if err != nil {
			return err
		}
		now, err := to.tree.View(got[i])
		if err != nil {
			return err
		}
		f := fstree.Fields{Nlink: true, Mtime: true, Ctime: true, Atime: true}
		problems := fstree.Diff(treeOf(was), treeOf(now), f, "was", "is")
		problems = append(problems, holeProblems(was, now)...)
		was.Close()
		now.Close()
		if len(problems) > 0 {
			return fmt.Errorf("state %d of %d, layer %d:\n  %s", i, len(line), l, strings.Join(problems, "\n  "))
		}
	}
	return nil
}

func exportLine(file io.Writer, tree *layers.Tree, b *layers.Branch, line []layers.Layer, withBase bool) error {
	w, err := archive.NewWriter(file, archive.Header{WithBase: withBase})
	if err != nil {
		return err
	}
	x := archive.NewExporter(context.Background(), w, tree)
	base, err := b.At(layers.BaseLayer)
	if err != nil {
		return err
	}
	defer base.Close()
	last, from := base, layers.BaseLayer
	if !withBase {
		if err := x.Base(base); err != nil {
			return err
		}
	}
	for i, l := range line {
		v, err := b.At(l)
		if err != nil {
			return err
		}
		defer v.Close()
		if i == 0 && withBase {
			err = x.Full(v)
		} else {
			err = x.Delta(from, l, last, v)
		}
		if err == nil {
			err = w.Checkpoint(&archive.Checkpoint{Label: fmt.Sprint(i)})
		}
		if err != nil {
			return fmt.Errorf("state %d: %w", i, err)
		}
		last, from = v, l
	}
	if err := w.Begin(archive.SectionTalk); err != nil {
		return err
	}
	if err := w.End(); err != nil {
		return err
	}
	_, err = w.Close()
	return err
}

func importLine(file io.Reader, tree *layers.Tree, b *layers.Branch) (line []layers.Layer, err error) {
	r, err := archive.NewReader(file, archive.Limits{})
	if err != nil {
		return nil, err
	}
	defer r.Close()
	m := archive.NewBuilder(context.Background(), tree, b)
	defer m.Close()
	for {
		rec, err := r.Next()
		if errors.Is(err, io.EOF) {
			return line, nil
		} else if err != nil {
			return nil, err
		}
		switch rec := rec.(type) {
		case *archive.Checkpoint:
			s, err := b.Seal(nil)
			if err != nil {
				return nil, err
			}
			line = append(line, s.Layer)
		case *archive.Counts:
		case archive.Begin:
			if rec.Section != archive.SectionTalk {
				err = m.Apply(rec)
			}
		case archive.End:
			if rec.Section != archive.SectionTalk {
				err = m.Apply(rec)
			}
		default:
			err = m.Apply(rec)
		}
		if err != nil {
			return nil, err
		}
	}
}

// holeProblems compares where files have holes.
func holeProblems(was, now *layers.View) (out []string) {
	t := treeOf(was)
	for _, p := range t.Paths() {
		if t.Entries[p].Type() != unix.S_IFREG {
			continue
		}
		if a, b := segments(was, p), segments(now, p); a != b {
			out = append(out, fmt.Sprintf("%q: data was at %s, is at %s", p, a, b))
		}
	}
	return out
}

func segments(v *layers.View, path string) string {
	a, err := v.Resolve(path)
	if err != nil {
		return err.Error()
	}
	defer v.Forget(a.Ino, 1)
	out := ""
	for at := int64(0); at < a.Size; {
		from, err := v.Seek(a.Ino, at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break
		} else if err != nil {
			return err.Error()
		}
		if at, err = v.Seek(a.Ino, from, unix.SEEK_HOLE); err != nil {
			return err.Error()
		}
		out += fmt.Sprintf(" %d-%d", from, at)
	}
	return out
}
