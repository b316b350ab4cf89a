package layers

import (
	"errors"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/kv"
)

// on has what follows work on another branch.
func (s *store) on(b *Branch) *store {
	other := *s
	other.b = b
	return &other
}

func (s *store) want(p, content string) {
	s.t.Helper()
	if got, err := readAll(&s.b.View, s.ino(p)); err != nil || got != content {
		s.t.Fatalf("%s is %q, %v; want %q", p, got, err, content)
	}
}

func TestFork(t *testing.T) {
	s := newStore(t, t.TempDir())
	s.write("f", "one")
	start := s.seal()
	s.write("f", "main")
	f, err := s.tree.Fork("x", start, nil)
	s.ok(err)
	x := s.on(f)
	x.want("f", "one")
	x.write("f", "x")
	x.write("only", "x")
	s.want("f", "main")
	if _, err := s.b.Resolve("only"); !errors.Is(err, unix.ENOENT) {
		t.Fatalf("what one branch made shows in another: %v", err)
	}
	if _, err := s.tree.Fork("x", start, nil); !errors.Is(err, ErrBranchExists) {
		t.Fatalf("a second one of the name: %v", err)
	}
	for _, l := range []Layer{s.b.HeadLayer(), f.HeadLayer(), 1 << 40} {
		if _, err := s.tree.Fork("y", l, nil); !errors.Is(err, ErrNoLayer) {
			t.Fatalf("on layer %d, open or unknown: %v", l, err)
		}
	}
	stop := errors.New("stop")
	next := s.tree.nextLayer
	if _, err := s.tree.Fork("y", start, func(*kv.Batch, Forked) error { return stop }); !errors.Is(err, stop) || s.tree.nextLayer != next {
		t.Fatalf("stopped: %v, next layer %d, was %d", err, s.tree.nextLayer, next)
	}
	of := x.seal()
	if l := s.tree.Common(s.b.HeadLayer(), f.HeadLayer()); l != start {
		t.Errorf("the lines part at %d, not %d", l, start)
	}
	if all, err := s.tree.Forks(); err != nil || !slices.Equal(all, []Layer{start}) {
		t.Errorf("forks: %v, %v", all, err)
	}
	if line := s.tree.Line(f.HeadLayer()); !line(of) || !line(start) || !line(BaseLayer) || line(s.b.HeadLayer()) {
		t.Error("the line of the fork")
	}
	x.write("f", "open")
	s.reopen()
	heads, err := s.tree.Heads()
	if err != nil || len(heads) != 2 || heads[1].Branch != "x" || heads[1].Parent != of {
		t.Fatalf("heads: %+v, %v", heads, err)
	}
	f, err = s.tree.Branch("x")
	s.ok(err)
	x = s.on(f)
	x.want("f", "open")
	x.want("only", "x")
	s.want("f", "main")
}

// A branch that is closed while files are in use gives them up, and can be opened anew.
func TestCloseBranch(t *testing.T) {
	s := newStore(t, t.TempDir())
	f, err := s.tree.Fork("x", BaseLayer, nil)
	s.ok(err)
	x := s.on(f)
	x.write("held", "content")
	ino := x.ino("held")
	x.unlink("held")
	if n, err := f.ReadAt(ino, make([]byte, 7), 0); n != 7 || err != nil {
		t.Fatalf("a removed file in use: %d, %v", n, err)
	}
	x.write("f", "x")
	f.Close()
	for what, err := range map[string]error{
		"getattr": second(f.Getattr(ino)), "lookup": second(f.Lookup(RootIno, "f")), "write": second(f.Write(RootIno, []byte("x"), 0, WriteFlags{})),
		"root": second(f.Getattr(RootIno)), "mkdir": second(f.Mkdir(RootIno, "d", 0o755, cred)),
	} {
		if !errors.Is(err, unix.ESTALE) {
			t.Errorf("%s after closing: %v", what, err)
		}
	}
	f.Forget(ino, 1)
	g, err := s.tree.Branch("x")
	if err != nil || g == f {
		t.Fatalf("opened anew: %p, %p, %v", g, f, err)
	}
	s.on(g).want("f", "x")
	left := 0
	s.ok(s.db.Scan(kv.OrphanPrefix(), nil, func(_, _ []byte) bool { left++; return true }))
	s.ok(s.db.Scan(kv.InodePrefix(uint64(ino)), nil, func(_, _ []byte) bool { left++; return true }))
	if left > 0 {
		t.Errorf("%d records of the file in use are left", left)
	}
}

func TestDropBranch(t *testing.T) {
	s := newStore(t, t.TempDir())
	s.write("f", "main")
	start := s.seal()
	f, err := s.tree.Fork("x", start, nil)
	s.ok(err)
	x := s.on(f)
	x.write("f", "x")
	stop := errors.New("stop")
	if _, err := f.Drop(func(*kv.Batch, Sealed) error { return stop }); !errors.Is(err, stop) {
		t.Fatal(err)
	}
	x.want("f", "x")
	last, err := f.Drop(nil)
	if err != nil || last.Parent != start || last.Changed != 1 {
		t.Fatalf("dropped: %+v, %v", last, err)
	}
	s.reopen()
	if heads, err := s.tree.Heads(); err != nil || len(heads) != 1 {
		t.Fatalf("heads: %+v, %v", heads, err)
	}
	g, err := s.tree.Fork("x", last.Layer, nil) // its last state can be had until a collection
	s.ok(err)
	s.on(g).want("f", "x")
	if _, err := g.Drop(nil); err != nil {
		t.Fatal(err)
	}
	if _, err := s.tree.Collect(t.Context(), []Layer{start}, CollectOptions{}); err != nil {
		t.Fatal(err)
	}
	if s.tree.Has(last.Layer) {
		t.Error("what nobody needs of it is still there")
	}
	s.want("f", "main")
}

func second[T any](_ T, err error) error { return err }
