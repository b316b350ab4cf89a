package layers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/kv"
)

// damagedStore is a history with something of every class in it. Nobody has it open but the test.
func damagedStore(t *testing.T) (s *store, first, second Layer) {
	t.Helper()
	base := kernelBase(t)
	s = newStore(t, base)
	s.write("big", string(noise(1, 300_000)))
	s.mkdir("dir")
	s.write("dir/f", "in a new directory")
	s.write("a/b", "over the base")
	ino := s.ino("dir/f")
	_, err := s.b.Link(ino, RootIno, "link")
	s.ok(err)
	s.b.Forget(ino, 1)
	s.ok(s.b.Setxattr(ino, "user.x", []byte("value"), 0))
	first = s.seal()
	s.write("big", string(noise(2, 300_000)))
	s.write("dir/g", "second")
	s.ok(s.tree.cutAll())
	second = s.seal()
	s.keep("c/d/e")
	s.change(func(base string) error { return os.WriteFile(filepath.Join(base, "c/d/e"), []byte("later"), 0o644) })
	for !s.digestsMade() {
		s.ok(s.tree.digestSome(s.tree.now().Add(1 << 40)))
	}
	return s, first, second
}

func (s *store) digestsMade() bool { return len(s.tree.undigested()) == 0 }

// TestCheckFindsDamage damages a record of each class: Check finds it, says where, and after a repair the
// store opens, what is not damaged reads as before, and what is lost is an error, never another byte.
func TestCheckFindsDamage(t *testing.T) {
	garbled := []byte{0xff, 0xff}
	type damage struct {
		name   string
		class  string                                     // of the keys to damage
		pick   func(s *store, k []byte, first Layer) bool // which of them
		value  []byte                                     // nil: remove it
		kind   string                                     // that a finding must have
		path   string                                     // that some finding must have
		lost   bool
		broken []string // paths that may fail, in whatever layer. With "old:" in front: show what was before, which only the digest tells
	}
	inLayer := func(l func(first Layer) Layer) func(*store, []byte, Layer) bool {
		return func(_ *store, k []byte, first Layer) bool { return layerAt(k) == l(first) }
	}
	atFirst := inLayer(func(l Layer) Layer { return l })
	atSecond := inLayer(func(l Layer) Layer { return l + 1 })
	named := func(name string, next func(*store, []byte, Layer) bool) func(*store, []byte, Layer) bool {
		return func(s *store, k []byte, first Layer) bool {
			return strings.Contains(string(k), name) && next(s, k, first)
		}
	}
	of := func(p string, next func(*store, []byte, Layer) bool) func(*store, []byte, Layer) bool {
		return func(s *store, k []byte, first Layer) bool { return Ino(inoIn(k)) == s.ino(p) && next(s, k, first) }
	}
	anyOne := func(*store, []byte, Layer) bool { return true }
	for _, d := range []damage{
		{name: "index entry gone", class: "c/", pick: anyOne, kind: "index"},
		{name: "index entry garbled", class: "c/", pick: anyOne, value: garbled, kind: "index"},
		{name: "content garbled", class: "x/", pick: of("big", atSecond), value: garbled, kind: "content", path: "big", lost: true, broken: []string{"big"}},
		{name: "content gone", class: "x/", pick: of("big", atSecond), kind: "digest", lost: true, broken: []string{"old:big"}},
		{name: "chunk index gone", class: "b/", pick: anyOne, kind: "content", lost: true, broken: []string{"big", "dir/f", "link", "a/b", "dir/g", "c/d/e"}},
		{name: "chunk index garbled", class: "b/", pick: anyOne, value: garbled, kind: "content", lost: true, broken: []string{"big", "dir/f", "link", "a/b", "dir/g", "c/d/e"}},
		{name: "inode garbled", class: "n/", pick: of("big", atSecond), value: garbled, kind: "inode", path: "big", lost: true, broken: []string{"big"}},
		{name: "inode gone", class: "n/", pick: of("dir/g", atSecond), kind: "inode", lost: true, broken: []string{"dir/g"}},
		{name: "name garbled", class: "d/", pick: named("/g\x00", atSecond), value: garbled, kind: "name", path: "dir/g", lost: true, broken: []string{"dir/g"}},
		{name: "name gone", class: "d/", pick: named("/g\x00", atSecond), kind: "name", path: "dir/g", lost: true, broken: []string{"dir/g"}},
		{name: "reverse name garbled", class: "r/", pick: atFirst, value: garbled, kind: "reverse name"},
		{name: "reverse name gone", class: "r/", pick: atFirst, kind: "reverse name"},
		{name: "attribute garbled", class: "a/", pick: atFirst, value: garbled, kind: "attribute", lost: true},
		{name: "digest garbled", class: "g/", pick: anyOne, value: garbled, kind: "digest"},
		{name: "pre-image garbled", class: "y/", pick: named("c/d\x00e", anyOne), value: garbled, kind: "pre-image", path: "c/d/e", lost: true, broken: []string{"c/d/e"}},
		{name: "head garbled", class: "h/", pick: anyOne, value: garbled, kind: "head"},
		{name: "head gone", class: "h/", pick: anyOne, kind: "head"},
		{name: "layer garbled", class: "l/", pick: func(_ *store, k []byte, first Layer) bool { l, _ := kv.ParseLayerKey(k); return Layer(l) == first+1 }, value: garbled, kind: "layer"},
		{name: "layer gone", class: "l/", pick: func(_ *store, k []byte, first Layer) bool { l, _ := kv.ParseLayerKey(k); return Layer(l) == first+1 }, kind: "layer"},
		{name: "written bytes garbled", class: "w/", pick: nil, value: []byte{}, kind: "content", lost: true},
		{name: "mark garbled", class: "o/", pick: nil, value: []byte{}, kind: "orphan"},
		{name: "counter low", class: "m/next_layer", pick: anyOne, value: make([]byte, 8), kind: "counter"},
		{name: "counter gone", class: "m/next_ino", pick: anyOne, kind: "counter"},
	} {
		t.Run(d.name, func(t *testing.T) {
			s, first, second := damagedStore(t)
			want := map[Layer][]string{}
			for _, l := range []Layer{first, second} {
				want[l] = s.lines(l)
			}
			open := s.b.HeadLayer()
			s.clean()
			key := []byte(d.class + "litter")
			if d.pick != nil {
				key = nil
				s.ok(s.db.Scan([]byte(d.class), nil, func(k, _ []byte) bool {
					if key == nil && d.pick(s, k, first) {
						key = slices.Clone(k)
					}
					return key == nil
				}))
			}
			if key == nil {
				t.Fatal("there is no such record")
			}
			s.ok(s.tree.Close())
			s.tree = nil
			t.Cleanup(func() {
				if s.tree == nil {
					s.ok(errors.Join(s.host.Close(), s.chunks.Close(), s.db.Close()))
				}
			})
			var b kv.Batch
			if d.value == nil {
				b.Delete(key)
			} else {
				b.Put(key, d.value)
			}
			s.ok(s.db.Apply(&b))
			o := CheckOptions{
				Branches: map[string]Layer{"main": open}, Needed: []Layer{first, second},
				Known: func(l Layer) (Layer, Time, bool) { return l - 1, Time{Sec: 1}, l > 1 },
			}
			before := s.check(o)
			o.Repair = true
			fixed := s.check(o)
			if len(fixed) == 0 {
				t.Fatal("the repair found nothing")
			}
			if !slices.ContainsFunc(before, func(f Finding) bool {
				return f.Kind == d.kind && f.Lost == d.lost && (d.path == "" || f.Path == d.path && (len(f.Layers) > 0 || d.kind == "pre-image"))
			}) {
				for _, f := range before {
					t.Log(f.text())
				}
				t.Fatalf("no finding of kind %q at %q, lost %v", d.kind, d.path, d.lost)
			}
			o.Repair = false
			for _, f := range s.check(o) {
				if !d.lost {
					t.Errorf("after a repair: %s", f.text())
				}
			}
			s.open2(t)
			s.readsAsBefore(want, d.broken)
			s.stillWorks(d.lost)
		})
	}
}

// lines dumps a layer, what cannot be read with its error.
func (s *store) lines(l Layer) (out []string) {
	v, err := s.tree.View(l)
	s.ok(err)
	defer v.Close()
	var walk func(dir Ino, p string)
	walk = func(dir Ino, p string) {
		var all []Entry
		if err := v.ReadDir(dir, 0, func(e Entry) bool { all = append(all, e); return true }); err != nil {
			out = append(out, p+" "+errorOf(err))
			return
		}
		slices.SortFunc(all, func(a, b Entry) int { return strings.Compare(a.Name, b.Name) })
		for _, e := range all {
			at := strings.TrimPrefix(p+"/"+e.Name, "/")
			a, err := v.Lookup(dir, e.Name)
			switch {
			case err != nil:
				out = append(out, at+" "+errorOf(err))
			case a.IsDir():
				walk(a.Ino, at)
			default:
				b := make([]byte, a.Size)
				_, err := v.ReadAt(a.Ino, b, 0)
				if err != nil {
					out = append(out, at+" "+errorOf(err))
				} else {
					out = append(out, fileLine(at, a, string(b)))
				}
			}
		}
	}
	walk(RootIno, "")
	return out
}

func errorOf(err error) string {
	switch {
	case errors.Is(err, ErrCorrupt), errors.Is(err, kv.ErrCorrupt):
		return "is lost"
	case errors.Is(err, unix.EACCES):
		return "is unreadable"
	}
	return fmt.Sprintf("fails strangely: %v", err)
}

func (s *store) open2(t *testing.T) {
	t.Helper()
	var err error
	s.tree, err = Open(s.db, s.chunks, s.host, Options{})
	s.ok(err)
	s.b, err = s.tree.Branch("main")
	s.ok(err)
}

// readsAsBefore compares layers with what they showed. What is at the paths in broken may be an error, or gone.
func (s *store) readsAsBefore(want map[Layer][]string, broken []string) {
	s.t.Helper()
	for l, lines := range want {
		now := map[string]string{}
		for _, line := range s.lines(l) {
			p, rest, _ := strings.Cut(line, " ")
			now[p] = rest
		}
		for _, line := range lines {
			p, was, _ := strings.Cut(line, " ")
			is, there := now[p]
			if is != was && !(slices.Contains(broken, p) && (!there || is == "is lost" || is == "is unreadable")) && !(slices.Contains(broken, "old:"+p)) {
				s.t.Errorf("layer %d: %s was %q, is %q", l, p, was, is)
			}
		}
	}
}

// stillWorks writes, seals, and collects.
func (s *store) stillWorks(lost bool) {
	s.t.Helper()
	s.write("new", "after the repair")
	l := s.seal()
	_, err := s.tree.Collect(context.Background(), []Layer{l}, CollectOptions{})
	s.ok(err)
	_, err = s.tree.Reclaim()
	s.ok(err)
	if !lost {
		s.clean()
	}
}
