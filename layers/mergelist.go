package layers

import (
	"cmp"
	"slices"

	"golang.org/x/sys/unix"
)

// changes lists what the merge will change, by the paths after it.
func (d *mergeDecide) changes() error {
	told := map[*mergeObject]bool{}
	for _, e := range d.m.names {
		if e.want == e.leads[atOurs] {
			continue
		}
		c, err := d.change(e)
		if err != nil {
			return err
		}
		if c != nil {
			told[e.want] = true
			d.m.Changes = append(d.m.Changes, *c)
		}
	}
	for _, x := range d.objects {
		if told[x] || !x.has(atOurs) || !x.do.any() || x.isDir() && !x.do.attrs && len(x.do.xattrs) == 0 {
			continue
		}
		dir, name, err := d.above(x)
		if err != nil {
			return err
		}
		p, err := d.pathIn(dir, name)
		if err != nil {
			return err
		}
		c := Change{Status: Modified, Path: p, Content: x.do.content != mergeKeep}
		d.sizes(&c, x, x)
		d.m.Changes = append(d.m.Changes, c)
	}
	for _, x := range d.merged {
		dir, name, err := d.above(x)
		if err != nil {
			return err
		}
		p, err := d.pathIn(dir, name)
		if err != nil {
			return err
		}
		d.m.Merged = append(d.m.Merged, p)
	}
	slices.Sort(d.m.Merged)
	slices.SortFunc(d.m.Changes, func(a, b Change) int { return cmp.Compare(a.Path, b.Path) })
	return nil
}

// pathIn returns the path that name in dir has after the merge; dir nil is above the root.
func (d *mergeDecide) pathIn(dir *mergeObject, name string) (string, error) {
	if dir == nil {
		return name, nil
	}
	up, own, err := d.above(dir)
	if err != nil {
		return "", err
	}
	if up == nil {
		return name, nil
	}
	p, err := d.pathIn(up, own)
	return join(p, name), err
}

// change tells what becomes of a name; nil for what is told by another one.
func (d *mergeDecide) change(e *mergeName) (*Change, error) {
	ours, want := e.leads[atOurs], e.want
	c := &Change{Status: Modified, Content: true}
	var err error
	if c.Path, err = d.pathIn(e.dir, e.name); err != nil && want == nil { // in a directory that goes
		c.Path, err = d.at(func() (string, error) { return d.pathAt(e, atOurs) })
	}
	if err != nil {
		return nil, err
	}
	switch {
	case want == nil:
		if slices.ContainsFunc(ours.at, func(o *mergeName) bool { return o.want == ours && o.leads[atOurs] != ours }) {
			return nil, nil // it is told as renamed
		}
		c.Status = Deleted
	case ours == nil:
		c.Status = Added
	case ours.typAt(atOurs) != want.typAt(atTheirs):
		c.Status = Retyped
	}
	if want.has(atOurs) {
		if i := slices.IndexFunc(want.at, func(o *mergeName) bool { return o.leads[atOurs] == want && o.want != want }); i >= 0 {
			c.Status, c.Content, ours = Renamed, want.do.content != mergeKeep, want
			if c.OldPath, err = d.at(func() (string, error) { return d.pathAt(want.at[i], atOurs) }); err != nil {
				return nil, err
			}
		}
	}
	d.sizes(c, ours, want)
	return c, nil
}

func (x *mergeObject) typAt(side int) uint32 { return x.attr[side].Mode & unix.S_IFMT }

// sizes fills in types and sizes: of from before the merge, and of to after it.
func (d *mergeDecide) sizes(c *Change, from, to *mergeObject) {
	c.OldSize, c.NewSize = -1, -1
	if from.has(atOurs) {
		c.Type, c.OldSize = from.typAt(atOurs), from.attr[atOurs].Size
	}
	if to == nil {
		return
	}
	side := atOurs
	if to.do.content == mergeTake {
		side = atTheirs
	}
	if c.Type, c.NewSize = to.typAt(side), to.attr[side].Size; to.do.content == mergeText {
		c.NewSize = int64(len(to.do.text))
	}
}
