package journal

import "slices"

// TargetKind is what a target outside of the mount is.
type TargetKind string

// The kinds of target.
const (
	TargetSQLite TargetKind = "sqlite" // an SQLite database, named by its path
	TargetVolume TargetKind = "volume" // a volume of Docker, or of what is called like it, by its name
)

// Copy is what a target outside of the mount held when a checkpoint was made, or when a head movement left a state. Its content is in package targets.
type Copy struct {
	Kind   TargetKind `json:"kind"`
	Name   []byte     `json:"name"`             // the path of a database, absolute and without symbolic links; the name of a volume
	Absent bool       `json:"absent,omitempty"` // there was none; the rest says nothing then
	Size   int64      `json:"size,omitempty"`   // of the content, in bytes
	Digest string     `json:"digest,omitempty"` // of the content's root node, in hex
	WAL    bool       `json:"wal,omitempty"`    // the database had a write-ahead log
	Mode   uint32     `json:"mode,omitempty"`   // permissions of the database's file
	Docker string     `json:"docker,omitempty"` // the program that the volume is reached with
	Image  string     `json:"image,omitempty"`  // and the image of the container that does it
}

// Key tells targets apart.
func (c *Copy) Key() string { return string(c.Kind) + ":" + string(c.Name) }

// Same reports whether two copies of one target have the same content.
func (c *Copy) Same(o *Copy) bool {
	return c.Absent == o.Absent && c.Size == o.Size && c.Digest == o.Digest
}

// sameCopies reports whether two lists are of the same targets with the same content, in one order.
func sameCopies(a, b []Copy) bool {
	return slices.EqualFunc(a, b, func(x, y Copy) bool { return x.Key() == y.Key() && x.Same(&y) })
}

// AndAlso returns a and those of b whose targets are not in it.
func AndAlso(a, b []Copy) []Copy {
	out := slices.Clone(a)
	for _, c := range b {
		if !slices.ContainsFunc(a, func(x Copy) bool { return x.Key() == c.Key() }) {
			out = append(out, c)
		}
	}
	return out
}

// Copies lists the copies that checkpoints and the states that undo and redo may lead to need, in no order.
func (j *Journal) Copies() (out []Copy) {
	j.mu.RLock()
	defer j.mu.RUnlock()
	for _, e := range j.order {
		out = append(out, e.Targets...)
	}
	for _, w := range j.walks {
		for _, steps := range [][]Step{w.undo, w.redo, w.taken} {
			for _, s := range steps {
				out = append(out, s.Targets...)
			}
		}
	}
	return out
}
