package layers

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// kernel remembers what the kernel would: what names lead to, absent ones too,
// and what inodes are like. It forgets what a move says, and nothing else.
type kernel struct {
	t     *testing.T
	b     *Branch
	names map[NameKey]Ino // 0: absent
	attrs map[Ino]Attr
	refs  map[Ino]uint64
	held  map[Ino]Ino // what is open, and the directory in which it was opened
	order map[Ino]int // when an inode was first seen: numbers of base inodes vary
	tag   map[Ino]int // how often an inode was renewed
	// linked has two names in the base. While the kernel does not know of one of them
	// it may be taken for gone; looking that name up finds it. And while it is held, but
	// the directory of a name is not in use, the loss of that name may go unseen.
	linked Ino
	dead   map[Ino]int // directories removed under the kernel's eyes, and the tag they had
}

func newKernel(t *testing.T, b *Branch) *kernel {
	return &kernel{t: t, b: b, names: map[NameKey]Ino{}, attrs: map[Ino]Attr{}, refs: map[Ino]uint64{},
		held: map[Ino]Ino{}, order: map[Ino]int{RootIno: 0}, tag: map[Ino]int{}, dead: map[Ino]int{}}
}

func (k *kernel) learn(key NameKey, a Attr) {
	if _, ok := k.order[a.Ino]; !ok {
		k.order[a.Ino] = len(k.order)
	}
	k.refs[a.Ino]++
	k.names[key], k.attrs[a.Ino] = a.Ino, a
}

// see looks a name up if it is not known yet.
func (k *kernel) see(key NameKey) Ino {
	if ino, ok := k.names[key]; ok {
		return ino
	}
	a, err := k.b.Lookup(key.Dir, key.Name)
	switch {
	case err == nil:
		k.learn(key, a)
	case errors.Is(err, unix.ENOENT):
		k.names[key] = 0
	default:
		k.t.Fatalf("look up %v: %v", key, err)
	}
	return k.names[key]
}

func (k *kernel) isDir(ino Ino) bool {
	a := k.attrs[ino]
	return a.IsDir()
}

// stat refreshes an inode after an operation on it.
func (k *kernel) stat(inos ...Ino) {
	for _, ino := range inos {
		if a, err := k.b.Getattr(ino); err == nil {
			k.attrs[ino] = a
		}
	}
}

// shrink forgets some of what nobody holds: names first, then inodes without.
func (k *kernel) shrink(rng *rand.Rand) {
	for _, key := range k.known() {
		if rng.IntN(4) == 0 && !k.inUse(k.names[key]) {
			delete(k.names, key)
		}
	}
	k.forgetUnused()
}

// known lists the names in an order that does not depend on chance.
func (k *kernel) known() []NameKey {
	return slices.SortedFunc(maps.Keys(k.names), func(a, b NameKey) int {
		return cmp.Or(cmp.Compare(k.order[a.Dir], k.order[b.Dir]), cmp.Compare(a.Name, b.Name))
	})
}

// inUse reports whether something hangs on ino: a holder, or a name below it.
func (k *kernel) inUse(ino Ino) bool {
	if ino == RootIno || k.held[ino] != 0 {
		return true
	}
	for _, dir := range k.held {
		if dir == ino {
			return true
		}
	}
	for key := range k.names {
		if key.Dir == ino {
			return true
		}
	}
	return false
}

func (k *kernel) forgetUnused() {
	for again := true; again; {
		again = false
		named := map[Ino]bool{}
		for key, ino := range k.names {
			if named[ino] = true; k.refs[key.Dir] == 0 && key.Dir != RootIno {
				k.t.Fatalf("the kernel has a name in %d, which it does not know", key.Dir)
			}
		}
		for ino, n := range k.refs {
			if n > 0 && !named[ino] && !k.inUse(ino) {
				k.b.Forget(ino, n)
				delete(k.refs, ino)
				delete(k.attrs, ino)
				delete(k.dead, ino)
				again = true
			}
		}
	}
}

// move moves the head, does what Mount.Notify has the kernel do, and checks that
// names that go on leading to the same directory stay.
func (k *kernel) move(s *store, to Layer) Moved {
	there := map[Ino]bool{}
	for key := range k.names {
		_, err := k.b.Getattr(key.Dir)
		there[key.Dir] = err == nil
	}
	m := s.back(to)
	for _, key := range m.Names {
		if ino := k.names[key]; ino != 0 && there[key.Dir] {
			a, err := k.b.Lookup(key.Dir, key.Name)
			if err == nil {
				k.b.Forget(a.Ino, 1)
			}
			if err == nil && a.Ino == ino && a.IsDir() && !slices.Contains(m.Renew, ino) {
				k.t.Errorf("the kernel is told of %v, which leads to directory %d as before", key, ino)
			}
		}
		delete(k.names, key)
	}
	for _, ino := range m.Inos {
		delete(k.attrs, ino)
	}
	for _, ino := range m.Renew {
		k.tag[ino]++
	}
	if !slices.IsSorted(m.Inos) || !slices.IsSorted(m.Renew) {
		k.t.Error("inodes are not in order")
	}
	return m
}

// check holds all that the kernel remembers against the tree.
func (k *kernel) check(m Moved) {
	k.t.Helper()
	for key, was := range k.names {
		if _, err := k.b.Getattr(key.Dir); err != nil {
			continue // a removed directory in use: what is in it cannot be reached by name
		}
		a, err := k.b.Lookup(key.Dir, key.Name)
		now := Ino(0)
		if err == nil {
			now = a.Ino
			k.b.Forget(a.Ino, 1)
		} else if !errors.Is(err, unix.ENOENT) {
			k.t.Errorf("look up %v: %v", key, err)
			continue
		}
		if now != was {
			k.t.Errorf("%v leads to %d, the kernel believes %d", key, now, was)
		}
		if tag, ok := k.dead[now]; ok && now == was && k.tag[now] == tag {
			k.t.Errorf("%v leads to directory %d, which the kernel holds for dead", key, now)
		}
		if now == was && err == nil && a.Mode&unix.S_IFMT == unix.S_IFREG && slices.Contains(m.Renew, now) {
			k.t.Errorf("%v leads to file %d by its old identity", key, now)
		}
	}
	for key, ino := range k.names {
		if a, err := k.b.Getattr(ino); err == nil && a.IsDir() && a.Nlink > 0 {
			if up, err := k.b.View.Parent(ino); err != nil || up != key.Dir {
				k.t.Errorf("the parent of %d is %d, %v, want %d", ino, up, err, key.Dir)
			}
		}
	}
	shown := map[Ino]bool{RootIno: true}
	k.walk(RootIno, shown)
	for ino := range k.refs {
		if a, err := k.b.Getattr(ino); err == nil && a.Nlink > 0 && !shown[ino] && ino != k.linked {
			k.t.Errorf("inode %d, which has no name any more, is %+v", ino, a)
		} else if err != nil && shown[ino] && ino != k.linked {
			k.t.Errorf("inode %d, which has a name: %v", ino, err)
		}
	}
	for ino, was := range k.attrs {
		now, err := k.b.Getattr(ino)
		if errors.Is(err, unix.ESTALE) || now.Nlink == 0 {
			continue
		}
		was.Atime = now.Atime // reading the base changes it
		if err != nil || now != was {
			k.t.Errorf("inode %d is %+v, %v; the kernel believes %+v", ino, now, err, was)
		}
	}
}

// walk notes what is in the tree below dir.
func (k *kernel) walk(dir Ino, shown map[Ino]bool) {
	err := k.b.ReadDir(dir, 0, func(e Entry) bool {
		shown[e.Ino] = true
		if e.Type == unix.S_IFDIR {
			if a, err := k.b.Lookup(dir, e.Name); err != nil {
				k.t.Errorf("look up %q in %d: %v", e.Name, dir, err)
			} else {
				k.walk(a.Ino, shown)
				k.b.Forget(a.Ino, 1)
			}
		}
		return true
	})
	if err != nil {
		k.t.Errorf("list %d: %v", dir, err)
	}
}

// below reports whether dir is ino, lies in it or is not in the tree.
func (k *kernel) below(dir, ino Ino) bool {
	for dir != ino && dir != RootIno {
		up, err := k.b.View.Parent(dir)
		if err != nil {
			return true
		}
		dir = up
	}
	return dir == ino
}

// act is one random operation through the kernel.
func (k *kernel) act(rng *rand.Rand) {
	dirs := []Ino{RootIno}
	var files []Ino
	var named []NameKey
	for _, key := range k.known() {
		ino := k.names[key]
		if ino == 0 {
			continue
		}
		named = append(named, key)
		if k.isDir(ino) {
			dirs = append(dirs, ino)
		} else {
			files = append(files, ino)
		}
	}
	key := NameKey{dirs[rng.IntN(len(dirs))], string(rune('a' + rng.IntN(5)))}
	ino := k.see(key)
	if _, ok := k.attrs[ino]; ino != 0 && !ok {
		k.stat(ino)
	}
	var from NameKey
	if len(named) > 0 {
		from = named[rng.IntN(len(named))]
	}
	switch rng.IntN(12) {
	case 0, 1:
		if a, err := k.b.Mknod(key.Dir, key.Name, unix.S_IFREG|0o644, 0, Cred{}); err == nil {
			k.learn(key, a)
		}
	case 2:
		if a, err := k.b.Mkdir(key.Dir, key.Name, 0o755, Cred{}); err == nil {
			k.learn(key, a)
		}
	case 3, 4:
		if ino != 0 {
			k.b.Write(ino, fmt.Append(nil, rng.Int()), 0, WriteFlags{})
			k.stat(ino)
		}
	case 5, 6:
		if k.b.Unlink(key.Dir, key.Name) == nil {
			k.names[key] = 0
			k.stat(ino)
		}
	case 7:
		if k.b.Rmdir(key.Dir, key.Name) == nil {
			k.names[key] = 0
			k.dead[ino] = k.tag[ino]
		}
	case 8, 9:
		n := k.names[from]
		if n == 0 || k.below(key.Dir, n) {
			break // nothing to move, or what the kernel never asks for
		}
		if k.b.Rename(from.Dir, from.Name, key.Dir, key.Name, 0) == nil && from != key && n != ino {
			if k.isDir(ino) {
				k.dead[ino] = k.tag[ino]
			}
			k.names[from], k.names[key] = 0, n
			k.stat(n, ino, from.Dir)
		}
	case 10:
		if len(files) == 0 {
			break
		}
		n := files[rng.IntN(len(files))]
		if a, err := k.b.Link(n, key.Dir, key.Name); err == nil {
			k.learn(key, a)
		}
	case 11:
		if k.isDir(ino) || ino == 0 {
			mode := uint32(0o700 + rng.IntN(64))
			k.b.Setattr(key.Dir, SetAttr{Mode: &mode})
		} else {
			if k.held[ino] == 0 {
				k.held[ino] = key.Dir
			} else {
				delete(k.held, ino)
			}
		}
	}
	k.stat(key.Dir, ino)
}

// TestMovesTellTheKernel plays random operations and moves of the head, and a kernel
// that remembers for ever what it has not been told to forget.
func TestMovesTellTheKernel(t *testing.T) {
	for seed := range uint64(150) {
		if t.Failed() {
			return
		}
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 7))
			base := t.TempDir()
			for _, d := range []string{"a/a", "b", "c/d"} {
				os.MkdirAll(filepath.Join(base, d), 0o755)
			}
			for _, f := range []string{"d", "a/b", "a/a/c", "c/a", "c/d/e"} {
				os.WriteFile(filepath.Join(base, f), []byte(f), 0o644)
			}
			os.Link(filepath.Join(base, "d"), filepath.Join(base, "b/b"))
			s := newStore(t, base)
			k := newKernel(t, s.b)
			k.linked = s.numberInBase("b/b")
			seen := []Layer{BaseLayer}
			for range 25 {
				for range rng.IntN(8) {
					k.act(rng)
				}
				if rng.IntN(3) == 0 {
					k.shrink(rng)
				}
				if rng.IntN(2) == 0 {
					seen = append(seen, s.seal())
					continue
				}
				m := k.move(s, seen[rng.IntN(len(seen))])
				if !m.Noop {
					seen = append(seen, m.From)
				}
				k.check(m)
				k.forgetUnused()
			}
		})
	}
}

// A directory that was removed while in use stays dead to the kernel over moves to
// heads in which it is not, until it is back and gets a new identity.
func TestRemovedDirectoryIsRenewedWhenItComesBack(t *testing.T) {
	s := newStore(t, sampleBase(t))
	before := s.seal()
	made, err := s.b.Mkdir(RootIno, "made", 0o755, Cred{})
	s.ok(err)
	with := s.seal()
	s.ok(s.b.Rmdir(RootIno, "made"))
	if m := s.back(before); slices.Contains(m.Renew, made.Ino) {
		t.Error("a directory that is not there is renewed")
	}
	if m := s.back(with); !slices.Contains(m.Renew, made.Ino) {
		t.Errorf("directory %d is back, and not among the renewed %v", made.Ino, m.Renew)
	}

	empty := s.ino("empty")
	s.ok(s.b.Rmdir(RootIno, "empty"))
	without := s.seal()
	if m := s.back(with); !slices.Contains(m.Renew, empty) {
		t.Errorf("directory %d is back, and not among the renewed %v", empty, m.Renew)
	}
	s.ok(s.b.Rmdir(RootIno, "empty"))
	s.back(without)
	if m := s.back(with); !slices.Contains(m.Renew, empty) {
		t.Errorf("directory %d is back once more, and not among the renewed %v", empty, m.Renew)
	}
}

// What a move costs must not depend on how many names a directory has: one changed
// name leaves the others in memory.
func TestMoveKeepsDirectoryInMemory(t *testing.T) {
	s := newStore(t, sampleBase(t))
	for _, name := range []string{"x", "y"} {
		_, err := s.b.Mknod(RootIno, name, unix.S_IFREG|0o644, 0, Cred{})
		s.ok(err)
	}
	one := s.seal()
	s.ok(s.b.Unlink(RootIno, "x"))
	_, err := s.b.Mknod(RootIno, "z", unix.S_IFREG|0o644, 0, Cred{})
	s.ok(err)
	d := s.b.root.dir
	m := s.back(one)
	if s.b.root.dir != d {
		t.Error("the directory is read anew")
	}
	for _, name := range []string{"x", "z"} {
		if !slices.Contains(m.Names, NameKey{RootIno, name}) {
			t.Errorf("%s is not among the changed names %v", name, m.Names)
		}
	}
	if slices.Contains(m.Names, NameKey{RootIno, "y"}) {
		t.Error("y did not change")
	}
	if d.names.Len() != 2 {
		t.Errorf("the directory has %d names in memory, want 2", d.names.Len())
	}
}

// After a new start a changed directory is known by its record, with the path it has
// in the base. When the record goes, it still has a parent.
func TestParentOfARestoredBaseDirectory(t *testing.T) {
	s := newStore(t, sampleBase(t))
	deep := s.ino("src/deep")
	_, err := s.b.Mknod(deep, "new", unix.S_IFREG|0o644, 0, Cred{})
	s.ok(err)
	s.reopen()
	src := s.ino("src")
	deep = s.ino("src/deep")
	s.back(BaseLayer)
	if up, err := s.b.View.Parent(deep); err != nil || up != src {
		t.Errorf("the parent of %d is %d, %v, want %d", deep, up, err, src)
	}
}
