package fs

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func (h *helper) want(cmd, answer string) {
	h.t.Helper()
	if got := h.ask(cmd); got != answer {
		h.t.Errorf("%s answered %q, want %q", cmd, got, answer)
	}
}

var esSTALE = unix.ESTALE.Error()

func TestRollbackHeldDescriptor(t *testing.T) {
	for _, inBase := range []bool{false, true} {
		r := newRig(t, func(base string) {
			if inBase {
				os.WriteFile(filepath.Join(base, "f"), []byte("old"), 0o644)
			}
		})
		if !inBase {
			r.write("f", "old")
		}
		before := lstat(t, r.path("f"))
		r.checkpoint("one")
		h := r.start("holder", r.path("f"))
		h.want("read", "old")
		h.want("write newer", "ok")
		h.want("read", "newer")
		r.want("f", "newer")
		r.rollback("one")
		r.want("f", "old")
		if after := lstat(t, r.path("f")); after != before {
			t.Errorf("stat is %+v after the rollback, was %+v", after, before)
		}
		h.want("read", "old")
		h.want("write dropped", esSTALE)
		h.want("truncate", esSTALE)
		h.want("chmod", esSTALE)
		h.want("fsync", "ok")
		h.want("stat", "size 3 nlink 1")
		r.want("f", "old")
		// What comes now through the path is seen through the old descriptor, too.
		r.write("f", "after the rollback")
		h.want("read", "after the rollback")
		h.want("stat", "size 18 nlink 1")
		if err := os.Truncate(r.path("f"), 5); err != nil {
			t.Fatal(err)
		}
		h.want("read", "after")
		h2 := r.start("holder", r.path("f"))
		h2.want("write hello", "ok")
		h.want("read", "hello")
		h.stop()
		h2.stop()
	}
}

func TestRollbackHeldMapping(t *testing.T) {
	r := newRig(t, nil)
	r.write("f", "old")
	r.checkpoint("one")
	h := r.start("holder", r.path("f"))
	h.want("map", "ok")
	h.want("mwrite new", "ok")
	h.want("mread", "new")
	r.want("f", "new")
	// The page is dirty again when the head moves.
	if err := r.m.Barrier(context.Background()); err != nil {
		t.Fatal(err)
	}
	h.want("mwrite xyz", "ok")
	r.move("one")
	r.want("f", "old")
	h.want("mread", "old")
	h.want("mwrite abc", "ok")
	if got := h.ask("msync"); got == "ok" {
		t.Error("msync of a mapping from before the rollback says ok")
	}
	r.want("f", "old")
	h.stop()
	r.want("f", "old")
}

func TestBarrierCollectsMappings(t *testing.T) {
	for _, mode := range []CacheMode{Through, Writeback} {
		t.Run(string(mode), func(t *testing.T) {
			r := newRig(t, nil, func(o *Options) { o.CacheMode = mode })
			r.write("f", "one")
			h := r.start("holder", r.path("f"))
			h.want("map", "ok")
			h.want("mwrite two", "ok")
			h2 := r.start("holder", r.path("f"))
			r.write("g", "")
			h3 := r.start("holder", r.path("g"))
			h3.want("write gathered", "ok")
			r.checkpoint("a")
			h.want("mwrite six", "ok")
			r.checkpoint("b")
			want := func(path, content string) {
				t.Helper()
				r.want(".rewind/checkpoints/"+path, content)
			}
			want("a/f", "two")
			want("a/g", "gathered")
			want("b/f", "six")
			h2.want("read", "six")
			h.stop()
			h2.stop()
			h3.stop()
		})
	}
}

func TestRollbackNames(t *testing.T) {
	r := newRig(t, func(base string) {
		os.MkdirAll(filepath.Join(base, "dir/sub"), 0o755)
		os.WriteFile(filepath.Join(base, "dir/sub/f"), []byte("base"), 0o644)
		os.WriteFile(filepath.Join(base, "gone"), []byte("gone"), 0o644)
		os.Symlink("gone", filepath.Join(base, "link"))
	})
	r.sh(0, "mkdir new; echo 1 > new/a; ln new/a new/b")
	r.checkpoint("one")
	tree := r.sh(0, "find . -printf '%p %y %m %s %n %i %T@ %C@ %l\n' | sort")
	cwd := r.start("dweller", r.path("dir/sub"))
	r.sh(0, `
		rm -r new; mkdir new; echo 2 > new/c
		mv dir moved; mkdir dir; echo x > dir/sub
		rm gone; ln -sfn elsewhere link; chmod 700 .; mkfifo fifo
		cat absent 2>/dev/null || :
		ls -lR . > /dev/null; echo hi > absent; stat moved/sub/f new/c >/dev/null`)
	cwd.want("list", "f")
	after := r.sh(0, "find . -printf '%p %y %m %s %n %i %T@ %C@ %l\n' | sort")
	left := r.rollback("one")
	if got := r.sh(0, "find . -printf '%p %y %m %s %n %i %T@ %C@ %l\n' | sort"); got != tree {
		t.Errorf("after the rollback:\n%s\nwant:\n%s", got, tree)
	}
	for _, p := range []string{"absent", "moved", "new/c", "fifo"} {
		r.wantGone(p)
	}
	cwd.want("list", "f")
	cwd.want("cwd", r.path("dir/sub"))
	r.points["left"] = left.From
	r.rollback("left")
	if got := r.sh(0, "find . -printf '%p %y %m %s %n %i %T@ %C@ %l\n' | sort"); got != after {
		t.Errorf("after the redo:\n%s\nwant:\n%s", got, after)
	}
	cwd.want("cwd", r.path("moved/sub"))
	cwd.stop()
}

func TestRollbackRemovesCwd(t *testing.T) {
	r := newRig(t, nil)
	r.checkpoint("empty")
	r.sh(0, "mkdir -p d/e; echo 1 > d/e/f")
	h := r.start("dweller", r.path("d/e"))
	h.want("list", "f")
	r.rollback("empty")
	r.wantGone("d")
	switch got := h.ask("list"); got {
	case "", unix.ENOENT.Error(), unix.ESTALE.Error():
	default:
		t.Errorf("a listing of the removed directory answered %q", got)
	}
	h.want("up", "ok")
	h.stop()
}
