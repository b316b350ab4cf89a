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

// numberInBase returns the inode number of a base object.
func (s *store) numberInBase(p string) Ino {
	s.t.Helper()
	st, err := s.host.stat(p)
	s.ok(err)
	s.tree.mu.Lock()
	defer s.tree.mu.Unlock()
	ino, err := s.tree.inoOf(p, &st)
	s.ok(err)
	return ino
}

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
