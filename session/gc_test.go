package session

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rewindfs/rewindfs/control"
)

func (r *rig) gc(t *testing.T, q control.GCRequest) *control.GC {
	t.Helper()
	g, err := r.GC(t.Context(), q, nil)
	if err != nil {
		t.Fatalf("gc: %v", err)
	}
	return g
}

// droppedBy names what a collection dropped.
func droppedBy(g *control.GC) string {
	var out []string
	for _, d := range g.Dropped {
		out = append(out, d.Label)
	}
	return strings.Join(out, " ")
}

func keep(n int) control.GCRules { return control.GCRules{Keep: &n} }

// randomText is not compressible, nor like any other.
func randomText(seed uint64, n int) string {
	rng := rand.New(rand.NewPCG(seed, 5))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return string(b)
}

func TestGCDropsByRules(t *testing.T) {
	o := options(t)
	began := time.Now()
	var hours atomic.Int64 // passed
	o.Now = func() time.Time { return began.Add(time.Duration(hours.Load()) * time.Hour) }
	r := start(t, o)
	for i := range 6 {
		r.write(t, "f", randomText(uint64(i), 200_000))
		if i%2 == 0 {
			r.checkpoint(t, fmt.Sprint("c", i))
		} else {
			r.plainCheckpoint(t)
		}
		hours.Add(1)
	}
	ids := func() (out []string) {
		l, err := r.Log(t.Context(), control.LogRequest{All: true})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range l.Checkpoints {
			out = append(out, c.ID)
		}
		return out
	}
	before := ids()
	if g := r.gc(t, control.GCRequest{}); len(g.Dropped) != 0 {
		t.Fatalf("gc without a rule dropped %q", droppedBy(g))
	}
	q := control.GCRequest{GCRules: keep(1), DryRun: true}
	q.KeepLabeled = true
	if g := r.gc(t, q); len(g.Dropped) != 2 || g.FreedBytes < 380_000 || g.FreedBytes > 450_000 || !slices.Equal(ids(), before) {
		t.Fatalf("a dry run: %+v; then there are %v", g, ids())
	}
	q = control.GCRequest{GCRules: control.GCRules{OlderThanMS: (4*time.Hour + time.Minute).Milliseconds()}, DryRun: true}
	if g := r.gc(t, q); len(g.Dropped) != 2 || g.Dropped[0].Label != "c0" || g.Dropped[0].Bytes < 200_000 || g.Dropped[0].Bytes > 210_000 {
		t.Fatalf("older than four hours: %+v", g)
	}
	q.GCRules.Keep = keep(5).Keep
	q.DryRun = false
	if g := r.gc(t, q); len(g.Dropped) != 1 || g.Dropped[0].Label != "c0" || g.Layers != 1 {
		t.Fatalf("older than four hours and not among the newest five: %+v", g)
	}
	r.want(t, "c2", "f", randomText(2, 200_000))
	_, err := r.read("c0", "f")
	wantCode(t, err, control.CodeUnknownCheckpoint)
	g := r.gc(t, control.GCRequest{GCRules: keep(1)})
	if len(g.Dropped) != 4 || g.FreedBytes < 790_000 {
		t.Fatalf("all but one: %+v", g)
	}
	r.want(t, "latest", "f", randomText(5, 200_000))
	for _, bad := range []control.GCRules{keep(0), {OlderThanMS: -1}, {MaxSize: -1}, {KeepLabeled: true}} {
		_, err := r.GC(t.Context(), control.GCRequest{GCRules: bad}, nil)
		wantCode(t, err, control.CodeBadRequest)
	}
	if got := len(r.events(t, "gc")); got != 3 {
		t.Errorf("the ledger has %d collections, want 3", got)
	}
}

func TestGCMaxSize(t *testing.T) {
	r := start(t, options(t))
	for i := range 8 {
		r.write(t, "f", randomText(uint64(i), 1<<20))
		if i < 2 {
			r.checkpoint(t, fmt.Sprint("c", i))
		} else {
			r.plainCheckpoint(t)
		}
	}
	limit := r.gc(t, control.GCRequest{}).StoreBytes - 5<<19 // two and a half files less than what is to stay
	q := control.GCRequest{GCRules: control.GCRules{MaxSize: limit}, DryRun: true}
	dry := r.gc(t, q)
	q.DryRun = false
	g := r.gc(t, q)
	if g.StoreBytes > limit || g.TooLarge || len(g.Dropped) != 3 || len(dry.Dropped) != 3 || droppedBy(g) != "  " {
		t.Fatalf("at most %d bytes: dropped %q, dry run %d; %+v", limit, droppedBy(g), len(dry.Dropped), g)
	}
	r.want(t, "c0", "f", randomText(0, 1<<20))
	g = r.gc(t, control.GCRequest{GCRules: control.GCRules{MaxSize: 1, KeepLabeled: true}})
	if !g.TooLarge || len(g.Dropped) != 2 {
		t.Fatalf("what cannot be: %+v", g)
	}
	r.want(t, "c1", "f", randomText(1, 1<<20))
	g = r.gc(t, control.GCRequest{GCRules: control.GCRules{MaxSize: 1}})
	if droppedBy(g) != "c0 c1" {
		t.Fatalf("with labels: dropped %q", droppedBy(g))
	}
	r.want(t, "latest", "f", randomText(7, 1<<20))
}

// TestGCKeepsTheWayBack: what a rollback left stays as long as undo leads to it; what a deleted branch had goes.
func TestGCKeepsTheWayBack(t *testing.T) {
	r := start(t, options(t))
	r.write(t, "f", "one")
	r.checkpoint(t, "one")
	r.write(t, "f", "two")
	r.checkpoint(t, "two")
	r.write(t, "f", "three")
	r.rollback(t, "one")
	r.checkpoint(t, "again") // else two would be the current one
	r.fork(t, "one", "try")
	r.on("try").write(t, "g", "of try")
	r.on("try").checkpoint(t, "tried")
	if g := r.gc(t, control.GCRequest{}); len(g.Dropped) != 0 {
		t.Fatalf("dropped %q", droppedBy(g))
	}
	if g := r.gc(t, control.GCRequest{GCRules: keep(1)}); droppedBy(g) != "one two" {
		t.Fatalf("dropped %q, want what the rollback left", droppedBy(g))
	}
	if _, err := r.DropBranch(t.Context(), control.BranchDropRequest{Branch: "try"}); err != nil {
		t.Fatal(err)
	}
	if g := r.gc(t, control.GCRequest{}); !strings.Contains(droppedBy(g), "tried") {
		t.Fatalf("dropped %q, want what the branch had", droppedBy(g))
	}
	if _, err := r.Undo(t.Context(), control.UndoRequest{}); err != nil {
		t.Fatal(err)
	}
	r.want(t, "", "f", "three")
	if _, err := r.Redo(t.Context(), control.UndoRequest{}); err != nil {
		t.Fatal(err)
	}
	r.want(t, "", "f", "one")
}

func TestGCSparesWhatCallsAndPoliciesNeed(t *testing.T) {
	r := start(t, options(t))
	r.write(t, "f", "good")
	r.checkpoint(t, "good")
	r.policySet(t, control.PolicyRequest{AutoRollback: &control.AutoRollback{On: []string{"exception"}, To: "good"}})
	label := "attached"
	c, err := r.Checkpoint(t.Context(), control.CheckpointRequest{Label: &label, Pending: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Attach(t.Context(), control.CheckpointRef{Ref: c.ID}); err != nil {
		t.Fatal(err)
	}
	r.write(t, "f", "before the call")
	r.begin(t, control.ToolBegin{Name: "edit", Call: "x"})
	label = "recorded"
	if _, err := r.Checkpoint(t.Context(), control.CheckpointRequest{Label: &label, Pending: true}); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		r.write(t, "f", fmt.Sprint(i))
		r.checkpoint(t, fmt.Sprint("later", i))
	}
	if g := r.gc(t, control.GCRequest{GCRules: keep(1)}); droppedBy(g) != "attached later0 later1" { // what came later is attached, too
		t.Fatalf("dropped %q", droppedBy(g))
	}
	r.end(t, control.ToolEnd{Call: "x", Error: "no"})
	r.want(t, "", "f", "good")
	if cur, err := r.Current(t.Context()); err != nil || cur.Label != "later2" {
		t.Errorf("current is %+v, %v", cur, err)
	}
}

// TestGCUnderWork collects while branches write, seal, go back and end.
func TestGCUnderWork(t *testing.T) {
	r := start(t, options(t))
	r.checkpoint(t, "start")
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for _, name := range []string{"", "x", "y"} {
		if name != "" {
			r.fork(t, "start", name)
		}
		wg.Go(func() {
			b := r.on(name)
			rng := rand.New(rand.NewPCG(1, uint64(len(name))))
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				text := randomText(rng.Uint64(), 50_000)
				b.write(t, "f", text)
				c := b.plainCheckpoint(t)
				b.want(t, "", "f", text)
				b.write(t, "f", "wrecked")
				if _, err := b.Rollback(t.Context(), control.RollbackRequest{Ref: c.ID}); err != nil {
					t.Errorf("branch %q goes back to its latest checkpoint: %v", name, err)
					return
				}
				b.want(t, "", "f", text)
				if i%3 == 0 {
					if _, err := b.Undo(t.Context(), control.UndoRequest{}); err != nil {
						t.Errorf("undo: %v", err)
					}
					b.want(t, "", "f", "wrecked")
				}
			}
		})
	}
	for range 10 {
		r.gc(t, control.GCRequest{GCRules: keep(2)})
	}
	close(stop)
	wg.Wait()
}

func TestGCByPolicy(t *testing.T) {
	r := start(t, options(t))
	rules := keep(1)
	r.policySet(t, control.PolicyRequest{GC: &rules})
	r.fork(t, "", "x")
	_, err := r.on("x").SetPolicy(t.Context(), control.PolicyRequest{GC: &rules})
	wantCode(t, err, control.CodeBadRequest)
	if p, err := r.on("x").Policy(t.Context()); err != nil || p.GC != nil {
		t.Fatalf("the policy of a fork: %+v, %v", p, err)
	}
	for i := range 3 {
		r.write(t, "f", fmt.Sprint(i))
		r.checkpoint(t, fmt.Sprint("c", i))
	}
	k := &idleGC{}
	k.tick(t.Context(), r.s)
	if got := len(r.events(t, "gc")); got != 0 {
		t.Fatal("collected while requests came")
	}
	k.tick(t.Context(), r.s)
	r.s.background.Wait()
	if got := r.labels(t, false); !slices.Equal(got, []string{"c2"}) {
		t.Fatalf("checkpoints left: %q", got)
	}
	k.tick(t.Context(), r.s)
	r.s.background.Wait()
	if got := len(r.events(t, "gc")); got != 1 {
		t.Errorf("%d collections, though nothing was done since the first", got)
	}
	r.policySet(t, control.PolicyRequest{Off: []string{"gc"}})
	r.write(t, "f", "more")
	k.tick(t.Context(), r.s)
	r.s.background.Wait()
	if got := len(r.events(t, "gc")); got != 1 {
		t.Errorf("collected without a policy")
	}
}

func TestGCInterrupted(t *testing.T) {
	r := start(t, options(t))
	for i := range 300 {
		r.write(t, fmt.Sprint("f", i%7), fmt.Sprint(i))
		r.plainCheckpoint(t)
	}
	ctx, cancel := context.WithCancel(t.Context())
	one := 1
	_, err := r.s.CollectGarbage(ctx, &control.GCRequest{GCRules: control.GCRules{Keep: &one}}, func(control.Progress) { cancel() })
	if err == nil {
		t.Fatal("an interrupted collection says nothing of it")
	}
	r.want(t, "latest", "f6", "293")
	g := r.gc(t, control.GCRequest{})
	if g.Records == 0 {
		t.Fatalf("the next one has nothing to do: %+v", g)
	}
	r.want(t, "", "f5", "299")
}

func TestStatusSaysWhatCouldBeFreed(t *testing.T) {
	r := start(t, options(t))
	r.checkpoint(t, "start")
	r.fork(t, "start", "x")
	r.on("x").write(t, "f", randomText(1, 1<<20))
	if _, err := r.DropBranch(t.Context(), control.BranchDropRequest{Branch: "x"}); err != nil {
		t.Fatal(err)
	}
	r.s.mu.Lock()
	r.s.loose.at = time.Time{} // nothing was estimated yet
	r.s.mu.Unlock()
	st, err := r.Status(t.Context())
	if err != nil || st.ReclaimableBytes < 1<<20 || st.ReclaimableBytes > 1<<20+1<<16 {
		t.Fatalf("reclaimable: %d, %v", st.ReclaimableBytes, err)
	}
	g := r.gc(t, control.GCRequest{})
	if g.FreedBytes < 1<<20 {
		t.Fatalf("freed %d", g.FreedBytes)
	}
}

func TestGCOffline(t *testing.T) {
	o := options(t)
	r := start(t, o)
	for i := range 3 {
		r.write(t, "f", randomText(uint64(i), 100_000))
		r.checkpoint(t, fmt.Sprint("c", i))
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	s, err := OpenOffline(r.o)
	if err != nil {
		t.Fatal(err)
	}
	g, err := s.CollectGarbage(t.Context(), &control.GCRequest{GCRules: keep(1)}, nil)
	if err != nil || droppedBy(g) != "c0 c1" || g.FreedBytes < 190_000 {
		t.Fatalf("%+v, %v", g, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	r = start(t, o)
	r.want(t, "c2", "f", randomText(2, 100_000))
	if got := r.labels(t, true); !slices.Equal(got, []string{"c2"}) {
		t.Fatalf("checkpoints left: %q", got)
	}
}

func (r *rig) plainCheckpoint(t *testing.T) *control.Checkpoint {
	t.Helper()
	c, err := r.Checkpoint(t.Context(), control.CheckpointRequest{})
	if err != nil {
		t.Fatalf("checkpoint: %v", err)
	}
	return c
}

// TestGCForgetsUndo: what undo leads to goes on request alone, and is not looked for afterwards, nor after a restart.
func TestGCForgetsUndo(t *testing.T) {
	o := options(t)
	r := start(t, o)
	r.checkpoint(t, "start")
	for i := range 4 {
		r.write(t, "f", randomText(uint64(i), 1<<20))
		r.rollback(t, "start")
	}
	if g := r.gc(t, control.GCRequest{}); g.FreedBytes > 1<<20 {
		t.Fatalf("freed %d bytes that undo leads to", g.FreedBytes)
	}
	q := control.GCRequest{GCRules: control.GCRules{ForgetUndo: true}, DryRun: true}
	if g := r.gc(t, q); g.FreedBytes < 4<<20 || g.FreedBytes > 5<<20 {
		t.Fatalf("a dry run: %+v", g)
	}
	if _, err := r.Undo(t.Context(), control.UndoRequest{}); err != nil {
		t.Fatal(err)
	}
	r.want(t, "", "f", randomText(3, 1<<20))
	q.DryRun = false
	if g := r.gc(t, q); g.FreedBytes < 3<<20 {
		t.Fatalf("freed %d bytes", g.FreedBytes)
	}
	r.want(t, "", "f", randomText(3, 1<<20))
	for range 2 {
		_, err := r.Undo(t.Context(), control.UndoRequest{})
		wantCode(t, err, control.CodeNothing)
		if got := len(r.events(t, "forget_undo")); got != 1 {
			t.Errorf("the ledger has it %d times", got)
		}
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
		r = start(t, o)
	}
}

// TestGCSweepsConversations: what only dropped checkpoints said goes; what is live, kept, or the way back says stays.
func TestGCSweepsConversations(t *testing.T) {
	r := start(t, options(t))
	say := func(text string) {
		r.sync(t, "", `[{"role":"user","content":"`+text+strings.Repeat("x", 100_000)+`"}]`)
	}
	for _, text := range []string{"first", "second", "third"} {
		say(text)
		r.write(t, "f", text)
		r.checkpoint(t, text)
	}
	r.rollback(t, "second")
	r.checkpoint(t, "fourth")
	g := r.gc(t, control.GCRequest{GCRules: keep(1)})
	if droppedBy(g) != "first second third" {
		t.Fatalf("dropped %q", droppedBy(g))
	}
	if res, all := r.fsck(t); !res.Clean {
		t.Fatalf("after the collection: %+v", all)
	}
	if m := r.live(t, ""); len(m.Messages) == 0 {
		t.Fatal("the live conversation is gone")
	}
	if _, err := r.Undo(t.Context(), control.UndoRequest{}); err != nil {
		t.Fatal(err)
	}
	if m := r.live(t, ""); !strings.Contains(string(m.Messages[0]), "third") {
		t.Fatalf("undo brings back %.60s", m.Messages[0])
	}
}
