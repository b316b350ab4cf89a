package layersdiff

import (
	"errors"
	"fmt"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/internal/fsops"
	"github.com/rewindfs/rewindfs/internal/fstree"
	"github.com/rewindfs/rewindfs/internal/twin"
	"github.com/rewindfs/rewindfs/layers"
)

// subject is a branch as twin.Subject. A reference is a layer number.
type subject struct {
	target
	w     *world
	name  string // of the branch
	seals int
	// The layers that undo and redo lead to, newest last. Package journal, which is
	// tested on its own, keeps more of them.
	undo, redo []layers.Layer
	left, to   layers.Layer            // of the last movement
	gen        uint64                  // that b is built on
	bases      map[uint64]*fstree.Tree // what the generations of the base show, where it changes
}

// Tree implements twin.Subject.
func (s *subject) Tree() (*fstree.Tree, error) { return treeOf(&s.b.View), nil }

// Seen implements twin.Subject.
func (s *subject) Seen(slot int) ([]string, bool) { return s.seen(slot) }

// DropSlots implements twin.Subject.
func (s *subject) DropSlots() { s.dropSlots() }

// Seal implements twin.Subject. Before every third one, what nothing names is freed:
// no layer may miss it.
func (s *subject) Seal() (string, error) {
	if s.seals++; s.seals%3 == 0 {
		if _, err := s.w.tree.Reclaim(); err != nil {
			return "", err
		}
	}
	l, err := s.b.Seal(nil)
	s.left, s.to = l.Layer, l.Layer
	return ref(l.Layer), err
}

func ref(l layers.Layer) string { return strconv.FormatUint(uint64(l), 10) }

func layerOf(ref string) layers.Layer {
	n, err := strconv.ParseUint(ref, 10, 64)
	if err != nil {
		panic(err)
	}
	return layers.Layer(n)
}

func (s *subject) moveTo(l layers.Layer) (from layers.Layer, moved bool, err error) {
	m, err := s.b.MoveHead(l, false, nil, nil)
	s.left, s.to = m.From, l
	if m.Noop {
		s.left = l
	}
	return s.left, !m.Noop, err
}

// Moved implements twin.Subject.
func (s *subject) Moved() (left, to string) { return ref(s.left), ref(s.to) }

// Move implements twin.Subject.
func (s *subject) Move(to string) (string, bool, error) {
	from, moved, err := s.moveTo(layerOf(to))
	if moved {
		s.undo, s.redo = append(append(s.undo, s.redo...), from), nil
	}
	return ref(from), moved, err
}

func (s *subject) turn(from, to *[]layers.Layer) (bool, error) {
	n := len(*from) - 1
	if n < 0 {
		return false, nil
	}
	left, _, err := s.moveTo((*from)[n])
	*from, *to = (*from)[:n], append(*to, left)
	return true, err
}

// Undo implements twin.Subject.
func (s *subject) Undo() (bool, error) { return s.turn(&s.undo, &s.redo) }

// Redo implements twin.Subject.
func (s *subject) Redo() (bool, error) { return s.turn(&s.redo, &s.undo) }

// Reopen implements twin.Subject.
func (s *subject) Reopen() error {
	if err := s.w.reopen(); err != nil {
		return err
	}
	b, err := s.w.tree.Branch(s.name)
	s.b = b
	return err
}

// At implements twin.Subject.
func (s *subject) At(at string) (*fstree.Tree, error) {
	v, err := s.b.At(layerOf(at))
	if err != nil {
		return nil, err
	}
	defer v.Close()
	return treeOf(v), nil
}

// Diff implements twin.Differ.
func (s *subject) Diff(from, to string) ([]twin.Change, error) {
	var out []twin.Change
	err := s.w.tree.Diff(layerOf(from), layerOf(to), func(c layers.Change) error {
		out = append(out, twin.Change{Status: string(c.Status), Path: c.Path, OldPath: c.OldPath})
		return nil
	})
	return out, err
}

// HeldProblems implements twin.Subject. A file that was held over a move shows
// what the tree has under its inode number, or it is stale.
func (s *subject) HeldProblems(now *fstree.Tree) []string {
	var out []string
	for _, ino := range s.files {
		if ino == 0 {
			continue
		}
		if p := s.heldProblem(ino, now); p != "" {
			out = append(out, p)
		}
	}
	return out
}

func (s *subject) heldProblem(ino layers.Ino, now *fstree.Tree) string {
	var want *fstree.Entry
	for _, e := range now.Entries {
		if e.Ino == uint64(ino) {
			want = e
		}
	}
	a, err := s.b.Getattr(ino)
	if want == nil {
		if err == nil && a.Nlink != 0 {
			return fmt.Sprintf("inode %d has no name after the move, but link count %d", ino, a.Nlink)
		}
		if err != nil && !errors.Is(err, unix.ESTALE) {
			return fmt.Sprintf("inode %d is gone after the move: %v, want ESTALE", ino, err)
		}
		return ""
	}
	if err != nil {
		return fmt.Sprintf("getattr of the held inode %d (%q) after the move: %v", ino, want.Path, err)
	}
	got := &fstree.Entry{Path: want.Path, Dev: want.Dev}
	fillEntry(&s.b.View, got, a)
	one, two := fstree.New(), fstree.New()
	one.Add(want)
	two.Add(got)
	if d := fstree.Diff(one, two, fstree.Exact, "at the checkpoint", "held after the move"); len(d) > 0 {
		return fmt.Sprint(d)
	}
	return ""
}

var _ fsops.Target = (*subject)(nil)
