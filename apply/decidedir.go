package apply

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/layers"
)

// besides names what the host has in a directory that the checkpoint has anew, and that came there after the layers removed the
// old one: it is not in the checkpoint, and stays. After the first commit it is nothing new.
func (p *planner) besides(it *item) error {
	if it.base == nil || it.want.Ino == it.base.Ino || it.rec != nil || p.undo != nil || it.verdict == vTheirs {
		return nil
	}
	names, err := p.host.names(it.path)
	if err != nil {
		return unless(err, unix.EACCES) // who may not list it is not told
	}
	c := cursor{d: p.host}
	defer c.close()
	d, err := c.dir(it.path)
	if err != nil {
		return err
	}
	for _, name := range names {
		k := it.kids[name]
		if k == nil {
			k = it.kid(name)
			if k.have, err = d.stat(name); err != nil {
				return err
			}
		} else if k.want != nil || k.have == nil || k.verdict != vSame {
			continue
		}
		if p.keeps(k.path) {
			k.verdict, k.reason = vSkipped, "it came on the host after the directory had been removed and made anew: it stays there"
		}
	}
	return nil
}

// sameMeta compares what a directory is beside its entries and times.
func (p *planner) sameMeta(a, b mark) bool {
	return a.mode == b.mode && (!p.asRoot || a.uid == b.uid && a.gid == b.gid)
}

// dirMeta decides about the mode, owner and attributes of a directory that both sides have.
func (p *planner) dirMeta(it *item) error {
	w, h := markOf(it.want), markOf(it.haveAttr())
	if p.undo != nil && it.rec == nil || p.held(it) {
		return nil
	}
	var ok bool
	switch r := it.rec; {
	case r != nil && !r.none:
		xs, err := p.wantXattrs(it)
		if err != nil || p.undo == nil && p.sameMeta(w, r.want) && bytes.Equal(sumXattrs(xs), r.xattrs) {
			return err // nothing is to be brought
		}
		ok = p.sameMeta(h, r.host)
	case it.base == nil || p.base == nil:
		ok = !p.r.Whole // a directory that the host has, too
	default:
		if p.sameMeta(w, markOf(it.base)) && it.want.Ctime == it.base.Ctime {
			return nil
		}
		var err error
		if ok, err = p.dirAsBuilt(it); err != nil {
			return err
		}
	}
	if p.sameMeta(w, h) {
		same, err := p.sameXattrs(it)
		if err != nil || same {
			return err
		}
	}
	if ok {
		it.verdict = vApply
		return nil
	}
	// Entries that are brought below do not hang on it.
	if p.r.OnConflict == Theirs {
		it.verdict, it.reason = vTheirs, "its mode, owner or attributes were changed on the host, too"
	} else {
		p.conflict(it, "its mode, owner or attributes were changed on the host, too")
	}
	return nil
}

// dirAsBuilt reports whether a directory that both sides have is, beside its entries, what the layers were built on.
func (p *planner) dirAsBuilt(it *item) (bool, error) {
	built, err := p.built(it)
	if err != nil || !built.Known || built.Ctime == it.have.Ctime {
		return true, err
	}
	// Its entries may have been changed. If what it was is kept, that can be compared.
	if it.base.Ctime != built.Ctime || !p.sameMeta(markOf(it.base), markOf(it.haveAttr())) {
		return false, nil
	}
	was, err := p.base.xattrs(it.base.Ino)
	if err != nil {
		return false, err
	}
	is, err := p.haveXattrs(it)
	return bytes.Equal(sumXattrs(was), sumXattrs(is)), err
}

// newDir decides where the checkpoint has a directory and the host has none.
func (p *planner) newDir(it *item) error {
	need := slices.ContainsFunc(it.sorted(), func(k *item) bool { return k.verdict == vApply || k.verdict == vConflict })
	if !need && !p.changed(it) || p.held(it) {
		return nil
	}
	ok, err := p.expected(it)
	if err != nil {
		return err
	}
	if ok {
		it.verdict = vApply
		return nil
	}
	p.conflict(it, it.why())
	return nil
}

// oldDir decides where the host has a directory and the checkpoint has none, or something else.
func (p *planner) oldDir(it *item) error {
	if !p.changed(it) || p.held(it) {
		return nil
	}
	ok, err := p.expected(it)
	if err != nil {
		return err
	}
	if !ok {
		if p.conflict(it, it.why()); it.verdict != vApply {
			return nil
		}
		it.verdict = vSame
	}
	names, err := p.host.names(it.path)
	if err != nil {
		if errors.Is(err, unix.EXDEV) {
			it.mount = true
		}
		return fmt.Errorf("list it: %w", err)
	}
	it.foreign = nil
	stays := false
	for _, name := range names {
		k := it.kids[name]
		switch {
		case k == nil || k.verdict == vSame:
			it.foreign = append(it.foreign, name)
		case k.verdict != vApply:
			stays = true
		}
	}
	switch {
	case len(it.foreign) == 0 && !stays:
		it.verdict = vApply
	case it.want != nil: // nothing can take its place while there is something in it
		it.occupied()
		if p.r.OnConflict != Abort {
			it.leave(vSkipped, it.reason)
		}
	case len(it.foreign) > 0 && p.r.OnConflict == Abort:
		it.occupied()
	case len(it.foreign) > 0:
		it.occupied()
		it.verdict = vSkipped
	}
	return nil
}

func (it *item) occupied() {
	names := it.foreign
	if len(names) > 3 {
		names = append(slices.Clone(names[:3]), fmt.Sprintf("and %d more", len(it.foreign)-3))
	}
	it.verdict, it.reason = vConflict, "on the host it has something of others in it: "+strings.Join(names, ", ")
	if len(names) == 0 {
		it.reason = "something in it stays on the host"
	}
}

// checkView fails when the view was given up while it was read.
func (p *planner) checkView() error {
	if _, err := p.want.v.Getattr(layers.RootIno); err != nil {
		return fmt.Errorf("read the checkpoint: %w", err)
	}
	return nil
}
