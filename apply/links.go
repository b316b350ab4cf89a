package apply

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/rewindfs/rewindfs/layers"
)

// links sees to it that the names of one object of the checkpoint become names of one object on the
// host, and of no other: those that change become links of one that is there as it should be, or of the first that is staged.
func (p *planner) links() error {
	groups := map[layers.Ino][]*item{}
	live := map[layers.Ino]bool{} // in which something changed
	leaving := map[layers.Ino]int{}
	var order []layers.Ino
	err := p.root.each(func(it *item) error {
		if it.have != nil && it.verdict == vApply {
			leaving[it.have.Ino]++
		}
		if w := it.want; w != nil && !isDir(w) && (w.Nlink > 1 || it.have != nil && !isDir(it.haveAttr()) && it.have.Nlink > 1) {
			if groups[w.Ino] == nil {
				order = append(order, w.Ino)
			}
			groups[w.Ino] = append(groups[w.Ino], it)
			live[w.Ino] = live[w.Ino] || it.verdict == vApply || it.verdict == vSame && p.changed(it)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, ino := range p.several {
		if live[ino] = true; groups[ino] == nil {
			order, groups[ino] = append(order, ino), []*item{}
		}
	}
	missing := map[layers.Ino]int{}
	for ino, g := range groups {
		n := 1 // at least
		if len(g) > 0 {
			n = int(g[0].want.Nlink) - len(g)
		}
		if n > 0 && live[ino] {
			missing[ino] = n
		}
	}
	if err := p.findNames(groups, missing); err != nil {
		return err
	}
	for _, ino := range order {
		if live[ino] {
			if err := p.group(groups[ino], leaving); err != nil {
				return err
			}
		}
	}
	return nil
}

// findNames adds the other names that the checkpoint has of objects. Only this, which is rare, costs a walk of the tree.
func (p *planner) findNames(groups map[layers.Ino][]*item, missing map[layers.Ino]int) error {
	if len(missing) == 0 {
		return nil
	}
	c := cursor{d: p.host}
	defer c.close()
	return p.want.walk("", func(path string, e layers.Entry) error {
		if missing[e.Ino] == 0 || slices.ContainsFunc(groups[e.Ino], func(it *item) bool { return it.path == path }) {
			return p.ctx.Err()
		}
		it, err := p.lateItem(path, &c)
		if err != nil || it.want == nil {
			return err
		}
		if len(groups[e.Ino]) == 0 {
			missing[e.Ino] = int(it.want.Nlink)
		}
		missing[e.Ino]--
		groups[e.Ino] = append(groups[e.Ino], it)
		if it.outside = !p.keeps(path); it.outside {
			return nil
		}
		return p.leaf(it)
	})
}

// lateItem makes the item of a path, and those on the way to it, when the others have been looked at.
func (p *planner) lateItem(path string, c *cursor) (*item, error) {
	at := p.root
	for name := range strings.SplitSeq(path, "/") {
		known := at.kids[name] != nil
		up := at
		if at = at.kid(name); known {
			continue
		}
		if err := p.describe(at); err != nil {
			return nil, err
		}
		if !isDir(up.haveAttr()) || up.mount {
			at.mount = up.mount
			continue
		}
		d, err := c.dir(up.path)
		if err == nil {
			at.have, err = d.stat(name)
		}
		if err != nil && !notThere(err) {
			return nil, fmt.Errorf("look at %q: %w", at.path, err)
		}
		at.mount = at.have != nil && at.have.mount
	}
	return at, nil
}

// group decides about the names of one object. leaving counts the names that objects of the host lose.
func (p *planner) group(g []*item, leaving map[layers.Ino]int) error {
	slices.SortFunc(g, func(a, b *item) int { return cmp.Compare(a.path, b.path) })
	anchor, exact, err := p.anchor(g, leaving)
	if err != nil {
		return err
	}
	for _, it := range g {
		if it.verdict != vSame || it.outside || it.have == nil || anchor != nil && exact[it] && it.have.Ino == anchor.have.Ino {
			continue
		}
		ok, err := p.expected(it)
		if err != nil {
			return err
		}
		if ok && !p.held(it) {
			it.verdict = vApply
			leaving[it.have.Ino]++
		}
	}
	for _, it := range g {
		switch {
		case it.verdict != vApply:
		case anchor == nil:
			anchor = it
		default:
			it.link = anchor
		}
	}
	return nil
}

// anchor finds a name of the group that leads to an object on the host which is as it should be, nil if there is
// none; and which names lead to such.
func (p *planner) anchor(g []*item, leaving map[layers.Ino]int) (anchor *item, exact map[*item]bool, err error) {
	there := map[layers.Ino]int{} // names of the group
	exact = map[*item]bool{}
	for _, it := range g {
		if it.verdict != vSame || it.have == nil || it.mount {
			continue
		}
		if exact[it], err = p.equal(it, true); err != nil {
			return nil, nil, err
		}
		if exact[it] {
			there[it.have.Ino]++
		}
	}
	for _, it := range g {
		if !exact[it] || anchor != nil && there[it.have.Ino] <= there[anchor.have.Ino] {
			continue
		}
		// Names that are not of the group must be such as the checkpoint does not know either.
		if int(it.have.Nlink)-there[it.have.Ino]-leaving[it.have.Ino] <= int(it.want.Nlink)-len(g) {
			anchor = it
		}
	}
	return anchor, exact, nil
}
