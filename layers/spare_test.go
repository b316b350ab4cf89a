package layers

import (
	"strings"
	"testing"
)

// sparing has the tree spare the paths below "kept" directories and of names that end in .log.
func (s *store) sparing() {
	s.tree.spare = func(p string, dir bool) bool {
		for part := range strings.SplitSeq(p, "/") {
			if part == "kept" || strings.HasSuffix(part, ".log") {
				return true
			}
		}
		return false
	}
}

func TestSpare(t *testing.T) {
	s := newStore(t, sampleBase(t))
	s.sparing()
	s.mkdir("kept")
	s.write("kept/a", "a at start")
	s.write("kept/gone", "gone since")
	s.write("app.log", "start\n")
	s.write("f", "start")
	start := s.seal()
	s.write("f", "later")
	s.write("kept/a", "a later")
	s.write("kept/new", "new")
	s.unlink("kept/gone")
	s.mkdir("kept/d")
	s.write("kept/d/x", "x")
	s.write("app.log", "start\nmore\n")
	s.mkdir("var")
	s.write("var/var.log", "var")
	s.write("var/other", "not kept")
	s.rename("src/deep", "kept/deep")
	s.unlink("README")
	log, x := s.ino("app.log"), s.ino("kept/d/x")
	attr, err := s.b.Getattr(log)
	s.ok(err)
	dirAttr, err := s.b.Getattr(s.ino("kept"))
	s.ok(err)
	m := s.back(start)
	expect := append(sample[:len(sample):len(sample)],
		`app.log mode=100644 nlink=1 "start\nmore\n"`, `f mode=100644 nlink=1 "start"`, `kept mode=40755 nlink=3`,
		`kept/a mode=100644 nlink=1 "a later"`, `kept/new mode=100644 nlink=1 "new"`, `kept/d mode=40755 nlink=2`, `kept/d/x mode=100644 nlink=1 "x"`,
		`var mode=40755 nlink=2`, `var/var.log mode=100644 nlink=1 "var"`)
	s.expect(expect...)
	for _, ino := range append(m.Inos, m.Renew...) {
		if ino == log || ino == x {
			t.Errorf("the kernel is told of inode %d, which stays", ino)
		}
	}
	if now, err := s.b.Getattr(log); err != nil || now != attr {
		t.Errorf("a kept file is %+v, %v; was %+v", now, err, attr)
	}
	if now, err := s.b.Getattr(s.ino("kept")); err != nil || now.Mtime != dirAttr.Mtime || now.Ctime != dirAttr.Ctime {
		t.Errorf("a kept directory is %+v, %v; was %+v", now, err, dirAttr)
	}
	_, err = s.b.Write(log, []byte("on\n"), attr.Size, WriteFlags{}) // by one who has it open
	s.ok(err)
	s.want("app.log", "start\nmore\non\n")
	s.reopen()
	s.sparing()
	s.want("app.log", "start\nmore\non\n")
	s.want("kept/d/x", "x")
	s.back(m.From) // redo: kept paths stay as they are now, too
	s.want("app.log", "start\nmore\non\n")
	s.want("f", "later")
	s.want("var/other", "not kept")
	s.want("kept/a", "a later")
	s.unlink("kept/a")
	s.unlink("kept/new")
	s.unlink("kept/d/x")
	s.rmdir("kept/d")
	s.rename("kept/deep", "src/deep")
	s.rmdir("kept")
	s.back(start)
	s.expect(append(sample[:len(sample):len(sample)], `app.log mode=100644 nlink=1 "start\nmore\non\n"`, `f mode=100644 nlink=1 "start"`,
		`var mode=40755 nlink=2`, `var/var.log mode=100644 nlink=1 "var"`)...)
	s.back(BaseLayer)
	s.expect(append(sample[:len(sample):len(sample)], `app.log mode=100644 nlink=1 "start\nmore\non\n"`, `var mode=40755 nlink=2`, `var/var.log mode=100644 nlink=1 "var"`)...)
}

// Where the target has something that is not kept, that is what is there.
func TestSpareInTheWay(t *testing.T) {
	s := newStore(t, t.TempDir())
	s.sparing()
	s.write("a", "a")
	s.mkdir("b")
	s.write("moved", "moved at start")
	start := s.seal()
	s.unlink("a")
	s.mkdir("a")
	s.write("a/a.log", "below what is a file there")
	s.mkdir("kept")
	s.rename("moved", "kept/moved")
	s.rename("b", "kept/b")
	s.write("kept/b/x", "in a directory that goes back")
	s.write("kept/moved", "moved later")
	s.write("kept/stays", "stays")
	s.back(start)
	s.expect(`a mode=100644 nlink=1 "a"`, `b mode=40755 nlink=2`, `moved mode=100644 nlink=1 "moved at start"`,
		`kept mode=40755 nlink=2`, `kept/stays mode=100644 nlink=1 "stays"`)
	s.reopen()
	s.expect(`a mode=100644 nlink=1 "a"`, `b mode=40755 nlink=2`, `moved mode=100644 nlink=1 "moved at start"`,
		`kept mode=40755 nlink=2`, `kept/stays mode=100644 nlink=1 "stays"`)
}

// A layer that has only what a movement spared is as good as empty, also after a restart, until a program writes something.
func TestSparedIsNoChange(t *testing.T) {
	s := newStore(t, t.TempDir())
	s.sparing()
	s.write("app.log", "start")
	s.write("f", "start")
	start := s.seal()
	s.write("app.log", "later")
	s.write("f", "later")
	s.back(start)
	again := func(noop bool) {
		t.Helper()
		s.reopen()
		s.sparing()
		s.want("app.log", "later")
		if m, err := s.b.MoveHead(start, false, nil, nil); err != nil || m.Noop != noop || m.Untouched != noop {
			t.Errorf("moving to where the head is: %+v, %v; want noop %v", m, err, noop)
		}
	}
	again(true)
	_, err := s.b.Write(s.ino("app.log"), []byte("l"), 0, WriteFlags{}) // changes no more paths than are changed already
	s.ok(err)
	again(false)
	again(true)
}
