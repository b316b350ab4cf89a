package layersdiff

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/rewindfs/rewindfs/internal/twin"
	"github.com/rewindfs/rewindfs/layers"
)

// Collect implements twin.Collector. What undo and redo lead to is kept. Some collections are
// cut off once it is settled what goes: the next one or the next start goes on with them.
func (s *subject) Collect(pick int, refs []string) (gone []string, err error) {
	rng := rand.New(rand.NewPCG(uint64(pick), 1))
	keep := slices.Concat(s.undo, s.redo)
	under := s.b.Parent() // is kept without being asked for
	for _, r := range refs {
		switch l := layerOf(r); {
		case l == under || slices.Contains(keep, l):
		case rng.IntN(3) == 0:
			keep = append(keep, l)
		default:
			gone = append(gone, r)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var o layers.CollectOptions
	cut := rng.IntN(4) == 0
	if cut {
		o.Marked = cancel
	}
	dry, err := s.w.tree.Collect(context.Background(), keep, layers.CollectOptions{DryRun: true})
	if err != nil {
		return nil, fmt.Errorf("dry run: %w", err)
	}
	st, err := s.w.tree.Collect(ctx, keep, o)
	if cut && errors.Is(err, context.Canceled) {
		err = nil
	}
	if err != nil {
		return nil, err
	}
	if st.GivenUp != dry.GivenUp || st.GivenUp < len(gone) {
		return nil, fmt.Errorf("%d states are to go; a dry run says %+v, then it is %+v", len(gone), dry, st)
	}
	for _, r := range gone {
		if _, err := s.w.tree.View(layerOf(r)); !errors.Is(err, layers.ErrNoLayer) {
			return nil, fmt.Errorf("view of layer %s, which was given up: %v", r, err)
		}
		if _, err := s.b.MoveHead(layerOf(r), false, nil, nil); !errors.Is(err, layers.ErrNoLayer) {
			return nil, fmt.Errorf("move to layer %s, which was given up: %v", r, err)
		}
	}
	if rng.IntN(2) == 0 {
		if _, err := s.w.tree.Reclaim(); err != nil {
			return nil, err
		}
	}
	return gone, nil
}

var _ twin.Collector = (*subject)(nil)
