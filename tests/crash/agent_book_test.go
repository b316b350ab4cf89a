package crash

import (
	"encoding/json"
	"fmt"
	"strconv"
	"testing"

	"github.com/rewindfs/rewindfs/control"
	"github.com/rewindfs/rewindfs/ledger"
)

// book reads a ledger from outside, further and further.
type book struct {
	dir, store string // the ledger's directory, the id of its store
	head       ledger.Head
	seq        uint64
	ops        map[uint64]ledger.Kind // by their number in the journal
	made       map[string]int         // records of checkpoints, by id
	mounts     map[uint64]int         // by generation
	begins     map[string]int         // by call
	ends       map[string]int
	quiet      int // rollbacks that changed nothing
}

func newBook(dir, store string) *book {
	return &book{dir: dir, store: store, ops: map[uint64]ledger.Kind{}, made: map[string]int{}, mounts: map[uint64]int{}, begins: map[string]int{}, ends: map[string]int{}}
}

// verify fails the test unless the whole chain is good, and has what it had before. After a
// kill head may be behind the last line, and that line unfinished (see the package comment
// of ledger): those are notes. Once a daemon runs again, none of that may be left.
func (b *book) verify(t *testing.T, when string, running bool) {
	t.Helper()
	rep, err := ledger.Verify(b.dir, b.store, b.head)
	if err != nil {
		t.Fatalf("%s: verify the ledger: %v", when, err)
	}
	if !rep.OK() {
		t.Fatalf("%s: the ledger is damaged: %v", when, rep.Damage)
	}
	for _, n := range rep.Notes {
		if n.Problem == ledger.Repaired || n.Problem == ledger.Unfinished && !running {
			continue
		}
		t.Errorf("%s: the ledger: %v", when, n)
	}
	b.head = rep.Head
}

// read reads what is new.
func (b *book) read(t *testing.T) {
	t.Helper()
	err := ledger.Read(b.dir, ledger.Filter{After: b.seq}, func(r *ledger.Record) error {
		b.seq = r.Seq
		text := func(name string) string { s, _ := r.Details[name].(string); return s }
		switch {
		case r.Op == 0:
		case b.ops[r.Op] != "":
			t.Errorf("operation %d is in the ledger as %s and again as %s (line %d)", r.Op, b.ops[r.Op], r.Kind, r.Seq)
		default:
			b.ops[r.Op] = r.Kind
		}
		switch r.Kind {
		case ledger.KindCheckpoint:
			b.made[r.Checkpoint]++
		case ledger.KindMount:
			n, _ := r.Details["generation"].(json.Number)
			gen, err := strconv.ParseUint(string(n), 10, 64)
			if err != nil {
				t.Errorf("line %d is a mount without a generation: %s", r.Seq, r.Raw)
			}
			b.mounts[gen]++
		case ledger.KindToolBegin:
			b.begins[text("call")]++
		case ledger.KindToolEnd:
			b.ends[text("call")]++
		case ledger.KindSkippedNoop:
			b.quiet++
		}
		return nil
	})
	if err != nil {
		t.Fatalf("read the ledger: %v", err)
	}
}

// check fails the test unless the ledger has all that the store has, once.
func (b *book) check(t *testing.T, when string, log *control.Log, a *agent, gen uint64) {
	t.Helper()
	b.read(t)
	for _, op := range log.Ops {
		if op.Kind != "mount" && string(b.ops[op.N]) != op.Kind {
			t.Errorf("%s: operation %d, a %s (%s), is in the ledger as %q", when, op.N, op.Kind, op.Label, b.ops[op.N])
		}
	}
	for _, c := range log.Checkpoints {
		if n := b.made[c.ID]; n != 1 {
			t.Errorf("%s: checkpoint %s (%q, tool call %q, layer %d) is %d times in the ledger", when, c.ID, c.Label, c.ToolCall, c.Layer, n)
		}
	}
	for id, p := range a.byID {
		if b.made[id] != 1 {
			t.Errorf("%s: the acknowledged checkpoint %s (%s) is %d times in the ledger", when, id, p.name(), b.made[id])
		}
	}
	if b.quiet < a.quiet {
		t.Errorf("%s: %d of the %d acknowledged rollbacks that changed nothing are in the ledger", when, b.quiet, a.quiet)
	}
	for g := uint64(1); g <= gen; g++ {
		if b.mounts[g] != 1 {
			t.Errorf("%s: the mount of generation %d is %d times in the ledger", when, g, b.mounts[g])
		}
	}
	if t.Failed() {
		t.FailNow()
	}
}

func counts(log *control.Log) map[string]int {
	n := map[string]int{}
	for _, op := range log.Ops {
		n[op.Kind]++
	}
	return n
}

func describe(m map[string]int) string { return fmt.Sprint(m) }
