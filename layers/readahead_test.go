package layers

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// flatBase is a base whose directory d has n files, each with its own name in it.
func flatBase(t *testing.T, n int) string {
	t.Helper()
	base := t.TempDir()
	if err := os.MkdirAll(filepath.Join(base, "d/sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	for i := range n {
		name := fmt.Sprintf("f%03d", i)
		if err := os.WriteFile(filepath.Join(base, "d", name), []byte(name), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return base
}

// listed lists directory d and looks every name up, as READDIRPLUS does, and
// returns its files in the listing's order.
func (s *store) listed() (dir Ino, names []string, inos map[string]Ino) {
	s.t.Helper()
	dir, inos = s.ino("d"), map[string]Ino{}
	s.ok(s.b.ReadDir(dir, 0, func(e Entry) bool {
		if e.Type == unix.S_IFREG {
			names = append(names, e.Name)
		}
		return true
	}))
	for _, name := range names {
		a, err := s.b.Lookup(dir, name)
		s.ok(err)
		inos[name] = a.Ino
	}
	return dir, names, inos
}

func (s *store) reads(ino Ino, want string) {
	s.t.Helper()
	if got, err := readAll(&s.b.View, ino); err != nil || got != want {
		s.t.Fatalf("read %q (%v), want %q", got, err, want)
	}
}

// held lists the files of d that the base keeps open, in the order of names.
func (s *store) held(names []string) (out []string) {
	s.host.mu.Lock()
	defer s.host.mu.Unlock()
	for _, name := range names {
		if s.host.files.byKey["d/"+name] != nil {
			out = append(out, name)
		}
	}
	return out
}

func TestReadsInOrderAreReadAhead(t *testing.T) {
	s := newStore(t, flatBase(t, 60))
	_, names, inos := s.listed()
	read := func(i int) { t.Helper(); s.reads(inos[names[i]], names[i]) }
	expect := func(want ...string) {
		t.Helper()
		if got := s.held(names); !slices.Equal(got, want) {
			t.Fatalf("open are %v, want %v", got, want)
		}
	}
	read(0)
	expect(names[:1+aheadFiles]...)
	read(1)
	expect(names[:2+aheadFiles]...)
	read(4) // those between were empty, or the kernel had them
	expect(names[:5+aheadFiles]...)
	read(40) // elsewhere
	expect(append(slices.Clone(names[:5+aheadFiles]), names[40])...)
	read(30) // back
	expect(append(slices.Clone(names[:5+aheadFiles]), names[30], names[40])...)
	read(31)
	expect(append(slices.Clone(names[:5+aheadFiles]), names[30:41]...)...)
	for i := 50; i < 60; i++ {
		read(i)
	}
}

func TestOneReadIsNoOrder(t *testing.T) {
	s := newStore(t, flatBase(t, 60))
	_, names, inos := s.listed()
	s.reads(inos[names[7]], names[7])
	if got := s.held(names); !slices.Equal(got, names[7:8]) {
		t.Fatalf("after one read in the middle, open are %v", got)
	}
}

func TestReadAheadIsOfTheBaseOnly(t *testing.T) {
	s := newStore(t, flatBase(t, 20))
	_, names, inos := s.listed()
	s.write("d/"+names[2], "own")
	s.unlink("d/" + names[3])
	s.reads(inos[names[0]], names[0])
	want := append([]string{names[0], names[1]}, names[4:3+aheadFiles]...)
	got := s.held(names)
	if i := slices.Index(got, names[2]); i >= 0 {
		got = slices.Delete(got, i, i+1) // opened by the copy-up
	}
	if len(got) < 4 || !slices.Equal(got[:4], want[:4]) || slices.Contains(got, names[3]) {
		t.Fatalf("open are %v, want %v", got, want)
	}
}

// TestReadAheadOpensNoFIFO: a name that was a file when it was listed may be anything by now.
func TestReadAheadOpensNoFIFO(t *testing.T) {
	base := flatBase(t, 10)
	s := newStore(t, base)
	_, names, inos := s.listed()
	fifo := filepath.Join(base, "d", names[1])
	s.ok(os.Remove(fifo))
	s.ok(unix.Mkfifo(fifo, 0o644))
	watch, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	s.ok(err)
	defer unix.Close(watch)
	_, err = unix.InotifyAddWatch(watch, fifo, unix.IN_OPEN)
	s.ok(err)
	s.reads(inos[names[0]], names[0])
	if got := s.held(names); !slices.Contains(got, names[2]) || slices.Contains(got, names[1]) {
		t.Fatalf("open are %v", got)
	}
	if n, err := unix.Read(watch, make([]byte, 4096)); err != unix.EAGAIN {
		t.Fatalf("the FIFO was opened (%d bytes of events, %v)", n, err)
	}
	if _, err := readAll(&s.b.View, inos[names[1]]); err == nil {
		t.Error("a FIFO in the place of a file was read")
	}
	if n, err := unix.Read(watch, make([]byte, 4096)); err != unix.EAGAIN {
		t.Fatalf("the FIFO was opened to be read (%d bytes of events, %v)", n, err)
	}
}

// TestReadAheadSeesTheBaseChange: the descriptor opened ahead is of another file by
// the time of the read, whether the old one is gone or has only moved away.
func TestReadAheadSeesTheBaseChange(t *testing.T) {
	base := flatBase(t, 10)
	s := newStore(t, base)
	var drifted []Ino
	s.tree.drifted = func(ino Ino, _ *NameKey) { drifted = append(drifted, ino) }
	_, names, inos := s.listed()
	path := func(i int) string { return filepath.Join(base, "d", names[i]) }
	s.reads(inos[names[0]], names[0])

	s.ok(os.Rename(path(1), filepath.Join(base, "moved")))
	s.ok(os.WriteFile(path(1), []byte("new1"), 0o644))
	s.ok(os.WriteFile(filepath.Join(base, "tmp"), []byte("new2"), 0o644))
	s.ok(os.Rename(filepath.Join(base, "tmp"), path(2)))
	s.ok(os.WriteFile(path(3), []byte("new3"), 0o644))
	s.ok(os.Remove(path(4)))

	for i := 1; i <= 3; i++ {
		if !slices.Contains(s.held(names), names[i]) {
			t.Fatalf("%s was not opened ahead", names[i])
		}
		s.reads(inos[names[i]], fmt.Sprintf("new%d", i))
	}
	if _, err := readAll(&s.b.View, inos[names[4]]); !errors.Is(err, unix.ESTALE) {
		t.Errorf("reading a removed file: %v, want ESTALE", err)
	}
	if want := []Ino{inos[names[1]], inos[names[2]], inos[names[3]]}; !slices.Equal(drifted, want) {
		t.Errorf("drifted: %v, want %v", drifted, want)
	}
}

func TestReadAheadKeepsFewFilesOpen(t *testing.T) {
	s := newStore(t, flatBase(t, 3*maxFileFDs))
	_, names, inos := s.listed()
	for _, name := range names {
		s.reads(inos[name], name)
		if n := len(s.host.files.byKey); n > maxFileFDs {
			t.Fatalf("%d files are open", n)
		}
	}
}

// TestReadAheadStorm: readers in the listing's order, in the opposite one, and at odds
// with a base that changes and listings that begin anew. Run with -race.
func TestReadAheadStorm(t *testing.T) {
	base := flatBase(t, 200)
	s := newStore(t, base)
	dir, names, inos := s.listed()
	back := slices.Clone(names)
	slices.Reverse(back)
	var wg sync.WaitGroup
	for w := range 6 {
		wg.Go(func() {
			order := names
			if w%3 == 2 {
				order = back
			}
			for range 20 {
				if w%2 == 0 {
					if err := s.b.ReadDir(dir, 0, func(Entry) bool { return false }); err != nil {
						t.Error(err)
					}
				}
				for _, name := range order {
					got, err := readAll(&s.b.View, inos[name])
					if err != nil && !errors.Is(err, unix.ESTALE) { // between Remove and WriteFile
						t.Errorf("read %s: %v", name, err)
					}
					if err == nil && got != "" && got != name {
						t.Errorf("%s holds %q", name, got)
					}
				}
			}
		})
	}
	for i := range 400 {
		p := filepath.Join(base, "d", names[i%len(names)])
		s.ok(os.Remove(p))
		s.ok(os.WriteFile(p, []byte(filepath.Base(p)), 0o644))
	}
	wg.Wait()
}

// TestBaseChangesUnderTheMount: whoever looks at a file that was read and then
// changed gets the new one, and the kernel's cache of the old one is void; a write by somebody
// who has seen the old one is refused once, as it would mix the two.
func TestBaseChangesUnderTheMount(t *testing.T) {
	base := flatBase(t, 3)
	s := newStore(t, base)
	drifted := 0
	var name *NameKey
	s.tree.drifted = func(_ Ino, n *NameKey) { drifted++; name = n }
	_, names, inos := s.listed()
	ino, path := inos[names[0]], filepath.Join(base, "d", names[0])
	s.reads(ino, names[0])
	for i, text := range []string{"a longer text than before", "short"} {
		s.ok(os.WriteFile(path, []byte(text), 0o644))
		a, err := s.b.Getattr(ino)
		s.ok(err)
		if a.Size != int64(len(text)) || drifted != i+1 {
			t.Errorf("size %d, want %d; told %d times, want %d", a.Size, len(text), drifted, i+1)
		}
		s.reads(ino, text)
		if drifted != i+1 {
			t.Errorf("told again by the read: %d times", drifted)
		}
	}
	s.ok(os.WriteFile(path, []byte("other"), 0o644))
	if _, err := s.b.Write(ino, []byte("!"), 5, WriteFlags{}); !errors.Is(err, unix.ESTALE) {
		t.Errorf("write to a file that has changed: %v, want ESTALE", err)
	}
	if name != nil {
		t.Errorf("the name %v is void, though it leads to the same file", *name)
	}
	s.reads(ino, "other")
	if _, err := s.b.Write(ino, []byte("!"), 5, WriteFlags{}); err != nil {
		t.Errorf("the next write: %v", err)
	}
	s.reads(ino, "other!")
}

// TestBaseFileIsReplaced: another file with the name of one that is in use is to be
// looked up anew before it can be written to.
func TestBaseFileIsReplaced(t *testing.T) {
	base := flatBase(t, 3)
	s := newStore(t, base)
	var name *NameKey
	s.tree.drifted = func(_ Ino, n *NameKey) { name = n }
	dir, names, inos := s.listed()
	ino, path := inos[names[0]], filepath.Join(base, "d", names[0])
	s.reads(ino, names[0])
	s.ok(os.WriteFile(filepath.Join(base, "tmp"), []byte("another"), 0o644))
	s.ok(os.Rename(filepath.Join(base, "tmp"), path))
	s.reads(ino, "another")
	for range 2 {
		want := NameKey{dir, names[0]}
		if name == nil || *name != want {
			t.Fatalf("the name %v is void, want %v", name, want)
		}
		if _, err := s.b.Write(ino, []byte("!"), 7, WriteFlags{}); !errors.Is(err, unix.ESTALE) {
			t.Errorf("write to a file that was replaced: %v, want ESTALE", err)
		}
	}
	a, err := s.b.Lookup(dir, names[0])
	s.ok(err)
	if _, err := s.b.Write(a.Ino, []byte("!"), 7, WriteFlags{}); err != nil {
		t.Errorf("write to the new file: %v", err)
	}
	s.reads(a.Ino, "another!")
}
