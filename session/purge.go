package session

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/rewindfs/rewindfs/control"
	"github.com/rewindfs/rewindfs/layers"
	"github.com/rewindfs/rewindfs/ledger"
)

// Purged is what a purge empties, or would. Sizes are bytes.
type Purged struct {
	Files      []PurgedFile `json:"files"`
	Copies     []PurgedFile `json:"copies"` // files that still have some of the same bytes
	Mentions   []Mention    `json:"mentions"`
	DryRun     bool         `json:"dry_run"`
	StoreBytes int64        `json:"store_bytes"`
}

// Mention is a path whose last name occurs in messages of conversations, which a purge leaves as they are.
type Mention struct {
	control.PathName
	Messages int `json:"messages"`
}

// PurgedFile is one of the files: where the first of the checkpoints, or branches, shows it.
type PurgedFile struct {
	control.PathName
	Bytes       int64    `json:"bytes"`
	Checkpoints []string `json:"checkpoints"`
}

// Purge removes what the paths have held from all checkpoints and branches of a store that was opened
// offline: a kernel that has it mounted would go on showing it.
func (s *Session) Purge(paths []string, dry bool) (*Purged, error) {
	out := &Purged{DryRun: dry}
	var clean []string
	for _, p := range paths {
		c, err := cleanPath(p)
		if err != nil {
			return nil, err
		}
		if c == "" || c == "." {
			return nil, badPath("purge needs a path below the mount: to be rid of everything, use destroy")
		}
		if strings.Contains("/"+c+"/", "/../") {
			return nil, badPath("%s leads out of the session", quotePath(p))
		}
		clean = append(clean, c)
	}
	heads, err := s.tree.Heads()
	if err != nil {
		return nil, apiError(err)
	}
	names := map[layers.Layer][]string{}
	for _, h := range heads {
		names[h.Layer] = []string{"the head of " + h.Branch}
	}
	for _, e := range s.journal.List(nil) {
		name := e.ID
		if e.Label != "" {
			name = e.Label
		}
		names[layers.Layer(e.Layer)] = append(names[layers.Layer(e.Layer)], name)
	}
	gone, copies, err := s.tree.Purge(clean, dry)
	if err != nil {
		return nil, apiError(err)
	}
	out.Files, out.Copies = purgedFiles(gone, names), purgedFiles(copies, names)
	if out.Mentions, err = s.mentions(clean); err != nil {
		return nil, apiError(err)
	}
	if out.StoreBytes, err = s.storeBytes(); err != nil || dry {
		return out, err
	}
	event := s.event(ledger.KindPurge)
	event.Details = map[string]any{"paths": quoteAll(paths), "files": len(gone), "copies": len(copies)}
	s.audit(event)
	return out, nil
}

// mentions lists those of paths whose last name occurs in a conversation.
func (s *Session) mentions(paths []string) ([]Mention, error) {
	var names []string
	for _, p := range paths {
		names = append(names, path.Base(p))
	}
	found, err := s.memory.Mentions(names)
	out := []Mention{}
	for i, n := range found {
		if n > 0 {
			out = append(out, Mention{control.NameOf(paths[i]), n})
		}
	}
	return out, err
}

func purgedFiles(all []layers.Purged, names map[layers.Layer][]string) []PurgedFile {
	out := []PurgedFile{}
	for _, g := range all {
		f := PurgedFile{PathName: control.NameOf(g.Path), Bytes: g.Bytes, Checkpoints: []string{}}
		for _, l := range g.Layers {
			if names[l] == nil {
				f.Checkpoints = append(f.Checkpoints, fmt.Sprintf("layer %d", l))
			}
			f.Checkpoints = append(f.Checkpoints, names[l]...)
		}
		out = append(out, f)
	}
	slices.SortStableFunc(out, func(a, b PurgedFile) int { return strings.Compare(a.Path, b.Path) })
	return out
}

func quoteAll(paths []string) (out []string) {
	for _, p := range paths {
		out = append(out, quotePath(p))
	}
	return out
}
