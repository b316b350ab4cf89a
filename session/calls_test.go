package session

import (
	"reflect"
	"testing"

	"github.com/rewindfs/rewindfs/journal"
)

// A layer is sealed in front of a call only when no mutating call is in flight.
func TestCalls(t *testing.T) {
	var c calls
	begin := func(id, agent, step string, readOnly, seal bool, want journal.Tool) {
		t.Helper()
		got := c.begin(id, "tool", agent, step, readOnly, 0)
		if got.seal != seal || !reflect.DeepEqual(got.tool, want) {
			t.Errorf("begin %s: %+v, want seal %v, %+v", id, got, seal, want)
		}
	}
	// Calls one by one, as Claude Code makes them: a layer in front of each.
	begin("a", "", "s1", false, true, journal.Tool{Step: "s1", BatchStart: true, Pending: "a"})
	c.end("a")
	begin("b", "", "s1", false, true, journal.Tool{Step: "s1", Pending: "b", Answered: []string{"a"}})
	c.end("b")
	// All at once, as Codex does: the first gets the layer, the others none.
	begin("c", "", "s2", false, true, journal.Tool{Step: "s2", BatchStart: true, Pending: "c", Ran: []string{"a", "b"}})
	begin("d", "", "s2", false, false, journal.Tool{Step: "s2", Pending: "d", Inflight: []string{"c"}, Ran: []string{"a", "b"}})
	c.end("d")
	begin("e", "", "s2", false, false, journal.Tool{Step: "s2", Pending: "e", Answered: []string{"d"}, Inflight: []string{"c"}, Ran: []string{"a", "b"}})
	c.end("c")
	c.end("e")
	if got, want := c.between(), (&journal.Tool{Ran: []string{"a", "b", "d", "c", "e"}}); !reflect.DeepEqual(got, want) {
		t.Errorf("between the calls: %+v, want %+v", got, want)
	}
	ran := []string{"a", "b", "d", "c", "e"}
	// Readers do not stand in the way, and get no layer.
	begin("f", "", "s3", true, false, journal.Tool{Step: "s3", BatchStart: true, Pending: "f", Ran: ran})
	begin("g", "", "s3", false, true, journal.Tool{Step: "s3", BatchStart: true, Pending: "g", Inflight: []string{"f"}, Ran: ran})
	// Another agent's call runs meanwhile.
	begin("h", "sub", "s3", false, false, journal.Tool{Step: "s3", BatchStart: true, Pending: "h", Fuzzy: true, Ran: ran})
	if got := c.inflight(); !reflect.DeepEqual(got, []string{"f", "g", "h"}) || !c.has("g") || c.has("a") {
		t.Errorf("in flight: %v", got)
	}
	if o := c.end(""); o == nil || o.id != "h" {
		t.Errorf("the latest call: %+v", o)
	}
	if c.end("h") != nil || c.end("never") != nil {
		t.Error("a call ended twice, or without a begin")
	}
	c.reset()
	begin("i", "", "", false, true, journal.Tool{BatchStart: true, Pending: "i"})
	c.end("i")
	begin("j", "", "", false, true, journal.Tool{BatchStart: true, Pending: "j", Ran: []string{"i"}})
	if got, want := c.between(), (&journal.Tool{Inflight: []string{"j"}, Ran: []string{"i"}}); !reflect.DeepEqual(got, want) {
		t.Errorf("during a call: %+v, want %+v", got, want)
	}
	for i := range 3 * keepRan {
		c.begin(string(rune('A'+i)), "tool", "", "", false, 0)
		c.end("")
	}
	if got := c.between().Ran; len(got) != keepRan || got[0] != string(rune('A'+2*keepRan)) {
		t.Errorf("what has ended: %q", got)
	}
}

// Steps are forgotten, however many there are.
func TestCallsForgetSteps(t *testing.T) {
	var c calls
	for i := range 1000 {
		id := string(rune('a' + i%26))
		c.begin(id, "tool", "", string(rune(1000+i)), false, 0)
		c.end(id)
	}
	if len(c.steps) != keepSteps || len(c.order) != keepSteps || len(c.open) != 0 {
		t.Errorf("%d steps, %d in order, %d calls", len(c.steps), len(c.order), len(c.open))
	}
}

// Who says that it only reads is believed as long as nothing changes, or somebody else may have done it.
func TestReadOnlyCallsThatChange(t *testing.T) {
	for name, c := range map[string]struct {
		before, during string // a mutating call that begins then, if any
		ops            uint64
		lied           bool
	}{
		"alone, changes nothing":  {ops: 7},
		"alone, changes":          {ops: 8, lied: true},
		"behind one that changes": {before: "m", ops: 8},
		"beside one that changes": {during: "m", ops: 8},
	} {
		t.Run(name, func(t *testing.T) {
			var cs calls
			if c.before != "" {
				cs.begin(c.before, "edit", "", "", false, 5)
			}
			cs.begin("r", "grep", "", "", true, 7)
			cs.begin("r2", "grep", "", "", true, 7)
			if c.during != "" {
				cs.begin(c.during, "edit", "", "", false, 7)
			}
			if got := cs.end("r").lied(c.ops); got != c.lied {
				t.Errorf("lied: %v, want %v", got, c.lied)
			}
		})
	}
}
