package layersdiff

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/apply"
	"github.com/rewindfs/rewindfs/internal/fsops"
	"github.com/rewindfs/rewindfs/internal/fstree"
	"github.com/rewindfs/rewindfs/layers"
)

// failer lets helpers that want a twin.TB be used in ordinary tests.
type failer struct{ *testing.T }

// change makes one change in the branch.
func (s *applied) change(o fsops.Op) {
	s.tb.Helper()
	if r := s.target.Do(o); r.Errno != 0 {
		s.tb.Fatalf("%v: %v", o, r)
	}
}

// plan plans to bring the head to the base.
func (s *applied) plan(r apply.Request) *apply.Commit {
	s.tb.Helper()
	sealed, err := s.target.b.Seal(nil)
	s.must(err)
	r.Layer, r.Branch = sealed.Layer, "main"
	c, err := s.applier().PlanBase(context.Background(), r, apply.Record{})
	s.must(err)
	return c
}

// TestApplyHostile commits while somebody on the host goes on exchanging directories with symbolic links that lead out, and
// files with FIFOs. Nothing outside is touched, nothing hangs, and nothing is left behind.
func TestApplyHostile(t *testing.T) {
	top := fstree.FastTemp(t)
	base, outside := filepath.Join(top, "base"), filepath.Join(top, "outside")
	s := newApplied(failer{t}, filepath.Join(top, "s"), base)
	defer s.close()
	s.must(os.MkdirAll(filepath.Join(outside, "pkg"), 0o755))
	for _, f := range []string{"a", "b", "new", "pkg/f1", "x0", "x1"} {
		s.must(os.WriteFile(filepath.Join(outside, f), []byte("outside "+f), 0o600))
	}
	s.must(os.Symlink(outside, filepath.Join(base, "link")))
	s.must(os.Symlink(outside, filepath.Join(base, "elink")))
	s.must(unix.Mkfifo(filepath.Join(base, "swapped-fifo"), 0o600))
	before, err := fstree.Scan(outside)
	s.must(err)

	stop, wg := make(chan struct{}), sync.WaitGroup{}
	wg.Go(func() {
		at := func(p string) string { return filepath.Join(base, p) }
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			for _, pair := range [][2]string{{"d", "link"}, {"src", "elink"}, {"a", "swapped-fifo"}} {
				_ = unix.Renameat2(unix.AT_FDCWD, at(pair[0]), unix.AT_FDCWD, at(pair[1]), unix.RENAME_EXCHANGE)
			}
		}
	})
	outcomes := map[string]int{}
	for i := range 150 {
		s.target.Do(fsops.Op{Kind: fsops.OpenTrunc, Path: "d/a", Mode: 0o644, Len: 100, Seed: uint64(i + 1)})
		s.target.Do(fsops.Op{Kind: fsops.OpenTrunc, Path: "a", Mode: 0o644, Len: 100, Seed: uint64(i + 1)})
		s.target.Do(fsops.Op{Kind: fsops.OpenTrunc, Path: fmt.Sprintf("d/x%d", i%2), Mode: 0o4755, Len: 10, Seed: uint64(i)})
		s.target.Do(fsops.Op{Kind: fsops.Unlink, Path: fmt.Sprintf("d/x%d", (i+1)%2)})
		s.target.Do(fsops.Op{Kind: fsops.OpenTrunc, Path: "src/pkg/f1", Mode: 0o600, Len: 100, Seed: uint64(i)})
		s.target.Do(fsops.Op{Kind: fsops.Chmod, Path: "d", Mode: 0o700 + uint32(i%7)})
		sealed, err := s.target.b.Seal(nil)
		s.must(err)
		r := apply.Request{Layer: sealed.Layer, Branch: "main", OnConflict: []apply.OnConflict{apply.Ours, apply.Theirs}[i%2], Special: true}
		if i%5 == 4 {
			_, err = s.tryUndo()
		} else {
			_, err = s.try(r)
		}
		outcomes[fmt.Sprint(err == nil)]++
	}
	close(stop)
	wg.Wait()
	t.Logf("commits that came to their end: %v", outcomes)
	after, err := fstree.Scan(outside)
	s.must(err)
	for _, d := range fstree.Diff(before, after, fstree.Exact, "before", "after") {
		t.Errorf("outside of the base: %s", d)
	}
	s.must(s.w.reopen())
	_, err = s.applier().Recover(nil)
	s.must(err)
	names, err := os.ReadDir(base)
	s.must(err)
	for _, n := range names {
		if strings.HasPrefix(n.Name(), layers.StagePrefix) {
			t.Errorf("%s is left", n.Name())
		}
	}
	s.branch()
}

// try commits, whatever comes of it.
func (s *applied) try(r apply.Request) (bool, error) {
	c, err := s.applier().PlanBase(context.Background(), r, apply.Record{})
	return s.tryPlan(c, err)
}

func (s *applied) tryUndo() (bool, error) {
	c, err := s.applier().PlanUndo(context.Background(), apply.Request{Branch: "main", OnConflict: apply.Ours}, apply.Record{})
	return s.tryPlan(c, err)
}

func (s *applied) tryPlan(c *apply.Commit, err error) (bool, error) {
	if err != nil {
		return false, err
	}
	defer c.Close()
	if err = c.Do(context.Background(), nil, nil); err != nil {
		_, rerr := s.applier().Recover(nil)
		s.must(rerr)
	}
	return err == nil, err
}

// Nothing is brought into another file system that is mounted within the base, and none is taken along when a directory goes.
func TestApplyMounts(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can mount")
	}
	top := fstree.FastTemp(t)
	base := filepath.Join(top, "base")
	s := newApplied(failer{t}, filepath.Join(top, "s"), base)
	defer s.close()
	at, other := filepath.Join(base, "d/empty"), filepath.Join(top, "other")
	s.must(os.MkdirAll(other, 0o755))
	s.must(os.WriteFile(filepath.Join(other, "x"), []byte("x"), 0o644))
	if err := unix.Mount(other, at, "", unix.MS_BIND, ""); err != nil {
		t.Skipf("no bind mount: %v", err)
	}
	defer func() { s.must(unix.Unmount(at, unix.MNT_DETACH)) }()
	for _, o := range []fsops.Op{
		{Kind: fsops.OpenTrunc, Path: "d/empty/x", Mode: 0o644, Len: 10, Seed: 1},
		{Kind: fsops.Create, Path: "d/empty/y", Mode: 0o644, Len: 10, Seed: 1},
		{Kind: fsops.OpenTrunc, Path: "b", Mode: 0o644, Len: 10, Seed: 1},
	} {
		s.change(o)
	}
	c := s.plan(apply.Request{OnConflict: apply.Ours})
	if !c.Conflicts() || len(c.Left) != 2 || !strings.Contains(c.Left[0].Reason, "mounted there") {
		t.Errorf("files in a mount: %+v, left %+v", c.Changes, c.Left)
	}
	c.Close()
	s.change(fsops.Op{Kind: fsops.RemoveAll, Path: "d"})
	c = s.plan(apply.Request{OnConflict: apply.Theirs})
	if err := c.Do(context.Background(), nil, nil); err != nil {
		t.Error(err)
	}
	c.Close()
	if b, err := os.ReadFile(filepath.Join(other, "x")); err != nil || string(b) != "x" {
		t.Errorf("in the mount: %q, %v", b, err)
	}
	if fi, err := os.Stat(filepath.Join(base, "b")); err != nil || fi.Size() != 10 {
		t.Errorf("beside the mount: %v, %v", fi, err)
	}
}

// What root makes in a mount of somebody's project belongs to that one; what was there keeps its owner.
func TestApplyOwner(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can give files away")
	}
	top := fstree.FastTemp(t)
	base := filepath.Join(top, "base")
	s := newApplied(failer{t}, filepath.Join(top, "s"), base)
	defer s.close()
	s.must(os.Chown(base, 1234, 1235))
	for _, o := range []fsops.Op{
		{Kind: fsops.Create, Path: "d/new", Mode: 0o4755, Len: 10, Seed: 1},
		{Kind: fsops.Mkdir, Path: "n", Mode: 0o755},
		{Kind: fsops.Append, Path: "b", Len: 10, Seed: 1},
	} {
		s.change(o)
	}
	c := s.plan(apply.Request{})
	s.must(c.Do(context.Background(), nil, nil))
	c.Close()
	for p, want := range map[string]string{"d/new": "1234:1235 755", "n": "1234:1235 755", "b": "0:0 600"} {
		var st unix.Stat_t
		s.must(unix.Lstat(filepath.Join(base, p), &st))
		if got := fmt.Sprintf("%d:%d %o", st.Uid, st.Gid, st.Mode&0o7777); got != want {
			t.Errorf("%s is %s, want %s", p, got, want)
		}
	}
	if c = s.plan(apply.Request{}); !c.Noop() {
		t.Errorf("a second commit would do: %+v", c.Changes)
	}
	c.Close()
	c = s.plan(apply.Request{Special: true})
	defer c.Close()
	if len(c.Changes) != 1 || c.Changes[0].Path != "d/new" {
		t.Errorf("with the setuid bit: %+v", c.Changes)
	}
}

// Whoever ends a commit while it gets ready finds the host as it was; so does one for whom the disk is too small.
func TestApplyCutShort(t *testing.T) {
	top := fstree.FastTemp(t)
	base := filepath.Join(top, "base")
	s := newApplied(failer{t}, filepath.Join(top, "s"), base)
	defer s.close()
	before := s.scan()
	s.change(fsops.Op{Kind: fsops.RemoveAll, Path: "d"})
	s.change(fsops.Op{Kind: fsops.Append, Path: "b", Len: 10, Seed: 1})
	s.change(fsops.Op{Kind: fsops.Create, Path: "new", Mode: 0o644, Len: 10, Seed: 1})
	c := s.plan(apply.Request{})
	defer c.Close()
	ctx, cancel := context.WithCancel(context.Background())
	err := c.Do(ctx, func(what string, _, _ int64) { cancel() }, nil)
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("a commit that was interrupted: %v", err)
	}
	same := func() {
		t.Helper()
		for _, d := range fstree.Diff(before, s.scan(), fstree.Fields{Nlink: true, Mtime: true, Ino: true}, "before", "after") {
			t.Error(d)
		}
	}
	same()
	a := s.applier()
	a.StopAt(func(call, name string) error {
		if call == "make" && name != "" {
			return unix.ENOSPC
		}
		return nil
	})
	full, err := s.planWith(a)
	s.must(err)
	defer full.Close()
	if err := full.Do(context.Background(), nil, nil); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("a commit without room: %v", err)
	}
	same()
	last := s.plan(apply.Request{})
	defer last.Close()
	s.must(last.Do(context.Background(), nil, nil))
	if s.scan().Entries["new"] == nil {
		t.Error("the commit after all brought nothing")
	}
}

func (s *applied) planWith(a *apply.Applier) (*apply.Commit, error) {
	sealed, err := s.target.b.Seal(nil)
	s.must(err)
	return a.PlanBase(context.Background(), apply.Request{Layer: sealed.Layer, Branch: "main"}, apply.Record{})
}

// A commit to another directory that was cut off is no obstacle when that directory is gone.
func TestApplyElsewhere(t *testing.T) {
	top := fstree.FastTemp(t)
	s := newApplied(failer{t}, filepath.Join(top, "s"), filepath.Join(top, "base"))
	defer s.close()
	to := filepath.Join(top, "to")
	plan := func(a *apply.Applier) *apply.Commit {
		s.must(os.MkdirAll(to, 0o755))
		sealed, err := s.target.b.Seal(nil)
		s.must(err)
		c, err := a.PlanDir(context.Background(), to, apply.Request{Layer: sealed.Layer, Branch: "main", Special: true}, apply.Record{})
		s.must(err)
		return c
	}
	for calls := range 40 {
		a := s.applier()
		var left atomic.Int64
		left.Store(int64(calls * 5))
		a.StopAt(func(string, string) error {
			if left.Add(-1) < 0 {
				return errKilled
			}
			return nil
		})
		c := plan(a)
		err := c.Do(context.Background(), nil, nil)
		c.Close()
		if calls%2 == 0 {
			s.must(os.RemoveAll(to))
		}
		_, rerr := s.applier().Recover(nil)
		s.must(rerr)
		if err == nil {
			break
		}
	}
	s.change(fsops.Op{Kind: fsops.RemoveAll, Path: "d"})
	for i := range 2 {
		c := plan(s.applier())
		if c.Conflicts() || c.Noop() != (i == 1) {
			t.Fatalf("commit %d: %+v, left %+v", i, c.Changes, c.Left)
		}
		s.must(c.Do(context.Background(), nil, nil))
		c.Close()
	}
	got, err := fstree.Scan(to)
	s.must(err)
	want := treeOf(&s.target.b.View)
	delete(want.Entries, ".")
	delete(got.Entries, ".")
	for _, d := range fstree.Diff(want, got, fstree.Fields{Mtime: true}, "tree", "directory") {
		t.Error(d)
	}
}

// Holes stay holes, whatever size they have.
func TestApplyHoles(t *testing.T) {
	top := fstree.FastTemp(t)
	base := filepath.Join(top, "base")
	s := newApplied(failer{t}, filepath.Join(top, "s"), base)
	defer s.close()
	for _, o := range []fsops.Op{
		{Kind: fsops.Write, Path: "sparse", Off: 300 << 10, Len: 7, Seed: 1},
		{Kind: fsops.Create, Path: "new", Mode: 0o644, Len: 10, Seed: 1},
		{Kind: fsops.Truncate, Path: "new", Len: 1 << 40},
		{Kind: fsops.Write, Path: "new", Off: 1 << 39, Len: 10, Seed: 1},
	} {
		s.change(o)
	}
	c := s.plan(apply.Request{})
	defer c.Close()
	s.must(c.Do(context.Background(), nil, nil))
	for p, size := range map[string]int64{"sparse": 0, "new": 1 << 40} {
		var st unix.Stat_t
		s.must(unix.Lstat(filepath.Join(base, p), &st))
		if size > 0 && st.Size != size || st.Blocks*512 > st.Size/2 || st.Blocks*512 > 1<<20 {
			t.Errorf("%s has %d blocks for %d bytes", p, st.Blocks, st.Size)
		}
	}
	if c := s.plan(apply.Request{}); !c.Noop() {
		t.Errorf("a second commit would do: %+v", c.Changes)
	}
}

// A commit to another directory that was cut off waits for that directory, whatever its name, and does nothing to one that is in
// its place.
func TestApplyElsewhereMoved(t *testing.T) {
	top := fstree.FastTemp(t)
	s := newApplied(failer{t}, filepath.Join(top, "s"), filepath.Join(top, "base"))
	defer s.close()
	to, away := filepath.Join(top, "to\xff"), filepath.Join(top, "away")
	s.must(os.Mkdir(to, 0o755))
	a := s.applier()
	sealed, err := s.target.b.Seal(nil)
	s.must(err)
	plan := func(a *apply.Applier) *apply.Commit {
		c, err := a.PlanDir(context.Background(), to, apply.Request{Layer: sealed.Layer, Branch: "main", Special: true}, apply.Record{})
		s.must(err)
		return c
	}
	a.StopAt(killFrom("syncfs", 2)) // all steps are made, but nobody noted it
	c := plan(a)
	err = c.Do(context.Background(), nil, nil)
	c.Close()
	if !errors.Is(err, errKilled) {
		t.Fatalf("the commit was not cut off: %v", err)
	}
	s.must(os.Rename(to, away))
	s.must(os.Mkdir(to, 0o750))
	s.must(os.Mkdir(filepath.Join(to, "d"), 0o700))
	old := time.Unix(1e9, 0)
	s.must(os.Chtimes(to, old, old))
	if _, err := s.applier().Recover(nil); err == nil || !strings.Contains(err.Error(), "another directory") {
		t.Fatalf("another directory in the place of the target: %v", err)
	}
	if st, err := os.Stat(to); err != nil || !st.ModTime().Equal(old) || st.Mode().Perm() != 0o750 {
		t.Errorf("the other directory was changed: %v, %v", st, err)
	}
	s.must(os.RemoveAll(to))
	s.must(os.Rename(away, to))
	rec, err := s.applier().Recover(nil)
	s.must(err)
	if rec == nil || rec.Target != to {
		t.Errorf("brought to its end: %+v", rec)
	}
	left, err := os.ReadDir(to)
	s.must(err)
	if len(left) > 0 {
		t.Errorf("taken back, but for %v", left)
	}
	again := plan(s.applier())
	defer again.Close()
	s.must(again.Do(context.Background(), nil, nil))
}

// killFrom stops a commit at the nth call of a name, and at all that follows.
func killFrom(call string, n int) func(call, name string) error {
	dead := false
	var mu sync.Mutex
	return func(c, _ string) error {
		mu.Lock()
		defer mu.Unlock()
		if c == call {
			n--
		}
		if dead = dead || n <= 0; dead {
			return errKilled
		}
		return nil
	}
}
