package faults

import (
	"encoding/base64"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/rewindfs/rewindfs/internal/fstree"
	"github.com/rewindfs/rewindfs/internal/mounttest"
)

type checkpoint struct {
	ID, Label     string
	Layer, Parent uint64
	ChangedPaths  int64 `json:"changed_paths"`
}

func labels(m *mounttest.Mount) []string {
	var log struct{ Checkpoints []checkpoint }
	m.JSON(&log, "log")
	var out []string
	for _, c := range log.Checkpoints {
		out = append(out, c.Label)
	}
	return out
}

func TestHistoryLabelsThatAreRefused(t *testing.T) {
	m := mounttest.New(t, mounttest.Options{})
	m.Checkpoint("one")
	put(t, m.Path("a"), "changed")
	before := m.Snapshot()
	for _, label := range []string{"", "-x", "@x", "a\nb", "\x01", "one", "base", "latest", " lead", "trail ", strings.Repeat("x", 5000), "tab\there", "\xff", "../x", "a/../b", "/abs"} {
		r := m.Run("checkpoint", "--", label)
		if r.Code == 0 {
			t.Errorf("label %q was taken", label)
		}
		if r.Code == 0 || strings.TrimSpace(r.Stderr) == "" {
			t.Errorf("no message for label %q", label)
		}
	}
	for _, ref := range []string{"nothing", "", "@{5}", "@{-1}", "@{x}", "../one", "one/", "\n", "0123456789", "one two"} {
		for _, cmd := range []string{"rollback", "diff"} {
			if r := m.Run(cmd, ref); r.Code != 3 && r.Code != 64 {
				t.Errorf("%s %q: exit code %d, want 3", cmd, ref, r.Code)
			}
		}
	}
	m.Fails(2, "-s", "/nowhere", "status")
	m.Fails(64, "rollback")
	m.Fails(64, "nonsense")
	is(t, "checkpoints", strings.Join(labels(m), " "), "one")
	mounttest.Same(t, before, m.Snapshot(), fstree.Exact, "before", "after commands that failed")
}

func TestHistoryLabelsThatAreTaken(t *testing.T) {
	m := mounttest.New(t, mounttest.Options{})
	odd := []string{"a b", "feature/x", "v1.2_3-4", "a:b", "UPPER", "日本", "x.", "1"}
	for i, l := range odd {
		put(t, m.Path("a"), l)
		m.Checkpoint(l)
		if i == 0 {
			ok(t, os.Remove(m.Path("b")))
		}
	}
	for _, l := range odd {
		put(t, m.Path("a"), "work")
		m.Rollback(l)
		content(t, m.Path("a"), l)
		m.OK("undo")
	}
	is(t, "newest first", labels(m)[0], "1")
	m.Rollback("@{1}")
	content(t, m.Path("a"), "x.")
}

func TestHistoryLatestAfterARollback(t *testing.T) {
	m := mounttest.New(t, mounttest.Options{})
	var ids []string
	for i := 1; i <= 4; i++ {
		put(t, m.Path("a"), fmt.Sprint(i))
		ids = append(ids, m.Checkpoint(fmt.Sprint("c", i)))
	}
	var r struct {
		Dropped []checkpoint
		Noop    bool
	}
	m.JSON(&r, "rollback", "c2")
	is(t, "checkpoints dropped", len(r.Dropped), 2)
	is(t, "the line", strings.Join(labels(m), " "), "c2 c1")
	m.Fails(3, "rollback", "c3")
	m.JSON(&r, "rollback", "latest")
	is(t, "a second rollback does nothing", r.Noop, true)
	content(t, m.Path("a"), "2")
	put(t, m.Path("a"), "new 4")
	m.Checkpoint("c4") // the label is free again
	m.Rollback("c1")
	m.OK("undo")
	content(t, m.Path("a"), "new 4")
	m.Rollback("@{0}")
	m.Rollback(ids[1][:20])
	content(t, m.Path("a"), "2")
	m.Rollback("base")
	content(t, m.Path("a"), string(fstree.Bytes(1, 100)))
	is(t, "the line", len(labels(m)), 0)
}

type change struct {
	Path, Status, Type string
	PathB64            string `json:"path_b64"`
	OldPath            string `json:"old_path"`
}

// changes lists what a diff says, renames as their two halves.
func changes(t *testing.T, m *mounttest.Mount, args ...string) string {
	t.Helper()
	var d struct{ Changes []change }
	m.JSON(&d, append([]string{"diff"}, args...)...)
	var out []string
	for _, c := range d.Changes {
		p := c.Path
		if c.PathB64 != "" {
			raw, err := base64.StdEncoding.DecodeString(c.PathB64)
			ok(t, err)
			p = string(raw)
		}
		if c.Status == "R" {
			out = append(out, "D "+c.OldPath, "A "+p)
			continue
		}
		out = append(out, c.Status+" "+p)
	}
	slices.Sort(out)
	return strings.Join(out, "; ")
}

func TestHistoryDiffShowsRealChangesOnly(t *testing.T) {
	m := mounttest.New(t, mounttest.Options{})
	m.Checkpoint("c")
	m.Sh(`cat a b d/* >/dev/null 2>&1 || true; ls -lR >/dev/null; find . >/dev/null` + "\n" +
		`touch x; rm x; cp a /dev/null`) // reading and coming and going changes nothing
	is(t, "diff of nothing", changes(t, m, "c"), "")
	m.Sh(`echo n >new; mkdir newdir; echo x >>a; rm b; chmod 700 d/b; mv c moved; rm sym; mkdir sym; ln a alink; setfattr -n user.z -v z src/pkg/f1`)
	want := []string{"A alink", "A moved", "A new", "A newdir", "D b", "D c", "M a", "M d/b", "M src/pkg/f1", "T sym"}
	slices.Sort(want)
	is(t, "diff", changes(t, m, "c"), strings.Join(want, "; "))
	ok(t, os.WriteFile(m.Path("\xff\n"), nil, 0o644))
	if got := changes(t, m, "c"); !strings.Contains(got, "A \xff\n") {
		t.Errorf("a name that is not UTF-8 is lost in %q", got)
	}
	m.Checkpoint("d")
	is(t, "diff between checkpoints", strings.ReplaceAll(changes(t, m, "c", "d"), "A \xff\n; ", ""), strings.Join(want, "; "))
	m.Rollback("c")
	is(t, "diff after the rollback", changes(t, m, "c"), "")
}

func TestHistoryDryRunTellsWhatWouldGo(t *testing.T) {
	m := mounttest.New(t, mounttest.Options{})
	m.Checkpoint("one")
	put(t, m.Path("a"), "x")
	m.Checkpoint("two")
	put(t, m.Path("new"), "x")
	before := m.Snapshot()
	var r struct {
		Changes []change
		Dropped []checkpoint
		DryRun  bool `json:"dry_run"`
	}
	m.JSON(&r, "rollback", "one", "--dry-run")
	is(t, "changes told", len(r.Changes), 2)
	is(t, "checkpoints told", len(r.Dropped), 1)
	is(t, "dry_run", r.DryRun, true)
	mounttest.Same(t, before, m.Snapshot(), fstree.Exact, "before", "after the dry run")
	is(t, "checkpoints", len(labels(m)), 2)
}

func TestHistoryUnchangedCheckpointsCostNothing(t *testing.T) {
	m := mounttest.New(t, mounttest.Options{})
	m.Checkpoint("first")
	before := storeSize(t, m)
	for i := range 50 {
		m.Checkpoint(fmt.Sprint(i))
	}
	if grown := storeSize(t, m) - before; grown > 1<<20 {
		t.Errorf("50 unchanged checkpoints took %d bytes", grown)
	}
}

func TestHistoryRollbackWhileWritersAreActive(t *testing.T) {
	m := mounttest.New(t, mounttest.Options{Fill: func(dir string) error { return os.WriteFile(j(dir, "f"), []byte(strings.Repeat("0", 100000)), 0o644) }})
	m.Checkpoint("c")
	var stop atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := 1; !stop.Load(); i++ {
			// Each by a fresh open: these go on after a rollback.
			_ = os.WriteFile(m.Path("f"), []byte(strings.Repeat(fmt.Sprint(i%10), 100000)), 0o644)
			_ = os.WriteFile(m.Path(fmt.Sprint("n", i%7)), nil, 0o644)
		}
	}()
	for range 20 {
		if r := m.Run("rollback", "c"); r.Code != 0 && r.Code != 6 {
			t.Errorf("%s", r)
		}
	}
	stop.Store(true)
	<-done
	m.Rollback("c")
	content(t, m.Path("f"), strings.Repeat("0", 100000))
	listed(t, m.Dir, "f")
}

func TestHistoryStateSurvivesUnmountAndRemount(t *testing.T) {
	m := mounttest.New(t, mounttest.Options{})
	m.Checkpoint("one")
	m.Sh("rm -rf src; echo x >>a; mkdir made; mv d/e made/e; chmod 640 b; ln a hard")
	m.Checkpoint("two")
	m.Sh("echo y >>a")
	before := m.Snapshot()
	f := fstree.Exact
	for range 3 {
		m.Remount()
		after := m.Snapshot()
		for p, e := range before.Entries {
			if a := after.Entries[p]; a != nil {
				e.Dev = a.Dev // another mount, another device number
			}
		}
		mounttest.Same(t, before, after, f, "before", "after the remount")
	}
	is(t, "checkpoints", strings.Join(labels(m), " "), "two one")
	m.Rollback("one")
	m.Remount()
	content(t, m.Path("a"), string(fstree.Bytes(1, 100)))
	m.OK("undo")
}

func TestHistoryBaseChangesUnderneath(t *testing.T) {
	m := mounttest.New(t, mounttest.Options{Loose: true})
	data := get(t, m.Path("big"))
	f := open(t, m.Path("big"), os.O_RDWR)
	_, err := f.WriteAt([]byte("mine"), 0) // overlay bytes over base bytes
	ok(t, err)
	ok(t, f.Close())
	put(t, m.Path("d/a"), "wholly mine")
	ok(t, os.WriteFile(j(m.Base, "big"), []byte(strings.Repeat("B", len(data))), 0o644))
	ok(t, os.WriteFile(j(m.Base, "d/a"), []byte("theirs"), 0o644))
	ok(t, os.WriteFile(j(m.Base, "b"), []byte("new in the base"), 0o644))
	ok(t, os.WriteFile(j(m.Base, "added"), []byte("added"), 0o644))
	m.Remount()
	got, err := os.ReadFile(m.Path("big"))
	if err == nil && strings.Contains(string(got), "B") && string(got) != strings.Repeat("B", len(data)) {
		t.Error("old and new bytes are mixed in one file")
	}
	content(t, m.Path("d/a"), "wholly mine")
	content(t, m.Path("b"), "new in the base")
	content(t, m.Path("added"), "added")
	var s struct{ Drift []any }
	m.JSON(&s, "status")
	if len(s.Drift) == 0 {
		t.Error("status reports no drift")
	}
}
