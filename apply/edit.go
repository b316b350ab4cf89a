package apply

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/layers"
)

// Edit brings a part of a file: what Text makes of what the host has at From now, "" for the path itself; nil for all of the file. The mode comes
// along if Mode is set. New says that it is made of nothing, Gone that it is removed, and then Text is to leave nothing.
type Edit struct {
	From      string
	New, Gone bool
	Mode      bool
	Text      func(old []byte) ([]byte, error)
}

// EditError says that a part of a file cannot be brought.
type EditError struct{ Path, Reason string }

func (e *EditError) Error() string { return fmt.Sprintf("%q: %s", e.Path, e.Reason) }

// maxEdit is the largest file of which a part can be brought, in bytes.
const maxEdit = 16 << 20

// edit has the parts of files that were asked for stand for what the checkpoint has.
func (p *planner) edit() error {
	for _, path := range slices.Sorted(maps.Keys(p.r.Edits)) {
		if err := p.editOne(path, p.r.Edits[path]); err != nil {
			return err
		}
	}
	return nil
}

// find returns the item of a path, nil if there is none.
func (p *planner) find(path string) *item {
	at := p.root
	for name := range strings.SplitSeq(path, "/") {
		if at = at.kids[name]; at == nil {
			return nil
		}
	}
	return at
}

func (p *planner) editOne(path string, e Edit) error {
	bad := func(format string, args ...any) error { return &EditError{path, fmt.Sprintf(format, args...)} }
	it, err := p.findNamed(path)
	if err != nil {
		return err
	}
	from := it
	if e.From != "" {
		from = p.find(e.From)
	}
	switch {
	case it == nil:
		return bad("nothing of it is to be brought")
	case e.Gone != (it.want == nil):
		return bad("the patch says that it is removed, or the checkpoint has it removed, but not both")
	case from == nil:
		return bad("it is made of %q, of which nothing is to be brought", e.From)
	case e.From != "" && from.want != nil:
		return bad("it is made of %q, says the patch, but that is there in the checkpoint, too", e.From)
	case e.Text == nil:
		return nil
	}
	old, why, err := p.editable(from, e.New)
	if err != nil {
		return fmt.Errorf("read %q on the host: %w", from.path, p.asRace(from, err))
	}
	if why != "" {
		return bad("%s", why)
	}
	text, err := e.Text(old)
	if err == nil && e.Gone && len(text) > 0 {
		err = errors.New("the patch would leave some of its lines, but it is removed as a whole or not at all")
	}
	if err != nil {
		return bad("%v; the host may have changed: look again with rewindfs commit --dry-run --patch", err)
	}
	if e.Gone {
		return nil
	}
	h := it.haveAttr()
	keepMode := !e.Mode && h != nil && typeOf(h) == unix.S_IFREG && h.Mode != it.want.Mode
	if whole, err := p.editWhole(it, text); err != nil || whole && !keepMode {
		return err
	}
	switch {
	case typeOf(it.want) != unix.S_IFREG:
		return bad("it is no file in the checkpoint, so it is brought as a whole or not at all")
	case h != nil && typeOf(h) != unix.S_IFREG:
		return bad("it is no file on the host, so it is brought as a whole or not at all")
	case it.want.Nlink > 1:
		return bad("it has several names in the checkpoint, so it is brought as a whole or not at all")
	case it.want.Size > maxEdit:
		return bad("it is too large to bring a part of it")
	}
	it.partOf(text, layers.TimeOf(p.now()))
	if keepMode {
		it.want.Mode, it.cut = h.Mode, false
	}
	if h != nil && bytes.Equal(text, old) && from == it {
		it.want.Mtime = h.Mtime
	}
	return nil
}

// findNamed is find, also for a further name of a changed file: those are looked for later than edits are made.
func (p *planner) findNamed(path string) (*item, error) {
	if it := p.find(path); it != nil {
		return it, nil
	}
	c := cursor{d: p.host}
	defer c.close()
	it, err := p.lateItem(path, &c)
	if err != nil || it.want == nil || isDir(it.want) || it.want.Nlink < 2 {
		return nil, err
	}
	return it, nil
}

// editable is what the host has that a part of a file is to be made of; isNew: nothing. If that cannot be, why says so.
func (p *planner) editable(from *item, isNew bool) (old []byte, why string, err error) {
	h := from.haveAttr()
	switch {
	case isNew || h == nil || from.mount:
	case typeOf(h) == unix.S_IFLNK:
		var target string
		target, err = p.hostTarget(from.path)
		old = []byte(target)
	case typeOf(h) != unix.S_IFREG || h.Size > maxEdit:
		why = "on the host it is no file, or it is too large to bring a part"
	default:
		if old, err = p.haveText(from); errors.Is(err, unix.EACCES) {
			why, err = "the daemon may not read what the host has", nil
		}
	}
	return old, why, err
}

// editWhole reports whether text is all that the checkpoint has.
func (p *planner) editWhole(it *item, text []byte) (bool, error) {
	switch {
	case typeOf(it.want) == unix.S_IFLNK:
		target, err := p.want.v.Readlink(it.want.Ino)
		return target == string(text), err
	case typeOf(it.want) != unix.S_IFREG || it.want.Size != int64(len(text)):
		return false, nil
	}
	whole, err := p.wantText(it)
	return bytes.Equal(text, whole), err
}

// partOf has text stand for the content that the checkpoint has. It is of no state of the checkpoint, so its ctime is none.
func (it *item) partOf(text []byte, now layers.Time) {
	w := *it.want
	w.Size, w.Blocks, w.Nlink, w.Mtime, w.Ctime = int64(len(text)), 0, 1, now, layers.Time{}
	it.want, it.text = &w, append([]byte{}, text...)
}

// The two sides of a plan, for whoever shows what differs.

// Want is the view of what is to be brought.
func (c *Commit) Want() *layers.View { return c.p.want.v }

// HostAt describes what the host has at a path of the plan, nil for nothing.
func (c *Commit) HostAt(path string) *layers.Attr {
	it := c.p.find(path)
	if it == nil || it.mount {
		return nil
	}
	return it.haveAttr()
}

// HostText reads a regular file that the host has at a path of the plan. ESTALE if it has changed since.
func (c *Commit) HostText(path string) ([]byte, error) { return c.p.haveText(c.p.find(path)) }

// HostTarget is where a symbolic link leads that the host has at a path of the plan.
func (c *Commit) HostTarget(path string) (string, error) { return c.p.hostTarget(path) }

func (p *planner) hostTarget(path string) (string, error) {
	up, name := split(path)
	d, err := p.host.sub(up)
	if err != nil {
		return "", err
	}
	defer d.close()
	return d.readlink(name)
}
