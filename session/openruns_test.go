package session

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/rewindfs/rewindfs/control"
	"github.com/rewindfs/rewindfs/journal"
	"github.com/rewindfs/rewindfs/kv"
	"github.com/rewindfs/rewindfs/ledger"
)

// command is one that the test says to run.
type command struct {
	r     *rig
	begun *control.RunBegun
	run   control.Run
}

func (r *rig) runs(t *testing.T, name string) *command {
	t.Helper()
	c := &command{r: r, run: control.Run{Argv: []string{name}}}
	var err error
	if c.begun, err = r.RunBegin(t.Context(), control.RunBegin{Run: c.run}); err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *command) ends(t *testing.T) {
	t.Helper()
	res, err := c.r.RunEnd(t.Context(), control.RunEnd{ID: c.begun.ID, Checkpoint: c.begun.Checkpoint.ID, Run: c.run})
	if err != nil || len(res.Warnings) > 0 {
		t.Fatalf("%+v, %v", res, err)
	}
}

// called has who called be somebody else, in the store, too.
func (c *command) called(t *testing.T, by func(*caller)) {
	t.Helper()
	r := *c.r.s.openRunAt(t, c.begun.Checkpoint.ID)
	by(&r.Caller)
	var b kv.Batch
	if err := stageRun(&b, &r); err != nil {
		t.Fatal(err)
	}
	if err := c.r.s.db.Apply(&b); err != nil {
		t.Fatal(err)
	}
	c.r.s.noteRuns(func(runs map[uint64]*openRun) { runs[r.Layer] = &r })
}

func (s *Session) openRunAt(t *testing.T, id string) *openRun {
	t.Helper()
	all := s.openRuns("")
	i := slices.IndexFunc(all, func(r *openRun) bool { return r.Checkpoint == id })
	if i < 0 {
		t.Fatalf("checkpoint %s is in front of no open command", id)
	}
	return all[i]
}

// dead has the caller be a process that has ended.
func dead(t *testing.T) func(*caller) {
	p := exec.Command("true")
	if err := p.Run(); err != nil {
		t.Fatal(err)
	}
	return func(c *caller) { c.PID = p.Process.Pid }
}

// reused has another process have the caller's number.
func reused(c *caller) { c.Start += "1" }

func rebooted(c *caller) { c.Boot = "another" }

// elsewhere has the caller be in a pid namespace that cannot be seen.
func elsewhere(c *caller) { c.PID, c.Start = 0, "" }

// ways undoes all there is and lists what was gone back over, newest first.
func (r *rig) ways(t *testing.T) (out []string) {
	t.Helper()
	for {
		res, err := r.Undo(t.Context(), control.UndoRequest{})
		if control.CodeOf(err) == control.CodeNothing {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, res.Before.Kind+" "+res.Before.Label)
	}
}

// noneOpen wants no command to be known as open, in memory or in the store.
func (r *rig) noneOpen(t *testing.T) {
	t.Helper()
	if all := r.s.openRuns(""); len(all) > 0 {
		t.Errorf("still open: %+v", all[0])
	}
	if err := r.s.db.Scan(kv.Meta(openRunPrefix), nil, func(k, _ []byte) bool { t.Errorf("left in the store: %q", k); return true }); err != nil {
		t.Fatal(err)
	}
}

func (r *rig) unknownEnds(t *testing.T) (out []string) {
	t.Helper()
	for _, e := range r.events(t, ledger.KindExec) {
		if e.Details["end_unknown"] == true {
			out = append(out, fmt.Sprint(e.Details["argv"], e.Details["changed_paths"], e.Op > 0))
		}
	}
	slices.Sort(out)
	return out
}

// A command whose caller was killed is what undo takes back, whoever asks first, and what was before it is the next step.
func TestUndoOfACommandWithoutEnd(t *testing.T) {
	for name, by := range map[string]func(*testing.T) func(*caller){
		"dead": dead, "reused": func(*testing.T) func(*caller) { return reused }, "rebooted": func(*testing.T) func(*caller) { return rebooted },
		"elsewhere": func(*testing.T) func(*caller) { return elsewhere },
	} {
		for _, anew := range []bool{false, true} {
			t.Run(fmt.Sprint(name, anew), func(t *testing.T) {
				o := options(t)
				r := start(t, o)
				first := r.runs(t, "first")
				r.write(t, "f", "1")
				first.ends(t)
				r.noneOpen(t)
				c := r.runs(t, "second")
				r.write(t, "f", "2")
				c.called(t, by(t))
				if anew {
					if err := r.stop(); err != nil {
						t.Fatal(err)
					}
					r = start(t, o)
				}
				res := r.undo(t, 1)
				if res.Before == nil || res.Before.Kind != "run" || res.Before.Label != "second" {
					t.Fatalf("undo took back %+v", res.Before)
				}
				r.want(t, "", "f", "1")
				r.noneOpen(t)
				if got := fmt.Sprint(r.unknownEnds(t)); got != "[[second]1true]" {
					t.Errorf("the ledger has %s", got)
				}
				c.r = r
				c.ends(t) // late
				r.undo(t, 1)
				r.wantNone(t, "f")
				if got := r.ways(t); len(got) > 0 {
					t.Errorf("there is more to undo: %v", got)
				}
				r.redo(t, 2)
				r.want(t, "", "f", "2")
			})
		}
	}
}

// Commands in each other, with and without ends, in any order.
func TestManyCommandsWithoutEnd(t *testing.T) {
	for _, c := range []struct{ what, want string }{
		{"a+ a! b+ b. ", "run b,run a"},
		{"a+ b+ a! b. ", "run b,run a"}, // a ended before b did
		{"a+ b+ b. a! ", "run a"},       // or after it, as one whose end is said
		{"a+ b+ b! a. ", "run a"},       //
		{"a+ b+ a! b! ", "run b,run a"}, // both unknown: as they began
		{"a+ b+ b! a! ", "run b,run a"}, //
		{"a+ b+ c+ b! c. a. ", "run a"}, //
		{"a+ a! s b+ b! s ", "run b,run a"},
		{"a+ a! R ", "rollback base,run a"}, // the command comes before what was done after it
		{"a+ R a! ", "rollback base"},       // and is in what was left, if its caller lived until then
		{"a- a! b+ b. ", "run b"},           // it had changed nothing when b began
		{"a- a! s ", ""},                    // it has changed nothing
		{"a- a! a. ", ""},
		{"a+ a! s a. ", "run a"},
		{"a+ a! a. ", "run a"},
		{"a+ a. a. ", "run a"},
		{"a- e s w a. ", "run a"}, // whether it runs is not known: it can still be made a step
		{"a- e s w ", "run a"},
		{"a- e a! w s ", "run a"},
	} {
		t.Run(c.what, func(t *testing.T) {
			r := start(t, options(t))
			gone := dead(t)
			open := map[string]*command{}
			for i, do := range strings.Fields(c.what) {
				name := do[:1]
				switch {
				case do == "s":
					if _, err := r.Status(t.Context()); err != nil {
						t.Fatal(err)
					}
				case do == "R":
					r.rollback(t, "base")
				case do == "w":
					r.write(t, "w", do)
				case do == "e":
					open["a"].called(t, elsewhere)
				case do[1] == '!':
					open[name].called(t, gone)
				case do[1] == '.':
					open[name].ends(t)
				default:
					open[name] = r.runs(t, name)
					if do[1] == '+' {
						r.write(t, name, fmt.Sprint(i))
					}
				}
			}
			for _, c := range open {
				noted := slices.DeleteFunc(r.s.journal.Ops(0), func(op journal.Op) bool { return op.Kind != journal.OpRun || op.From != c.begun.Checkpoint.Layer })
				if len(noted) > 1 {
					t.Errorf("in the log twice: %+v", noted)
				}
			}
			if got := strings.Join(r.ways(t), ","); got != c.want {
				t.Errorf("undo goes over %q, want %q", got, c.want)
			}
			r.noneOpen(t)
		})
	}
}

// What was before a command that runs is not taken back under it; what came after its begin is.
func TestUndoUnderACommandThatRuns(t *testing.T) {
	r := start(t, options(t))
	r.write(t, "f", "0")
	r.checkpoint(t, "zero")
	r.write(t, "f", "1")
	r.rollback(t, "zero")
	c := r.runs(t, "server")
	if st, err := r.Status(t.Context()); err != nil || len(st.Runs) != 1 || st.Runs[0].Command != "server" || st.Runs[0].State != control.RunRuns || st.Runs[0].PID != os.Getpid() {
		t.Errorf("status: %+v, %v", st.Runs, err)
	}
	// It has changed nothing: there is nothing newer than the rollback.
	r.undo(t, 1)
	r.want(t, "", "f", "1")
	r.redo(t, 1)
	r.want(t, "", "f", "0")

	r.write(t, "f", "2")
	for _, n := range []int{1, 2} {
		_, err := r.Undo(t.Context(), control.UndoRequest{N: n})
		wantCode(t, err, control.CodeBusy)
		if !strings.Contains(err.Error(), "rollback "+c.begun.Checkpoint.ID) || !strings.Contains(err.Error(), fmt.Sprint("pid ", os.Getpid())) {
			t.Errorf("it says %v", err)
		}
	}
	_, err := r.Delete(t.Context(), control.CheckpointRef{Ref: c.begun.Checkpoint.ID})
	wantCode(t, err, control.CodeConflict)
	r.want(t, "", "f", "2")
	inner := r.runs(t, "inner")
	r.write(t, "f", "3")
	inner.ends(t)
	r.undo(t, 1)
	r.want(t, "", "f", "2")
	_, err = r.Undo(t.Context(), control.UndoRequest{})
	wantCode(t, err, control.CodeBusy)
	r.rollback(t, c.begun.Checkpoint.ID)
	r.want(t, "", "f", "0")
	r.undo(t, 1)
	r.want(t, "", "f", "2")
	c.ends(t)
	r.noneOpen(t)
	r.undo(t, 1)
	r.want(t, "", "f", "3")
}

// What others have changed since the begin of a command that runs is no change of it once it is taken back.
func TestUndoOverOthersUnderACommandThatRuns(t *testing.T) {
	r := start(t, options(t))
	r.checkpoint(t, "zero")
	r.write(t, "f", "1")
	r.rollback(t, "zero")
	c := r.runs(t, "server")
	inner := r.runs(t, "inner")
	r.write(t, "f", "2")
	inner.ends(t)
	r.undo(t, 2)
	r.want(t, "", "f", "1")
	c.ends(t)
	r.redo(t, 2)
	r.want(t, "", "f", "2")
}

// A collection keeps what an open command can be taken back to.
func TestCollectionKeepsWhatOpenCommandsNeed(t *testing.T) {
	o := options(t)
	r := start(t, o)
	r.write(t, "f", "0")
	c := r.runs(t, "lost")
	r.write(t, "f", "1")
	r.checkpoint(t, "one")
	r.write(t, "f", "2")
	r.checkpoint(t, "two")
	collect := func() {
		t.Helper()
		one := 1
		if _, err := r.GC(t.Context(), control.GCRequest{GCRules: control.GCRules{Keep: &one}}, nil); err != nil {
			t.Fatal(err)
		}
	}
	collect()
	if got := r.labels(t, false); !slices.Equal(got, []string{"two", ""}) {
		t.Errorf("kept: %q", got)
	}
	c.called(t, rebooted)
	collect()
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	r = start(t, o)
	r.noneOpen(t) // the start has seen to it
	collect()
	if got := r.labels(t, false); !slices.Equal(got, []string{"two"}) {
		t.Errorf("kept: %q", got)
	}
	r.undo(t, 1)
	r.want(t, "", "f", "0")
}

// status counts a command that has lost its caller as a step.
func TestStatusOfACommandWithoutEnd(t *testing.T) {
	r := start(t, options(t))
	c := r.runs(t, "lost")
	r.write(t, "f", "1")
	c.called(t, dead(t))
	if st, err := r.Status(t.Context()); err != nil || st.Undo != 1 || len(st.Runs) != 0 {
		t.Errorf("undo %d, runs %+v, %v", st.Undo, st.Runs, err)
	}
	r.noneOpen(t)
	c = r.runs(t, "elsewhere")
	c.called(t, elsewhere)
	if st, err := r.Status(t.Context()); err != nil || len(st.Runs) != 1 || st.Runs[0].State != control.RunUnknown || st.Runs[0].PID != 0 {
		t.Errorf("runs %+v, %v", st.Runs, err)
	}
}

// Each branch has its commands; one that is deleted takes them with it.
func TestCommandsWithoutEndOnBranches(t *testing.T) {
	o := options(t)
	r := start(t, o)
	r.write(t, "f", "0")
	r.checkpoint(t, "c")
	r.fork(t, "c", "dev")
	dev := r.on("dev")
	main, other := r.runs(t, "on main"), dev.runs(t, "on dev")
	r.write(t, "f", "main")
	dev.write(t, "f", "dev")
	other.called(t, rebooted)
	_, err := r.Undo(t.Context(), control.UndoRequest{})
	wantCode(t, err, control.CodeBusy)
	if len(r.unknownEnds(t)) > 0 {
		t.Error("main has ended what runs on another branch")
	}
	dev.undo(t, 1)
	dev.want(t, "", "f", "0")
	r.want(t, "", "f", "main")
	main.ends(t)
	dev.runs(t, "deleted")
	if _, err := r.DropBranch(t.Context(), control.BranchDropRequest{Branch: "dev"}); err != nil {
		t.Fatal(err)
	}
	r.noneOpen(t)
	if got := r.ways(t); !slices.Equal(got, []string{"run on main"}) {
		t.Errorf("undo goes over %q", got)
	}
}

// exec has no steps of undo, so nothing of it is kept.
func TestExecIsNotOpen(t *testing.T) {
	r := start(t, options(t))
	if _, err := r.RunBegin(t.Context(), control.RunBegin{Run: control.Run{Argv: []string{"x"}}, Auto: true}); err != nil {
		t.Fatal(err)
	}
	r.noneOpen(t)
}
