package fs

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestRewindDirectory(t *testing.T) {
	r := newRig(t, func(base string) {
		os.MkdirAll(filepath.Join(base, "d"), 0o755)
		os.WriteFile(filepath.Join(base, "d/f"), []byte("base"), 0o640)
		os.Link(filepath.Join(base, "d/f"), filepath.Join(base, "d/g"))
		os.Symlink("d/f", filepath.Join(base, "l"))
	})
	r.checkpoint("one")
	r.write("d/f", "two")
	r.write("new", "new")
	r.checkpoint("a/b: c")
	r.sh(0, "rm -r d new l")

	if got := r.sh(0, "ls -a"); strings.Contains(got, rewindName) {
		t.Errorf("the root lists %q", got)
	}
	if got := r.sh(0, "ls .rewind"); got != "checkpoints" {
		t.Errorf(".rewind lists %q", got)
	}
	if got := r.sh(0, "ls .rewind/checkpoints"); got != "a%2Fb: c\none" {
		t.Errorf("checkpoints lists %q", got)
	}
	r.want(".rewind/checkpoints/one/d/f", "base")
	r.want(".rewind/checkpoints/one/l", "base")
	r.want(".rewind/checkpoints/a%2Fb: c/d/g", "two")
	r.want(".rewind/checkpoints/a%2Fb: c/new", "new")
	r.wantGone(".rewind/checkpoints/one/new")
	r.wantGone(".rewind/checkpoints/none")
	r.wantGone(".rewind/checkpoints/a/b: c")
	if got := r.sh(0, "cd .rewind/checkpoints/one; find . -printf '%p %y %n\n' | sort"); got != ". d 3\n./d d 2\n./d/f f 2\n./d/g f 2\n./l l 1" {
		t.Errorf("find says %s", got)
	}

	// Checkpoints come and go, also under a name that was used.
	r.write("later", "1")
	r.checkpoint("three")
	if got := r.sh(0, "ls .rewind/checkpoints | tail -1"); got != "three" {
		t.Errorf("a new checkpoint is not listed: %q", got)
	}
	r.want(".rewind/checkpoints/three/later", "1")
	r.label("three", r.layer("one"))
	r.wantGone(".rewind/checkpoints/three/later")
	r.want(".rewind/checkpoints/three/d/f", "base")
	r.label("three", 0)
	r.wantGone(".rewind/checkpoints/three")
}

// Who lists the checkpoints sees those of this moment, also right after another listing.
func TestRewindListsNow(t *testing.T) {
	r := newRig(t, nil)
	r.checkpoint("one")
	for i := range 300 {
		name := fmt.Sprint("c", i)
		r.label(name, r.layer("one"))
		got, err := os.ReadDir(r.path(".rewind/checkpoints"))
		if err != nil || len(got) != i+2 {
			t.Fatalf("with %s there are %d checkpoints, want %d; %v", name, len(got), i+2, err)
		}
	}
}

func TestRewindIsReadOnly(t *testing.T) {
	r := newRig(t, nil)
	r.sh(0, "mkdir d; echo x > d/f; ln -s f d/l")
	r.checkpoint("one")
	c := r.path(".rewind/checkpoints/one")
	for what, err := range map[string]error{
		"create":   os.WriteFile(c+"/new", nil, 0o644),
		"truncate": os.Truncate(c+"/d/f", 0),
		"chmod":    os.Chmod(c+"/d/f", 0o600),
		"mkdir":    os.Mkdir(c+"/d2", 0o755),
		"remove":   os.Remove(c + "/d/f"),
		"rmdir":    unix.Rmdir(c + "/d"),
		"rename":   os.Rename(c+"/d", c+"/e"),
		"move in":  os.Rename(r.path("d"), c+"/e"),
		"move out": os.Rename(c+"/d", r.path("e")),
		"symlink":  os.Symlink("x", c+"/s"),
		"link":     os.Link(c+"/d/f", c+"/h"),
		"link out": os.Link(c+"/d/f", r.path("h")),
		"link in":  os.Link(r.path("d/f"), c+"/h"),
		"xattr":    unix.Setxattr(c+"/d/f", "user.x", []byte("1"), 0),
		"times":    unix.UtimesNano(c+"/d/f", []unix.Timespec{{}, {}}),
		"chown":    unix.Lchown(c+"/d/l", 1, 1),
	} {
		if errno(err) != unix.EROFS {
			t.Errorf("%s in a checkpoint: %v, want EROFS", what, err)
		}
	}
	f, err := os.OpenFile(c+"/d/f", os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteString("y")
		f.Close()
	}
	if errno(err) != unix.EROFS {
		t.Errorf("write in a checkpoint: %v, want EROFS", err)
	}
	for what, err := range map[string]error{
		"mkdir":  os.Mkdir(r.path(".rewind"), 0o755),
		"create": os.WriteFile(r.path(".rewind"), nil, 0o644),
		"rename": os.Rename(r.path("d"), r.path(".rewind")),
		"remove": os.RemoveAll(r.path(".rewind/checkpoints/one")),
		"rmdir":  unix.Rmdir(r.path(".rewind")),
		"inside": os.Mkdir(r.path(".rewind/x"), 0o755),
		"deeper": os.Mkdir(r.path(".rewind/checkpoints/x"), 0o755),
	} {
		if err == nil {
			t.Errorf("%s of .rewind worked", what)
		}
	}
	r.want(".rewind/checkpoints/one/d/f", "x\n")
	// Copies of what is in a checkpoint are the ordinary way to get a file back.
	r.sh(0, "cp -a .rewind/checkpoints/one/d back; cmp back/f d/f; test back/l -ef back/f; ! test back/f -ef .rewind/checkpoints/one/d/f")
}

// A base with a .rewind of its own keeps it, out of sight.
func TestRewindHidesBase(t *testing.T) {
	r := newRig(t, func(base string) {
		os.Mkdir(filepath.Join(base, ".rewind"), 0o755)
		os.WriteFile(filepath.Join(base, ".rewind/mine"), nil, 0o644)
		os.Mkdir(filepath.Join(base, "sub"), 0o755)
		os.WriteFile(filepath.Join(base, "sub/.rewind"), []byte("ordinary"), 0o644)
	})
	if got := r.sh(0, "ls -a"); got != ".\n..\nsub" {
		t.Errorf("the root lists %q", got)
	}
	r.wantGone(".rewind/mine")
	r.want("sub/.rewind", "ordinary")
}

func TestViewsAreClosed(t *testing.T) {
	r := newRig(t, nil)
	r.write("f", "x")
	r.checkpoint("one")
	r.want(".rewind/checkpoints/one/f", "x")
	if n := r.m.fs.openViews(); n != 1 {
		t.Fatalf("%d views are open, want 1", n)
	}
	if err := os.WriteFile("/proc/sys/vm/drop_caches", []byte("2"), 0); err != nil {
		t.Skipf("cannot drop caches: %v", err)
	}
	eventually(t, "the view is closed", func() bool { return r.m.fs.openViews() == 0 })
	r.want(".rewind/checkpoints/one/f", "x")
}

func TestLabelNames(t *testing.T) {
	labels := []string{"a", "a/b", ".", "..", "a b", "../x", "v1.2:3"}
	var names []string
	for _, l := range labels {
		n := dirName(l)
		if strings.Contains(n, "/") || n == "." || n == ".." || slices.Contains(names, n) {
			t.Errorf("label %q becomes %q", l, n)
		}
		names = append(names, n)
		if labelOf(n) != l {
			t.Errorf("label %q comes back as %q", l, labelOf(n))
		}
	}
}
