package journal

import (
	"fmt"
	"slices"
	"time"

	"github.com/rewindfs/rewindfs/kv"
)

// Checked is what the records of a journal say, as far as they decode.
type Checked struct {
	Entries []Entry // by layer
	Ops     []Op    // by number
	Damage  []Damage
}

// Damage is a record that does not decode, or contradicts its key. Open refuses a journal that has one.
type Damage struct {
	Key   []byte
	What  string
	Layer uint64 // of a checkpoint; 0: not known, or none
}

// Check reads the journal of db record by record. It opens nothing.
func Check(db *kv.DB) (*Checked, error) {
	c := &Checked{}
	bad := func(k []byte, layer uint64, format string, args ...any) {
		c.Damage = append(c.Damage, Damage{Key: slices.Clone(k), What: fmt.Sprintf(format, args...), Layer: layer})
	}
	for _, class := range []struct {
		prefix []byte
		read   func(k, v []byte)
	}{
		{kv.JournalPrefix(), func(k, v []byte) {
			e, err := decodeEntry(v)
			switch {
			case err != nil:
				layer, _ := kv.ParseJournal(k[:min(len(k), len(kv.Journal(0)))])
				bad(k, layer, "the entry of a checkpoint: %v", err)
			case string(k) != string(kv.JournalAt(e.Layer, e.Seq)):
				bad(k, e.Layer, "the entry of checkpoint %s stands at another place", e.ID)
			default:
				c.Entries = append(c.Entries, *e)
			}
		}},
		{kv.OpPrefix(), func(k, v []byte) {
			op, err := decodeOp(v)
			switch {
			case err != nil:
				bad(k, 0, "an operation: %v", err)
			case string(k) != string(kv.Op(op.N)):
				bad(k, 0, "operation %d stands at another place", op.N)
			default:
				c.Ops = append(c.Ops, op)
			}
		}},
		{kv.DecisionPrefix(), func(k, v []byte) {
			var r decisionRecord
			if err := decodeRecord(v, &r, func() int { return r.V }); err != nil {
				bad(k, 0, "a decision about a checkpoint: %v", err)
			}
		}},
	} {
		err := db.Scan(class.prefix, nil, func(k, v []byte) bool { class.read(k, v); return true })
		if err != nil {
			return nil, fmt.Errorf("check the journal: %w", err)
		}
	}
	return c, nil
}

// Parent says what lay under a layer, and when it was sealed, as far as the journal knows: zero of one that was not.
func (c *Checked) Parent(layer uint64) (parent uint64, sealed time.Time, ok bool) {
	for i := range c.Entries {
		if e := &c.Entries[i]; e.Layer == layer {
			return e.Parent, e.CreatedAt, true
		}
	}
	for i := range c.Ops {
		switch op := &c.Ops[i]; layer {
		case op.Open:
			parent, ok = op.To, true
		case op.From:
			sealed = op.At
		}
	}
	return parent, sealed, ok
}

// Heads are the open layers of the branches as the operation log has them.
func (c *Checked) Heads() map[string]uint64 {
	heads := map[string]uint64{}
	for i := range c.Ops {
		if op := &c.Ops[i]; op.Kind == OpDropBranch {
			delete(heads, op.Branch)
		} else {
			heads[op.Branch] = op.Open
		}
	}
	return heads
}

// Copies are those of targets that the checkpoints, and the states that undo and redo lead to, need; in where each is.
func (c *Checked) Copies(fn func(copy *Copy, in string)) {
	j := newJournal(nil)
	for i := range c.Ops {
		j.addOp(c.Ops[i])
	}
	for _, e := range c.Entries {
		name := e.Label
		if name == "" {
			name = e.ID
		}
		for i := range e.Targets {
			fn(&e.Targets[i], name)
		}
	}
	for branch, w := range j.walks {
		for _, steps := range [][]Step{w.undo, w.redo, w.taken} {
			for _, s := range steps {
				for i := range s.Targets {
					fn(&s.Targets[i], "undo in "+branch)
				}
			}
		}
	}
}
