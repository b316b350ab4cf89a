package layers

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/cas"
	"github.com/rewindfs/rewindfs/kv"
)

// store is a tree over a temporary base, which can be reopened.
type store struct {
	t      *testing.T
	base   string
	dir    string
	db     *kv.DB
	chunks *cas.Store
	host   *Base
	tree   *Tree
	b      *Branch
	faults func(step string) error // see kv.Options.Fault
}

func newStore(t *testing.T, base string) *store {
	t.Helper()
	s := &store{t: t, base: base, dir: t.TempDir()}
	s.open()
	t.Cleanup(s.close)
	return s
}

func (s *store) open() {
	s.t.Helper()
	var err error
	must := func(what string) {
		s.t.Helper()
		if err != nil {
			s.t.Fatalf("%s: %v", what, err)
		}
	}
	s.db, err = kv.Open(s.dir, kv.Options{Fault: s.faults})
	must("open kv")
	s.chunks, err = cas.Open(s.dir, s.db, cas.Options{})
	must("open cas")
	s.db.SetBeforeFlush(s.chunks.Sync)
	s.host, err = OpenBase(s.base)
	must("open base")
	s.tree, err = Open(s.db, s.chunks, s.host, Options{})
	must("open tree")
	s.b, err = s.tree.Branch("main")
	must("open branch")
}

func (s *store) close() {
	if s.tree == nil {
		return
	}
	if err := errors.Join(s.tree.Close(), s.host.Close(), s.chunks.Close(), s.db.Close()); err != nil {
		s.t.Errorf("close: %v", err)
	}
	s.tree = nil
}

func (s *store) reopen() { s.close(); s.open() }

// ino resolves a path and keeps a reference, as the kernel would.
func (s *store) ino(p string) Ino {
	s.t.Helper()
	a, err := s.b.Resolve(p)
	if err != nil {
		s.t.Fatalf("resolve %q: %v", p, err)
	}
	return a.Ino
}

func (s *store) dirOf(p string) (Ino, string) {
	s.t.Helper()
	dir, name := split(p)
	return s.ino(dir), name
}

var cred = Cred{}

func (s *store) ok(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *store) write(p, content string) {
	s.t.Helper()
	dir, name := s.dirOf(p)
	a, err := s.b.Lookup(dir, name)
	if errors.Is(err, unix.ENOENT) {
		a, err = s.b.Mknod(dir, name, unix.S_IFREG|0o644, 0, cred)
	} else if err == nil {
		zero := int64(0)
		_, err = s.b.Setattr(a.Ino, SetAttr{Size: &zero})
	}
	s.ok(err)
	if content == "" {
		return
	}
	_, err = s.b.Write(a.Ino, []byte(content), 0, WriteFlags{})
	s.ok(err)
}

func (s *store) mkdir(p string) {
	s.t.Helper()
	dir, name := s.dirOf(p)
	_, err := s.b.Mkdir(dir, name, 0o755, cred)
	s.ok(err)
}

func (s *store) unlink(p string) {
	s.t.Helper()
	dir, name := s.dirOf(p)
	s.ok(s.b.Unlink(dir, name))
}

func (s *store) rmdir(p string) {
	s.t.Helper()
	dir, name := s.dirOf(p)
	s.ok(s.b.Rmdir(dir, name))
}

func (s *store) rename(from, to string) {
	s.t.Helper()
	od, on := s.dirOf(from)
	nd, nn := s.dirOf(to)
	s.ok(s.b.Rename(od, on, nd, nn, 0))
}

func readAll(v *View, ino Ino) (string, error) {
	a, err := v.Getattr(ino)
	if err != nil {
		return "", err
	}
	buf := make([]byte, a.Size+16)
	n, err := v.ReadAt(ino, buf, 0)
	return string(buf[:n]), err
}

// dump describes everything v shows, one line an object.
func dump(t *testing.T, v *View) []string {
	t.Helper()
	var out []string
	var walk func(dir Ino, p string)
	walk = func(dir Ino, p string) {
		var entries []Entry
		if err := v.ReadDir(dir, 0, func(e Entry) bool { entries = append(entries, e); return true }); err != nil {
			t.Fatalf("list %q: %v", p, err)
		}
		for _, e := range entries {
			q := join(p, e.Name)
			a, err := v.Lookup(dir, e.Name)
			if err != nil {
				t.Fatalf("look up %q: %v", q, err)
			}
			if a.Ino != e.Ino || a.Mode&unix.S_IFMT != e.Type {
				t.Errorf("%q: listed as inode %d type %o, is %d mode %o", q, e.Ino, e.Type, a.Ino, a.Mode)
			}
			line := fmt.Sprintf("%s mode=%o nlink=%d", q, a.Mode, a.Nlink)
			switch a.Mode & unix.S_IFMT {
			case unix.S_IFREG:
				c, err := readAll(v, a.Ino)
				if err != nil {
					t.Fatalf("read %q: %v", q, err)
				}
				line = fileLine(q, a, c)
			case unix.S_IFLNK:
				target, err := v.Readlink(a.Ino)
				if err != nil {
					t.Fatalf("readlink %q: %v", q, err)
				}
				line += " -> " + target
			}
			names, err := v.Listxattr(a.Ino)
			if err != nil {
				t.Fatalf("list attributes of %q: %v", q, err)
			}
			for _, name := range names {
				val, err := v.Getxattr(a.Ino, name)
				if err != nil {
					t.Fatalf("attribute %q of %q: %v", name, q, err)
				}
				line += fmt.Sprintf(" %s=%q", name, val)
			}
			out = append(out, line)
			if a.IsDir() {
				walk(a.Ino, q)
			}
			v.Forget(a.Ino, 1)
		}
	}
	walk(RootIno, "")
	slices.Sort(out)
	return out
}

func (s *store) expect(want ...string) {
	s.t.Helper()
	same(s.t, dump(s.t, &s.b.View), want)
}

func same(t *testing.T, got, want []string) {
	t.Helper()
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Fatalf("the tree is\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

func (s *store) seal() Layer {
	s.t.Helper()
	r, err := s.b.Seal(nil)
	s.ok(err)
	return r.Layer
}

func (s *store) back(l Layer) Moved {
	s.t.Helper()
	m, err := s.b.MoveHead(l, false, nil, nil)
	s.ok(err)
	return m
}

// sampleBase makes a small base: files, a hard link, a symbolic link, directories.
func sampleBase(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, d := range []string{"src/deep", "empty"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]string{"README": "read me\n", "src/main.go": "package main\n", "src/deep/x": "x", "one": "linked"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(c), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Link(filepath.Join(dir, "one"), filepath.Join(dir, "src/two")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("src/main.go", filepath.Join(dir, "ln")); err != nil {
		t.Fatal(err)
	}
	return dir
}

var sample = []string{
	`README mode=100644 nlink=1 "read me\n"`,
	`empty mode=40755 nlink=2`,
	`ln mode=120777 nlink=1 -> src/main.go`,
	`one mode=100644 nlink=2 "linked"`,
	`src mode=40755 nlink=3`,
	`src/deep mode=40755 nlink=2`,
	`src/deep/x mode=100644 nlink=1 "x"`,
	`src/main.go mode=100644 nlink=1 "package main\n"`,
	`src/two mode=100644 nlink=2 "linked"`,
}

func TestBaseShowsThrough(t *testing.T) {
	s := newStore(t, sampleBase(t))
	s.expect(sample...)
	if n := s.b.Changed(); n != 0 {
		t.Errorf("%d paths changed by looking", n)
	}
}

func TestChangesAndReopen(t *testing.T) {
	s := newStore(t, sampleBase(t))
	want := []string{
		`empty mode=40755 nlink=2`,
		`ln mode=120777 nlink=1 -> src/main.go`,
		`lib mode=40755 nlink=3`,
		`lib/deep mode=40755 nlink=2`,
		`lib/deep/x mode=100644 nlink=1 "x"`,
		`lib/main.go mode=100644 nlink=1 "package other\n"`,
		`lib/two mode=100644 nlink=1 "linked"`,
		`new mode=100644 nlink=1 "fresh"`,
		`README mode=40755 nlink=2`,
	}
	s.write("src/main.go", "package other\n")
	s.rename("src", "lib")
	s.unlink("README")
	s.mkdir("README")
	s.unlink("one")
	s.write("new", "fresh")
	s.expect(want...)
	s.reopen()
	s.expect(want...)
}

func TestRollbackUndoRedo(t *testing.T) {
	s := newStore(t, sampleBase(t))
	s.write("src/main.go", "v1")
	s.write("a", "A")
	one := s.seal()
	v1 := dump(t, &s.b.View)
	s.write("src/main.go", "v2 is longer")
	s.rename("src", "lib")
	s.unlink("a")
	s.unlink("README")
	v2 := dump(t, &s.b.View)
	m := s.back(one)
	same(t, dump(t, &s.b.View), v1)
	if m.Noop || len(m.Names) == 0 || len(m.Inos) == 0 {
		t.Errorf("moved %+v", m)
	}
	if again := s.back(one); !again.Noop {
		t.Error("a second rollback to the same layer moved the head")
	}
	undo := s.back(m.From)
	same(t, dump(t, &s.b.View), v2)
	s.reopen()
	same(t, dump(t, &s.b.View), v2)
	s.back(undo.From)
	same(t, dump(t, &s.b.View), v1)
	s.back(BaseLayer)
	s.expect(sample...)
}

func TestViewOfSealedLayer(t *testing.T) {
	s := newStore(t, sampleBase(t))
	s.write("f", "first")
	one := s.seal()
	s.write("f", "second")
	s.unlink("README")
	v, err := s.tree.View(one)
	s.ok(err)
	defer v.Close()
	a, err := v.Resolve("f")
	s.ok(err)
	if c, err := readAll(v, a.Ino); err != nil || c != "first" {
		t.Errorf("the sealed layer shows %q, %v", c, err)
	}
	if _, err := v.Resolve("README"); err != nil {
		t.Errorf("README is gone from the sealed layer: %v", err)
	}
}

func TestHardLinkOfBaseStaysOne(t *testing.T) {
	s := newStore(t, sampleBase(t))
	a, b := s.ino("one"), s.ino("src/two")
	if a != b {
		t.Fatalf("one is inode %d, two %d", a, b)
	}
	_, err := s.b.Write(a, []byte("BOTH"), 0, WriteFlags{})
	s.ok(err)
	s.reopen()
	if c := s.ino("src/two"); c != a {
		t.Fatalf("two is inode %d after reopening, was %d", c, a)
	}
	if c, err := readAll(&s.b.View, a); err != nil || c != "BOTHed" {
		t.Errorf("two shows %q, %v", c, err)
	}
}

func TestRemovedDirectoryComesBackEmpty(t *testing.T) {
	s := newStore(t, sampleBase(t))
	for _, p := range []string{"src/deep/x", "src/main.go", "src/two"} {
		s.unlink(p)
	}
	s.rmdir("src/deep")
	s.rmdir("src")
	s.mkdir("src")
	s.expect(`README mode=100644 nlink=1 "read me\n"`, `empty mode=40755 nlink=2`,
		`ln mode=120777 nlink=1 -> src/main.go`, `one mode=100644 nlink=1 "linked"`, `src mode=40755 nlink=2`)
}

func TestDiff(t *testing.T) {
	s := newStore(t, sampleBase(t))
	s.write("src/main.go", "changed")
	s.write("new", "n")
	s.unlink("README")
	s.rename("empty", "full")
	s.mkdir("tmp")
	s.rmdir("tmp")
	var got []string
	diff := func(from, to Layer) []string {
		got = nil
		s.ok(s.tree.Diff(from, to, func(c Change) error {
			line := string(c.Status) + " " + c.Path
			if c.OldPath != "" {
				line += " from " + c.OldPath
			}
			got = append(got, line)
			return nil
		}))
		return got
	}
	want := []string{"D README", "R full from empty", "A new", "M src/main.go"}
	slices.SortFunc(want, func(a, b string) int { return strings.Compare(a[2:], b[2:]) })
	if diff(BaseLayer, s.b.HeadLayer()); !slices.Equal(got, want) {
		t.Errorf("diff is %q, want %q", got, want)
	}
	l := s.seal()
	if diff(l, s.b.HeadLayer()); len(got) != 0 {
		t.Errorf("a fresh head differs: %q", got)
	}
	if diff(l, BaseLayer); !slices.Contains(got, "A README") || !slices.Contains(got, "D new") {
		t.Errorf("backwards: %q", got)
	}
}

func TestTruncateNeverBringsBytesBack(t *testing.T) {
	s := newStore(t, sampleBase(t))
	ino := s.ino("README")
	two, ten := int64(2), int64(10)
	_, err := s.b.Setattr(ino, SetAttr{Size: &two})
	s.ok(err)
	_, err = s.b.Setattr(ino, SetAttr{Size: &ten})
	s.ok(err)
	if c, err := readAll(&s.b.View, ino); err != nil || c != "re\x00\x00\x00\x00\x00\x00\x00\x00" {
		t.Errorf("README shows %q, %v", c, err)
	}
}

func TestOneByteOfALargeBaseFile(t *testing.T) {
	base := sampleBase(t)
	f, err := os.Create(filepath.Join(base, "big"))
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Truncate(1 << 30); err != nil {
		t.Fatal(err)
	}
	f.Close()
	s := newStore(t, base)
	before, err := s.chunks.DiskBytes()
	s.ok(err)
	ino := s.ino("big")
	_, err = s.b.Write(ino, []byte{7}, 500<<20, WriteFlags{})
	s.ok(err)
	s.ok(s.tree.cutAll())
	after, err := s.chunks.DiskBytes()
	s.ok(err)
	if after-before >= 256<<10 {
		t.Errorf("%d bytes stored", after-before)
	}
	buf := make([]byte, 3)
	if _, err := s.b.ReadAt(ino, buf, 500<<20-1); err != nil || buf[0] != 0 || buf[1] != 7 || buf[2] != 0 {
		t.Errorf("read %v, %v", buf, err)
	}
}

func TestUnlinkedButOpen(t *testing.T) {
	s := newStore(t, sampleBase(t))
	s.write("f", "kept")
	ino, based := s.ino("f"), s.ino("README")
	s.unlink("f")
	s.unlink("README")
	for i, want := range map[Ino]string{ino: "kept", based: "read me\n"} {
		a, err := s.b.Getattr(i)
		if c, err2 := readAll(&s.b.View, i); err != nil || err2 != nil || a.Nlink != 0 || c != want {
			t.Errorf("inode %d: %q nlink %d, %v %v", i, c, a.Nlink, err, err2)
		}
	}
	_, err := s.b.Write(based, []byte("WRITE"), 0, WriteFlags{})
	s.ok(err)
	if c, _ := readAll(&s.b.View, based); c != "WRITEme\n" {
		t.Errorf("the deleted base file shows %q", c)
	}
	s.seal()
	s.b.Forget(ino, 100)
	s.b.Forget(based, 100)
	if _, err := s.b.Getattr(ino); !errors.Is(err, unix.ESTALE) {
		t.Errorf("a forgotten inode answers %v", err)
	}
}

func TestLinkTakenBackLeavesTheFile(t *testing.T) {
	s := newStore(t, sampleBase(t))
	ino := s.ino("src/deep/x")
	mode := uint32(0o600)
	_, err := s.b.Setattr(ino, SetAttr{Mode: &mode})
	s.ok(err)
	one := s.seal()
	_, err = s.b.Link(ino, s.ino("src"), "y")
	s.ok(err)
	s.back(one)
	if c, err := readAll(&s.b.View, ino); err != nil || c != "x" {
		t.Errorf("the file shows %q, %v after its new link went", c, err)
	}
}
