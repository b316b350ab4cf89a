package apply

import (
	"bytes"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/layers"
	"github.com/rewindfs/rewindfs/merge3"
)

// Merging with what the host has. Where both sides changed a text, and it is known what it was before, a plan says what both make of it;
// that is to be taken into the tree (layers.Branch.TakeIn), and the plan made again: then the layers are built on what the host has, and
// it is a commit like any other. So nothing ever is on the host that the tree does not have. What the text was before is, for one that
// an earlier commit of ours brought, what that brought, else what the base had when the layers first changed it (layers.Original). If that is not
// known, it is a conflict.

// Merge is what both sides make of a text.
type Merge struct {
	layers.TakeIn
	Conflicts int // places where both changed the same lines: there it has both, between markers
}

// How a text was merged.
const (
	MergeClean   = "clean"
	MergeMarkers = "markers"
)

func (m *Merge) how() string {
	if m.Conflicts > 0 {
		return MergeMarkers
	}
	return MergeClean
}

// The labels of conflict markers.
const (
	labelOurs   = "mount"
	labelTheirs = "host"
)

// hasMarkers reports whether text has the markers of a conflict of ours.
func hasMarkers(text []byte) bool {
	ours, theirs := false, false
	for line := range bytes.Lines(text) {
		line = bytes.TrimRight(line, "\r\n")
		ours = ours || string(line) == "<<<<<<< "+labelOurs
		theirs = theirs || string(line) == ">>>>>>> "+labelTheirs
	}
	return ours || theirs
}

// builtOf and stateOf are what tells one state of a file on the host from another.
func builtOf(h *layers.Attr) layers.Built {
	return layers.Built{Exists: true, Type: typeOf(h), Ino: uint64(h.Ino), Btime: h.Btime, Mtime: h.Mtime, Ctime: h.Ctime, Size: h.Size}
}

func stateOf(b layers.Built) layers.Built {
	b.Known, b.MergedAt, b.Markers = false, 0, false
	return b
}

func (m mark) built() layers.Built {
	return layers.Built{Exists: true, Type: m.mode & unix.S_IFMT, Ino: uint64(m.ino), Btime: m.btime, Mtime: m.mtime, Ctime: m.ctime, Size: m.size}
}

// built is what the layers say they are built on at a path of the base.
func (p *planner) built(it *item) (layers.Built, error) {
	if p.base == nil {
		return layers.Built{}, nil
	}
	if it.built == nil {
		b, err := p.want.v.Built(it.path)
		if err != nil {
			return b, err
		}
		it.built = &b
	}
	return *it.built, nil
}

// hasMerged reports whether the layers have merged what was put back at path by the commit of r.
func (p *planner) hasMerged(path string, r *placed) (bool, error) {
	b, err := p.want.v.Built(path)
	if err != nil || b.MergedAt == 0 || b.Mtime != r.want.mtime || b.Size != r.want.size {
		return false, err
	}
	if b.Btime == r.want.btime {
		return true, nil
	}
	// It was put back before, so it is another object with the same in it.
	o, err := p.tree.Original(path, b)
	if err != nil || o == nil {
		return false, err
	}
	sum, err := sumOf(textFile(o.Text), int64(len(o.Text)))
	return bytes.Equal(sum, r.sum), err
}

// unresolved reports whether the layers have conflict markers of a merge at a path, for all that is known without a look: until a commit has brought it.
func (p *planner) unresolved(it *item) (bool, error) {
	built, err := p.built(it)
	return built.Markers && !(it.rec != nil && it.rec.n >= built.MergedAt && !it.rec.putBack), err
}

// marked sees to it that a merged file is not brought as long as it has conflict markers.
func (p *planner) marked(it *item) error {
	if unresolved, err := p.unresolved(it); err != nil || !unresolved {
		return err
	}
	return p.refuseMarkers(it)
}

func (p *planner) refuseMarkers(it *item) error {
	if it.want == nil || typeOf(it.want) != unix.S_IFREG || it.want.Size > merge3.MaxSize {
		return nil
	}
	text, err := p.wantText(it)
	if err == nil && hasMarkers(text) {
		p.conflict(it, "it still has conflict markers of a merge: resolve them in the mount")
	}
	return err
}

// movedMarkers is marked for files that were renamed: where one with markers is removed, all others that are brought are looked at.
func (p *planner) movedMarkers() error {
	if p.undo != nil || p.base == nil {
		return nil
	}
	away := false
	err := p.root.each(func(it *item) error {
		if away || it.want != nil || it.verdict != vApply {
			return nil
		}
		unresolved, err := p.unresolved(it)
		away = unresolved
		return err
	})
	if err != nil || !away {
		return err
	}
	return p.root.each(func(it *item) error {
		if it.verdict != vApply || it.over {
			return p.ctx.Err()
		}
		return p.refuseMarkers(it)
	})
}

// mergeText decides about a path that both sides changed.
func (p *planner) mergeText(it *item) error {
	m, why, err := p.merge(it)
	switch {
	case err != nil:
		return err
	case m == nil:
		p.conflict(it, it.why()+why)
		return nil
	case m.Conflicts > 0 && (p.r.OnConflict != Abort || !p.r.Markers):
		p.conflict(it, fmt.Sprintf("%s, in the same lines (places: %d)", it.why(), m.Conflicts))
		it.how = MergeMarkers
		return nil
	}
	it.verdict, it.merge, it.how = vApply, m, m.how()
	it.reason = "merged with what was changed on the host"
	if m.Conflicts > 0 {
		it.reason = fmt.Sprintf("changed on the host in the same lines, too (places: %d)", m.Conflicts)
	}
	return nil
}

// merge makes one text of both sides'. If that cannot be done, why says so, or is "".
func (p *planner) merge(it *item) (m *Merge, why string, err error) {
	w, h := it.want, it.haveAttr()
	if w == nil || h == nil || it.text != nil || typeOf(w) != unix.S_IFREG || typeOf(h) != unix.S_IFREG {
		return nil, "", nil
	}
	if w.Size > merge3.MaxSize || h.Size > merge3.MaxSize {
		return nil, ", and it is too large to be merged", nil
	}
	old, err := p.original(it)
	if err != nil {
		return nil, "", err
	}
	if old == nil {
		return nil, ", and what it was before is not known, so it cannot be merged", nil
	}
	ours, err := p.wantText(it)
	if err == nil && !merge3.IsText(ours) {
		return nil, ", and it is no text", nil
	}
	var theirs []byte
	if err == nil {
		theirs, err = p.haveText(it)
	}
	if errors.Is(err, unix.EACCES) {
		return nil, ", and the daemon may not read it", nil
	}
	if err != nil {
		return nil, "", err
	}
	if !merge3.IsText(theirs) {
		return nil, ", and it is no text", nil
	}
	if same, err := p.sameXattrs(it); err != nil || !same || p.asRoot && (w.UID != h.UID || w.GID != h.GID) {
		return nil, ", and its owner or its extended attributes differ", err
	}
	res := merge3.Merge(old.Text, ours, theirs, merge3.Labels{Ours: labelOurs, Theirs: labelTheirs})
	m = &Merge{Conflicts: res.Conflicts, TakeIn: layers.TakeIn{
		Path: it.path, Seen: *w, Text: res.Text, Host: builtOf(h), HostMode: h.Mode, HostText: theirs, Markers: res.Conflicts > 0,
	}}
	switch is, was := h.Mode&0o777, old.Mode&0o777; {
	case is == was || is == w.Mode&0o777:
	case w.Mode&0o777 == was:
		m.Mode = &is
	default:
		return nil, ", and both sides changed its mode", nil
	}
	return m, "", nil
}

// original is what a file was when both sides last had the same; nil if that is not known.
func (p *planner) original(it *item) (*layers.Original, error) {
	built, err := p.built(it)
	if err != nil {
		return nil, err
	}
	if r := it.rec; r != nil && (built.MergedAt == 0 || r.n >= built.MergedAt) {
		return p.broughtText(it.path, r)
	}
	if !built.Exists || built.Type != unix.S_IFREG {
		return nil, nil
	}
	o, err := p.tree.Original(it.path, built)
	if err != nil || o != nil && o.Ctime == built.Ctime {
		return o, err
	}
	// A commit of another branch may have kept it.
	b := it.base
	if b == nil || typeOf(b) != unix.S_IFREG || b.Btime != built.Btime || b.Mtime != built.Mtime || b.Ctime != built.Ctime || b.Size != built.Size || b.Size > merge3.MaxSize {
		return nil, nil
	}
	text, err := readText(fileOf(p.base.v, b, it.path), b.Size)
	if errors.As(err, new(*raceError)) {
		return nil, nil // it is the host's own file, which has just changed
	}
	return &layers.Original{Text: text, Mode: b.Mode}, err
}

// broughtText is what the commit of r brought.
func (p *planner) broughtText(path string, r *placed) (*layers.Original, error) {
	if r.none || r.host.mode&unix.S_IFMT != unix.S_IFREG || r.host.size > merge3.MaxSize {
		return nil, nil
	}
	is := func(o *layers.Original) (*layers.Original, error) {
		sum, err := sumOf(textFile(o.Text), int64(len(o.Text)))
		if err != nil || !bytes.Equal(sum, r.sum) || int64(len(o.Text)) != r.host.size {
			return nil, err
		}
		o.Mode = r.host.mode
		return o, nil
	}
	if o, err := p.tree.Original(path, r.host.built()); err != nil || o != nil {
		if o != nil {
			o, err = is(o)
		}
		return o, err
	}
	var v *layers.View
	var err error
	if r.putBack {
		v, err = p.tree.BaseView(r.gen)
	} else {
		v, err = p.tree.View(layers.Layer(r.layer))
	}
	if errors.Is(err, layers.ErrNoLayer) {
		return nil, nil // it was collected
	}
	if err != nil {
		return nil, err
	}
	defer v.Close()
	a, err := newSide(v).at(path)
	if err != nil || a == nil || typeOf(a) != unix.S_IFREG || a.Size != r.host.size {
		return nil, err
	}
	text, err := readText(fileOf(v, a, path), a.Size)
	if errors.As(err, new(*raceError)) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return is(&layers.Original{Text: text})
}

// textFile is the content of a text.
type textFile []byte

func (f textFile) ReadAt(p []byte, off int64) (int, error) { return copy(p, f[off:]), nil }

func (f textFile) Seek(off int64, whence int) (int64, error) {
	if whence == unix.SEEK_DATA {
		return off, nil
	}
	return int64(len(f)), nil
}

// What a commit brings is what the next merge of the file has to start from, and the layer that has it may be collected. So of small texts the
// commit keeps it, as the base's are: up to keptText bytes each and keptTexts in all, where a file counts for keptFile more, in batches of about keptBatch.
const (
	keptText  = 256 << 10
	keptTexts = 16 << 20
	keptFile  = 4 << 10
	keptBatch = 2 << 20
)

// remember keeps what is brought of a file if p is all of it, and a text. It may be called from several goroutines, for different items.
func (s *stager) remember(it *item, off int64, p []byte) {
	if off != 0 || int64(len(p)) != it.want.Size || it.text == nil && len(p) > keptText || !merge3.IsText(p) || s.texts.Add(int64(len(p))+keptFile) > keptTexts && it.text == nil {
		return
	}
	it.brought = append([]byte{}, p...)
}

// wanted is the content of the regular file that is to be brought.
func (p *planner) wanted(it *item) content {
	if it.text != nil {
		return textFile(it.text)
	}
	return fileOf(p.want.v, it.want, it.path)
}

func (p *planner) wantText(it *item) ([]byte, error) { return readText(p.wanted(it), it.want.Size) }

func readText(c content, size int64) ([]byte, error) {
	text := make([]byte, size)
	err := eachPart(c, size, make([]byte, min(readSize, max(size, 1))), func(off int64, p []byte) error {
		copy(text[off:], p)
		return nil
	})
	return text, err
}

// haveText is what the host has in a regular file. ESTALE if that is not what was seen.
func (p *planner) haveText(it *item) ([]byte, error) {
	c := cursor{d: p.host}
	defer c.close()
	up, _ := split(it.path)
	d, err := c.dir(up)
	if err != nil {
		return nil, err
	}
	fd, err := d.open(it.name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	text, err := readText(hostFile(fd), it.have.Size)
	if err != nil {
		return nil, err
	}
	now, err := d.stat(it.name)
	if err == nil && (now == nil || !asSeen(now, it.have, nil)) {
		err = fmt.Errorf("it was changed while it was read: %w", unix.ESTALE)
	}
	return text, err
}
