package faults

import (
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/internal/fstree"
	"github.com/rewindfs/rewindfs/internal/mounttest"
)

// identity is the device and inode of what path leads to.
func identity(t *testing.T, path string) (dev, ino uint64) {
	t.Helper()
	var st unix.Stat_t
	ok(t, unix.Stat(path, &st))
	return st.Dev, st.Ino
}

// Nothing of one branch shows in another: not through the kernel's caches either.
func TestHistoryBranchesAreApart(t *testing.T) {
	m := mounttest.New(t, mounttest.Options{})
	m.Sh("head -c 300000 /dev/zero | tr '\\0' s >$M/shared; ln $M/shared $M/d/link; mkdir $M/dir; echo x >$M/dir/x")
	m.Checkpoint("start")
	a, b := m.Fork("start", "a"), m.Fork("start", "b")
	all := []*mounttest.Mount{m, a, b}
	start := get(t, m.Path("shared"))
	for _, x := range all {
		content(t, x.Path("shared"), start) // all of it is in three page caches
		if _, err := os.Lstat(x.Path("new")); !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err) // and this in three caches of names
		}
	}
	// Numbers: the same file has one number, on devices of its own; what is made has a number of its own.
	inos := map[uint64]bool{}
	devs := map[uint64]bool{}
	for _, x := range all {
		dev, ino := identity(t, x.Path("shared"))
		devs[dev], inos[ino] = true, true
	}
	if len(inos) != 1 || len(devs) != 3 {
		t.Errorf("the shared file has %d inode numbers on %d devices", len(inos), len(devs))
	}
	for i, x := range all {
		put(t, x.Path("new"), string(rune('0'+i)))
		_, ino := identity(t, x.Path("new"))
		inos[ino] = true
	}
	if len(inos) != 4 {
		t.Errorf("new files of three branches and the shared one have %d inode numbers", len(inos))
	}
	for i, x := range all {
		content(t, x.Path("new"), string(rune('0'+i)))
	}

	// Held descriptors and mappings write into their own branch.
	fa, fb := open(t, a.Path("shared"), os.O_RDWR), open(t, b.Path("shared"), os.O_RDWR)
	ma := mapShared(t, fa, 8192)
	copy(ma, "MAPPED")
	_, err := fb.WriteAt([]byte("WRITTEN"), 200000)
	ok(t, err)
	ok(t, unix.Msync(ma, unix.MS_SYNC))
	content(t, m.Path("shared"), start)
	content(t, a.Path("d/link"), "MAPPED"+start[6:])
	content(t, b.Path("d/link"), start[:200000]+"WRITTEN"+start[200007:])
	ok(t, os.Rename(a.Path("dir"), a.Path("moved")))
	ok(t, os.RemoveAll(b.Path("dir")))
	content(t, m.Path("dir/x"), "x\n")
	content(t, a.Path("moved/x"), "x\n")

	// A checkpoint of one has what is dirty in it, and nothing of the others.
	copy(ma, "DIRTY!")
	b.Checkpoint("of b")
	a.Checkpoint("of a")
	content(t, a.Path(".rewind/checkpoints/of a/shared"), "DIRTY!"+start[6:])
	content(t, b.Path(".rewind/checkpoints/of b/shared"), start[:200000]+"WRITTEN"+start[200007:])

	// A rollback in one touches only it: what the others hold goes on.
	before := m.Snapshot()
	put(t, b.Path("shared"), "to be left")
	b.Rollback("start")
	content(t, b.Path("shared"), start)
	content(t, b.Path("dir/x"), "x\n")
	if _, err := fb.WriteAt([]byte("late"), 0); !errors.Is(err, unix.ESTALE) {
		t.Errorf("a write through a descriptor from before the rollback: %v", err)
	}
	mounttest.Same(t, before, m.Snapshot(), fstree.Exact, "main before", "main after")
	_, err = fa.WriteAt([]byte("STILL "), 0)
	ok(t, err)
	if got := get(t, a.Path("shared")); !strings.HasPrefix(got, "STILL ") || string(ma[:6]) != "STILL " {
		t.Errorf("in the other branch the file begins %q, its mapping %q", got[:6], ma[:6])
	}
	content(t, m.Path("shared"), start)

	// What was removed in one while held open there lives on in it, and elsewhere with its name.
	ok(t, os.Remove(a.Path("shared")))
	ok(t, os.Remove(a.Path("d/link")))
	if st, err := fa.Stat(); err != nil || st.Size() != int64(len(start)) {
		t.Errorf("a removed file that is held: %v, %v", st, err)
	}
	content(t, m.Path("d/link"), start)
	content(t, b.Path("shared"), start)
}

// A file of the base that changes underneath is seen to have changed in each branch that shows it.
func TestHistoryBranchesSeeTheBaseChange(t *testing.T) {
	m := mounttest.New(t, mounttest.Options{Loose: true})
	f := m.Fork("base", "f")
	old := get(t, m.Path("a"))
	content(t, f.Path("a"), old)
	put(t, f.Path("d/own"), "x")
	put(t, m.Base+"/a", "changed on the host, and longer than it was\n"+old)
	for _, x := range []*mounttest.Mount{f, m} {
		_, err := os.Stat(x.Path("a")) // one look finds out
		ok(t, err)
		mounttest.WaitFor(t, "the new content", func() bool {
			return get(t, x.Path("a")) == "changed on the host, and longer than it was\n"+old
		})
	}
}
