package archive

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/cas"
	"github.com/rewindfs/rewindfs/kv"
	"github.com/rewindfs/rewindfs/layers"
)

// store is a tree over a base with one file in a directory.
type store struct {
	*layers.Tree
	n int
}

func openStore(t testing.TB) *store {
	t.Helper()
	dir := t.TempDir()
	base := filepath.Join(dir, "base")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.MkdirAll(filepath.Join(base, "d"), 0o755))
	must(os.WriteFile(filepath.Join(base, "d", "f"), bytes.Repeat([]byte("base "), 40_000), 0o644))
	db, err := kv.Open(filepath.Join(dir, "kv"), kv.Options{})
	must(err)
	chunks, err := cas.Open(filepath.Join(dir, "cas"), db, cas.Options{})
	must(err)
	db.SetBeforeFlush(chunks.Sync)
	host, err := layers.OpenBase(base)
	must(err)
	tree, err := layers.Open(db, chunks, host, layers.Options{})
	must(err)
	t.Cleanup(func() {
		for _, f := range []func() error{tree.Close, chunks.Close, db.Close, host.Close} {
			if err := f(); err != nil {
				t.Error(err)
			}
		}
	})
	return &store{Tree: tree}
}

func (s *store) branch(t testing.TB) *layers.Branch {
	t.Helper()
	s.n++
	b, err := s.Branch(fmt.Sprint("b", s.n))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// build carries an archive out on a branch, sealing it at each checkpoint.
func (s *store) build(b *layers.Branch, file io.Reader) (line []layers.Layer, err error) {
	r, err := NewReader(file, Limits{})
	if err != nil {
		return nil, err
	}
	defer r.Close()
	m := NewBuilder(context.Background(), s.Tree, b)
	defer m.Close()
	talking := false
	for {
		rec, err := r.Next()
		if errors.Is(err, io.EOF) {
			return line, nil
		}
		if err != nil {
			return line, err
		}
		if begin, ok := rec.(Begin); ok {
			talking = begin.Section == SectionTalk
		}
		switch rec.(type) {
		case *Checkpoint:
			s, err := b.Seal(nil)
			if err != nil {
				return line, err
			}
			line = append(line, s.Layer)
		case *Counts:
		default:
			if !talking {
				if err := m.Apply(rec); err != nil {
					return line, err
				}
			}
		}
	}
}

// list shows all paths of a view, each with what is wrong about it.
func list(t testing.TB, v *layers.View) string {
	t.Helper()
	var out []string
	var walk func(dir layers.Ino, path string)
	walk = func(dir layers.Ino, path string) {
		err := each(v, dir, func(name string, a *layers.Attr) error {
			p := under(path, name)
			line := fmt.Sprintf("%s %o %d", p, a.Mode, a.Size)
			if a.Mode&unix.S_IFMT == unix.S_IFREG && a.Size < 1<<20 {
				b := make([]byte, a.Size)
				if n, err := v.ReadAt(a.Ino, b, 0); err != nil || n != len(b) {
					t.Errorf("read %q: %d, %v", p, n, err)
				}
			}
			out = append(out, line)
			if a.IsDir() {
				walk(a.Ino, p)
			}
			return nil
		})
		if err != nil {
			t.Errorf("list %q: %v", path, err)
		}
	}
	walk(layers.RootIno, "")
	return strings.Join(out, "\n")
}

// Archives in which each record is in order, and that no tree can be made of.
func TestHostileTrees(t *testing.T) {
	s := openStore(t)
	dir := func(id uint64) Node { return node(id, unix.S_IFDIR|0o755, 0) }
	file := func(id uint64) Node { return node(id, unix.S_IFREG|0o644, 5) }
	cp := &Checkpoint{CreatedAt: madeAt}
	var deep []Record
	for i := range uint64(maxDepth + 10) {
		deep = append(deep, Make{i + 1, "d", dir(i + 2)})
	}
	for name, recs := range map[string][]Record{
		"a name twice":                      {Make{1, "x", dir(2)}, Make{1, "x", dir(3)}},
		"a name twice, of one file":         {Make{1, "x", file(2)}, Name{1, 2, "x"}},
		"an id twice":                       {Make{1, "x", dir(2)}, Make{1, "y", dir(2)}},
		"the root again":                    {Make{1, "x", dir(1)}},
		"a file as a parent":                {Make{1, "x", file(2)}, Make{2, "y", file(3)}},
		"a file as a parent of a name":      {Make{1, "x", file(2)}, Name{2, 2, "y"}},
		"a parent that is not there":        {Make{7, "x", file(2)}},
		"a name of what is not there":       {Name{1, 7, "x"}},
		"a second name of a directory":      {Make{1, "x", dir(2)}, Name{1, 2, "y"}},
		"a name of the root":                {Make{1, "x", dir(2)}, Name{2, 1, "y"}},
		"another kind of thing":             {Make{1, "x", file(2)}, Set{dir(2)}},
		"a set of what is not there":        {Set{file(7)}},
		"directories too deep":              deep,
		"a name that goes and is not there": {End{SectionTree}, cp, Begin{SectionTree}, Take{1, 1, "x"}},
		"another one that goes":             {Make{1, "x", file(2)}, Make{1, "y", file(3)}, End{SectionTree}, cp, Begin{SectionTree}, Take{1, 3, "x"}},
		"what went":                         {Make{1, "x", file(2)}, End{SectionTree}, cp, Begin{SectionTree}, Take{1, 2, "x"}, End{SectionTree}, cp, Begin{SectionTree}, Name{1, 2, "y"}},
		"what went with its directory":      {Make{1, "x", dir(2)}, Make{2, "y", file(3)}, End{SectionTree}, cp, Begin{SectionTree}, Take{1, 2, "x"}, End{SectionTree}, cp, Begin{SectionTree}, Name{1, 3, "y"}},
		"a directory in itself":             {Make{1, "x", dir(2)}, End{SectionTree}, cp, Begin{SectionTree}, Take{1, 2, "x"}, Name{2, 2, "y"}},
		"a directory below itself":          {Make{1, "x", dir(2)}, Make{2, "y", dir(3)}, End{SectionTree}, cp, Begin{SectionTree}, Take{1, 2, "x"}, Name{3, 2, "z"}},
		"a name that comes back twice":      {Make{1, "x", dir(2)}, End{SectionTree}, cp, Begin{SectionTree}, Take{1, 2, "x"}, Name{1, 2, "y"}, Name{1, 2, "z"}},
	} {
		all := append(append([]Record{Begin{SectionTree}}, recs...), End{SectionTree}, cp, talk[0], talk[3])
		p := written(t, allBase, all...)
		if _, _, err := Check(bytes.NewReader(p), Limits{}); err != nil {
			t.Errorf("%s: refused before it comes to the tree: %v", name, err)
		}
		b := s.branch(t)
		if _, err := s.build(b, bytes.NewReader(p)); !errors.Is(err, ErrBad) {
			t.Errorf("%s: %v\n%s", name, err, list(t, &b.View))
		}
	}
}

// What was made of the base, or under a moved directory, in odd ways.
func TestOddHistories(t *testing.T) {
	s := openStore(t)
	b := s.branch(t)
	ino := func(path string) layers.Ino {
		a, err := b.Resolve(path)
		if err != nil {
			t.Fatal(err)
		}
		return a.Ino // held for good
	}
	var line []layers.Layer
	step := func(errs ...error) {
		t.Helper()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		sealed, err := b.Seal(nil)
		if err != nil {
			t.Fatal(err)
		}
		line = append(line, sealed.Layer)
	}
	size := func(n int64) error {
		_, err := b.Setattr(ino("d/f"), layers.SetAttr{Size: &n})
		return err
	}
	mkdir := func(dir, name string) error {
		_, err := b.Mkdir(ino(dir), name, 0o755, layers.Cred{})
		return err
	}
	step(size(1000), size(150_000)) // the base's bytes are gone for good, and the size hardly says so
	step(mkdir("", "a"), mkdir("a", "b"), mkdir("a/b", "c"))
	step( // a/b/c becomes c/b/a
		b.Rename(ino("a/b"), "c", layers.RootIno, "c", 0),
		b.Rename(ino("a"), "b", ino("c"), "b", 0),
		b.Rename(layers.RootIno, "a", ino("c/b"), "a", 0),
	)
	step(b.Rename(layers.RootIno, "d", ino("c/b/a"), "d", 0), mkdir("", "d"), b.Rename(ino("c/b/a/d"), "f", ino("d"), "f", 0))
	step(b.Rename(layers.RootIno, "d", layers.RootIno, "c", unix.RENAME_EXCHANGE))
	// A file whose size says nothing, changed far out and cut back.
	write := func(p string, off int64) error {
		_, err := b.Write(ino(p), []byte(p), off, layers.WriteFlags{})
		return err
	}
	_, err := b.Mknod(layers.RootIno, "huge", unix.S_IFREG|0o600, 0, layers.Cred{})
	step(err, write("huge", 5), write("huge", 1<<60))
	step(write("huge", 1<<59))
	huge := int64(1<<59 + 2)
	_, err = b.Setattr(ino("huge"), layers.SetAttr{Size: &huge})
	step(err)
	for _, withBase := range []bool{false, true} {
		var file bytes.Buffer
		w, err := NewWriter(&file, Header{WithBase: withBase})
		if err != nil {
			t.Fatal(err)
		}
		x := NewExporter(t.Context(), w, s.Tree)
		base, err := b.At(layers.BaseLayer)
		if err != nil {
			t.Fatal(err)
		}
		if !withBase {
			if err := x.Base(base); err != nil {
				t.Fatal(err)
			}
		}
		last, at := base, layers.BaseLayer
		for i, l := range line {
			v, err := s.View(l)
			if err == nil && i == 0 && withBase {
				err = x.Full(v)
			} else if err == nil {
				err = x.Delta(at, l, last, v)
			}
			if err == nil {
				err = w.Checkpoint(&Checkpoint{})
			}
			if err != nil {
				t.Fatal(err)
			}
			last.Close()
			last, at = v, l
		}
		last.Close()
		put(t, w, talk[0])
		put(t, w, talk[3])
		if _, err := w.Close(); err != nil {
			t.Fatal(err)
		}
		got, err := s.build(s.branch(t), &file)
		if err != nil {
			t.Fatal(err)
		}
		for i := range line {
			was, now := state(t, s, line[i]), state(t, s, got[i])
			if was != now {
				t.Errorf("with base %v, state %d was\n%s\nand is\n%s", withBase, i, was, now)
			}
		}
	}
}

// state is the list of a layer, with a digest of d/f.
func state(t *testing.T, s *store, l layers.Layer) string {
	t.Helper()
	v, err := s.View(l)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	out := list(t, v)
	for _, p := range []string{"d/f", "c/f", "huge"} {
		if a, err := v.Resolve(p); err == nil {
			d, err := printOf(t.Context(), v, &a, make([]byte, ChunkSize))
			out += fmt.Sprintf("\n%s %x %v", p, d[:4], err)
			v.Forget(a.Ino, 1)
		}
	}
	return out
}

// Much content goes through little memory.
func TestMemoryIsBounded(t *testing.T) {
	const much, bound = 128 << 20, 40 << 20
	s := openStore(t)
	b := s.branch(t)
	a, err := b.Mknod(layers.RootIno, "big", unix.S_IFREG|0o644, 0, layers.Cred{})
	if err != nil {
		t.Fatal(err)
	}
	random := rand.NewChaCha8([32]byte{1})
	chunk := make([]byte, ChunkSize)
	for off := int64(0); off < much; off += ChunkSize {
		_, _ = random.Read(chunk)
		if _, err := b.Write(a.Ino, chunk, off, layers.WriteFlags{}); err != nil {
			t.Fatal(err)
		}
	}
	sealed, err := b.Seal(nil)
	if err != nil {
		t.Fatal(err)
	}
	v, err := s.View(sealed.Layer)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	defer debug.SetGCPercent(debug.SetGCPercent(20))
	debug.FreeOSMemory()
	var before runtime.MemStats
	runtime.ReadMemStats(&before)
	in, out := io.Pipe()
	go func() {
		w, err := NewWriter(out, allBase)
		if err == nil {
			err = NewExporter(t.Context(), w, s.Tree).Full(v)
		}
		if err == nil {
			err = errors.Join(w.Checkpoint(&Checkpoint{}), w.Begin(SectionTalk), w.End())
		}
		if err == nil {
			_, err = w.Close()
		}
		_ = out.CloseWithError(err)
	}()
	most := &peak{r: in}
	line, err := s.build(s.branch(t), most)
	if err != nil || len(line) != 1 {
		t.Fatalf("%v, %v", line, err)
	}
	t.Logf("%d MiB in an archive of %d MiB; the heap grew by at most %d MiB", much>>20, most.n>>20, (int64(most.heap)-int64(before.HeapAlloc))>>20)
	if most.heap > before.HeapAlloc+bound {
		t.Errorf("the heap grew from %d to %d bytes", before.HeapAlloc, most.heap)
	}
}

// peak looks at the heap while it is read through.
type peak struct {
	r    io.Reader
	n    int64
	heap uint64
}

func (p *peak) Read(b []byte) (int, error) {
	n, err := p.r.Read(b)
	if p.n>>20 != (p.n+int64(n))>>20 {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		p.heap = max(p.heap, m.HeapAlloc)
	}
	p.n += int64(n)
	return n, err
}

// FuzzBuilder carries out what passes for an archive: the tree is in order afterwards, or the archive is refused.
func FuzzBuilder(f *testing.F) {
	s := openStore(f)
	f.Add(unpacked(f, written(f, allBase, small()...)))
	f.Add(unpacked(f, sample(f)))
	f.Fuzz(func(t *testing.T, stream []byte) {
		if len(stream) > 1<<16 {
			return
		}
		p := sealedUp(stream)
		if p == nil {
			return
		}
		b := s.branch(t)
		_, err := s.build(b, bytes.NewReader(packed(t, p)))
		var other *BaseError
		if err != nil && !errors.Is(err, ErrBad) && !errors.As(err, &other) {
			t.Errorf("an error that does not say that the archive is bad: %v", err)
		}
		list(t, &b.View)
		if _, err := b.Drop(nil); err != nil {
			t.Error(err)
		}
	})
}
