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

// Edit brings a part of a file: what Text makes of what the host has at From now, "" for the path itself. The mode comes along if Mode is set.
type Edit struct {
	From string
	Mode bool
	Text func(old []byte) ([]byte, error)
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
	it := p.find(path)
	switch {
	case it == nil:
		return bad("nothing of it is to be brought")
	case it.want == nil || typeOf(it.want) != unix.S_IFREG:
		return bad("it is no file in the checkpoint, so it is brought as a whole or not at all")
	case it.want.Nlink > 1:
		return bad("it has several names in the checkpoint, so it is brought as a whole or not at all")
	case it.want.Size > maxEdit:
		return bad("it is too large to bring a part of it")
	}
	from := it
	if e.From != "" {
		if from = p.find(e.From); from == nil {
			return bad("it is made of %q, of which nothing is to be brought", e.From)
		}
	}
	var old []byte
	if h := from.haveAttr(); h != nil && !from.mount {
		if typeOf(h) != unix.S_IFREG || h.Size > maxEdit {
			return bad("on the host it is no file, or it is too large to bring a part")
		}
		var err error
		if old, err = p.haveText(from); errors.Is(err, unix.EACCES) {
			return bad("the daemon may not read what the host has")
		} else if err != nil {
			return fmt.Errorf("read %q on the host: %w", from.path, err)
		}
	}
	text, err := e.Text(old)
	if err != nil {
		return bad("%v; the host may have changed: look again with rewindfs commit --dry-run --patch", err)
	}
	whole, err := p.wantText(it)
	if err != nil {
		return err
	}
	h := it.haveAttr()
	keepMode := !e.Mode && h != nil && typeOf(h) == unix.S_IFREG && h.Mode != it.want.Mode
	if bytes.Equal(text, whole) && !keepMode {
		return nil
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
func (c *Commit) HostTarget(path string) (string, error) {
	up, name := split(path)
	d, err := c.host.sub(up)
	if err != nil {
		return "", err
	}
	defer d.close()
	return d.readlink(name)
}
