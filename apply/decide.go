package apply

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/layers"
)

// decide decides about it, after all that is below.
func (p *planner) decide(it *item) error {
	for _, k := range it.kids {
		if err := p.decide(k); err != nil {
			return err
		}
	}
	var err error
	switch w, h := isDir(it.want), isDir(it.haveAttr()); {
	case it.mount && it.path != "":
		if p.changed(it) && !(w && h) { // what is below it is told by itself
			p.conflict(it, "another file system is mounted there")
			if it.verdict == vApply { // whoever wins, a rename cannot lead there
				it.verdict, it.over = vConflict, false
			}
		}
		return nil
	case w && h:
		if err = p.dirMeta(it); err == nil {
			err = p.besides(it)
		}
	case w:
		err = p.newDir(it)
	case h:
		err = p.oldDir(it)
	default:
		err = p.leaf(it)
	}
	if err == nil {
		err = p.keepable(it)
	}
	if err != nil {
		return fmt.Errorf("compare %q with the host: %w", it.path, p.asRace(it, err))
	}
	return p.ctx.Err()
}

// asRace is err, or a raceError if the host has changed at it since it was looked at: that explains any.
func (p *planner) asRace(it *item, err error) error {
	c := cursor{d: p.host}
	defer c.close()
	up, name := split(it.path)
	d, derr := c.dir(up)
	if it.path == "" || it.mount || derr != nil && !notThere(derr) {
		return err
	}
	var now *found
	if derr == nil {
		if now, derr = d.stat(name); derr != nil {
			return err
		}
	}
	if now == nil && it.have == nil || now != nil && it.have != nil && asSeen(now, it.have, nil) {
		return err
	}
	return &raceError{it.path, "it was changed on the host just now"}
}

// keepable sees to it that no file is taken from the base that we may not read: it could not be kept, and nobody brings it back.
func (p *planner) keepable(it *item) error {
	if h := it.haveAttr(); it.verdict != vApply || p.asRoot || p.undo != nil || p.r.Whole || typeOf(h) != unix.S_IFREG ||
		int(h.UID) == os.Geteuid() && h.Mode&0o400 != 0 {
		return nil
	}
	c := cursor{d: p.host}
	defer c.close()
	up, name := split(it.path)
	d, err := c.dir(up)
	if err == nil {
		err = unix.Faccessat(d.fd, name, unix.R_OK, unix.AT_EACCESS|unix.AT_SYMLINK_NOFOLLOW)
	}
	if !errors.Is(err, unix.EACCES) {
		return err
	}
	const reason = "what the host has may not be read by the daemon, so it could not be kept for an undo: make it readable, or remove it yourself"
	if p.r.OnConflict == Theirs {
		it.leave(vTheirs, reason)
		return nil
	}
	it.verdict, it.reason, it.over = vConflict, reason, false
	return nil
}

// conflict decides about a path where the host is not what was expected. A part of a file never goes over that: it would be made of lines of
// the host that the layers do not have, and the next commit would take them away as something that we once brought.
func (p *planner) conflict(it *item, reason string) {
	switch p.r.OnConflict {
	case Ours:
		if it.text != nil && p.undo == nil {
			it.verdict, it.reason = vConflict, reason+"; a part of it cannot be brought over that: commit it with --merge, or as a whole"
			return
		}
		it.verdict, it.reason, it.over = vApply, reason, true
	case Theirs:
		it.leave(vTheirs, reason)
	default:
		it.verdict, it.reason = vConflict, reason
	}
}

// changed reports whether there is something to bring: whether the checkpoint differs from what the layers were
// built on or, where an earlier commit left something, from that.
func (p *planner) changed(it *item) bool {
	switch {
	case p.undo != nil:
		return it.rec != nil
	case it.rec != nil && it.want == nil:
		return !it.rec.none
	case it.rec != nil:
		return it.rec.none || it.rec.want != markOf(it.want)
	case it.want == nil || it.base == nil:
		return it.want != it.base
	}
	return it.want.Ino != it.base.Ino || it.want.Ctime != it.base.Ctime || it.want.Mode != it.base.Mode
}

// leaf decides where neither side has a directory.
func (p *planner) leaf(it *item) error {
	if it.want == nil && it.have == nil || !p.changed(it) || p.held(it) {
		return nil
	}
	ok, err := p.expected(it)
	if err != nil {
		return err
	}
	if same, err := p.equal(it, ok); err != nil || same {
		return err
	}
	if ok {
		it.verdict = vApply
		return p.marked(it)
	}
	if p.r.Merge {
		return p.mergeText(it)
	}
	p.conflict(it, it.why())
	return nil
}

// why says how the host is not what was expected.
func (it *item) why() string {
	was := it.rec != nil && !it.rec.none || it.rec == nil && it.base != nil
	switch {
	case it.have == nil:
		return "it was removed on the host"
	case !was:
		return "it was made on the host, too"
	case it.base != nil && typeOf(it.base) != typeOf(it.haveAttr()):
		return "on the host it is something else now"
	}
	return "it was changed on the host, too"
}

// held sees to it that what must not be brought is left, and says whether it is so.
func (p *planner) held(it *item) bool {
	if p.undo != nil {
		return false
	}
	if p.r.Ignored != nil && it.path != "" && p.r.Ignored(it.path, isDir(it.want) || it.want == nil && isDir(it.haveAttr())) {
		it.verdict, it.reason = vSkipped, "rewindfs.toml says to ignore it"
		return true
	}
	if rules := fold(p.r.Rules); rules != "" && strings.HasPrefix(fold(it.path)+"/", rules+"/") { // also its end: what it says is not for the tree to change
		it.verdict, it.reason = vHeld, "it says what commits leave out; bring it with --include-executable-config"
		return true
	}
	if it.want == nil {
		return false
	}
	switch t := typeOf(it.want); {
	case strings.HasPrefix(it.path, layers.StagePrefix):
		it.verdict, it.reason = vSkipped, "such names are used by commits themselves"
	case t == unix.S_IFSOCK:
		it.verdict, it.reason = vSkipped, "a socket means nothing without its program"
	case (t == unix.S_IFCHR || t == unix.S_IFBLK) && !p.r.Special:
		it.verdict, it.reason = vSkipped, "a device; bring it with --allow-special"
	case p.r.Hold != nil && p.r.Hold.matches(p.want, p.base, it.path, t):
		it.verdict, it.reason = vHeld, "it may run by itself on the host; bring it with --include-executable-config"
	}
	return it.verdict != vSame
}

// expected reports whether the host has what the layers were built on, or what an earlier commit left.
func (p *planner) expected(it *item) (bool, error) {
	h := it.haveAttr()
	built, err := p.built(it)
	if err != nil {
		return false, err
	}
	if built.MergedAt != 0 && (it.rec == nil || it.rec.n < built.MergedAt) { // since then nothing was brought
		it.merged, it.direct = true, true
		return h != nil && builtOf(h) == stateOf(built), nil
	}
	if r := it.rec; r != nil {
		it.merged, it.direct = r.merged, r.direct && (r.putBack || p.undo != nil)
		if r.none || h == nil {
			return r.none && h == nil, nil
		}
		return p.isPlaced(it, r)
	}
	if p.base == nil {
		return h == nil && p.undo == nil, nil
	}
	b := it.base
	if !built.Known && b != nil { // then the base says it, which is the host but where there are pre-images
		built = layers.Built{Exists: true, Type: typeOf(b), Btime: b.Btime, Mtime: b.Mtime, Ctime: b.Ctime, Size: b.Size}
	}
	switch {
	case !built.Exists || h == nil:
		return !built.Exists && h == nil, nil
	case typeOf(h) != built.Type:
		return false, nil
	case isDir(h):
		return true, nil
	case built.Known && uint64(h.Ino) != built.Ino || h.Btime != built.Btime || h.Size != built.Size || h.Mtime != built.Mtime:
		return false, nil
	case h.Ctime == built.Ctime:
		return true, nil
	}
	// Something was done that need not have changed anything, as when a commit was taken back. If what it was is kept, they can be compared.
	if b == nil || b.Ctime != built.Ctime || b.Mode != h.Mode || b.UID != h.UID || b.GID != h.GID {
		return false, nil
	}
	was, err := p.base.xattrs(b.Ino)
	if err != nil {
		return false, err
	}
	is, err := p.haveXattrs(it)
	if err != nil || !bytes.Equal(sumXattrs(was), sumXattrs(is)) {
		return false, err
	}
	return p.sameContent(it, p.base, b)
}

// isPlaced reports whether what is on the host is what the commit of r left there.
func (p *planner) isPlaced(it *item, r *placed) (bool, error) {
	h := it.haveAttr()
	if typeOf(h) != r.host.mode&unix.S_IFMT {
		return false, nil
	}
	if isDir(h) {
		return true, nil
	}
	now := markOf(h)
	if now == r.host {
		return true, nil
	}
	now.ctime = r.host.ctime
	if now != r.host {
		return false, nil
	}
	c := cursor{d: p.host}
	defer c.close()
	up, _ := split(it.path)
	d, err := c.dir(up)
	if err != nil {
		return false, err
	}
	xs, err := d.xattrs(it.name)
	if err != nil || !bytes.Equal(sumXattrs(xs), r.xattrs) {
		return false, err
	}
	if typeOf(h) != unix.S_IFREG {
		return true, nil
	}
	sum, err := d.hostSum(it.name)
	return err == nil && bytes.Equal(sum, r.sum), err
}

// equal reports whether the host has what is to be brought: in type, mode and content or, if exact, in all but its other names.
func (p *planner) equal(it *item, exact bool) (bool, error) {
	w, h := it.want, it.haveAttr()
	if w == nil || h == nil || typeOf(w) != typeOf(h) || w.Mode != h.Mode && typeOf(w) != unix.S_IFLNK || w.Size != h.Size {
		return false, nil
	}
	if exact && (w.Mtime != h.Mtime || p.asRoot && (w.UID != h.UID || w.GID != h.GID)) {
		return false, nil
	}
	same, err := p.sameContent(it, p.want, w)
	if err != nil || !same || !exact {
		return same, err
	}
	return p.sameXattrs(it)
}

// sameContent compares what the host has, which is of the same type and size, with what a view has as a.
func (p *planner) sameContent(it *item, s *side, a *layers.Attr) (bool, error) {
	c := cursor{d: p.host}
	defer c.close()
	up, _ := split(it.path)
	d, err := c.dir(up)
	if err != nil {
		return false, err
	}
	switch typeOf(a) {
	case unix.S_IFREG:
		theirs, err := d.hostSum(it.name)
		if err != nil {
			return false, err
		}
		var mine content = fileOf(s.v, a, it.path)
		if s == p.want {
			mine = p.wanted(it)
		}
		ours, err := sumOf(mine, a.Size)
		if errors.As(err, new(*raceError)) {
			return false, nil
		}
		return bytes.Equal(ours, theirs), err
	case unix.S_IFLNK:
		theirs, err := d.readlink(it.name)
		if err != nil {
			return false, err
		}
		ours, err := s.v.Readlink(a.Ino)
		return ours == theirs, err
	case unix.S_IFCHR, unix.S_IFBLK:
		return a.Rdev == it.have.Rdev, nil
	}
	return true, nil
}

// sameXattrs compares the extended attributes of both sides.
func (p *planner) sameXattrs(it *item) (bool, error) {
	ours, err := p.wantXattrs(it)
	if err != nil {
		return false, err
	}
	theirs, err := p.haveXattrs(it)
	return bytes.Equal(sumXattrs(ours), sumXattrs(theirs)), err
}

func (p *planner) haveXattrs(it *item) (map[string]string, error) {
	c := cursor{d: p.host}
	defer c.close()
	up, name := split(it.path)
	if it.path == "" {
		name = "."
	}
	d, err := c.dir(up)
	if err != nil {
		return nil, err
	}
	return d.xattrs(name)
}

// wantXattrs are the extended attributes that are to be brought.
func (p *planner) wantXattrs(it *item) (map[string]string, error) {
	xs, err := p.want.xattrs(it.want.Ino)
	if !p.r.Special && p.undo == nil {
		delete(xs, xattrCaps)
	}
	return xs, err
}
