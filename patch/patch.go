package patch

import (
	"bytes"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/linediff"
)

// Options choose what a patch holds.
type Options struct {
	Binary bool // binary files as such, not only that they differ
	// Keep says which entries are wanted; old is "" but of a rename. nil: all.
	Keep func(path, old string) bool
}

// Bounds of what is compared, in bytes for each side. A larger file is only said to differ.
const (
	maxText   = 4 << 20
	maxBinary = 16 << 20
)

// File is one entry of a patch.
type File struct {
	Path, OldPath  string // OldPath only of a rename
	Text           []byte // empty when nothing differs that a patch can say
	Added, Removed int    // lines
	Note           bool   // only of what git has no words for
	Binary         bool   // no text, or too large to compare by lines
	OldSize        int64  // bytes, 0 where there is nothing
	NewSize        int64
}

// Write makes the entries for changes, in the order of their paths, and gives each to fn.
func Write(from, to Side, changes []Change, o Options, fn func(*File) error) error {
	pairs, err := plan(from, to, changes)
	if err != nil {
		return err
	}
	for i := range pairs {
		w := &writer{from: from, to: to, o: o, pair: &pairs[i], f: &File{Path: pairs[i].path()}}
		if p := w.pair; p.old != "" && p.new != "" && p.old != p.new {
			w.f.OldPath = p.old
		}
		if o.Keep != nil && !o.Keep(w.f.Path, w.f.OldPath) {
			continue
		}
		if err := w.write(); err != nil {
			return fmt.Errorf("compare %q: %w", w.f.Path, err)
		}
		w.f.Text = w.out.Bytes()
		if len(w.f.Text) == 0 {
			continue
		}
		if err := fn(w.f); err != nil {
			return err
		}
	}
	return nil
}

type writer struct {
	from, to Side
	o        Options
	pair     *pair
	f        *File
	out      bytes.Buffer
}

func (w *writer) write() error {
	p := w.pair
	if p.a != nil && !p.a.inGit() || p.b != nil && !p.b.inGit() {
		w.f.Note = true
		w.beyondGit()
		return nil
	}
	var a, b []byte
	var err error
	large := false
	if p.a != nil {
		w.f.OldSize = p.a.Size
		a, err = w.content(w.from, p.old, p.a, &large)
	}
	if p.b != nil && err == nil {
		w.f.NewSize = p.b.Size
		b, err = w.content(w.to, p.new, p.b, &large)
	}
	if err != nil {
		return err
	}
	differ := large || !bytes.Equal(a, b)
	if gitsOwn(p.path()) {
		w.ownNote(a, b, differ, large)
		return nil
	}
	w.finerMode()
	if p.a != nil && p.b != nil && p.old == p.new && !differ && p.a.gitMode() == p.b.gitMode() {
		w.f.Note = true
		return nil
	}
	old, new := p.old, p.new
	if old == "" {
		old = new
	}
	if new == "" {
		new = old
	}
	fmt.Fprintf(&w.out, "diff --git %s %s\n", Quote("a/"+old), Quote("b/"+new))
	w.modes()
	if w.f.OldPath != "" {
		fmt.Fprintf(&w.out, "similarity index %d%%\nrename from %s\nrename to %s\n", similar(a, b, differ), Quote(old), Quote(new))
	}
	if differ {
		w.body(a, b, large)
	}
	return nil
}

// content returns what a patch compares of an object.
func (w *writer) content(side Side, path string, o *Object, large *bool) ([]byte, error) {
	limit := int64(maxText)
	if w.o.Binary {
		limit = maxBinary
	}
	switch {
	case o.typ() == unix.S_IFLNK:
		return []byte(o.Target), nil
	case o.Size > limit:
		*large = true
		return nil, nil
	}
	return side.Read(path, o.Size)
}

func (w *writer) modes() {
	switch a, b := w.pair.a, w.pair.b; {
	case a == nil:
		fmt.Fprintf(&w.out, "new file mode %06o\n", b.gitMode())
	case b == nil:
		fmt.Fprintf(&w.out, "deleted file mode %06o\n", a.gitMode())
	case a.gitMode() != b.gitMode():
		fmt.Fprintf(&w.out, "old mode %06o\nnew mode %06o\n", a.gitMode(), b.gitMode())
	}
}

// finerMode tells of a change of mode that git does not know.
func (w *writer) finerMode() {
	a, b := w.pair.a, w.pair.b
	if a != nil && b != nil && a.Mode != b.Mode && a.gitMode() == b.gitMode() {
		w.noteMode(a, b)
	}
}

// ownNote tells of a file of git's own, with the lines counted.
func (w *writer) ownNote(a, b []byte, differ, large bool) {
	if differ {
		w.body(a, b, large)
		w.out.Reset()
	}
	w.beyondGit()
}

// beyondGit tells of what git has no words for.
func (w *writer) beyondGit() {
	a, b := w.pair.a, w.pair.b
	switch {
	case a == nil:
		fmt.Fprintf(&w.out, "# new %s, mode %04o: %s\n", kind(b), b.Mode&0o7777, Quote(w.pair.new))
	case b == nil:
		fmt.Fprintf(&w.out, "# deleted %s: %s\n", kind(a), Quote(w.pair.old))
	case w.pair.old != w.pair.new:
		fmt.Fprintf(&w.out, "# renamed %s: %s -> %s\n", kind(b), Quote(w.pair.old), Quote(w.pair.new))
	case a.Mode != b.Mode:
		w.noteMode(a, b)
	default:
		fmt.Fprintf(&w.out, "# changed %s: %s\n", kind(b), Quote(w.pair.new))
	}
}

func (w *writer) noteMode(a, b *Object) {
	fmt.Fprintf(&w.out, "# mode %04o -> %04o: %s\n", a.Mode&0o7777, b.Mode&0o7777, Quote(w.pair.new))
}

func kind(o *Object) string {
	switch o.typ() {
	case unix.S_IFREG:
		return "file"
	case unix.S_IFLNK:
		return "symbolic link"
	case unix.S_IFDIR:
		return "directory"
	case unix.S_IFIFO:
		return "fifo"
	case unix.S_IFSOCK:
		return "socket"
	}
	return "device"
}

// body tells how the content differs.
func (w *writer) body(a, b []byte, large bool) {
	old, new := "/dev/null", "/dev/null"
	if w.pair.old != "" {
		old = "a/" + w.pair.old
	}
	if w.pair.new != "" {
		new = "b/" + w.pair.new
	}
	w.f.Binary = large || isBinary(a) || isBinary(b) || len(a) > maxText || len(b) > maxText
	switch {
	case !w.f.Binary:
		w.text(old, new, a, b)
	case large || !w.o.Binary:
		fmt.Fprintf(&w.out, "Binary files %s and %s differ\n", Quote(old), Quote(new))
	default:
		ids := [2]string{}
		for i, o := range []*Object{w.pair.a, w.pair.b} {
			if ids[i] = blobID([][]byte{a, b}[i]); o == nil {
				ids[i] = fmt.Sprintf("%040d", 0)
			}
		}
		fmt.Fprintf(&w.out, "index %s..%s\nGIT binary patch\n", ids[0], ids[1])
		literal(&w.out, b)
		literal(&w.out, a)
	}
}

// text appends the hunks between a and b. Their number of steps is bounded, whatever a and b are.
func (w *writer) text(old, new string, a, b []byte) {
	fmt.Fprintf(&w.out, "--- %s\n+++ %s\n", inLine(old), inLine(new))
	w.f.Added, w.f.Removed = linediff.Unified(&w.out, linediff.Split(a), linediff.Split(b))
}

// similar estimates how much of a is in b, in percent.
func similar(a, b []byte, differ bool) int {
	if !differ {
		return 100
	}
	head := 0
	for head < min(len(a), len(b)) && a[head] == b[head] {
		head++
	}
	tail := 0
	for tail < min(len(a), len(b))-head && a[len(a)-1-tail] == b[len(b)-1-tail] {
		tail++
	}
	return min(99, 100*(head+tail)/max(len(a), len(b), 1))
}
