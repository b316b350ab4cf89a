package session

import (
	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/control"
	"github.com/rewindfs/rewindfs/layers"
)

// keepRule is the rule for paths that movements of the head leave alone, nil for none.
func (st *store) keepRule() func(path string, dir bool) bool {
	if !st.rules.Keeps() {
		return nil
	}
	return st.rules.Kept
}

// markedChange is wireChange with what the rules say of the path.
func (st *store) markedChange(c *layers.Change) control.Change {
	out, dir := wireChange(c), c.Type == unix.S_IFDIR
	out.Kept, out.Ignored = st.rules.Kept(c.Path, dir), st.rules.Ignored(c.Path, dir)
	return out
}

// wireRules puts the rules into words of the wire.
func (st *store) wireRules() control.PathRules {
	out := control.PathRules{Keep: []string{}, Ignore: []string{}}
	if r := st.rules; r != nil {
		file := control.NameOf(r.File)
		out.File, out.FileB64 = file.Path, file.PathB64
		out.Keep, out.Ignore = append(out.Keep, r.Keep...), append(out.Ignore, r.Ignore...)
	}
	return out
}
