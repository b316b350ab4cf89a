package session

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/rewindfs/rewindfs/control"
)

// linkBase is a base with symlinks of all kinds.
func linkBase(t *testing.T) Options {
	t.Helper()
	o := options(t)
	outside := filepath.Join(filepath.Dir(o.Base), "outside")
	if err := os.WriteFile(outside, []byte("secret"), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{
		"rel": "sub/b.txt", "sub/up": "../a.txt", "dir": "sub", "abs": outside, "absdir": filepath.Dir(o.Base),
		"escape": "../outside", "sub/escape": "../../outside", "loop": "loop", "dangling": "sub/made",
		"danglingout": "../made", "slash": "/", "dot": ".",
	} {
		if err := os.Symlink(target, filepath.Join(o.Base, name)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 45 {
		if err := os.Symlink(fmt.Sprintf("l%d", i+1), filepath.Join(o.Base, fmt.Sprintf("l%d", i))); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(o.Base, "l45"), []byte("end"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(o.Base, "fifo"), 0o644); err != nil {
		t.Fatal(err)
	}
	return o
}

func TestReadFollowsLinksInsideOnly(t *testing.T) {
	r := start(t, linkBase(t))
	for path, want := range map[string]string{
		"rel": "base b\n", "sub/up": "base a\n", "dir/b.txt": "base b\n", "dir/up": "base a\n",
		"dir/../a.txt": "base a\n", "./sub//./b.txt": "base b\n", "dot/dot/a.txt": "base a\n", "l6": "end",
	} {
		r.want(t, "", path, want)
		r.want(t, "base", path, want)
	}
	for _, path := range []string{
		"abs", "absdir/outside", "escape", "sub/escape", "loop", "l0", "slash", "slash/etc/passwd", "..", "../outside", "sub/../../outside",
		"", ".", "sub", "dir", "nope", "nope/x", "a.txt/x", "fifo", "dangling", strings.Repeat("x", 256), strings.Repeat("x/", 3000), "a\x00b", "/etc/passwd", ".rewind", ".rewind/checkpoints",
	} {
		if got, err := r.read("", path); control.CodeOf(err) != control.CodeBadPath {
			t.Errorf("reading %.40q: %q, %v", path, got, err)
		}
	}
}

func TestWriteStaysInside(t *testing.T) {
	o := linkBase(t)
	outside := filepath.Join(filepath.Dir(o.Base), "outside")
	r := start(t, o)
	for _, path := range []string{
		"abs", "escape", "sub/escape", "danglingout", "absdir/x", "slash/x", "../x", "..", "loop", "sub", "fifo", "nope/x", "a.txt/x", "", "/tmp/x", ".rewind/x", strings.Repeat("x", 256),
	} {
		if _, err := r.WriteFile(t.Context(), path, strings.NewReader("bad")); control.CodeOf(err) != control.CodeBadPath {
			t.Errorf("writing %.40q: %v", path, err)
		}
	}
	if b, err := os.ReadFile(outside); err != nil || string(b) != "secret" {
		t.Fatalf("outside is %q, %v", b, err)
	}
	st, err := r.Status(t.Context())
	if err != nil || st.ChangedPaths != 0 {
		t.Fatalf("refused writes changed %d paths, %v", st.ChangedPaths, err)
	}

	for _, path := range []string{"new", "sub/new", "dangling", "rel", "dir/b.txt", "bad\xff\nname"} {
		text := strings.Repeat(path, 1000)
		r.write(t, path, text)
		r.want(t, "", path, text)
	}
	r.want(t, "", "sub/made", strings.Repeat("dangling", 1000))
	r.write(t, "a.txt", "short")
	r.want(t, "", "a.txt", "short")
	r.write(t, "a.txt", "")
	r.want(t, "", "a.txt", "")
	big := strings.Repeat("0123456789abcdef", 200<<10) // 3.2 MiB
	r.write(t, "a.txt", big)
	r.want(t, "", "a.txt", big)
	r.want(t, "base", "a.txt", "base a\n")
	sum, err := r.Diff(t.Context(), control.DiffRequest{}, func(control.Change) error { return nil })
	if err != nil || sum.Total != 6 { // a.txt, sub/b.txt, sub/made, new, sub/new, the odd one
		t.Fatalf("%+v, %v", sum, err)
	}
}

func TestWriteKeepsModeAndOwner(t *testing.T) {
	o := options(t)
	if err := os.Chmod(filepath.Join(o.Base, "a.txt"), 0o4751); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(o.Base, "a.txt"), 0o751|os.ModeSetuid); err != nil {
		t.Fatal(err)
	}
	r := start(t, o)
	r.write(t, "a.txt", "new")
	a, err := r.s.branch.Resolve("a.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer r.s.branch.Forget(a.Ino, 1)
	if a.Mode&0o7777 != 0o751 {
		t.Fatalf("mode is %o", a.Mode)
	}
	r.write(t, "fresh", "new")
	b, err := r.s.branch.Resolve("fresh")
	if err != nil {
		t.Fatal(err)
	}
	defer r.s.branch.Forget(b.Ino, 1)
	if b.Mode&0o7777 != newFileMode || b.UID != uint32(os.Getuid()) || b.GID != uint32(os.Getgid()) {
		t.Fatalf("the new file: %+v", b)
	}
}

func TestNoNodesStayBehind(t *testing.T) {
	r := start(t, linkBase(t))
	before := r.s.tree.Usage().Nodes
	for range 3 {
		r.write(t, "rel", "x")
		r.write(t, "fresh", "x")
		if _, err := r.read("", "sub/up"); err != nil {
			t.Fatal(err)
		}
		if _, err := r.read("", "l0"); err == nil {
			t.Fatal("followed 45 links")
		}
	}
	if after := r.s.tree.Usage().Nodes; after > before {
		t.Fatalf("%d nodes before, %d after", before, after)
	}
}

func FuzzCleanPath(f *testing.F) {
	for _, s := range []string{"a/../b", "//x", "a\x00", "./.", "a/./b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, err := cleanPath(s)
		if err != nil {
			return
		}
		if strings.HasPrefix(p, "/") || strings.Contains(p, "\x00") || strings.Contains("/"+p+"/", "/./") {
			t.Fatalf("%q became %q", s, p)
		}
	})
}
