package convo

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func eachFormat(t *testing.T, check func(*rapid.T, Format)) {
	t.Helper()
	for _, f := range allFormats {
		t.Run(string(f), func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(t *rapid.T) { check(t, f) })
		})
	}
}

func same(a, b []json.RawMessage) bool {
	return slices.EqualFunc(a, b, func(a, b json.RawMessage) bool { return bytes.Equal(a, b) })
}

func lines(items []json.RawMessage) string {
	var b strings.Builder
	for i, it := range items {
		fmt.Fprintf(&b, "  %2d %s\n", i, it)
	}
	return b.String()
}

const testNotice = `<rewindfs-notice checkpoint="c1">Back again.</rewindfs-notice>`

func drawOptions(t *rapid.T) Options {
	o := Options{Checkpoint: "c1", Mode: rapid.SampledFrom([]Mode{Auto, Auto, Drop, Synthesize}).Draw(t, "mode")}
	if rapid.Bool().Draw(t, "notice") {
		o.Notice = testNotice
	}
	o.MidSystem = rapid.Bool().Draw(t, "mid")
	o.FilesStay = rapid.Bool().Draw(t, "files stay")
	if rapid.Bool().Draw(t, "new") {
		o.NewID = "new-id"
	}
	return o
}

// drawDamaged draws a history with something done to it: cut at both ends, and results
// doubled, moved or left without their call.
func drawDamaged(t *rapid.T, f Format) ([]json.RawMessage, string) {
	items := drawHistory(t, f).items
	what := rapid.SampledFrom([]string{"cut", "front", "double", "move", "remove", "odd", "mix"}).Draw(t, "damage")
	index := func(name string) int { return rapid.IntRange(0, len(items)-1).Draw(t, name) }
	for times := range rapid.IntRange(1, 4).Draw(t, "times") {
		if len(items) == 0 {
			break
		}
		do := what
		if what == "mix" {
			do = rapid.SampledFrom([]string{"cut", "front", "double", "move", "remove", "odd"}).Draw(t, "which")
		}
		switch i := index("i"); do {
		case "cut":
			items = items[:i]
		case "front":
			items = items[i:]
		case "double":
			if i = resultAt(f, items, i); i >= 0 {
				items = slices.Insert(slices.Clone(items), index("to"), items[i])
			}
		case "move":
			if i = resultAt(f, items, i); i >= 0 {
				it := items[i]
				items = slices.Delete(slices.Clone(items), i, i+1)
				items = slices.Insert(items, rapid.IntRange(0, len(items)).Draw(t, "to"), it)
			}
		case "odd":
			items = slices.Insert(slices.Clone(items), rapid.IntRange(0, len(items)).Draw(t, "to"), drawOdd(t, f, len(items)+100*times))
		case "remove":
			items = slices.Delete(slices.Clone(items), i, i+1)
		}
	}
	return items, what
}

// resultAt returns the index of the first item from i on with a result in it; -1 for none.
func resultAt(f Format, items []json.RawMessage, i int) int {
	for ; i < len(items); i++ {
		if n, err := read(f.adapter(), items[i]); err == nil && n.role != roleModel {
			if count, _ := n.results(); count > 0 {
				return i
			}
		}
	}
	return -1
}

func repaired(t *rapid.T, f Format, items []json.RawMessage, o Options) (History, []Change) {
	before := slices.Clone(items)
	for i := range before {
		before[i] = slices.Clone(before[i])
	}
	h, changes, err := Repair(History{Format: f, Items: items}, o)
	if err != nil {
		t.Fatalf("repair: %v\n%s", err, lines(items))
	}
	if !same(before, items) {
		t.Fatal("the input was changed")
	}
	for i, it := range h.Items {
		if !json.Valid(it) {
			t.Fatalf("item %d is no JSON: %s", i, it)
		}
	}
	return h, changes
}

func TestValidStaysAsItIs(t *testing.T) {
	eachFormat(t, func(t *rapid.T, f Format) {
		g := drawHistory(t, f)
		o := Options{Checkpoint: "c1", Mode: rapid.SampledFrom([]Mode{Auto, Drop, Synthesize}).Draw(t, "mode")}
		h, changes := repaired(t, f, g.items, o)
		if !same(h.Items, g.items) || len(changes) > 0 {
			t.Fatalf("changed: %s\n%s\nfrom\n%s", asJSON(changes), lines(h.Items), lines(g.items))
		}
		got, err := Detect(g.items)
		plainText := !slices.ContainsFunc(g.items, func(it json.RawMessage) bool { return bytes.Contains(it, []byte("call")) })
		if err != nil || got != f && !plainText {
			t.Fatalf("taken for %q, %v", got, err)
		}
	})
}

// TestRepair checks all that holds for every input.
func TestRepair(t *testing.T) {
	eachFormat(t, func(t *rapid.T, f Format) {
		items, _ := drawDamaged(t, f)
		o := drawOptions(t)
		h, changes := repaired(t, f, items, o)
		context := func() string {
			return fmt.Sprintf("options %+v\nchanges %s\n%s\nfrom\n%s", o, asJSON(changes), lines(h.Items), lines(items))
		}
		again, more := repaired(t, f, h.Items, o)
		if !same(again.Items, h.Items) || len(more) > 0 {
			t.Fatalf("repaired twice: %s\n%s\n%s", asJSON(more), lines(again.Items), context())
		}
		twin, same2 := repaired(t, f, items, o)
		if !same(twin.Items, h.Items) || !reflect.DeepEqual(same2, changes) {
			t.Fatalf("not deterministic\n%s", context())
		}
		all := string(History{Items: h.Items, Lines: true}.Encode())
		if o.Notice != "" && strings.Count(all, "Back again.") != 1 && !(f == Codex && len(h.Items) == 0) {
			t.Fatalf("%d notices\n%s", strings.Count(all, "Back again."), context())
		}
		checkBalanced(t, f, h.Items, context)
		checkNothingLost(t, f, items, h.Items, context)
		checkThinking(t, f, items, h.Items, context)
		if o.NewID == "" {
			checkPrefix(t, items, h.Items, changes, context)
		}
	})
}

// checkBalanced: every call has its one result, and every result its call.
func checkBalanced(t *rapid.T, f Format, items []json.RawMessage, context func() string) {
	w := &work{adapter: f.adapter()}
	w.traits = w.adapter.traits()
	for _, it := range items {
		n, err := read(w.adapter, it)
		if err != nil {
			t.Fatal(err)
		}
		w.nodes = append(w.nodes, n)
	}
	w.link()
	for _, s := range w.steps {
		if open := s.open(); len(open) > 0 {
			t.Fatalf("call %s has no result\n%s", open[0].ref(), context())
		}
	}
	for _, n := range w.nodes {
		for _, p := range n.parts {
			if p.kind == kResult && (p.dead || p.moved) {
				t.Fatalf("result %s has no call, or not its place\n%s", p.ref(), context())
			}
		}
	}
}

// checkNothingLost: what a tool said is gone only with its step, or when nothing had
// asked for it.
func checkNothingLost(t *rapid.T, f Format, in, out []json.RawMessage, context func() string) {
	if f == Ollama || f == Gemini {
		return // without ids only the repair itself can tell which result was whose
	}
	w := &work{adapter: f.adapter()}
	w.traits = w.adapter.traits()
	all := string(History{Items: out, Lines: true}.Encode())
	open := map[string]bool{}
	for _, it := range in {
		n, err := read(w.adapter, it)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range n.parts {
			switch {
			case p.kind == kCall:
				open[p.id] = true
			case p.kind == kResult && open[p.id] && !p.server:
				delete(open, p.id)
				text := `"R` + strings.TrimLeft(strings.TrimPrefix(strings.TrimPrefix(p.id, "a1b2c"), "call_"), "0") + "."
				if strings.Contains(all, `"`+p.id+`"`) && !strings.Contains(all, text) {
					t.Fatalf("the result %s of %s is lost\n%s", text, p.id, context())
				}
			}
		}
	}
}

// checkThinking: a thought is there with all its bytes, or not at all.
func checkThinking(t *rapid.T, f Format, in, out []json.RawMessage, context func() string) {
	a := f.adapter()
	known := map[string]bool{}
	for _, it := range in {
		for _, s := range thoughts(t, a, it) {
			known[s] = true
		}
	}
	for _, it := range out {
		for _, s := range thoughts(t, a, it) {
			if !known[s] {
				t.Fatalf("a thought was changed or made: %s\n%s", s, context())
			}
		}
	}
}

func thoughts(t *rapid.T, a adapter, it json.RawMessage) []string {
	n, err := read(a, it)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, p := range n.parts {
		if p.kind != kThink {
			continue
		}
		s := string(p.raw)
		if p.raw == nil {
			s = string(n.raw)
			if o, _ := asObject(n.raw); o.has("payload") {
				s = string(o.get("payload"))
			}
		}
		out = append(out, s)
	}
	return out
}

// checkPrefix: the items in front of the first change are as they were.
func checkPrefix(t *rapid.T, in, out []json.RawMessage, changes []Change, context func() string) {
	first := min(len(in), len(out))
	for _, c := range changes {
		// An invented or moved result goes behind the step, whose place is given, or
		// into the turn behind it; nothing is touched in front of that.
		at := c.At
		if c.Action == actMoveResult {
			return // it goes to its call, which may be anywhere in front
		}
		first = min(first, at)
	}
	if !same(in[:first], out[:first]) {
		t.Fatalf("something in front of item %d was changed\n%s", first, context())
	}
}

// TestPending: back to the moment in front of a call of a step that went on.
func TestPending(t *testing.T) {
	eachFormat(t, func(t *rapid.T, f Format) {
		g := drawHistory(t, f)
		var calls []genCall
		step := -1 // of them, the index of the pending one in its step
		for _, turn := range g.turns {
			for _, s := range turn.steps {
				if len(s.calls) > 0 && (step < 0 || rapid.Bool().Draw(t, "later")) {
					calls, step = s.calls, rapid.IntRange(0, len(s.calls)-1).Draw(t, "pending")
				}
			}
		}
		if step < 0 {
			t.Skip("no calls")
		}
		o := drawOptions(t)
		o.Pending = calls[step].id
		h, changes := repaired(t, f, g.items, o)
		all := string(History{Items: h.Items, Lines: true}.Encode())
		context := func() string {
			return fmt.Sprintf("options %+v\nchanges %s\n%s\nfrom\n%s", o, asJSON(changes), lines(h.Items), lines(g.items))
		}
		again, more := repaired(t, f, h.Items, o)
		if !same(again.Items, h.Items) || len(more) > 0 {
			t.Fatalf("repaired twice: %s\n%s\n%s", asJSON(more), lines(again.Items), context())
		}
		checkBalanced(t, f, h.Items, context)
		if !strings.Contains(string(History{Items: g.items}.Encode()), `"`+o.Pending+`"`) {
			return // this history has no ids
		}
		for i, c := range calls {
			kept := i < step && o.Mode != Drop
			if strings.Contains(all, `"`+c.result) != kept {
				t.Fatalf("the result of %s: want it kept: %v\n%s", c.id, kept, context())
			}
		}
		if gone := step == 0 && o.Mode != Synthesize || o.Mode == Drop; strings.Contains(all, `"`+o.Pending+`"`) == gone {
			t.Fatalf("the step: want it gone: %v\n%s", gone, context())
		}
	})
}
