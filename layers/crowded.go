package layers

import "slices"

// maxPieces is how many extents a slot may consist of. Beyond, a cut stores the
// slot anew, as one chunk: many small writes here and there must not make the
// records of a file long and its reading slow.
const maxPieces = 32

// crowded finds the slots that runs would leave in too many pieces and notes them
// in p.whole, so that nobody changes what is under them meanwhile. For each it
// returns what is stored there now. The caller holds t.mu.
func (t *Tree) crowded(p *pending, runs []run) (map[int64]*layout, error) {
	count := map[int64]int{}
	for _, r := range runs {
		count[r.off/slotSize]++
	}
	v := t.bare(p.layer)
	var rec *inode
	out := map[int64]*layout{}
	for slot, n := range count {
		lo, hi := slot*slotSize, (slot+1)*slotSize
		if rec == nil {
			var err error
			if rec, err = v.visibleInode(p.ino); err != nil || rec == nil {
				return nil, err
			}
		}
		if hi = min(hi, rec.size); lo >= hi {
			continue
		}
		l, err := v.stored(&node{ino: p.ino, rec: rec}, lo, hi)
		if err != nil {
			return nil, err
		}
		if len(l.exts)+n > maxPieces {
			out[slot] = l
			p.whole = append(p.whole, slot)
		}
	}
	return out, nil
}

// fillSettled is fill for a caller without the lock.
func (t *Tree) fillSettled(l *layout, p []byte, off int64) error {
	for {
		kept := t.kept.Load()
		if err := t.fill(l, p, off); err != nil || kept == t.kept.Load() {
			return err
		}
	}
}

// fillUp replaces the runs of crowded slots by one each that holds the whole slot.
// A slot whose old bytes cannot be read stays in pieces.
func (t *Tree) fillUp(crowded map[int64]*layout, runs []run) []run {
	for slot, l := range crowded {
		lo := slot * slotSize
		whole := run{lo, make([]byte, l.hi-lo)}
		if err := t.fillSettled(l, whole.data, lo); err != nil {
			t.log.Warn("cannot join the pieces of a file", "inode", l.node.ino, "offset", lo, "error", err)
			continue
		}
		for _, r := range runs {
			if r.off/slotSize == slot && r.off < l.hi {
				copy(whole.data[r.off-lo:], r.data)
			}
		}
		runs = slices.DeleteFunc(runs, func(r run) bool { return r.off/slotSize == slot })
		runs = append(runs, whole)
	}
	slices.SortFunc(runs, func(a, b run) int { return int(min(1, max(-1, a.off-b.off))) })
	return runs
}
