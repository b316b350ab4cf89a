package layers

import "golang.org/x/sys/unix"

// findLinks finds the plants that are one more name of a file which the head has as it was:
// under a name that both states have in the same place, and that stays. Any other file
// with several names becomes a new one, which its restored names share.
func (r *restoring) findLinks() error {
	several := map[Ino][]*plant{}
	for _, k := range r.plants {
		a, err := r.ref.attr(k.n)
		if err != nil {
			return err
		}
		if a.Nlink > 1 && !a.IsDir() {
			several[k.n.ino] = append(several[k.n.ino], k)
		}
	}
	wanted := map[uint64][]*plant{} // by the host's number: not all names are known
	for _, list := range several {
		host, err := r.linkTo(list)
		if err != nil {
			return err
		}
		if host != 0 {
			wanted[host] = list
		}
	}
	if len(wanted) == 0 {
		return nil
	}
	return r.head.base.walk("", func(dir string, e baseEntry) error {
		list := wanted[e.ino]
		if list == nil || e.kept || list[0].link != "" {
			return nil
		}
		p := join(dir, e.name)
		stays, err := r.stays(p, list[0].n)
		if stays {
			setLink(list, p)
		}
		return err
	})
}

// findApart finds the files of the target of which some of paths are names, and not all of one file in the head: earlier
// restores, of one name at a time, have made them so.
func (r *restoring) findApart(paths []string) error {
	now := map[Ino]*node{}
	for _, p := range paths {
		x, err := r.ref.at(p)
		if err != nil {
			return err
		}
		if x == nil || r.ref.typeOf(x) == unix.S_IFDIR {
			continue
		}
		h, err := r.head.at(p)
		if err != nil {
			return err
		}
		if was, ok := now[x.ino]; ok && was != h {
			r.apart[x.ino] = true
		}
		now[x.ino] = h
	}
	return nil
}

// linkTo decides about the plants of one inode by its known names. If these do not settle it, the
// base may have others: then host is its number there.
func (r *restoring) linkTo(list []*plant) (host uint64, err error) {
	x := list[0].n
	h, err := r.head.find(x.ino)
	if err != nil || h.gone { // what no layer has changed is found by its path alone
		return r.ref.hostIno(x), notThere(err)
	}
	keys, err := r.head.namesOf(h)
	if err != nil {
		return 0, notThere(err)
	}
	for _, k := range keys {
		dn, err := r.head.find(k.Dir)
		if err == nil && !dn.gone {
			var dir string
			if dir, err = r.head.pathOf(dn); err == nil {
				var stays bool
				if stays, err = r.stays(join(dir, k.Name), x); stays {
					setLink(list, join(dir, k.Name))
					return 0, err
				}
			}
		}
		if notThere(err) != nil {
			return 0, err
		}
	}
	return r.head.hostIno(h), nil
}

func setLink(list []*plant, link string) {
	for _, k := range list {
		k.link = link
	}
}

// hostIno is the number on the host of a base file with several names, 0 of any other.
func (v *View) hostIno(n *node) uint64 {
	switch {
	case n.rec != nil && n.rec.origin != nil:
		return n.rec.origin.ino
	case n.rec != nil:
		return 0
	}
	st, err := v.statBase(n)
	if err != nil || st.nlink < 2 {
		return 0
	}
	return st.ino
}

// stays reports whether path p leads to x, unchanged, in both states and is not among what is replaced.
func (r *restoring) stays(p string, x *node) (bool, error) {
	if r.covered(p) {
		return false, nil
	}
	n, err := r.ref.at(p)
	if err != nil || n != x {
		return false, err
	}
	h, err := r.head.at(p)
	if err != nil || h == nil || h.ino != x.ino {
		return false, err
	}
	same, _, err := r.d.same(h, x)
	return same, err
}
