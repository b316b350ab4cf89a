package faults

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/internal/fstree"
	"github.com/rewindfs/rewindfs/internal/mounttest"
)

func TestHistoryDescriptorFromBeforeACheckpoint(t *testing.T) {
	m := mounttest.New(t, mounttest.Options{})
	f := open(t, m.Path("a"), os.O_RDWR)
	base := get(t, m.Path("a"))
	_, err := f.WriteAt([]byte("ONE"), 0)
	ok(t, err)
	m.Checkpoint("one")
	_, err = f.WriteAt([]byte("TWO"), 0) // belongs to the new layer
	ok(t, err)
	content(t, m.Path("a"), "TWO"+base[3:])
	content(t, m.Path(".rewind/checkpoints/one/a"), "ONE"+base[3:])
	m.Rollback("one")
	content(t, m.Path("a"), "ONE"+base[3:])
	// A later write by it never reaches a sealed layer: it is refused, or it is an
	// ordinary write to the new head.
	_, err = f.WriteAt([]byte("LATE"), 0)
	switch {
	case errors.Is(err, unix.ESTALE):
		content(t, m.Path("a"), "ONE"+base[3:])
	case err != nil:
		t.Errorf("a late write: %v", err)
	}
	content(t, m.Path(".rewind/checkpoints/one/a"), "ONE"+base[3:])
	// The path works for whoever opens it now.
	put(t, m.Path("a"), "fresh")
	content(t, m.Path("a"), "fresh")
	m.Rollback("one")
	content(t, m.Path("a"), "ONE"+base[3:])
}

func TestHistoryMappingFromBeforeACheckpoint(t *testing.T) {
	m := mounttest.New(t, mounttest.Options{})
	f := open(t, m.Path("d/b"), os.O_RDWR)
	mm := mapShared(t, f, 8192)
	copy(mm, "MAP1")
	m.Checkpoint("one") // with a dirty page: no msync
	copy(mm, "MAP2")
	content(t, m.Path(".rewind/checkpoints/one/d/b"), "MAP1"+string(fstree.Bytes(6, 131072))[4:])
	m.Checkpoint("two")
	copy(mm, "MAP3")
	m.Rollback("one")
	if got := get(t, m.Path("d/b")); !strings.HasPrefix(got, "MAP1") {
		t.Errorf("after the rollback the file begins %q", got[:4])
	}
	for i, want := range map[string]string{"one": "MAP1"} {
		if got := get(t, m.Path(".rewind/checkpoints", i, "d/b")); !strings.HasPrefix(got, want) {
			t.Errorf("checkpoint %s begins %q", i, got[:4])
		}
	}
}

func TestHistoryDirtyMappingIsNotWrittenIntoTheRestoredFile(t *testing.T) {
	m := mounttest.New(t, mounttest.Options{})
	m.Checkpoint("c")
	want := get(t, m.Path("d/b"))
	sh := startScript(t, m.Dir, `
import mmap, sys
f = open("d/b", "r+b")
m = mmap.mmap(f.fileno(), 0)
for line in sys.stdin:
    try:
        m[:5] = b"DIRTY"
        print("ok", flush=True)
    except Exception as e:
        print(repr(e), flush=True)
`)
	is(t, "store", sh.ask("x"), "ok")
	m.Rollback("c")
	content(t, m.Path("d/b"), want)
	sh.stop() // its pages are written now, if ever
	content(t, m.Path("d/b"), want)
	m.Remount()
	content(t, m.Path("d/b"), want)
}

func TestHistoryFileMadeAfterTheCheckpointHeldOverTheRollback(t *testing.T) {
	m := mounttest.New(t, mounttest.Options{})
	m.Checkpoint("c")
	before := m.Snapshot()
	f := open(t, m.Path("new"), os.O_CREATE|os.O_RDWR)
	_, err := f.WriteString("data")
	ok(t, err)
	m.Rollback("c")
	gone(t, m.Path("new"))
	if _, err := f.WriteString("more"); err != nil && !errors.Is(err, unix.ESTALE) {
		t.Errorf("write to a dropped file: %v", err)
	}
	f.Close()
	put(t, m.Path("new"), "another")
	content(t, m.Path("new"), "another")
	m.Rollback("c")
	mounttest.Same(t, before, m.Snapshot(), fstree.Exact, "at the checkpoint", "after the rollback")
}

func TestHistoryCwdThatTheRollbackRemoves(t *testing.T) {
	m := mounttest.New(t, mounttest.Options{})
	m.Checkpoint("c")
	ok(t, os.MkdirAll(m.Path("new/sub"), 0o755))
	sh := child(t, m.Path("new/sub"))
	kept := child(t, m.Path("d/e"))
	m.Sh("echo x >d/e/x")
	m.Rollback("c")
	if out := sh.run("ls 2>&1; echo x >f 2>&1; ls .. 2>&1"); strings.Contains(out, "Input/output error") {
		t.Errorf("in a dropped directory: %s", out)
	}
	is(t, "leaving it", sh.run("cd "+m.Dir+" && pwd"), m.Dir)
	// readlink first: it does not walk, which would mend a dentry that was cut off.
	is(t, "a directory that stayed", kept.run("readlink /proc/self/cwd; ls; pwd -P"), m.Path("d/e")+"\na\nf\nhl2\n"+m.Path("d/e"))
}

func TestHistoryCwdSurvivesRollbacksOfOtherThings(t *testing.T) {
	m := mounttest.New(t, mounttest.Options{})
	sh := child(t, m.Path("d/e/f"))
	m.Checkpoint("c")
	for _, change := range []string{
		"echo x >>a", "chmod 600 d/e/f/deep", "echo x >>d/e/f/deep", "mv d/b d/e/b2", "mkdir d/e/f/new; echo x >d/e/f/new/f", "chmod 711 d/e/f", "rm d/e/a",
		"setfattr -n user.x -v y d", "mv src d/e/f/src; echo x >>d/e/f/src/pkg/f1",
	} {
		m.Sh(change)
		m.Rollback("c")
		is(t, "cwd after the rollback of: "+change, sh.run("readlink /proc/self/cwd"), m.Path("d/e/f"))
	}
}

// The kernel tells where a directory is by the name under which it was last looked up.
func TestHistoryCwdInADirectoryThatTheRollbackMoves(t *testing.T) {
	m := mounttest.New(t, mounttest.Options{Fill: func(dir string) error {
		return errors.Join(os.MkdirAll(j(dir, "base/sub"), 0o755), os.Mkdir(j(dir, "other"), 0o755))
	}})
	ok(t, os.MkdirAll(m.Path("made/in/sub"), 0o755))
	m.Checkpoint("one")
	where := map[string]string{"base/sub": "other/moved/sub", "made/in/sub": "made2/in2/sub"}
	shells := map[string]*shell{}
	for p := range where {
		shells[p] = child(t, m.Path(p))
	}
	ok(t, os.Rename(m.Path("base"), m.Path("other/moved")))
	ok(t, os.Rename(m.Path("made/in"), m.Path("made/in2")))
	ok(t, os.Rename(m.Path("made"), m.Path("made2")))
	m.Rollback("one")
	for p, sh := range shells {
		is(t, "cwd after the rollback", sh.run("readlink /proc/self/cwd"), m.Path(p))
	}
	m.OK("undo")
	for p, sh := range shells {
		is(t, "cwd after the undo", sh.run("readlink /proc/self/cwd"), m.Path(where[p]))
	}
}

func TestHistoryUnlinkedOpenFileAtTheCheckpoint(t *testing.T) {
	m := mounttest.New(t, mounttest.Options{})
	f := open(t, m.Path("a"), os.O_RDWR)
	ok(t, os.Remove(m.Path("a")))
	m.Checkpoint("c")
	gone(t, m.Path("a"))
	gone(t, m.Path(".rewind/checkpoints/c/a"))
	_, err := f.WriteAt([]byte("still"), 0)
	ok(t, err)
	put(t, m.Path("x"), "x")
	m.Rollback("c")
	gone(t, m.Path("a"))
	gone(t, m.Path("x"))
	p := make([]byte, 5)
	if _, err := f.ReadAt(p, 0); err != nil && !errors.Is(err, unix.ESTALE) {
		t.Errorf("read of an orphan after the rollback: %v", err)
	}
	f.Close()
	m.Rollback("base")
	content(t, m.Path("a"), string(fstree.Bytes(1, 100)))
}

func TestHistoryLocksHeldAcrossARollback(t *testing.T) {
	m := mounttest.New(t, mounttest.Options{})
	m.Checkpoint("c")
	sh := child(t, m.Dir)
	is(t, "lock", sh.run("echo x >>a; exec 9<a; flock -n 9 && echo got; : >pid.lock"), "got")
	m.Rollback("c")
	gone(t, m.Path("pid.lock"))
	sh.stop()
	f := open(t, m.Path("a"), os.O_RDONLY)
	ok(t, unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB))
}

func TestHistoryWritesThatReturnedAreInTheCheckpoint(t *testing.T) {
	for _, cache := range []string{"through", "writeback"} {
		t.Run(cache, func(t *testing.T) {
			m := mounttest.New(t, mounttest.Options{Args: []string{"--cache", cache}})
			f := open(t, m.Path("log"), os.O_CREATE|os.O_RDWR)
			for i := range 10 {
				_, err := f.WriteString(strings.Repeat("r", 1000) + "\n")
				ok(t, err)
				label := string(rune('a' + i))
				m.Checkpoint(label)
				is(t, "size in checkpoint "+label, stat(t, m.Path(".rewind/checkpoints", label, "log")).Size, int64(1001*(i+1)))
			}
			for _, i := range []int{8, 3, 0} {
				m.Rollback(string(rune('a' + i)))
				content(t, m.Path("log"), strings.Repeat(strings.Repeat("r", 1000)+"\n", i+1))
			}
		})
	}
}

func TestHistoryCheckpointIsOneInstant(t *testing.T) {
	m := mounttest.New(t, mounttest.Options{Fill: mounttest.Empty})
	// A writer keeps n in two files, the first always written before the second.
	w := exec.Command("python3", "-c", `
import os
a = os.open("a", os.O_RDWR | os.O_CREAT); b = os.open("b", os.O_RDWR | os.O_CREAT)
n = 0
while True:
    n += 1
    os.pwrite(a, b"%08d" % n, 0)
    os.pwrite(b, b"%08d" % n, 0)
`)
	w.Dir = m.Dir
	ok(t, w.Start())
	defer func() { _ = w.Process.Kill(); _ = w.Wait() }()
	mounttest.WaitFor(t, "the writer", func() bool { _, err := os.Stat(m.Path("b")); return err == nil })
	for i := range 15 {
		label := string(rune('a' + i))
		m.Checkpoint(label)
		a, b := get(t, m.Path(".rewind/checkpoints", label, "a")), get(t, m.Path(".rewind/checkpoints", label, "b"))
		if len(b) == 8 && a != b && !isNext(b, a) {
			t.Errorf("checkpoint %s is torn: a=%s b=%s", label, a, b)
		}
	}
}

// isNext reports whether the number b is a's successor.
func isNext(a, b string) bool {
	var x, y int
	for i := range a {
		x, y = x*10+int(a[i]-'0'), y*10+int(b[i]-'0')
	}
	return y == x+1
}

func TestHistoryRemovedDirectoryComesBackWhileHeld(t *testing.T) {
	m := mounttest.New(t, mounttest.Options{})
	m.Checkpoint("c")
	// Each keeps the kernel's inode of the removed directory alive.
	f := open(t, m.Path("d/e/f/deep"), os.O_RDONLY)
	dir := open(t, m.Path("src/pkg"), os.O_RDONLY)
	sh := child(t, m.Path("odd"))
	ok(t, os.Mkdir(m.Path("over"), 0o755))
	ok(t, os.RemoveAll(m.Path("d")))
	ok(t, os.RemoveAll(m.Path("src")))
	ok(t, os.RemoveAll(m.Path("odd")))
	ok(t, os.RemoveAll(m.Path("modes")))
	m.Rollback("c")
	for _, p := range []string{"d", "d/e", "d/e/f", "src", "src/pkg", "odd", "modes"} {
		is(t, "entries of "+p, len(names(t, m.Path(p))), len(names(t, j(m.Base, p))))
		put(t, m.Path(p, "new"), "works")
		content(t, m.Path(p, "new"), "works")
	}
	_, _ = f, dir
	sh.run("cd /")
}
