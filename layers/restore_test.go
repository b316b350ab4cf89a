package layers

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/kv"
)

// restore brings paths of l back.
func (s *store) restore(l Layer, paths ...string) Restored {
	s.t.Helper()
	res, err := s.b.Restore(l, paths, false, nil, nil)
	s.ok(err)
	return res
}

func (s *store) read(p string) string {
	s.t.Helper()
	ino := s.ino(p)
	defer s.b.Forget(ino, 1)
	a, err := s.b.Getattr(ino)
	s.ok(err)
	b := make([]byte, a.Size)
	_, err = s.b.ReadAt(ino, b, 0)
	s.ok(err)
	return string(b)
}

func baseOf(t *testing.T, files map[string]string) string {
	t.Helper()
	base := t.TempDir()
	for p, text := range files {
		at := filepath.Join(base, p)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return base
}

// A restored file has the base's bytes by the base's own path: what stands at that path here, or comes to, does not matter. That the
// base changes is drift, and an error where old bytes are wanted.
func TestRestoredSource(t *testing.T) {
	long := strings.Repeat("0123456789abcde\x00", 5000) // no text, so no original of it is kept
	base := baseOf(t, map[string]string{"d/f": long, "d/g": "g"})
	s := newStore(t, base)
	ino := s.ino("d/f")
	_, err := s.b.Write(ino, []byte("XX"), 3, WriteFlags{})
	s.ok(err)
	cp := s.seal()
	want := "012XX" + long[5:]
	s.unlink("d/f")
	s.unlink("d/g")
	s.rename("d", "moved")
	s.mkdir("d")
	s.write("d/f", "another")
	res := s.restore(cp, "d/f", "d/g")
	if res.From == 0 || res.Open == res.From || len(res.Changes) != 2 || res.Changes[0].Status != Modified || res.Changes[1].Status != Added {
		t.Errorf("restore says %+v", res)
	}
	check := func(when string) {
		t.Helper()
		if got := s.read("d/f"); got != want {
			t.Errorf("%s: %d bytes, %.30q", when, len(got), got)
		}
		if got := s.read("d/g"); got != "g" {
			t.Errorf("%s: %q", when, got)
		}
	}
	check("restored")
	s.reopen()
	check("opened again")
	s.rename("moved", "d2")
	s.rename("d", "d3")
	s.rename("d3", "d")
	check("directories renamed")
	if got := s.restore(cp, "d/f"); !got.Noop {
		t.Errorf("a second restore is none: %+v", got)
	}
	// Writing to it is copy-on-write, as anywhere.
	_, err = s.b.Write(s.ino("d/f"), []byte("Y"), 0, WriteFlags{})
	s.ok(err)
	want = "Y" + want[1:]
	check("written to")
	if d, err := s.b.Drift(); err != nil || len(d) != 0 {
		t.Errorf("drift %v, %v", d, err)
	}
	s.ok(os.WriteFile(filepath.Join(base, "d/f"), []byte(long+"!"), 0o644))
	d, err := s.b.Drift()
	if err != nil || len(d) == 0 || d[0].Path != "d/f" || d[0].Reason != "changed" {
		t.Errorf("drift %v, %v", d, err)
	}
	if _, err := s.b.ReadAt(s.ino("d/f"), make([]byte, 10), 100); !errors.Is(err, unix.EIO) {
		t.Errorf("bytes that the base has no more: %v", err)
	}
}

// Who holds a replaced file or directory keeps it, without a name; its records go with the last reference.
func TestRestoreUnderUse(t *testing.T) {
	s := newStore(t, baseOf(t, map[string]string{"a": "base a", "d/x": "base x"}))
	cp := s.seal()
	s.write("a", "new a")
	s.mkdir("e")
	s.write("e/f", "f")
	file, dir, inner := s.ino("a"), s.ino("e"), s.ino("e/f")
	res := s.restore(cp, "a", "e")
	for _, ino := range []Ino{file, dir, inner} {
		if a, err := s.b.Getattr(ino); err != nil || a.Nlink != 0 {
			t.Errorf("inode %d: %+v, %v", ino, a, err)
		}
		found := false
		for _, i := range res.Inos {
			found = found || i == ino
		}
		if !found {
			t.Errorf("the kernel is not told of inode %d: %v", ino, res.Inos)
		}
	}
	_, err := s.b.Write(file, []byte("late"), 0, WriteFlags{})
	s.ok(err)
	if got := s.read("a"); got != "base a" {
		t.Errorf("a write to the replaced file shows: %q", got)
	}
	if _, err := s.b.Mknod(dir, "g", unix.S_IFREG|0o644, 0, cred); !errors.Is(err, unix.ENOENT) {
		t.Errorf("a file in a directory that is gone: %v", err)
	}
	b := make([]byte, 4)
	if _, err := s.b.ReadAt(file, b, 0); err != nil || string(b) != "late" {
		t.Errorf("the replaced file: %q, %v", b, err)
	}
	for _, ino := range []Ino{file, dir, inner} {
		s.b.Forget(ino, 1<<20)
	}
	if u := s.tree.Usage(); len(s.b.orphans) != 0 {
		t.Errorf("orphans %v, usage %+v", s.b.orphans, u)
	}
	s.reopen()
	if got := s.read("a"); got != "base a" {
		t.Errorf("opened again: %q", got)
	}
}

// An error at any step changes nothing, in memory or in the store.
func TestRestoreFails(t *testing.T) {
	s := newStore(t, baseOf(t, map[string]string{"a": "base a", "d/x": "base x"}))
	cp := s.seal()
	s.write("a", "new a")
	s.unlink("d/x")
	head, parent, changed := s.b.HeadLayer(), s.b.Parent(), s.b.Changed()
	no := errors.New("no")
	if _, err := s.b.Restore(cp, []string{""}, false, func(*kv.Batch, Restored) error { return no }, nil); !errors.Is(err, no) {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		l    Layer
		path string
		want error
	}{"no layer": {99, "a", ErrNoLayer}, "open layer": {head, "a", ErrNoLayer}, "no path": {cp, "nowhere/x", ErrNoPath}} {
		if _, err := s.b.Restore(c.l, []string{c.path}, false, nil, nil); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	s.rmdir("d")
	s.write("d", "in the way")
	if _, err := s.b.Restore(cp, []string{"d/x"}, false, nil, nil); !errors.Is(err, ErrInTheWay) {
		t.Error(err)
	}
	if s.b.HeadLayer() != head || s.b.Parent() != parent || s.b.Changed() < changed || s.b.Clean() {
		t.Errorf("the head moved: %d on %d", s.b.HeadLayer(), s.b.Parent())
	}
	s.reopen()
	if got := s.read("a") + s.read("d"); got != "new ain the way" {
		t.Errorf("%q", got)
	}
	// Numbers that a failed batch was to reserve are not given twice.
	if _, err := s.b.Restore(cp, []string{""}, false, func(*kv.Batch, Restored) error { return no }, nil); !errors.Is(err, no) {
		t.Fatal(err)
	}
	s.restore(cp, "a")
	first := s.ino("a")
	s.reopen()
	for range 4 {
		s.restore(cp, "")
		if s.ino("d/x") == first {
			t.Error("an inode number was given twice")
		}
		s.unlink("d/x")
	}
	s.restore(cp, "")
	if got := s.read("a") + s.read("d/x"); got != "base abase x" {
		t.Errorf("%q", got)
	}
}

// Pending bytes of the checkpoint become chunks that both share.
func TestRestoreSharesChunks(t *testing.T) {
	s := newStore(t, baseOf(t, map[string]string{"a": "base a"}))
	s.write("small", "pending")
	s.write("big", strings.Repeat("x", 3<<20))
	cp := s.seal()
	s.unlink("small")
	s.unlink("big")
	before, err := s.chunks.DiskBytes()
	s.ok(err)
	s.restore(cp, "small", "big")
	after, err := s.chunks.DiskBytes()
	s.ok(err)
	if after-before > 1<<16 {
		t.Errorf("%d bytes were stored", after-before)
	}
	if got := s.read("small"); got != "pending" || len(s.read("big")) != 3<<20 {
		t.Errorf("%q", got)
	}
	if u := s.tree.Usage(); u.PendingBytes != 0 {
		t.Errorf("%d bytes pending", u.PendingBytes)
	}
	_, err = s.tree.Reclaim()
	s.ok(err)
	if got := s.read("small"); got != "pending" {
		t.Errorf("%q", got)
	}
}

// TestRestoreManyFiles shows what a large directory costs; it asserts nothing about time.
func TestRestoreManyFiles(t *testing.T) {
	files := map[string]string{}
	const n = 2000
	for i := range n {
		files[fmt.Sprintf("node_modules/p%d/f%d", i%50, i)] = "x"
	}
	s := newStore(t, baseOf(t, files))
	cp := s.seal()
	s.restore(cp, "")
	removed, err := s.b.Restore(cp, []string{"node_modules"}, false, nil, nil)
	if err != nil || !removed.Noop {
		t.Fatalf("%+v, %v", removed, err)
	}
	s.mkdir("empty")
	s.rename("node_modules", "gone")
	start := time.Now()
	res := s.restore(cp, "node_modules")
	t.Logf("%d files restored in %v", n, time.Since(start))
	if len(res.Changes) != n+51 {
		t.Errorf("%d changes", len(res.Changes))
	}
	if got := len(s.b.nodes); got > 100 {
		t.Errorf("%d nodes stay in memory", got)
	}
	start = time.Now()
	back := s.restore(cp, "gone")
	t.Logf("%d files removed in %v", n, time.Since(start))
	if len(back.Changes) != n+51 {
		t.Errorf("%d changes", len(back.Changes))
	}
	if got := len(s.b.nodes); got > 100 {
		t.Errorf("%d nodes stay in memory", got)
	}
}

// A line of layers never gets paths of another generation of the base.
func TestRestoreOverGenerations(t *testing.T) {
	s := newStore(t, baseOf(t, map[string]string{"a": "base a", "b": "base b"}))
	s.write("a", "new")
	old := s.seal()
	_, err := s.tree.KeepBase(t.Context(), []string{"b"}, nil)
	s.ok(err)
	s.ok(os.WriteFile(filepath.Join(s.base, "b"), []byte("committed"), 0o644))
	s.tree.BaseChanged()
	two, err := s.tree.Branch("two")
	s.ok(err)
	if _, err := two.Restore(old, []string{"a"}, false, nil, nil); !errors.Is(err, ErrGeneration) {
		t.Errorf("a path of an older generation: %v", err)
	}
	s.unlink("b")
	s.restore(BaseLayer, "b")
	if got := s.read("b"); got != "base b" {
		t.Errorf("the base as of the line: %q", got)
	}
	s.reopen()
	if got := s.read("b"); got != "base b" {
		t.Errorf("opened again: %q", got)
	}
}

// Restores beside programs at work: what is restored is whole each time, and what they write to what was replaced goes nowhere.
func TestRestoreUnderWrites(t *testing.T) {
	s := newStore(t, baseOf(t, map[string]string{"d/f": "base", "d/g": strings.Repeat("g", 200<<10)}))
	s.write("d/f", "checkpoint")
	cp := s.seal()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for i := range 3 {
		wg.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				a, err := s.b.Resolve("d/f")
				if err == nil {
					_, err = s.b.Write(a.Ino, []byte(fmt.Sprintf("writer %d %d", i, n)), 0, WriteFlags{})
					s.b.Forget(a.Ino, 1)
				}
				dir, err2 := s.b.Resolve("d")
				if err2 == nil {
					if m, err := s.b.Mknod(dir.Ino, fmt.Sprintf("n%d", i), unix.S_IFREG|0o644, 0, cred); err == nil {
						s.b.Forget(m.Ino, 1)
					}
					if n%3 == 0 {
						err2 = s.b.Unlink(dir.Ino, "g")
					}
					s.b.Forget(dir.Ino, 1)
				}
				for _, err := range []error{err, err2} {
					if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ESTALE) {
						t.Errorf("writer %d: %v", i, err)
						return
					}
				}
			}
		})
	}
	for range 40 {
		_, err := s.b.Restore(cp, []string{"d"}, false, nil, func(Moved) { // still locked: nobody has written since
			for p, want := range map[string]string{"d/f": "checkpoint", "d/g": strings.Repeat("g", 200<<10)} {
				n, err := s.b.at(p)
				if err != nil || n == nil {
					t.Errorf("%s: %v, %v", p, n, err)
					continue
				}
				if a, err := s.b.attr(n); err != nil || a.Size != int64(len(want)) {
					t.Errorf("%s has %d bytes, %v", p, a.Size, err)
				}
			}
			if n, err := s.b.at("d/n1"); n != nil || err != nil {
				t.Errorf("what the checkpoint does not have: %v, %v", n, err)
			}
		})
		if err != nil {
			t.Error(err)
		}
	}
	close(stop)
	wg.Wait()
	s.restore(cp, "")
	s.reopen()
	if got := s.read("d/f"); got != "checkpoint" {
		t.Errorf("%q", got)
	}
	if got := len(s.read("d/g")); got != 200<<10 {
		t.Errorf("%d bytes", got)
	}
}

// Names of one file that were restored one at a time are several files; restoring them together joins them again.
func TestRestoreJoinsNames(t *testing.T) {
	for _, c := range []struct {
		name     string
		apart    func(s *store, cp Layer)
		together []string
	}{
		{"all", func(s *store, cp Layer) { s.restore(cp, "d/a"); s.restore(cp, "d/e/b"); s.restore(cp, "c") }, []string{""}},
		{"a directory made anew", func(s *store, cp Layer) {
			s.unlink("d/x")
			s.rmdir("d/e")
			s.rmdir("d")
			s.restore(cp, "d")
			s.restore(cp, "c")
		}, []string{""}},
		{"one is missing", func(s *store, cp Layer) { s.restore(cp, "d/a"); s.restore(cp, "c") }, []string{""}},
		{"by name", func(s *store, cp Layer) { s.restore(cp, "d/a"); s.restore(cp, "d/e/b"); s.restore(cp, "c") }, []string{"d/a", "d/e/b", "c"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newStore(t, baseOf(t, map[string]string{"d/x": "x", "d/e/y": "y"}))
			s.unlink("d/e/y")
			s.write("c", "content")
			s.link("c", "d/a")
			s.link("c", "d/e/b")
			cp := s.seal()
			s.unlink("c")
			s.unlink("d/a")
			s.unlink("d/e/b")
			c.apart(s, cp)
			if a, err := s.b.Getattr(s.ino("c")); err != nil || a.Nlink == 3 {
				t.Fatalf("they were never apart: %+v, %v", a, err)
			}
			s.restore(cp, c.together...)
			ino := s.ino("c")
			if a, err := s.b.Getattr(ino); err != nil || a.Nlink != 3 || s.ino("d/a") != ino || s.ino("d/e/b") != ino || s.read("d/e/b") != "content" {
				t.Errorf("c is %+v, %v; d/a is %d, d/e/b is %d", a, err, s.ino("d/a"), s.ino("d/e/b"))
			}
			if m := s.restore(cp, c.together...); !m.Noop {
				t.Errorf("a second time it did something: %+v", m)
			}
			s.reopen()
			if s.ino("c") != s.ino("d/e/b") {
				t.Error("they are apart after a restart")
			}
		})
	}
}
