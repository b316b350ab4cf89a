package layersdiff

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/apply"
	"github.com/rewindfs/rewindfs/hunks"
	"github.com/rewindfs/rewindfs/internal/fstree"
	"github.com/rewindfs/rewindfs/internal/twin"
	"github.com/rewindfs/rewindfs/kv"
	"github.com/rewindfs/rewindfs/layers"
)

// TestApplyTexts has a mount and a user on the host change the same texts, with commits that merge, commits of some hunks, undo, ways back
// and restarts in between, and holds what both then have against what git merge-file and git apply make.
func TestApplyTexts(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("no git")
	}
	seen := map[string]int{}
	seq := twin.FromEnv(t, twin.Sequences{Seed: 1, Count: 12}, "REWINDFS_TEST_CHECKS")
	for seed := seq.Seed; seed < seq.Seed+seq.Count; seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			s := newTexts(t, uint64(seed))
			for range 100 {
				s.step()
			}
			for k, n := range s.seen {
				seen[k] += n
			}
		})
	}
	t.Logf("steps: %v", seen)
	for _, k := range []string{"merged", "conflict", "markers", "part", "whole", "undo", "back"} {
		if seq.Count >= 12 && seen[k] < 5 {
			t.Errorf("%q came %d times: the test is not worth much", k, seen[k])
		}
	}
}

// text is what the model knows of one file.
type text struct {
	ours, host, old   string // what the mount and the host have, and what both had when they last agreed
	own               bool   // the mount has one of its own; else it shows the host's
	oursNew           bool   // the mount has changed it since, as far as a commit can tell
	hostVer, agreedAt int    // versions of the host's, now and then
}

// hostNew reports whether the user has changed it since both agreed.
func (f *text) hostNew() bool { return f.hostVer != f.agreedAt }

// put notes that the host has another version, which is not the user's.
func (f *text) put(body, old string) {
	f.host, f.old = body, old
	f.hostVer++
	f.agreedAt = f.hostVer
}

// texts is one sequence.
type texts struct {
	*testing.T
	w     *world
	b     *layers.Branch
	r     *rand.Rand
	files map[string]*text
	undo  []undoable
	marks []mark // checkpoints to go back to
	seen  map[string]int
	log   []string
}

// undoable is what was before and after a commit that can be undone.
type undoable struct{ before, after map[string]text }

// mark is a checkpoint, and what its files were. It can be gone back to as long as no commit came.
type mark struct {
	layer layers.Layer
	files map[string]text
}

func newTexts(t *testing.T, seed uint64) *texts {
	s := &texts{T: t, r: rand.New(rand.NewPCG(seed, 99)), files: map[string]*text{}, seen: map[string]int{}}
	s.w = &world{store: fstree.FastTemp(t), base: filepath.Join(fstree.FastTemp(t), "base")}
	s.must(os.MkdirAll(filepath.Join(s.w.base, "d"), 0o755))
	for _, p := range []string{"a", "b", "d/c"} {
		body := ""
		for i := range 12 + s.r.IntN(20) {
			body += fmt.Sprintf("%s %d\n", p, i)
		}
		s.files[p] = &text{ours: body, host: body, old: body}
		s.toHost(p, body, true)
	}
	s.settleHost()
	s.must(s.w.open())
	s.open()
	t.Cleanup(func() {
		s.w.isClean(t)
		if err := s.w.close(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("steps:\n%s", strings.Join(s.log, "\n"))
		}
	})
	return s
}

func (s *texts) open() {
	var err error
	s.b, err = s.w.tree.Branch("main")
	s.must(err)
}

func (s *texts) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// settleHost waits until the times of what the host has are old enough to be told from those of a next change.
func (s *texts) settleHost() {
	for p := range s.files {
		var st unix.Stat_t
		s.must(unix.Lstat(filepath.Join(s.w.base, p), &st))
		if wait := 25*time.Millisecond - time.Since(time.Unix(st.Ctim.Unix())); wait > 0 {
			<-time.After(wait)
		}
	}
}

// toHost writes on the host, in place or by another file.
func (s *texts) toHost(p, body string, other bool) {
	at := filepath.Join(s.w.base, p)
	if !other {
		s.must(os.WriteFile(at, []byte(body), 0o644))
		return
	}
	s.must(os.WriteFile(at+".new", []byte(body), 0o644))
	s.must(os.Rename(at+".new", at))
}

func (s *texts) fromHost(p string) string {
	b, err := os.ReadFile(filepath.Join(s.w.base, p))
	s.must(err)
	return string(b)
}

// toMount writes in the tree as programs do: over the file, by another one, or by removing it first.
func (s *texts) toMount(p, body string, how int) {
	dirName, name := filepath.Split(p)
	dir, err := s.b.Resolve(strings.TrimSuffix(dirName, "/"))
	s.must(err)
	at := name
	switch how {
	case 0:
		a, err := s.b.Resolve(p)
		s.must(err)
		none := int64(0)
		_, err = s.b.Setattr(a.Ino, layers.SetAttr{Size: &none})
		s.must(err)
	case 1:
		at = name + ".new"
	case 2:
		s.must(s.b.Unlink(dir.Ino, name))
	}
	if how > 0 {
		_, err = s.b.Mknod(dir.Ino, at, unix.S_IFREG|0o644, 0, layers.Cred{})
		s.must(err)
	}
	a, err := s.b.Lookup(dir.Ino, at)
	s.must(err)
	_, err = s.b.Write(a.Ino, []byte(body), 0, layers.WriteFlags{})
	s.must(err)
	if how == 1 {
		s.must(s.b.Rename(dir.Ino, at, dir.Ino, name, 0))
	}
}

func (s *texts) fromMount(p string) string {
	a, err := s.b.Resolve(p)
	s.must(err)
	buf := make([]byte, a.Size)
	_, err = s.b.ReadAt(a.Ino, buf, 0)
	s.must(err)
	return string(buf)
}

// change makes another text of one.
func (s *texts) change(body, who string) string {
	lines := strings.SplitAfter(body, "\n")
	for range 1 + s.r.IntN(3) {
		at := s.r.IntN(len(lines))
		line := fmt.Sprintf("%s %d\n", who, s.r.IntN(1000))
		switch s.r.IntN(4) {
		case 0:
			lines = slices.Insert(lines, at, line)
		case 1:
			if len(lines) > 6 {
				lines = slices.Delete(lines, at, min(at+2, len(lines)-1))
			}
		default:
			if at < len(lines)-1 {
				lines[at] = line
			}
		}
	}
	return strings.Join(lines, "")
}

func (s *texts) step() {
	p := slices.Sorted(maps.Keys(s.files))[s.r.IntN(len(s.files))]
	f := s.files[p]
	switch n := s.r.IntN(14); {
	case n < 4:
		f.ours, f.oursNew, f.own = s.change(f.ours, "ours"), true, true
		how := s.r.IntN(3)
		s.log = append(s.log, fmt.Sprintf("mount %s %d", p, how))
		s.toMount(p, f.ours, how)
	case n < 6:
		s.must(s.w.tree.KeepOriginals(context.Background())) // the user is no faster than half a second
		f.host = s.change(f.host, "host")
		if f.hostVer++; !f.own {
			f.ours, f.old, f.agreedAt = f.host, f.host, f.hostVer
		}
		s.log = append(s.log, "host "+p)
		s.toHost(p, f.host, s.r.IntN(2) == 0)
		s.settleHost()
		s.w.tree.BaseChanged()
	case n < 9:
		s.commit()
	case n < 11:
		s.part(p)
	case n < 12:
		s.takeBack()
	case n < 13:
		s.log = append(s.log, "reopen")
		s.must(s.w.reopen())
		s.open()
	default:
		s.goBack()
	}
	for p, f := range s.files {
		if got := s.fromHost(p); got != f.host {
			s.Fatalf("the host's %s is\n%s\nwant\n%s", p, got, f.host)
		}
		if got := s.fromMount(p); got != f.ours {
			s.Fatalf("the mount's %s is\n%s\nwant\n%s", p, got, f.ours)
		}
	}
}

func (s *texts) state() map[string]text {
	out := map[string]text{}
	for p, f := range s.files {
		out[p] = *f
	}
	return out
}

func (s *texts) plan(r apply.Request, undo bool) *apply.Commit {
	a := apply.New(s.w.db, s.w.tree, s.w.host, slog.New(slog.DiscardHandler), time.Now)
	sealed, err := s.b.Seal(nil)
	s.must(err)
	r.Layer, r.Branch = sealed.Layer, "main"
	var c *apply.Commit
	if undo {
		c, err = a.PlanUndo(context.Background(), r, apply.Record{})
	} else {
		c, err = a.PlanBase(context.Background(), r, apply.Record{})
	}
	s.must(err)
	return c
}

func (s *texts) do(c *apply.Commit) {
	s.must(c.Do(context.Background(), nil, func(*kv.Batch, apply.Record, bool) error { return nil }))
	s.settleHost()
}

// commit brings everything, and merges what both changed.
func (s *texts) commit() {
	markers := s.r.IntN(3) == 0
	s.log = append(s.log, fmt.Sprintf("commit, markers %v", markers))
	want, conflicts := s.state(), 0
	for p, f := range want {
		if !f.oursNew || !f.hostNew() || f.ours == f.host {
			continue
		}
		body, n := s.gitMerge(f.ours, f.old, f.host)
		conflicts += n
		f.ours, f.old = body, f.host
		want[p] = f
	}
	c := s.plan(apply.Request{Merge: true, Markers: markers}, false)
	if conflicts > 0 && !markers {
		if !c.Conflicts() {
			s.Fatalf("git has %d conflicts, the plan none: %+v", conflicts, c.Changes)
		}
		s.seen["conflict"]++
		c.Close()
		return
	}
	if c.Conflicts() {
		s.Fatalf("git has no conflicts, the plan: %+v", c.Left)
	}
	merges := c.Merges
	c.Close()
	if len(merges) > 0 {
		files := make([]layers.TakeIn, len(merges))
		for i, m := range merges {
			files[i] = m.TakeIn
		}
		_, err := s.b.TakeIn(files, nil, nil)
		s.must(err)
		s.seen["merged"]++
		s.marks = nil
		for _, m := range merges {
			f := want[m.Path]
			g := s.files[m.Path]
			g.ours, g.old, g.agreedAt = f.ours, f.host, g.hostVer
			if m.Conflicts > 0 {
				s.resolve(m.Path)
			}
		}
		if s.r.IntN(3) == 0 { // killed between the merge and the commit
			s.must(s.w.reopen())
			s.open()
		}
		if c = s.plan(apply.Request{}, false); c.Conflicts() || len(c.Merges) > 0 {
			s.Fatalf("after a merge there are conflicts: %+v", c.Left)
		}
	} else {
		c = s.plan(apply.Request{}, false)
	}
	defer c.Close()
	if c.Noop() {
		return
	}
	before := s.state()
	s.do(c)
	s.marks = nil
	for _, f := range s.files {
		if f.oursNew && (!f.hostNew() || f.ours != f.host) {
			f.put(f.ours, f.ours)
			f.oursNew = false
		}
	}
	s.undo = append(s.undo, undoable{before, s.state()})
}

// resolve has the mount take the markers out: a plan refuses before.
func (s *texts) resolve(p string) {
	s.seen["markers"]++
	c := s.plan(apply.Request{}, false)
	if !c.Conflicts() || !strings.Contains(fmt.Sprint(c.Left), "markers") {
		s.Fatalf("conflict markers are no conflict: %+v", c.Left)
	}
	c.Close()
	f := s.files[p]
	var out string
	for line := range strings.Lines(f.ours) {
		if !strings.HasPrefix(line, "<<<<<<< ") && !strings.HasPrefix(line, ">>>>>>> ") && line != "=======\n" {
			out += line
		}
	}
	f.ours = out
	s.toMount(p, out, s.r.IntN(3))
}

// gitMerge is what git makes of both sides, and how many conflicts it has.
func (s *texts) gitMerge(ours, old, theirs string) (string, int) {
	dir := s.TempDir()
	for name, body := range map[string]string{"mount": ours, "old": old, "host": theirs} {
		s.must(os.WriteFile(filepath.Join(dir, name), []byte(body), 0o644))
	}
	cmd := exec.Command("git", "merge-file", "-p", "mount", "old", "host")
	cmd.Dir = dir
	out, err := cmd.Output()
	if cmd.ProcessState == nil || cmd.ProcessState.ExitCode() > 127 {
		s.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// part brings some hunks of a file.
func (s *texts) part(p string) {
	f := s.files[p]
	if !f.oursNew || f.hostNew() || f.ours == f.host {
		return
	}
	dir := s.TempDir()
	s.must(os.WriteFile(filepath.Join(dir, "new"), []byte(f.ours), 0o644))
	s.must(os.WriteFile(filepath.Join(dir, "f"), []byte(f.host), 0o644))
	out, _ := exec.Command("git", "diff", "--no-index", filepath.Join(dir, "f"), filepath.Join(dir, "new")).Output() // 1: they differ
	parsed, err := hunks.Parse(out)
	s.must(err)
	var all, use []hunks.Hunk
	for _, h := range parsed[0].Hunks {
		all = append(all, h.Split()...)
	}
	for _, h := range all {
		if s.r.IntN(2) == 0 {
			use = append(use, h)
		}
	}
	if len(use) == 0 {
		return
	}
	s.log = append(s.log, fmt.Sprintf("part %s, %d of %d", p, len(use), len(all)))
	mine := &hunks.File{Head: []byte("diff --git a/f b/f\n--- a/f\n+++ b/f\n")}
	var patch bytes.Buffer
	mine.Format(&patch, use)
	cmd := exec.Command("git", "apply", "--unidiff-zero", "-")
	cmd.Dir, cmd.Stdin = dir, &patch
	if out, err := cmd.CombinedOutput(); err != nil {
		s.Fatalf("git apply: %v: %s\n%s", err, out, patch.String())
	}
	want, err := os.ReadFile(filepath.Join(dir, "f"))
	s.must(err)
	mine.Hunks = use
	r := apply.Request{Paths: func(q string) bool { return q == p }, Edits: map[string]apply.Edit{p: {Text: mine.Apply}}}
	c := s.plan(r, false)
	defer c.Close()
	if c.Conflicts() {
		s.Fatalf("a part of a file that only we changed is a conflict: %+v", c.Left)
	}
	if c.Noop() {
		s.Fatalf("a part of %s is nothing", p)
	}
	before := s.state()
	s.do(c)
	f.put(string(want), string(want))
	s.undo, s.marks = append(s.undo, undoable{before, s.state()}), nil
	if f.oursNew = f.ours != f.host; f.oursNew {
		s.seen["part"]++
	} else {
		s.seen["whole"]++
	}
}

// takeBack undoes the last commit, if the user has changed nothing of it since.
func (s *texts) takeBack() {
	if len(s.undo) == 0 {
		return
	}
	s.log = append(s.log, "undo")
	last := s.undo[len(s.undo)-1]
	before := last.before
	c := s.plan(apply.Request{}, true)
	defer c.Close()
	changed := false
	for _, ch := range append(c.Changes, c.Left...) {
		f := s.files[ch.Path] // what an undo put back is the user's, too, if it was his before
		changed = changed || f != nil && (f.hostNew() || f.host != last.after[ch.Path].host)
	}
	if c.Conflicts() {
		if !changed {
			s.Fatalf("an undo of what nobody touched has conflicts: %+v", c.Left)
		}
		return
	}
	if changed {
		s.Fatalf("an undo would overwrite what the user changed: %+v", c.Changes)
	}
	if c.Noop() {
		s.Fatal("an undo does nothing")
	}
	touched := map[string]bool{}
	for _, ch := range c.Changes {
		touched[ch.Path] = true
	}
	s.do(c)
	s.seen["undo"]++
	s.undo, s.marks = s.undo[:len(s.undo)-1], nil
	for p, f := range s.files {
		if touched[p] {
			f.put(before[p].host, before[p].old)
			f.oursNew = true
		}
	}
}

// goBack makes a checkpoint, or goes back to one that no commit or merge has come after.
func (s *texts) goBack() {
	if len(s.marks) == 0 || s.r.IntN(2) == 0 {
		s.log = append(s.log, "checkpoint")
		sealed, err := s.b.Seal(nil)
		s.must(err)
		s.marks = append(s.marks, mark{sealed.Layer, s.state()})
		return
	}
	s.log = append(s.log, "back")
	m := s.marks[s.r.IntN(len(s.marks))]
	_, err := s.b.MoveHead(m.layer, false, nil, nil)
	s.must(err)
	s.seen["back"]++
	for p, f := range s.files {
		was := m.files[p]
		f.ours, f.old, f.own, f.oursNew, f.agreedAt = was.ours, was.old, was.own, was.oursNew, was.agreedAt
		if !f.own {
			f.ours, f.old, f.agreedAt = f.host, f.host, f.hostVer
		}
	}
}
