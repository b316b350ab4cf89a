package journal

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// The references that are words.
const (
	RefBase   = "base"   // the base as it is, before any checkpoint
	RefLatest = "latest" // the newest checkpoint in the line
)

// minIDPrefix is the shortest part of an id that names a checkpoint.
const minIDPrefix = 6

// idLength is the length of a ULID's text.
const idLength = 26

// The errors of references.
var (
	ErrUnknownRef   = errors.New("no such checkpoint")
	ErrAmbiguousRef = errors.New("several checkpoints match")
)

// Target is what a reference names. Entry is nil for the base.
type Target struct {
	Layer uint64
	Entry *Entry
}

// Name is how to speak of t to a person.
func (t Target) Name() string {
	switch {
	case t.Entry == nil:
		return RefBase
	case t.Entry.Label != "":
		return t.Entry.Label
	}
	return t.Entry.ID
}

// Resolve finds the checkpoint that ref names, seen from the head whose line is
// given: base, latest, @{N} (N checkpoints before the latest, so @{0} is the
// latest), a label of the line, an id of the store, or a unique prefix of an id
// of at least 6 characters. Checkpoints that a rollback dropped are
// reached by their id. Auto entries count for ids and labels only.
func (j *Journal) Resolve(ref string, line Line) (Target, error) {
	switch {
	case ref == "":
		return Target{}, fmt.Errorf("%w: the name is empty", ErrUnknownRef)
	case ref == RefBase:
		return Target{}, nil
	case ref == RefLatest:
		return j.back(ref, 0, line)
	case strings.HasPrefix(ref, "@{") && strings.HasSuffix(ref, "}"):
		n, err := strconv.ParseUint(ref[2:len(ref)-1], 10, 31)
		if err != nil {
			return Target{}, fmt.Errorf("%w %s: write @{N} with a number, such as @{1}", ErrUnknownRef, quoteLabel(ref))
		}
		return j.back(ref, int(n), line)
	}
	if e := inLine(j.labelled(ref), line); e != nil {
		return target(e), nil
	}
	return j.byID(ref, line)
}

func target(e *Entry) Target {
	own := *e
	return Target{Layer: e.Layer, Entry: &own}
}

func (j *Journal) back(ref string, n int, line Line) (Target, error) {
	e, seen := back(j.entries(), n, j.counting(line))
	switch {
	case e != nil:
		return target(e), nil
	case seen == 0:
		return Target{}, fmt.Errorf("%w %s: there is no checkpoint yet (make one with: rewindfs checkpoint NAME; 'base' names the untouched start)", ErrUnknownRef, ref)
	}
	return Target{}, fmt.Errorf("%w %s: there are %d, the oldest is @{%d}", ErrUnknownRef, ref, seen, seen-1)
}

// counting returns which checkpoints latest and @{N} count: those in line that were made
// by somebody, and were not only recorded, or rejected.
func (j *Journal) counting(line Line) func(*Entry) bool {
	j.mu.RLock()
	decided := map[string]DecisionKind{}
	for _, d := range j.decisions {
		decided[d.ID] = d.Kind
	}
	j.mu.RUnlock()
	return func(e *Entry) bool {
		kind := decided[e.ID]
		return !e.Auto && kind != Reject && (!e.Pending || kind == Attach) && line(e.Layer)
	}
}

// back finds the n-th checkpoint before the latest of those that count, or says how many there are.
func back(all []*Entry, n int, counts func(*Entry) bool) (e *Entry, seen int) {
	for i := len(all) - 1; i >= 0; i-- {
		if !counts(all[i]) {
			continue
		}
		if seen == n {
			return all[i], seen
		}
		seen++
	}
	return nil, seen
}

// byID finds a checkpoint by its id or a prefix of it.
func (j *Journal) byID(ref string, line Line) (Target, error) {
	switch ids := j.withID(ref); len(ids) {
	case 0:
		return Target{}, j.unknown(ref, line)
	case 1:
		return target(ids[0]), nil
	default:
		return Target{}, fmt.Errorf("%w %s: %d of them, such as %s and %s; give more of the id", ErrAmbiguousRef, quoteLabel(ref), len(ids), ids[0].ID, ids[len(ids)-1].ID)
	}
}

// withID returns the checkpoints whose id ref is or, with 6 characters or more, begins.
func (j *Journal) withID(ref string) []*Entry {
	if len(ref) < minIDPrefix || len(ref) > idLength {
		return nil
	}
	j.mu.RLock()
	ids := j.ids
	j.mu.RUnlock()
	want := strings.ToUpper(ref)
	i, _ := slices.BinarySearchFunc(ids, want, func(e *Entry, s string) int { return strings.Compare(e.ID, s) })
	n := i
	for n < len(ids) && strings.HasPrefix(ids[n].ID, want) {
		n++
	}
	return ids[i:n]
}

// unknown says what there is instead.
func (j *Journal) unknown(ref string, line Line) error {
	if es := j.labelled(ref); len(es) > 0 {
		return fmt.Errorf("%w %s in this line: it is of another branch, or a rollback dropped it; its id is %s", ErrUnknownRef, quoteLabel(ref), es[len(es)-1].ID)
	}
	var names []string
	all := j.entries()
	for i := len(all) - 1; i >= 0 && len(names) < 5; i-- {
		if all[i].Label != "" && line(all[i].Layer) {
			names = append(names, all[i].Label)
		}
	}
	if len(names) == 0 {
		return fmt.Errorf("%w %s; see what there is with: rewindfs log", ErrUnknownRef, quoteLabel(ref))
	}
	return fmt.Errorf("%w %s; the newest are: %s (all of them: rewindfs log)", ErrUnknownRef, quoteLabel(ref), strings.Join(names, ", "))
}
