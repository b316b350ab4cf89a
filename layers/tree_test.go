package layers

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

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
