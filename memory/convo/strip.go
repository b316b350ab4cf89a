package convo

import "slices"

// strip takes out the thinking behind the first thing that was changed: a provider may
// bind it to everything in front of it (CONVERSATIONS 1.3, rule 6). A history that was
// only cut, and added to at its end, keeps it all.
func (w *work) strip() {
	seen := func(n *node) bool { return n.role == roleSkip }
	before := slices.DeleteFunc(slices.Clone(w.input), seen)
	after := slices.DeleteFunc(slices.Clone(w.nodes), seen)
	i := 0
	for i < len(before) && i < len(after) && before[i] == after[i] && !after[i].edited {
		i++
	}
	for ; i < len(after); i++ {
		n := after[i]
		from := 0
		if i < len(before) && before[i] == n && n.edited {
			from = n.from
			before = nil // from the next item on, everything stands behind a change
		} else if before != nil {
			before = nil
		}
		if n.role == roleModel {
			w.stripNode(n, from)
		}
	}
}

func (w *work) stripNode(n *node, from int) {
	kept := n.parts[:0:0]
	for i, p := range n.parts {
		if i < from || p.kind != kThink {
			kept = append(kept, p)
		}
	}
	if len(kept) == len(n.parts) {
		return
	}
	w.log(actStripThinking, n.pos, "")
	n.edit(from)
	n.parts = kept
	if len(kept) == 0 {
		n.dead = true
		w.log(actDropEmpty, n.pos, "")
	}
}
