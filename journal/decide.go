package journal

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/rewindfs/rewindfs/kv"
)

// A checkpoint can be recorded first and count only once it is attached. The current one
// of a branch is the one attached last that was not rejected; one that was not only
// recorded is attached when it is made.

// DecisionKind is what was decided about a recorded checkpoint.
type DecisionKind string

// The decisions.
const (
	Attach DecisionKind = "attach"
	Reject DecisionKind = "reject"
)

// Decision is a decision about checkpoint ID. After is the id of the newest checkpoint
// of the store at that time, which places it among them.
type Decision struct {
	N     uint64
	Kind  DecisionKind
	ID    string
	After string
	At    time.Time
}

type decisionRecord struct {
	V     int          `json:"v"`
	N     uint64       `json:"n"`
	Kind  DecisionKind `json:"kind"`
	ID    string       `json:"id"`
	After string       `json:"after"`
	At    time.Time    `json:"at"`
}

func (j *Journal) loadDecisions(db *kv.DB) error {
	var bad error
	err := db.Scan(kv.DecisionPrefix(), nil, func(k, v []byte) bool {
		var r decisionRecord
		if bad = decodeRecord(v, &r, func() int { return r.V }); bad != nil {
			bad = fmt.Errorf("decision %x: %w", k, bad)
			return false
		}
		j.decisions = append(j.decisions, Decision{N: r.N, Kind: r.Kind, ID: r.ID, After: r.After, At: r.At})
		return true
	})
	if bad != nil {
		return bad
	}
	return err
}

// StageDecision completes d with its number and place and adds it to b. Call
// CommitDecision with the result once b is applied.
func (j *Journal) StageDecision(b *kv.Batch, d Decision) (Decision, error) {
	j.mu.RLock()
	d.N = 1
	if n := len(j.decisions); n > 0 {
		d.N = j.decisions[n-1].N + 1
	}
	if n := len(j.ids); n > 0 {
		d.After = j.ids[n-1].ID
	}
	j.mu.RUnlock()
	if d.At.IsZero() {
		d.At = j.now()
	}
	v, err := json.Marshal(decisionRecord{recordVersion, d.N, d.Kind, d.ID, d.After, d.At.UTC()})
	if err != nil {
		return d, fmt.Errorf("encode decision %d: %w", d.N, err)
	}
	b.Put(kv.Decision(d.N), v)
	return d, nil
}

// CommitDecision takes what was staged into the index.
func (j *Journal) CommitDecision(d Decision) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.decisions = append(j.decisions, d)
}

// Attached returns the checkpoints of branch that are attached, the current one last.
func (j *Journal) Attached(branch string) []Entry {
	j.mu.RLock()
	defer j.mu.RUnlock()
	var stack []string
	known := map[string]*Entry{}
	drop := func(id string) { stack = slices.DeleteFunc(stack, func(s string) bool { return s == id }) }
	next := 0
	decide := func(upTo string, all bool) {
		for ; next < len(j.decisions) && (all || j.decisions[next].After < upTo); next++ {
			d := j.decisions[next]
			if known[d.ID] == nil {
				continue // of another branch, or gone
			}
			drop(d.ID)
			if d.Kind == Attach {
				stack = append(stack, d.ID)
			}
		}
	}
	for _, e := range j.ids {
		decide(e.ID, false)
		if e.Branch != branch {
			continue
		}
		known[e.ID] = e
		if !e.Pending && !e.Auto {
			stack = append(stack, e.ID)
		}
	}
	decide("", true)
	out := make([]Entry, 0, len(stack))
	for _, id := range stack {
		out = append(out, *known[id])
	}
	return out
}

// Decided returns the last decision about the checkpoint id.
func (j *Journal) Decided(id string) (Decision, bool) {
	j.mu.RLock()
	defer j.mu.RUnlock()
	for _, d := range slices.Backward(j.decisions) {
		if d.ID == id {
			return d, true
		}
	}
	return Decision{}, false
}

// Undecided returns the recorded checkpoints that were never attached, the oldest first.
func (j *Journal) Undecided() []Entry {
	j.mu.RLock()
	defer j.mu.RUnlock()
	attached := map[string]bool{}
	for _, d := range j.decisions {
		if d.Kind == Attach {
			attached[d.ID] = true
		}
	}
	var out []Entry
	for _, e := range j.ids {
		if e.Pending && !attached[e.ID] {
			out = append(out, *e)
		}
	}
	return out
}

// StageRemove adds the removal of entries to b: what they named is no checkpoint any
// more. Call CommitRemove once b is applied.
func (j *Journal) StageRemove(b *kv.Batch, entries []Entry) {
	for _, e := range entries {
		b.Delete(kv.JournalAt(e.Layer, e.Seq))
	}
}

// CommitRemove takes the entries out of the index.
func (j *Journal) CommitRemove(entries []Entry) {
	gone := map[string]bool{}
	for _, e := range entries {
		gone[e.ID] = true
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	keep := func(s []*Entry) []*Entry {
		return slices.DeleteFunc(slices.Clone(s), func(e *Entry) bool { return gone[e.ID] }) // readers may hold s
	}
	j.order, j.ids = keep(j.order), keep(j.ids)
	j.byLayer = map[uint64]*Entry{}
	for _, e := range j.order {
		if j.byLayer[e.Layer] == nil {
			j.byLayer[e.Layer] = e
		}
	}
	for _, e := range entries {
		if e.Label != "" {
			j.byLabel[e.Label] = keep(j.byLabel[e.Label])
		}
	}
}
