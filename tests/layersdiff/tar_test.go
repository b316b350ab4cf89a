package layersdiff

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/archive"
	"github.com/rewindfs/rewindfs/internal/fstree"
	"github.com/rewindfs/rewindfs/internal/twin"
	"github.com/rewindfs/rewindfs/layers"
)

// TestTarStreams holds the tar stream of random trees against the trees, and the layer over the base against them, too.
func TestTarStreams(t *testing.T) {
	w := newWorld(t, false)
	refused := 0
	seq := twin.FromEnv(t, twin.Sequences{Seed: 8000, Count: 30}, "REWINDFS_TEST_CHECKS")
	twin.Check(t, seq, twin.Steps(archived), func(tb twin.TB, steps []twin.Step) {
		name, b, err := w.newBranch()
		if err != nil {
			tb.Fatalf("make a branch: %v", err)
		}
		s := &subject{target: target{b: b}, w: w, name: name}
		line := lineOf(tb, s, steps)
		v, err := w.tree.View(line[len(line)-1])
		if err != nil {
			tb.Fatalf("%v", err)
		}
		defer v.Close()
		base, err := w.tree.BaseView(v.Generation())
		if err != nil {
			tb.Fatalf("%v", err)
		}
		defer base.Close()
		want := withoutSockets(treeOf(v))
		for _, try := range []struct {
			name string
			from *fstree.Tree
			make func(io.Writer) (archive.Tarred, error)
		}{
			{"tar", fstree.New(), func(w io.Writer) (archive.Tarred, error) { return archive.Tar(context.Background(), w, v) }},
			{"layer", treeOf(base), func(w io.Writer) (archive.Tarred, error) {
				return archive.OCILayer(context.Background(), w, base, v)
			}},
		} {
			var file bytes.Buffer
			if _, err := try.make(&file); errors.Is(err, archive.ErrWhiteout) {
				refused++
				continue
			} else if err != nil {
				tb.Fatalf("%s: %v", try.name, err)
			}
			if err := untar(&file, try.from, try.name == "layer"); err != nil {
				tb.Fatalf("%s: %v", try.name, err)
			}
			// Directories that nothing was said of keep what the base has.
			if d := fstree.Diff(want, withoutSockets(try.from), fstree.Fields{Mtime: true}, "was", "is"); len(d) > 0 {
				tb.Fatalf("%s:\n  %s", try.name, strings.Join(d, "\n  "))
			}
		}
	})
	if refused == seq.Count {
		t.Error("no layer was made")
	}
}

func withoutSockets(t *fstree.Tree) *fstree.Tree {
	for p, e := range t.Entries {
		if e.Type() == unix.S_IFSOCK {
			delete(t.Entries, p)
		}
	}
	return t
}

var tarTypes = map[byte]uint32{
	tar.TypeReg: unix.S_IFREG, tar.TypeDir: unix.S_IFDIR, tar.TypeSymlink: unix.S_IFLNK, tar.TypeFifo: unix.S_IFIFO, tar.TypeChar: unix.S_IFCHR, tar.TypeBlock: unix.S_IFBLK,
}

// untar carries a tar stream out on a tree, with what whiteouts mean if it is a layer.
func untar(file io.Reader, t *fstree.Tree, layer bool) error {
	r := tar.NewReader(file)
	ino := uint64(1 << 50)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		p := path.Clean(h.Name)
		dir, name := path.Split(p)
		if layer && name == ".wh..wh..opq" {
			remove(t, path.Clean(dir), false)
			continue
		}
		if gone, is := strings.CutPrefix(name, ".wh."); layer && is {
			remove(t, dir+gone, true)
			continue
		}
		if up := t.Entries[path.Dir(p)]; p != "." && (up == nil || !up.IsDir()) {
			return fmt.Errorf("%q comes without its directory", p)
		}
		old := t.Entries[p]
		if old != nil && (h.Typeflag != tar.TypeDir || !old.IsDir()) {
			remove(t, p, true)
		}
		if h.Typeflag == tar.TypeLink {
			first := t.Entries[h.Linkname]
			if first == nil {
				return fmt.Errorf("%q is a link to %q, which is not there", p, h.Linkname)
			}
			first.Nlink = 2
			e := *first
			e.Path = p
			t.Add(&e)
			continue
		}
		typ, ok := tarTypes[h.Typeflag]
		if !ok {
			return fmt.Errorf("%q has type %q", p, h.Typeflag)
		}
		ino++
		e := &fstree.Entry{
			Path: p, Mode: typ | uint32(h.Mode), UID: uint32(h.Uid), GID: uint32(h.Gid), Nlink: 1, Ino: ino, Size: h.Size, Target: h.Linkname,
			Mtime: fstree.TimeOf(h.ModTime), Rdev: uint64(h.Devmajor<<8 | h.Devminor),
		}
		if typ == unix.S_IFLNK {
			e.Size = int64(len(e.Target))
		}
		if typ == unix.S_IFREG {
			b, err := io.ReadAll(r)
			if err != nil {
				return err
			}
			e.Hash = fstree.HashBytes(b)
		}
		for k, v := range h.PAXRecords {
			if name, ok := strings.CutPrefix(k, "SCHILY.xattr."); ok {
				if e.Xattrs == nil {
					e.Xattrs = map[string]string{}
				}
				e.Xattrs[strings.NewReplacer("%3D", "=", "%25", "%").Replace(name)] = v
			}
		}
		t.Add(e)
	}
}

// remove takes all below p out of a tree, and p itself.
func remove(t *fstree.Tree, p string, itself bool) {
	for _, q := range t.Paths() {
		if q == p && itself || strings.HasPrefix(q, p+"/") || p == "." && q != "." {
			delete(t.Entries, q)
		}
	}
}

// A layer says what is gone, and of another directory in the place of one that nothing of the old is in it.
func TestOCILayerByHand(t *testing.T) {
	w := newWorld(t, false)
	_, b, err := w.newBranch()
	if err != nil {
		t.Fatal(err)
	}
	l := &target{b: b}
	if err := errors.Join(l.removeAll("d"), l.removeAll("src/pkg"), b.Unlink(layers.RootIno, "a")); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Mkdir(layers.RootIno, "d", 0o755, layers.Cred{}); err != nil {
		t.Fatal(err)
	}
	base, err := b.At(layers.BaseLayer)
	if err != nil {
		t.Fatal(err)
	}
	defer base.Close()
	var file bytes.Buffer
	if _, err := archive.OCILayer(t.Context(), &file, base, &b.View); err != nil {
		t.Fatal(err)
	}
	var got []string
	for r := tar.NewReader(&file); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		got = append(got, h.Name)
	}
	slices.Sort(got)
	want := []string{"./", ".wh.a", "d/", "d/.wh..wh..opq", "hl1", "src/", "src/.wh.pkg", "src/hl3"}
	if !slices.Equal(got, want) {
		t.Errorf("the layer has %q, want %q", got, want)
	}
}
