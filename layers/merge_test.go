package layers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/kv"
)

// merge merges what branch x has now and returns the plan.
func (s *store) merge(x *store) (*Merge, error) {
	s.t.Helper()
	if !s.b.Clean() {
		s.seal()
	}
	if !x.b.Clean() {
		x.seal()
	}
	m, err := s.b.PlanMerge(context.Background(), x.b.Parent())
	s.ok(err)
	defer m.Close()
	_, err = s.b.Merge(m, nil, nil)
	return m, err
}

// mergeClean is merge without conflicts; it returns the changes as lines.
func (s *store) mergeClean(x *store) []string {
	s.t.Helper()
	m, err := s.merge(x)
	if err != nil {
		s.t.Fatalf("merge: %v, %v", err, m.Conflicts)
	}
	var out []string
	for _, c := range m.Changes {
		line := fmt.Sprintf("%s %s", c.Status, c.Path)
		if c.OldPath != "" {
			line += " from " + c.OldPath
		}
		out = append(out, line)
	}
	return out
}

func lines(out ...string) string { return strings.Join(out, "\n") + "\n" }

func (s *store) fork(name string) *store {
	s.t.Helper()
	if !s.b.Clean() {
		s.seal()
	}
	f, err := s.tree.Fork(name, s.b.Parent(), nil)
	s.ok(err)
	return s.on(f)
}

func (s *store) mode(p string, mode uint32) {
	s.t.Helper()
	_, err := s.b.Setattr(s.ino(p), SetAttr{Mode: &mode})
	s.ok(err)
}

func TestMerge(t *testing.T) {
	s := newStore(t, sampleBase(t))
	s.write("text", lines("1", "2", "3", "4", "5", "6"))
	s.mkdir("made")
	s.write("made/old", "old")
	x := s.fork("x")
	// One side each.
	x.write("README", "theirs\n")
	x.write("new", "new")
	x.mkdir("dir")
	x.write("dir/inside", "inside")
	x.rename("src/deep", "moved")
	x.unlink("ln")
	x.rmdir("empty")
	x.write("made/theirs", "theirs")
	s.write("src/main.go", "package ours\n")
	s.write("src/deep/ours", "in a directory that theirs moves")
	s.write("made/ours", "ours")
	// Both, apart from each other; and both the same.
	x.write("text", lines("1", "2", "3", "4", "5", "theirs"))
	s.write("text", lines("ours", "2", "3", "4", "5", "6"))
	x.write("same", "same")
	s.write("same", "same")
	got := s.mergeClean(x)
	want := []string{"A dir", "A dir/inside", "A made/theirs", "A new", "D empty", "D ln", "M README", "M text", "R moved from src/deep"}
	if slices.Sort(got); !slices.Equal(got, want) {
		t.Errorf("the merge changes %q, want %q", got, want)
	}
	expect := []string{
		`README mode=100644 nlink=1 "theirs\n"`, `dir mode=40755 nlink=2`, `dir/inside mode=100644 nlink=1 "inside"`,
		`made mode=40755 nlink=2`, `made/old mode=100644 nlink=1 "old"`, `made/ours mode=100644 nlink=1 "ours"`, `made/theirs mode=100644 nlink=1 "theirs"`,
		`moved mode=40755 nlink=2`, `moved/ours mode=100644 nlink=1 "in a directory that theirs moves"`, `moved/x mode=100644 nlink=1 "x"`,
		`new mode=100644 nlink=1 "new"`, `one mode=100644 nlink=2 "linked"`, `same mode=100644 nlink=1 "same"`, `src mode=40755 nlink=2`,
		`src/main.go mode=100644 nlink=1 "package ours\n"`, `src/two mode=100644 nlink=2 "linked"`,
		`text mode=100644 nlink=1 "ours\n2\n3\n4\n5\ntheirs\n"`,
	}
	s.expect(expect...)
	s.reopen()
	s.expect(expect...)
	// What was merged is the common ancestor of the next one.
	f, err := s.tree.Branch("x")
	s.ok(err)
	x = s.on(f)
	x.write("new", "newer")
	s.write("text", "all ours\n")
	if got := s.mergeClean(x); !slices.Equal(got, []string{"M new"}) {
		t.Errorf("the second merge changes %q", got)
	}
	s.want("new", "newer")
	s.want("text", "all ours\n")
	// And the other way round, what came from there is nothing new.
	if got := x.mergeClean(s); !slices.Contains(got, "M text") || slices.Contains(got, "M new") || slices.Contains(got, "A new") {
		t.Errorf("merged back it changes %q", got)
	}
	same(t, dump(t, &x.b.View), dump(t, &s.b.View))
}

func TestMergeTakenBack(t *testing.T) {
	s := newStore(t, sampleBase(t))
	x := s.fork("x")
	x.write("new", "new")
	x.unlink("README")
	x.rename("src", "lib")
	s.write("ours", "ours")
	s.seal()
	before := dump(t, &s.b.View)
	ours := s.b.Parent()
	s.mergeClean(x)
	merged := dump(t, &s.b.View)
	held := s.ino("new")
	s.back(ours)
	same(t, dump(t, &s.b.View), before)
	if _, err := s.b.Getattr(held); !errors.Is(err, unix.ESTALE) {
		t.Errorf("what was merged is there after the merge was taken back: %v", err)
	}
	s.mergeClean(x) // again: the kernel still knows what came the first time
	same(t, dump(t, &s.b.View), merged)
	if a, err := s.b.Getattr(held); err != nil || a.Nlink != 1 {
		t.Errorf("what came again: %+v, %v", a, err)
	}
	l := s.seal()
	s.back(x.b.Parent()) // a line that has what was merged without having merged it
	if a, err := s.b.Getattr(held); err != nil || a.Nlink != 1 {
		t.Errorf("what is in use, and there too: %+v, %v", a, err)
	}
	same(t, dump(t, &s.b.View), dump(t, &x.b.View))
	s.back(l)
	same(t, dump(t, &s.b.View), merged)
}

// Each case is a conflict in one of the ways, the other way round, too; and changes nothing.
func TestMergeConflicts(t *testing.T) {
	for name, c := range map[string]struct {
		ours, theirs func(*store)
		kind         ConflictKind
		path         string
	}{
		"content":                 {func(s *store) { s.write("README", "a\n") }, func(s *store) { s.write("README", "b\n") }, ConflictContent, "README"},
		"binary":                  {func(s *store) { s.write("text", "\x000\n1\n2\n3\n4\n") }, func(s *store) { s.write("text", "0\n1\n2\n3\n4\n\x00") }, ConflictContent, "text"},
		"deleted, changed":        {func(s *store) { s.unlink("README") }, func(s *store) { s.write("README", "b\n") }, ConflictDeleted, "README"},
		"deleted, mode":           {func(s *store) { s.unlink("README") }, func(s *store) { s.mode("README", 0o755) }, ConflictDeleted, "README"},
		"deleted, moved":          {func(s *store) { s.unlink("README") }, func(s *store) { s.rename("README", "moved") }, ConflictDeleted, "moved"},
		"directory deleted":       {func(s *store) { s.unlink("src/deep/x"); s.rmdir("src/deep") }, func(s *store) { s.write("src/deep/new", "b") }, ConflictDeleted, "src/deep/new"},
		"directory changed":       {func(s *store) { s.unlink("src/deep/x"); s.rmdir("src/deep") }, func(s *store) { s.write("src/deep/x", "changed") }, ConflictDeleted, "src/deep/x"},
		"empty directory":         {func(s *store) { s.rmdir("empty") }, func(s *store) { s.mkdir("empty/new") }, ConflictDeleted, "empty/new"},
		"added":                   {func(s *store) { s.write("new", "a") }, func(s *store) { s.write("new", "b") }, ConflictAdded, "new"},
		"added, modes":            {func(s *store) { s.write("new", "a") }, func(s *store) { s.write("new", "a"); s.mode("new", 0o600) }, ConflictAdded, "new"},
		"added dirs":              {func(s *store) { s.mkdir("new") }, func(s *store) { s.mkdir("new"); s.mode("new", 0o700) }, ConflictMode, "new"},
		"mode":                    {func(s *store) { s.mode("README", 0o600) }, func(s *store) { s.mode("README", 0o755) }, ConflictMode, "README"},
		"directory and file":      {func(s *store) { s.mkdir("new") }, func(s *store) { s.write("new", "b") }, ConflictDirectory, "new"},
		"replaced by a directory": {func(s *store) { s.unlink("README"); s.mkdir("README") }, func(s *store) { s.write("README", "b") }, ConflictDirectory, "README"},
		"two places":              {func(s *store) { s.rename("README", "a") }, func(s *store) { s.rename("README", "b") }, ConflictName, ""},
		"two to one":              {func(s *store) { s.rename("README", "a") }, func(s *store) { s.rename("text", "a") }, ConflictAdded, "a"},
		"into each other":         {func(s *store) { s.rename("src/deep", "empty/deep") }, func(s *store) { s.rename("empty", "src/deep/empty") }, ConflictName, ""},
		"into what is deleted":    {func(s *store) { s.rmdir("empty") }, func(s *store) { s.rename("README", "empty/README") }, ConflictDeleted, "empty/README"},
		"type":                    {func(s *store) { s.unlink("README"); s.symlink("README", "target") }, func(s *store) { s.write("README", "b") }, ConflictType, "README"},
		"symlinks":                {func(s *store) { s.unlink("ln"); s.symlink("ln", "a") }, func(s *store) { s.unlink("ln"); s.symlink("ln", "b") }, ConflictContent, "ln"},
		"xattr":                   {func(s *store) { s.xattr("README", "user.a", "a") }, func(s *store) { s.xattr("README", "user.a", "b") }, ConflictXattr, "README"},
		"each takes a name":       {func(s *store) { s.unlink("l1") }, func(s *store) { s.unlink("l2") }, ConflictDeleted, ""},
	} {
		t.Run(name, func(t *testing.T) {
			for _, way := range []bool{false, true} {
				s := newStore(t, sampleBase(t))
				s.write("text", "0\n1\n2\n3\n4\n")
				s.write("l1", "linked here")
				_, err := s.b.Link(s.ino("l1"), RootIno, "l2")
				s.ok(err)
				x := s.fork("x")
				a, b := s, x
				if way {
					a, b = x, s
				}
				c.ours(a)
				c.theirs(b)
				x.write("elsewhere", "must not come")
				if !s.b.Clean() {
					s.seal()
				}
				before, ops := dump(t, &s.b.View), s.b.Ops()
				m, err := s.merge(x)
				if !errors.Is(err, ErrConflict) || len(m.Conflicts) == 0 || m.Conflicts[0].Kind != c.kind || c.path != "" && m.Conflicts[0].Path != c.path {
					t.Errorf("swapped %t: %v, conflicts %+v; want %s at %q", way, err, m.Conflicts, c.kind, c.path)
				}
				if !s.b.Clean() || s.b.Ops() != ops {
					t.Error("something was written")
				}
				same(t, dump(t, &s.b.View), before)
				s.close()
			}
		})
	}
}

func (s *store) symlink(p, target string) {
	s.t.Helper()
	dir, name := s.dirOf(p)
	_, err := s.b.Symlink(dir, name, target, cred)
	s.ok(err)
}

func (s *store) xattr(p, name, val string) {
	s.t.Helper()
	s.ok(s.b.Setxattr(s.ino(p), name, []byte(val), 0))
}

// save writes a file as editors do: a new one, renamed over the old.
func (s *store) save(p, content string) {
	s.write(p+"~", content)
	s.rename(p+"~", p)
}

// What one side replaced by a new object is the same thing to the merge.
func TestMergeReplaced(t *testing.T) {
	ten := func(change ...string) string {
		l := []string{"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"}
		for i := 0; i < len(change); i += 2 {
			l[change[i][0]-'0'] = change[i+1]
		}
		return lines(l...)
	}
	for name, c := range map[string]struct {
		ours, theirs func(*store)
		want         []string
	}{
		"theirs saved":          {func(s *store) {}, func(s *store) { s.save("f", "new") }, []string{`f mode=100644 nlink=1 "new"`}},
		"ours saved":            {func(s *store) { s.save("f", "new") }, func(s *store) { s.write("g", "g") }, []string{`f mode=100644 nlink=1 "new"`, `g mode=100644 nlink=1 "g"`}},
		"both saved":            {func(s *store) { s.save("f", ten("1", "a")) }, func(s *store) { s.save("f", ten("8", "b")) }, []string{fmt.Sprintf("f mode=100644 nlink=1 %q", ten("1", "a", "8", "b"))}},
		"one saved":             {func(s *store) { s.write("f", ten("1", "a")) }, func(s *store) { s.save("f", ten("8", "b")) }, []string{fmt.Sprintf("f mode=100644 nlink=1 %q", ten("1", "a", "8", "b"))}},
		"mode and saved":        {func(s *store) { s.mode("f", 0o600) }, func(s *store) { s.save("f", "new") }, []string{`f mode=100600 nlink=1 "new"`}},
		"saved and mode":        {func(s *store) { s.save("f", "new") }, func(s *store) { s.mode("f", 0o600) }, []string{`f mode=100600 nlink=1 "new"`}},
		"moved and changed":     {func(s *store) { s.rename("f", "g") }, func(s *store) { s.write("f", "new") }, []string{`g mode=100644 nlink=1 "new"`}},
		"moved and saved":       {func(s *store) { s.rename("f", "g") }, func(s *store) { s.save("f", "new") }, []string{`g mode=100644 nlink=1 "new"`}},
		"attribute and saved":   {func(s *store) { s.xattr("f", "user.a", "a") }, func(s *store) { s.save("f", "new"); s.xattr("f", "user.b", "b") }, []string{`f mode=100644 nlink=1 "new" user.a="a" user.b="b"`}},
		"linked and saved":      {func(s *store) { s.link("f", "g") }, func(s *store) { s.save("f", "new") }, []string{`f mode=100644 nlink=2 "new"`, `g mode=100644 nlink=2 "new"`}},
		"linked and moved":      {func(s *store) { s.link("f", "g") }, func(s *store) { s.rename("f", "h") }, []string{fmt.Sprintf("g mode=100644 nlink=2 %q", ten()), fmt.Sprintf("h mode=100644 nlink=2 %q", ten())}},
		"both linked":           {func(s *store) { s.link("f", "g") }, func(s *store) { s.link("f", "h") }, []string{fmt.Sprintf("f mode=100644 nlink=3 %q", ten()), fmt.Sprintf("g mode=100644 nlink=3 %q", ten()), fmt.Sprintf("h mode=100644 nlink=3 %q", ten())}},
		"made a symlink":        {func(s *store) {}, func(s *store) { s.unlink("f"); s.symlink("f", "to") }, []string{`f mode=120777 nlink=1 -> to`}},
		"made a directory":      {func(s *store) { s.write("g", "g") }, func(s *store) { s.unlink("f"); s.mkdir("f"); s.write("f/x", "x") }, []string{`f mode=40755 nlink=2`, `f/x mode=100644 nlink=1 "x"`, `g mode=100644 nlink=1 "g"`}},
		"both deleted":          {func(s *store) { s.unlink("f") }, func(s *store) { s.unlink("f"); s.write("g", "g") }, []string{`g mode=100644 nlink=1 "g"`}},
		"moved to the same":     {func(s *store) { s.rename("f", "g") }, func(s *store) { s.rename("f", "g"); s.write("h", "h") }, []string{fmt.Sprintf("g mode=100644 nlink=1 %q", ten()), `h mode=100644 nlink=1 "h"`}},
		"both make a directory": {func(s *store) { s.mkdir("d"); s.mkdir("d/e"); s.write("d/e/a", "a") }, func(s *store) { s.mkdir("d"); s.mkdir("d/e"); s.write("d/e/b", "b") }, []string{`d mode=40755 nlink=3`, `d/e mode=40755 nlink=2`, `d/e/a mode=100644 nlink=1 "a"`, `d/e/b mode=100644 nlink=1 "b"`, fmt.Sprintf("f mode=100644 nlink=1 %q", ten())}},
		"an attribute goes":     {func(s *store) { s.xattr("x", "user.b", "b") }, func(s *store) { s.ok(s.b.Removexattr(s.ino("x"), "user.x")) }, []string{fmt.Sprintf("f mode=100644 nlink=1 %q", ten())}},
		"exchanged":             {func(s *store) { s.write("g", "g") }, func(s *store) { s.exchange("f", "x") }, []string{`f mode=100644 nlink=1 "x" user.x="1"`, `g mode=100644 nlink=1 "g"`}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t, t.TempDir())
			s.write("f", ten())
			s.write("x", "x")
			s.xattr("x", "user.x", "1")
			x := s.fork("x")
			c.ours(s)
			c.theirs(x)
			s.mergeClean(x)
			want := c.want
			switch name {
			case "an attribute goes":
				want = append(want, `x mode=100644 nlink=1 "x" user.b="b"`)
			case "exchanged":
				want = append(want, fmt.Sprintf("x mode=100644 nlink=1 %q", ten()))
			default:
				want = append(want, `x mode=100644 nlink=1 "x" user.x="1"`)
			}
			s.expect(want...)
			s.reopen()
			s.expect(want...)
		})
	}
}

func (s *store) link(p, to string) {
	s.t.Helper()
	dir, name := s.dirOf(to)
	_, err := s.b.Link(s.ino(p), dir, name)
	s.ok(err)
}

func (s *store) exchange(p, q string) {
	s.t.Helper()
	od, on := s.dirOf(p)
	nd, nn := s.dirOf(q)
	s.ok(s.b.Rename(od, on, nd, nn, unix.RENAME_EXCHANGE))
}

func TestMergeRefused(t *testing.T) {
	s := newStore(t, sampleBase(t))
	x := s.fork("x")
	x.write("new", "new")
	if _, err := s.b.PlanMerge(context.Background(), x.b.HeadLayer()); !errors.Is(err, ErrNoLayer) {
		t.Errorf("of an open layer: %v", err)
	}
	x.seal()
	m, err := s.b.PlanMerge(context.Background(), x.b.Parent())
	s.ok(err)
	s.write("ours", "since")
	if _, err := s.b.Merge(m, nil, nil); !errors.Is(err, ErrMoved) {
		t.Errorf("into a head that has changed since: %v", err)
	}
	m.Close()
	s.seal()
	m, err = s.b.PlanMerge(context.Background(), x.b.Parent())
	s.ok(err)
	defer m.Close()
	before, stop := dump(t, &s.b.View), errors.New("stop")
	if _, err := s.b.Merge(m, func(*kv.Batch, Moved) error { return stop }, nil); !errors.Is(err, stop) || !s.b.Clean() {
		t.Errorf("stopped: %v", err)
	}
	same(t, dump(t, &s.b.View), before)
	if _, err := s.b.Merge(m, nil, nil); err != nil {
		t.Errorf("after that: %v", err)
	}
	s.want("new", "new")
	s.seal()
	if again, err := s.b.PlanMerge(context.Background(), x.b.Parent()); err != nil || !again.Noop() {
		t.Errorf("once more: %+v, %v", again, err)
	}
	// What was merged stays for the next merge, whatever a collection gives up.
	if all, err := s.tree.Forks(); err != nil || !slices.Contains(all, x.b.Parent()) {
		t.Errorf("forks: %v, %v", all, err)
	}
}
