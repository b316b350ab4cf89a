package layersdiff

import (
	"errors"
	"testing"

	"github.com/rewindfs/rewindfs/internal/fsops"
	"github.com/rewindfs/rewindfs/internal/twin"
	"github.com/rewindfs/rewindfs/layers"
)

// Restore implements twin.Restorer.
func (s *subject) Restore(of, path string) (left string, done, blocked bool, err error) {
	if path == "." {
		path = ""
	}
	foreseen, err := s.b.Restore(layerOf(of), []string{path}, true, nil, nil)
	if err == nil && (foreseen.Open != s.b.HeadLayer()) == foreseen.Noop {
		err = errors.New("a dry run sealed the head")
	}
	res := foreseen
	if err == nil {
		res, err = s.b.Restore(layerOf(of), []string{path}, false, nil, nil)
	}
	switch {
	case errors.Is(err, layers.ErrInTheWay):
		return "", false, true, nil
	case err != nil || res.Noop:
		return "", false, false, err
	case len(res.Changes) != len(foreseen.Changes):
		return "", false, false, errors.New("a dry run told of other changes")
	}
	s.undo, s.redo = append(append(s.undo, s.redo...), res.From), nil
	s.left, s.to = res.From, res.From
	return ref(res.From), true, false, nil
}

var _ twin.Restorer = (*subject)(nil)

// restored is history in which single paths come back.
var restored = twin.Plan{
	Ops: fsops.GenOptions{Held: true}, Lo: 20, Hi: 80,
	Chance: map[twin.Ctl]int{twin.Seal: 60, twin.Move: 20, twin.Undo: 12, twin.Redo: 8, twin.Reopen: 4, twin.Collect: 10, twin.Restore: 80},
}

// TestRestores brings single paths of any state back, between operations and movements.
func TestRestores(t *testing.T) { runSteps(t, restored, false, 1, 40) }

// TestRestoresOverHighNumbers does so over a base whose inode numbers cannot be used.
func TestRestoresOverHighNumbers(t *testing.T) { runSteps(t, restored, true, 1, 10) }
