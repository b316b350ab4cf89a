package archive

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/layers"
)

// Tarred says what went into a tar stream.
type Tarred struct {
	Entries  int   `json:"entries"`
	Bytes    int64 `json:"bytes"` // of content
	Sockets  int   `json:"sockets"`
	Whiteout int   `json:"whiteouts"` // of an OCI layer
}

// ErrWhiteout is returned for a name that means a removed file in an OCI layer.
var ErrWhiteout = errors.New("an OCI layer cannot hold a file whose name begins with " + whiteout)

const (
	whiteout = ".wh."
	opaque   = whiteout + whiteout + ".opq"
)

// Tar writes the tree that v shows as a tar stream (PAX: times to the nanosecond, extended attributes, hard links, devices).
// Holes are written as zeros, which the library has no other way for; sockets are left out, and counted.
func Tar(ctx context.Context, w io.Writer, v *layers.View) (Tarred, error) {
	t := newTarrer(ctx, w, v)
	root, err := v.Getattr(layers.RootIno)
	if err == nil {
		err = t.dir("", &root)
	}
	return t.close(err)
}

// OCILayer writes how the tree that v shows differs from base as a layer for OCI images: what is new or changed, whiteouts for what is
// gone, opaque directories where another one took the place of one. Unlike Tar it leaves out what is as it was. ErrWhiteout.
func OCILayer(ctx context.Context, w io.Writer, base, v *layers.View) (Tarred, error) {
	t := newTarrer(ctx, w, v)
	a, err := base.Getattr(layers.RootIno)
	if err != nil {
		return t.close(err)
	}
	b, err := v.Getattr(layers.RootIno)
	if err == nil {
		t.whole = map[layers.Ino]struct{}{}
		t.looking = true
		err = t.against(base, "", &a, &b)
		t.looking = false
	}
	if err == nil {
		err = t.against(base, "", &a, &b)
	}
	return t.close(err)
}

type tarrer struct {
	ctx   context.Context
	w     *tar.Writer
	v     *layers.View
	first map[layers.Ino]string // names of files with several
	out   Tarred

	// Of a layer. A first walk writes nothing, and only finds the files with several names of which one will be in
	// the layer: then all have to be, or they would be different files.
	layer   bool
	looking bool
	whole   map[layers.Ino]struct{}
	buf     []byte
}

func newTarrer(ctx context.Context, w io.Writer, v *layers.View) *tarrer {
	return &tarrer{ctx: ctx, w: tar.NewWriter(w), v: v, first: map[layers.Ino]string{}, buf: make([]byte, ChunkSize)}
}

func (t *tarrer) close(err error) (Tarred, error) {
	if err == nil {
		err = t.w.Close()
	}
	return t.out, err
}

// each calls fn for the entries of a directory that v holds.
func each(v *layers.View, dir layers.Ino, fn func(name string, a *layers.Attr) error) error {
	var bad error
	err := v.ReadDir(dir, 0, func(e layers.Entry) bool {
		var a layers.Attr
		if a, bad = v.Lookup(dir, e.Name); bad != nil {
			if missing(bad) == nil {
				bad = errMoved(e.Name)
			}
			return false
		}
		bad = fn(e.Name, &a)
		v.Forget(a.Ino, 1)
		return bad == nil
	})
	return firstOf(bad, err)
}

func under(dir, name string) string {
	if dir == "" {
		return name
	}
	return dir + "/" + name
}

// dir writes a directory and all below it.
func (t *tarrer) dir(path string, a *layers.Attr) error {
	if err := t.entry(path, a); err != nil {
		return err
	}
	return t.inside(path, a.Ino)
}

func (t *tarrer) inside(path string, dir layers.Ino) error {
	return each(t.v, dir, func(name string, a *layers.Attr) error { return t.all(under(path, name), name, a) })
}

// all writes an object, a directory with all below it.
func (t *tarrer) all(path, name string, a *layers.Attr) error {
	if t.layer && strings.HasPrefix(name, whiteout) {
		return fmt.Errorf("%q: %w; rename it, or use --format tar", path, ErrWhiteout)
	}
	if a.IsDir() {
		return t.dir(path, a)
	}
	return t.entry(path, a)
}

// entry writes one object.
func (t *tarrer) entry(path string, a *layers.Attr) error {
	if err := t.ctx.Err(); err != nil {
		return err
	}
	if t.looking {
		if !a.IsDir() && a.Nlink > 1 {
			t.whole[a.Ino] = struct{}{}
		}
		return nil
	}
	n, err := nodeOf(t.v, a)
	if err != nil {
		return fmt.Errorf("read %q: %w", path, err)
	}
	h := header(path, n)
	switch {
	case h == nil:
		t.out.Sockets++
		return nil
	case !a.IsDir() && a.Nlink > 1 && t.first[a.Ino] != "":
		h = &tar.Header{Typeflag: tar.TypeLink, Name: path, Linkname: t.first[a.Ino], Format: tar.FormatPAX}
		n.Mode = 0
	case !a.IsDir() && a.Nlink > 1:
		t.first[a.Ino] = path
	}
	if err := t.w.WriteHeader(h); err != nil {
		return fmt.Errorf("write %q: %w", path, err)
	}
	t.out.Entries++
	if n.isFile() {
		err = t.content(path, a)
	}
	return err
}

// content writes all bytes of a file.
func (t *tarrer) content(path string, a *layers.Attr) error {
	for off := int64(0); off < a.Size; {
		n, err := t.v.ReadAt(a.Ino, t.buf[:min(int64(len(t.buf)), a.Size-off)], off)
		if err == nil && n == 0 {
			err = errMoved(path)
		}
		if err == nil {
			_, err = t.w.Write(t.buf[:n])
		}
		if err = firstOf(err, t.ctx.Err()); err != nil {
			return fmt.Errorf("read %q: %w", path, err)
		}
		off += int64(n)
	}
	t.out.Bytes += a.Size
	return nil
}

// header describes an object, nil for one that tar has no words for.
func header(path string, n *Node) *tar.Header {
	h := &tar.Header{
		Name: path, Mode: int64(permOf(n.Mode)), Uid: int(n.UID), Gid: int(n.GID), Linkname: n.Target,
		ModTime: timeOf(n.Mtime), Format: tar.FormatPAX,
	}
	switch n.typ() {
	case unix.S_IFREG:
		h.Typeflag, h.Size = tar.TypeReg, n.Size
	case unix.S_IFDIR:
		h.Typeflag, h.Name = tar.TypeDir, path+"/"
		if path == "" {
			h.Name = "./"
		}
	case unix.S_IFLNK:
		h.Typeflag = tar.TypeSymlink
	case unix.S_IFIFO:
		h.Typeflag = tar.TypeFifo
	case unix.S_IFCHR, unix.S_IFBLK:
		h.Typeflag = tar.TypeChar
		if n.typ() == unix.S_IFBLK {
			h.Typeflag = tar.TypeBlock
		}
		h.Devmajor, h.Devminor = int64(n.Rdev>>8&0xfff), int64(n.Rdev&0xff|n.Rdev>>12&0xfff00)
	default:
		return nil
	}
	if len(n.Xattrs) > 0 {
		h.PAXRecords = map[string]string{}
	}
	for name, v := range n.Xattrs { // as GNU tar spells what a record's key may not hold
		name = strings.NewReplacer("%", "%25", "=", "%3D").Replace(name)
		h.PAXRecords["SCHILY.xattr."+name] = string(v)
	}
	return h
}

func timeOf(t layers.Time) time.Time { return time.Unix(t.Sec, int64(t.Nsec)) }

// against writes how directory b, at path, differs from a, which base has there; they are the same one.
func (t *tarrer) against(base *layers.View, path string, a, b *layers.Attr) error {
	t.layer = true
	if differs(a, b) {
		if err := t.entry(path, b); err != nil {
			return err
		}
	}
	err := each(base, a.Ino, func(name string, _ *layers.Attr) error {
		now, err := t.v.Lookup(b.Ino, name)
		if err == nil {
			t.v.Forget(now.Ino, 1)
			return nil
		}
		if missing(err) != nil {
			return err
		}
		return t.gone(under(path, whiteout+name))
	})
	if err != nil {
		return err
	}
	return each(t.v, b.Ino, func(name string, now *layers.Attr) error {
		was, err := base.Lookup(a.Ino, name)
		if err != nil {
			if missing(err) != nil {
				return err
			}
			return t.all(under(path, name), name, now)
		}
		defer base.Forget(was.Ino, 1)
		return t.both(base, under(path, name), name, &was, now)
	})
}

// both writes how what has a name differs from what base has there.
func (t *tarrer) both(base *layers.View, path, name string, was, now *layers.Attr) error {
	switch {
	case was.Ino == now.Ino && now.IsDir():
		return t.against(base, path, was, now)
	case was.IsDir() && now.IsDir(): // another one in its place
		if strings.HasPrefix(name, whiteout) {
			return t.all(path, name, now)
		}
		if err := t.entry(path, now); err != nil {
			return err
		}
		if err := t.gone(under(path, opaque)); err != nil {
			return err
		}
		return t.inside(path, now.Ino)
	case was.Ino == now.Ino:
		if _, whole := t.whole[now.Ino]; !whole && !differs(was, now) {
			return nil
		}
	}
	return t.all(path, name, now)
}

// gone writes a whiteout.
func (t *tarrer) gone(path string) error {
	if t.looking {
		return nil
	}
	t.out.Whiteout++
	return t.w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: path, Mode: 0o600, Format: tar.FormatPAX})
}

// differs reports whether an object may be another than in the base. Its ctime moves with all of it but its atime.
func differs(a, b *layers.Attr) bool {
	if a.Mode != b.Mode || a.UID != b.UID || a.GID != b.GID || a.Mtime != b.Mtime || a.Ctime != b.Ctime {
		return true
	}
	return !b.IsDir() && (a.Size != b.Size || a.Nlink != b.Nlink)
}
