package apply

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/kv"
	"github.com/rewindfs/rewindfs/layers"
)

// OnConflict says what to do about a path where the host is not what the layers were built on.
type OnConflict string

// What can be done about conflicts.
const (
	Abort  OnConflict = "abort"  // nothing at all is done
	Ours   OnConflict = "ours"   // the checkpoint wins
	Theirs OnConflict = "theirs" // the host keeps what it has there
)

// Request says what is to be brought to a target.
type Request struct {
	Layer      layers.Layer
	Branch     string
	Paths      func(path string) bool           // nil: all
	OnConflict OnConflict                       // "": Abort
	Hold       *Hold                            // what is held back; nil: nothing
	Ignored    func(path string, dir bool) bool // what is left out, with all below it; nil: nothing
	Rules      string                           // path of the file that says what to leave out, which is held back whatever becomes of it; "": none
	// Merge: of a text that both sides changed, plan what both make of it (Commit.Merges); with Markers also where they
	// changed the same lines, else that is a conflict.
	Merge, Markers bool
	Edits          map[string]Edit // of these files only a part is to be brought
	Special        bool            // also setuid, setgid, capabilities and devices
	Whole          bool            // the whole tree, not only what was changed: the target is not the base
}

// planner makes a plan.
type planner struct {
	ctx     context.Context
	db      *kv.DB
	tree    *layers.Tree
	host    *dir
	target  string // of the records; "" is the base
	r       Request
	want    *side
	base    *side // what the branch is built on; nil: nothing
	gen     uint64
	undo    *Record // the commit to take back
	root    *item
	several []layers.Ino // changed objects that may have names which nobody has looked at
	owner   *layers.Attr // of the target's root
	asRoot  bool
	now     func() time.Time
}

// keeps reports whether path is to be brought at all.
func (p *planner) keeps(path string) bool { return p.r.Paths == nil || p.r.Paths(path) }

// item returns the item of a path, making it.
func (p *planner) item(path string) *item {
	at := p.root
	if path == "" {
		return at
	}
	for name := range strings.SplitSeq(path, "/") {
		at = at.kid(name)
	}
	return at
}

// plan finds out what is to be done, and decides about each path.
func (p *planner) plan() error {
	p.root = &item{}
	p.asRoot = os.Geteuid() == 0
	if p.r.OnConflict == "" {
		p.r.OnConflict = Abort
	}
	st, err := p.host.stat(".")
	if err != nil {
		return fmt.Errorf("look at the target: %w", err)
	}
	p.root.have, p.owner = st, &st.Attr
	for _, step := range []func() error{
		p.collect,
		func() error { return p.root.each(p.describe) },
		func() error { return p.look(p.root) },
		p.edit,
		func() error { return p.decide(p.root) },
		p.movedMarkers,
		p.links,
	} {
		if err := errors.Join(p.ctx.Err(), step()); err != nil {
			return err
		}
	}
	return nil
}

// collect makes an item of each path that may have to change.
func (p *planner) collect() error {
	if err := p.collectPlaced(); err != nil || p.undo != nil {
		return err
	}
	add := func(path string, _ layers.Entry) error {
		if p.keeps(path) {
			p.item(path)
		}
		return p.ctx.Err()
	}
	if p.r.Whole {
		return p.want.walk("", add)
	}
	var paths []string
	err := p.want.v.TouchedPaths(func(path string) { paths = append(paths, path) }, func(ino layers.Ino) { p.several = append(p.several, ino) })
	if err != nil {
		return err
	}
	slices.Sort(paths)
	walked := map[string]bool{}
	for _, path := range slices.Compact(paths) {
		if under(walked, path) {
			continue
		}
		w, err := p.want.at(path)
		if err != nil {
			return err
		}
		b, err := p.base.at(path)
		if err != nil {
			return err
		}
		if p.keeps(path) {
			it := p.item(path)
			it.want, it.base, it.viewed = w, b, true
		}
		// What is below a directory that came, went or moved as a whole has no change of its own.
		if (isDir(w) || isDir(b)) && (w == nil || b == nil || w.Ino != b.Ino) {
			walked[path] = true
			if err := errors.Join(p.want.walk(path, add), p.base.walk(path, add)); err != nil {
				return err
			}
		}
	}
	return nil
}

// under reports whether path is one of dirs or lies below one.
func under(dirs map[string]bool, path string) bool {
	for ; path != ""; path, _ = split(path) {
		if dirs[path] {
			return true
		}
	}
	return false
}

// collectPlaced adds what earlier commits of ours left; of an undo, what the commit left.
func (p *planner) collectPlaced() error {
	ancestor := map[uint64]bool{}
	return eachPlaced(p.db, p.target, func(path string, r *placed) error {
		if !p.keeps(path) {
			return p.ctx.Err()
		}
		ours := r.branch == p.r.Branch
		switch {
		case p.undo != nil:
			ours = r.n == p.undo.N
		case r.putBack:
			ours = p.gen <= r.gen
			if ours && r.direct { // for who has it merged, too
				var err error
				if ours, err = p.hasMerged(path, r); err != nil {
					return err
				}
			}
		case !ours || r.merged: // who went back to before the merge does not have what the host had
			is, known := ancestor[r.layer]
			if !known {
				is = p.want.v.Ancestor(layers.Layer(r.layer))
				ancestor[r.layer] = is
			}
			ours = is
		}
		if !ours {
			return nil
		}
		if it := p.item(path); it.rec == nil { // the newest comes first
			it.rec = r
		}
		return p.ctx.Err()
	})
}

// describe finds what the views have at an item.
func (p *planner) describe(it *item) (err error) {
	if !it.viewed {
		if it.want, err = p.want.at(it.path); err != nil {
			return err
		}
		if p.base != nil {
			it.base, err = p.base.at(it.path)
		}
	}
	if it.want != nil {
		mode := it.want.Mode
		p.allow(it)
		if it.cut = it.want.Mode != mode; it.cut && it.hasBits(mode) {
			it.want.Mode, it.cut = mode, false
		}
	}
	if err == nil && it.base != nil && it.up != nil {
		var is bool
		if is, err = p.appeared(it); is {
			it.base = nil
		}
	}
	return errors.Join(err, p.ctx.Err())
}

// appeared reports whether what the base has at it came when the layers had changed what was there before: then it is nobody's
// but the user's. Who removes a directory has removed what was in it, and there are records of that; one that was
// moved took along what is in it.
func (p *planner) appeared(it *item) (bool, error) {
	built, err := p.built(it)
	if err != nil || built.Known {
		return err == nil && !built.Exists, err
	}
	if it.up.base == nil {
		return true, nil
	}
	if it.up.want != nil && it.up.want.Ino == it.up.base.Ino {
		return false, nil
	}
	for up := it.up; up.path != ""; up = up.up {
		if built, err = p.built(up); err != nil {
			return false, err
		}
		if built.Known {
			a, err := p.want.v.Getattr(up.base.Ino)
			if p.want.absent(err) {
				return true, nil
			}
			return err == nil && a.Nlink == 0, err
		}
	}
	return false, nil
}

// allow makes of it.want what may reach the host of an object.
func (p *planner) allow(it *item) {
	if p.undo != nil {
		return
	}
	a := it.want
	switch {
	case p.r.Special:
	case typeOf(a) == unix.S_IFREG:
		a.Mode &^= unix.S_ISUID | unix.S_ISGID
	case isDir(a) && p.base != nil && !mayPassGroup(it.base) && (it.up == nil || !mayPassGroup(it.up.want)):
		a.Mode &^= unix.S_ISGID // neither had the base's directory the bit, nor would a new one inherit it
	}
	// What root made in a mount of somebody's project is for that one.
	if p.asRoot && a.UID == 0 && p.owner.UID != 0 && !a.Ino.FromBase() {
		a.UID, a.GID = p.owner.UID, p.owner.GID
	}
}

// hasBits reports whether an earlier commit of ours, which was allowed to, brought mode with its setuid or setgid bit: one that is
// not is no reason to take that away again. A file has to be the very one still.
func (it *item) hasBits(mode uint32) bool {
	r := it.rec
	return r != nil && !r.none && !r.putBack && r.want.mode == mode && (isDir(it.want) || r.want.ino == it.want.Ino && r.want.ctime == it.want.Ctime)
}

// mayPassGroup reports whether a is a directory with the setgid bit: what is made in it gets its group.
func mayPassGroup(a *layers.Attr) bool { return isDir(a) && a.Mode&unix.S_ISGID != 0 }

// look finds what the host has at the items in the directory it.
func (p *planner) look(it *item) error {
	if len(it.kids) == 0 {
		return p.ctx.Err()
	}
	fd, err := p.host.open(it.path, unix.O_PATH|unix.O_DIRECTORY)
	switch {
	case errors.Is(err, unix.EXDEV):
		return it.each(func(k *item) error { k.mount = true; return nil })
	case notThere(err):
		return nil
	case err != nil:
		return fmt.Errorf("look at %q: %w", it.path, err)
	}
	d := &dir{fd: fd}
	defer d.close()
	for _, k := range it.kids {
		if k.have, err = d.stat(k.name); err != nil {
			return fmt.Errorf("look at %q: %w", k.path, err)
		}
		if k.have != nil && k.have.mount {
			_ = k.each(func(k *item) error { k.mount = true; return nil })
		} else if isDir(k.haveAttr()) {
			if err := p.look(k); err != nil {
				return err
			}
		}
	}
	return p.ctx.Err()
}
