package mountdiff

import (
	"errors"
	"strings"
	"testing"

	"github.com/rewindfs/rewindfs/internal/fsops"
	"github.com/rewindfs/rewindfs/internal/twin"
)

// Restore implements twin.Restorer.
func (s *subject) Restore(ref, path string) (left string, done, blocked bool, err error) {
	r := s.m.Run("--json", "restore", ref, "--", path)
	if r.Code == 5 && strings.Contains(r.Stdout, "no directory now") {
		return "", false, true, nil
	}
	if r.Code != 0 {
		return "", false, false, errors.New(r.String())
	}
	var data struct {
		Noop  bool
		Saved string
	}
	if err := r.Data(&data); err != nil || data.Noop {
		return "", false, false, err
	}
	s.learn()
	s.to = s.left // where the head stands on top of
	return data.Saved, true, false, nil
}

var _ twin.Restorer = (*subject)(nil)

// TestRestores brings single paths of checkpoints back between operations, with files open and cached.
func TestRestores(t *testing.T) {
	runSteps(t, twin.Plan{
		Ops: fsops.GenOptions{Held: true}, Lo: 30, Hi: 80,
		Chance: map[twin.Ctl]int{twin.Seal: 60, twin.Move: 20, twin.Undo: 15, twin.Redo: 10, twin.Reopen: 4, twin.Restore: 80},
	}, 1, 6)
}
