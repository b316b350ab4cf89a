package layers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/internal/fstree"
	"github.com/rewindfs/rewindfs/kv"
)

// keep starts the next generation of the base.
func (s *store) keep(paths ...string) uint64 {
	s.t.Helper()
	gen, err := s.tree.KeepBase(context.Background(), paths, nil)
	s.ok(err)
	return gen
}

// host changes the base by hand, as a commit would, and says so.
func (s *store) change(do ...func(base string) error) {
	s.t.Helper()
	for _, f := range do {
		s.ok(f(s.base))
	}
	s.tree.BaseChanged()
}

func put(p, content string) func(string) error {
	return func(base string) error {
		tmp := filepath.Join(base, ".tmp")
		if err := os.WriteFile(tmp, []byte(content), 0o644); err != nil {
			return err
		}
		return os.Rename(tmp, filepath.Join(base, p))
	}
}

func del(p string) func(string) error {
	return func(base string) error { return os.RemoveAll(filepath.Join(base, p)) }
}

func mv(from, to string) func(string) error {
	return func(base string) error { return os.Rename(filepath.Join(base, from), filepath.Join(base, to)) }
}

// count counts the records that begin with prefix.
func (s *store) count(prefix []byte) (n int) {
	s.t.Helper()
	s.ok(s.db.Scan(prefix, nil, func(k, _ []byte) bool { n++; return true }))
	return n
}

func (s *store) baseView(gen uint64) []string {
	s.t.Helper()
	v, err := s.tree.BaseView(gen)
	s.ok(err)
	defer v.Close()
	return dump(s.t, v)
}

// What was built on the base before a commit goes on showing what it showed; a new
// branch shows the base as it is now; a head never changes its generation.
func TestGenerations(t *testing.T) {
	s := newStore(t, sampleBase(t))
	s.write("src/main.go", "package other\n")
	l := s.seal()
	want := dump(t, &s.b.View)
	if gen := s.keep("README", "src", "lib", "new"); gen != 1 || s.tree.Generation() != 1 || s.b.Generation() != 0 {
		t.Fatalf("generation %d, %d, of the branch %d", gen, s.tree.Generation(), s.b.Generation())
	}
	s.change(put("README", "new\n"), mv("src", "lib"), put("new", "n"), put("lib/three", "3"))
	later, err := s.tree.Branch("later")
	s.ok(err)
	now := dump(t, &later.View)
	s.keep("lib", "ln")
	s.change(del("lib"), del("ln"))
	check := func() {
		t.Helper()
		same(t, dump(t, &s.b.View), want)
		same(t, s.states([]Layer{l})[l], want)
		same(t, s.baseView(0), sample)
		same(t, dump(t, &later.View), now)
		same(t, s.baseView(1), now)
	}
	check()
	for _, line := range []string{`README mode=100644 nlink=1 "new\n"`, `lib/three mode=100644 nlink=1 "3"`} {
		if !strings.Contains(strings.Join(now, "|"), line) {
			t.Errorf("the new branch does not show %s:\n%q", line, now)
		}
	}
	s.reopen()
	later, err = s.tree.Branch("later")
	s.ok(err)
	check()
	s.back(BaseLayer)
	s.expect(sample...)
	if s.b.Generation() != 0 || later.Generation() != 1 {
		t.Errorf("generations %d and %d after a move to the base", s.b.Generation(), later.Generation())
	}
	s.reopen()
	s.expect(sample...)
	if _, err := s.tree.BaseView(3); !errors.Is(err, ErrNoLayer) {
		t.Errorf("view of a generation to come: %v", err)
	}
}

// The head cannot be moved to what is built on another generation.
func TestMoveToOtherGeneration(t *testing.T) {
	s := newStore(t, sampleBase(t))
	s.write("x", "x")
	l := s.seal()
	s.keep("README")
	later, err := s.tree.Branch("later")
	s.ok(err)
	if _, err := later.MoveHead(l, false, nil, nil); !errors.Is(err, ErrGeneration) {
		t.Errorf("move to another generation: %v", err)
	}
	if _, err := s.b.MoveHead(l, false, nil, nil); err != nil {
		t.Error(err)
	}
}

// Reads that are under way while a commit comes, and changes files in place, show the old bytes or,
// in the new generation, the new ones.
func TestReadsDuringCommits(t *testing.T) {
	base := fstree.FastTemp(t)
	s := &store{t: t, base: base, dir: fstree.FastTemp(t)} // in memory: a sync that takes long lets all reads come to their end
	s.open()
	t.Cleanup(s.close)
	const size = 1 << 20
	fill := func(c byte) []byte { return []byte(strings.Repeat(string(rune(c)), size)) }
	s.ok(os.WriteFile(filepath.Join(base, "f"), fill('a'), 0o644))
	s.ok(os.Link(filepath.Join(base, "f"), filepath.Join(base, "g")))
	f, g := s.ino("f"), s.ino("g")
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for _, ino := range []Ino{f, g, f, g, f, g, f, g} {
		wg.Go(func() {
			p := make([]byte, size)
			for {
				select {
				case <-stop:
					return
				default:
				}
				n, err := s.b.ReadAt(ino, p, 0)
				if err != nil || n != size || strings.Count(string(p), "a") != size {
					t.Errorf("read %d bytes, %q…: %v", n, p[:1], err)
					return
				}
				if a, err := s.b.Getattr(ino); err != nil || a.Nlink != 2 || a.Size != size {
					t.Errorf("%+v: %v", a, err)
				}
			}
		})
	}
	w, err := os.OpenFile(filepath.Join(base, "f"), os.O_WRONLY, 0)
	s.ok(err)
	defer w.Close()
	for i := range 40 {
		s.keep("f")
		_, err = w.WriteAt(fill('b'+byte(i%20)), 0)
		s.ok(err)
	}
	close(stop)
	wg.Wait()
}

// A commit that does not come, whatever stops it, leaves nothing.
func TestCommitThatDoesNotCome(t *testing.T) {
	s := newStore(t, sampleBase(t))
	s.ok(unix.Setxattr(filepath.Join(s.base, "README"), "user.k", []byte("v"), 0))
	before := s.count([]byte("x/")) + s.count([]byte("a/"))
	nothing := func(gen uint64) {
		t.Helper()
		if n := s.count(kv.PreImagePrefix()); n != 0 {
			t.Errorf("%d pre-images are left", n)
		}
		if n := s.count([]byte("x/")) + s.count([]byte("a/")); n != before {
			t.Errorf("%d records belong to pre-images that are gone", n-before)
		}
		if s.tree.Generation() != gen {
			t.Errorf("generation %d", s.tree.Generation())
		}
	}
	no := errors.New("no")
	_, err := s.tree.KeepBase(context.Background(), []string{"src", "README"}, func(*kv.Batch, uint64) error { return no })
	if !errors.Is(err, no) {
		t.Fatal(err)
	}
	nothing(0)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := s.tree.KeepBase(ctx, []string{"src"}, nil); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	nothing(0)
	for _, p := range []string{"/abs", "a/../b", ".", "a//b", "src//"} {
		if _, err := s.tree.KeepBase(context.Background(), []string{p}, nil); !errors.Is(err, unix.EINVAL) {
			t.Errorf("%q: %v", p, err)
		}
	}
	nothing(0)
	// The daemon dies before the generation starts: the next start does not show what was kept.
	k := &keeper{t: s.tree, ctx: context.Background(), x: newKeptIndex(), done: map[uint64]keptKind{}, buf: make([]byte, 0, keepBuf)}
	s.ok(k.keep([]string{"README", "src"}))
	s.reopen()
	if s.count(kv.PreImagePrefix()) == 0 {
		t.Fatal("nothing was kept")
	}
	s.ok(put("README", "drifted")(s.base))
	s.expect(append([]string{`README mode=100644 nlink=1 "drifted"`}, sample[1:]...)...)
	s.collect()
	nothing(0)
	if gen := s.keep("ln"); gen != 1 {
		t.Errorf("generation %d", gen)
	}
}

// Pre-images go with the last line of layers that needs them, and their bytes with them.
func TestPreImagesGo(t *testing.T) {
	s := newStore(t, sampleBase(t))
	big := string(noise(1, 1<<20))
	s.ok(put("big", big)(s.base))
	s.write("x", "x")
	s.keep("big", "README", "one")
	s.change(del("big"), put("README", "1"))
	mid, err := s.tree.Branch("mid")
	s.ok(err)
	_, err = mid.Seal(nil)
	s.ok(err)
	s.keep("README")
	s.change(put("README", "2"))
	s.reopen()
	s.collect()
	s.reclaim()
	if got, err := readAll(&s.b.View, s.ino("big")); err != nil || got != big {
		t.Fatalf("the file that a commit deleted has %d bytes: %v", len(got), err)
	}
	midWas := s.baseView(1)
	v, err := s.tree.BaseView(0)
	s.ok(err)
	s.dropBranch("main")
	s.collect()
	if s.count(kv.PreImagePrefix()) < 5 {
		t.Error("pre-images went that an open view needs")
	}
	v.Close()
	dry, err := s.tree.Collect(context.Background(), nil, CollectOptions{DryRun: true})
	s.ok(err)
	if st := s.collect(); st != dry || st.Bytes < 1<<20 {
		t.Errorf("a dry run says %+v, then it is %+v", dry, st)
	}
	same(t, s.baseView(1), midWas)
	if n := s.count(kv.PreImagePrefix()); n != 2 { // README's, and the base's own
		t.Errorf("%d pre-images are left", n)
	}
	if _, err := s.tree.BaseView(0); !errors.Is(err, ErrNoLayer) {
		t.Errorf("view of a generation that is gone: %v", err)
	}
	if freed := s.reclaim(); freed < 1000<<10 {
		t.Errorf("%d bytes were freed", freed)
	}
	s.reopen()
	same(t, s.baseView(1), midWas)
	s.dropBranch("mid")
	s.dropBranch("main")
	s.collect()
	if n := s.count(kv.PreImagePrefix()) + s.count([]byte("x/")); n != 0 {
		t.Errorf("%d records are left", n)
	}
}

// dropBranch deletes a branch.
func (s *store) dropBranch(name string) {
	s.t.Helper()
	var b kv.Batch
	b.Delete(kv.HeadKey(name))
	s.ok(s.db.Apply(&b))
	s.tree.mu.Lock()
	delete(s.tree.branches, name)
	s.tree.mu.Unlock()
}

// Paths longer than the file system's calls take, and than keys may be, are kept, too.
func TestKeepDeepPaths(t *testing.T) {
	base := t.TempDir()
	s := newStore(t, base)
	s.ok(fstree.MakeDeep(base))
	deep := strings.TrimSuffix(strings.Repeat(strings.Repeat("p", 200)+"/", 25), "/")
	want := dump(t, &s.b.View)
	for _, p := range []string{deep + "/bottom", strings.Repeat("p", 200)} {
		s.keep(p)
		same(t, dump(t, &s.b.View), want)
	}
	s.change(del(strings.Repeat("p", 200)))
	same(t, dump(t, &s.b.View), want)
	s.reopen()
	same(t, dump(t, &s.b.View), want)
	if got := s.baseView(2); len(got) != 0 {
		t.Errorf("the base shows %q", got)
	}
}

// A file of many GiB that is nearly all hole is kept in no time, and keeps its holes.
func TestKeepHoles(t *testing.T) {
	base := t.TempDir()
	s := newStore(t, base)
	const size = 64 << 30
	p := filepath.Join(base, "huge")
	f, err := os.Create(p)
	s.ok(err)
	if err := f.Truncate(size); err != nil {
		t.Skipf("no such large files here: %v", err)
	}
	for _, off := range []int64{5 << 20, 1<<30 + 77, size - 10} {
		_, err := f.WriteAt([]byte("0123456789"), off)
		s.ok(err)
	}
	s.ok(f.Close())
	ino := s.ino("huge")
	look := func() string {
		t.Helper()
		a, err := s.b.Getattr(ino)
		s.ok(err)
		out := fmt.Sprintf("%+v", a)
		for off := int64(0); off < size; {
			for _, whence := range []int{unix.SEEK_DATA, unix.SEEK_HOLE} {
				at, err := s.b.Seek(ino, off, whence)
				out += fmt.Sprintf(" %d %v", at, err)
				if off = at; err != nil {
					off = size
					break
				}
			}
		}
		buf := make([]byte, 100)
		for _, off := range []int64{5<<20 - 10, 1<<30 + 70, size - 50} {
			n, err := s.b.ReadAt(ino, buf, off)
			out += fmt.Sprintf(" %q %v", buf[:n], err)
		}
		return out
	}
	look() // the first read moves its atime
	want := look()
	s.keep("huge")
	s.change(del("huge"))
	if got := look(); got != want {
		t.Errorf("it was\n%s\nis\n%s", want, got)
	}
	if n := s.count([]byte("x/")); n != 3 {
		t.Errorf("%d regions for three", n)
	}
}

// A number of a base object that older generations show is not given to another one.
func TestNumbersStayTaken(t *testing.T) {
	s := newStore(t, sampleBase(t))
	old := s.ino("README")
	s.keep("README", "src")
	s.change(mv("src", "lib"), del("README"))
	later, err := s.tree.Branch("later")
	s.ok(err)
	a, err := later.Resolve("lib")
	s.ok(err)
	if src := s.ino("src"); a.Ino == src {
		t.Errorf("src of the old generation and lib of the new one both are inode %d", src)
	}
	// Both lines write to what was one directory.
	s.write("src/old", "old")
	if _, err := later.Mknod(a.Ino, "new", unix.S_IFREG|0o644, 0, cred); err != nil {
		t.Fatal(err)
	}
	was, is := dump(t, &s.b.View), dump(t, &later.View)
	s.reopen()
	later, err = s.tree.Branch("later")
	s.ok(err)
	same(t, dump(t, &s.b.View), was)
	same(t, dump(t, &later.View), is)
	if again := s.ino("README"); again != old {
		t.Errorf("README was inode %d, is %d", old, again)
	}
}

// A file with several names on the host that is written in place shows its old bytes under all of them,
// and when a later commit comes by way of another name, too.
func TestKeepHardLinks(t *testing.T) {
	s := newStore(t, sampleBase(t))
	inPlace := func(content string) func(string) error {
		return func(base string) error {
			return os.WriteFile(filepath.Join(base, "one"), []byte(content), 0o644)
		}
	}
	s.keep("one")
	s.change(inPlace("first"))
	s.expect(sample...)
	s.keep("src/two")
	s.change(inPlace("second"), del("src/two"))
	s.expect(sample...)
	for gen, want := range map[uint64]string{0: "linked", 1: "first", 2: "second"} {
		if got := strings.Join(s.baseView(gen), "|"); !strings.Contains(got, fmt.Sprintf("one mode=100644 nlink=%d %q", min(2, 3-gen), want)) {
			t.Errorf("generation %d: %s", gen, got)
		}
	}
	s.reopen()
	s.expect(sample...)
}

func TestBuilt(t *testing.T) {
	s := newStore(t, sampleBase(t))
	stat := func(p string) Built {
		t.Helper()
		var st syscall.Stat_t
		s.ok(syscall.Lstat(filepath.Join(s.base, p), &st))
		return Built{
			Known: true, Exists: true, Type: st.Mode & unix.S_IFMT, Ino: st.Ino, Size: st.Size,
			Mtime: Time{st.Mtim.Sec, uint32(st.Mtim.Nsec)}, Ctime: Time{st.Ctim.Sec, uint32(st.Ctim.Nsec)},
		}
	}
	none := Built{Known: true}
	want := map[string]Built{"ln": {}, "src/deep/x": {}, "nothing": {}, "nothing/at/all": {}, "new": none, "new/f": none, "README/below": none}
	for _, p := range []string{"README", "src", "src/main.go", "one", "src/two", "empty", "src/deep"} {
		want[p] = stat(p)
	}
	s.mkdir("new")
	s.write("new/f", "f")
	s.unlink("README")
	s.rename("src", "lib")
	s.write("lib/main.go", "changed")
	s.rename("lib/deep", "deep")
	s.write("one", "changed") // and so its other name
	s.rmdir("empty")
	s.seal()
	check := func() {
		t.Helper()
		for p, w := range want {
			got, err := s.b.Built(p)
			s.ok(err)
			got.Btime = Time{}
			if got != w {
				t.Errorf("%q: %+v, want %+v", p, got, w)
			}
		}
	}
	check()
	s.write("README", "back") // in place of a whiteout, then gone again
	check()
	s.unlink("README")
	s.mkdir("empty")
	s.seal()
	s.rmdir("empty")
	check()
	s.change(put("README", "drift"), del("src/main.go"))
	s.seal()
	s.collect()
	s.reopen()
	check()
}

// withoutRights runs f on a thread that may not read what its owner may not, as root else does.
func withoutRights(t *testing.T, f func() error) error {
	t.Helper()
	if os.Getuid() != 0 {
		return f()
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var was, now [2]unix.CapUserData
	if err := unix.Capget(&header, &was[0]); err != nil {
		t.Fatal(err)
	}
	now = was
	now[0].Effective &^= 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_DAC_READ_SEARCH
	if err := unix.Capset(&header, &now[0]); err != nil {
		t.Fatal(err)
	}
	err := f()
	return errors.Join(err, unix.Capset(&header, &was[0]))
}

// What the daemon may not read it need not keep: whoever looks gets the error that he got before.
func TestKeepUnreadable(t *testing.T) {
	s := newStore(t, sampleBase(t))
	secret := filepath.Join(s.base, "secret")
	s.ok(os.Chmod(filepath.Join(s.base, "README"), 0))
	s.ok(os.MkdirAll(filepath.Join(secret, "in"), 0o711))
	s.ok(os.Chmod(secret, 0))
	s.ok(withoutRights(t, func() error {
		_, err := s.tree.KeepBase(context.Background(), []string{"README", "secret", "src"}, nil)
		return err
	}))
	s.ok(os.Chmod(secret, 0o700))
	s.ok(put("README", "mine now")(s.base))
	s.change(del("src"))
	ino := s.ino("README")
	a, err := s.b.Getattr(ino)
	if err != nil || a.Mode&0o7777 != 0 || a.Size != int64(len("read me\n")) {
		t.Errorf("%+v: %v", a, err)
	}
	if _, err := readAll(&s.b.View, ino); !errors.Is(err, unix.EACCES) {
		t.Errorf("read what nobody could: %v", err)
	}
	if got, err := readAll(&s.b.View, s.ino("src/main.go")); err != nil || got != "package main\n" {
		t.Errorf("%q: %v", got, err)
	}
	s.ino("secret/in")
}
