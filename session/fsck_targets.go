package session

import (
	"errors"
	"fmt"

	"github.com/rewindfs/rewindfs/cas"
	"github.com/rewindfs/rewindfs/control"
	"github.com/rewindfs/rewindfs/journal"
	"github.com/rewindfs/rewindfs/kv"
	"github.com/rewindfs/rewindfs/targets"
)

// checkTargets reads the copies of targets outside of the mount that checkpoints have, and states that undo leads to; of several that are
// equal one.
func (f *fsck) checkTargets() error {
	if f.r.Quick {
		return nil
	}
	store := targets.NewStore(f.db, f.chunks, nil)
	seen := map[targets.Content]error{}
	var failed error
	f.journal.Copies(func(c *journal.Copy, in string) {
		content := targets.Content{Size: c.Size, Digest: c.Digest}
		err, known := seen[content]
		if c.Absent || failed != nil {
			return
		}
		if !known {
			err = store.Check(content)
			seen[content] = err
		}
		switch {
		case err == nil:
		case errors.Is(err, kv.ErrCorrupt), errors.Is(err, cas.ErrCorrupt):
			f.report(control.Finding{Kind: "target", What: fmt.Sprintf("the copy of %s: %v", targets.Name(c), err), Checkpoints: []string{in}, Lost: true}, nil)
		default:
			failed = err
		}
	})
	return failed
}
