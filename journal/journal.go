package journal

import (
	"cmp"
	"crypto/rand"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/rewindfs/rewindfs/kv"
)

// Journal is the journal of one store.
type Journal struct {
	now func() time.Time

	// mu guards what follows. It is innermost: staging takes it while the tree is
	// locked, so nothing may call a Line, which asks the tree, while holding it.
	// The slices are shared with readers that let go of mu: elements are never
	// overwritten, only added behind the end.
	mu        sync.RWMutex
	byLayer   map[uint64]*Entry   // the entries are never changed
	byLabel   map[string][]*Entry // by layer, ascending
	order     []*Entry            // by layer, ascending
	ids       []*Entry            // by id, ascending
	ops       []Op                // by Op.N, ascending
	walks     map[string]*walk    // by branch
	decisions []Decision          // by Decision.N, ascending
	entropy   *ulid.MonotonicEntropy
	lastMS    uint64 // the time in the newest id
}

// Open loads the journal of db. now is the clock, for tests; nil means time.Now.
func Open(db *kv.DB, now func() time.Time) (*Journal, error) {
	j := newJournal(now)
	var failed error
	err := db.Scan(kv.JournalPrefix(), nil, func(k, v []byte) bool {
		e, err := decodeEntry(v)
		if err != nil {
			failed = fmt.Errorf("journal entry %x: %w", k, err)
			return false
		}
		j.addEntry(e)
		return true
	})
	if err = cmp.Or(failed, err); err != nil {
		return nil, fmt.Errorf("load journal: %w", err)
	}
	err = db.Scan(kv.OpPrefix(), nil, func(k, v []byte) bool {
		op, err := decodeOp(v)
		if err != nil {
			failed = fmt.Errorf("operation %x: %w", k, err)
			return false
		}
		j.addOp(op)
		return true
	})
	if err = cmp.Or(failed, err); err != nil {
		return nil, fmt.Errorf("load operation log: %w", err)
	}
	if err := j.loadDecisions(db); err != nil {
		return nil, fmt.Errorf("load decisions: %w", err)
	}
	return j, nil
}

func newJournal(now func() time.Time) *Journal {
	if now == nil {
		now = time.Now
	}
	return &Journal{
		now:     now,
		byLayer: map[uint64]*Entry{},
		byLabel: map[string][]*Entry{},
		walks:   map[string]*walk{},
		entropy: ulid.Monotonic(rand.Reader, 0),
	}
}

// StageEntry completes e with an id and, unless it has one, a time, and adds it
// to b. Call Commit with the result once b is applied; forget it otherwise.
func (j *Journal) StageEntry(b *kv.Batch, e Entry) (Entry, error) {
	if err := e.Validate(); err != nil {
		return Entry{}, err
	}
	if e.CreatedAt.IsZero() {
		e.CreatedAt = j.now()
	}
	if e.Conversation.State == "" {
		e.Conversation = NoConversation()
	}
	id, err := j.newID(e.CreatedAt)
	if err != nil {
		return Entry{}, err
	}
	e.ID = id
	v, err := encodeEntry(&e)
	if err != nil {
		return Entry{}, err
	}
	b.Put(kv.JournalAt(e.Layer, e.Seq), v)
	return e, nil
}

// StageOp gives op its number and, unless it has one, a time, and adds it to b.
func (j *Journal) StageOp(b *kv.Batch, op Op) (Op, error) {
	j.mu.RLock()
	op.N = 1
	if n := len(j.ops); n > 0 {
		op.N = j.ops[n-1].N + 1
	}
	j.mu.RUnlock()
	if op.At.IsZero() {
		op.At = j.now()
	}
	v, err := encodeOp(&op)
	if err != nil {
		return Op{}, err
	}
	b.Put(kv.Op(op.N), v)
	return op, nil
}

// Commit takes what was staged into the index, after its batch was applied.
// Either may be nil.
func (j *Journal) Commit(e *Entry, op *Op) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if e != nil {
		own := *e
		j.addEntry(&own)
	}
	if op != nil {
		j.addOp(*op)
	}
}

// newID makes a ULID that is larger than every id of the store, also when the
// clock stands still or was set back.
func (j *Journal) newID(at time.Time) (string, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	ms := uint64(max(at.UnixMilli(), 0))
	if ms <= j.lastMS {
		ms = j.lastMS
	}
	id, err := ulid.New(ms, j.entropy)
	if err == nil && len(j.ids) > 0 && id.String() <= j.ids[len(j.ids)-1].ID {
		// A restart forgets the entropy of this millisecond: take the next one.
		ms++
		id, err = ulid.New(ms, j.entropy)
	}
	if err != nil {
		return "", fmt.Errorf("make a checkpoint id: %w", err)
	}
	j.lastMS = ms
	return id.String(), nil
}

// addEntry. Preconditions: j.mu is held, or nobody else has j yet.
func (j *Journal) addEntry(e *Entry) {
	if e.Seq == 0 || j.byLayer[e.Layer] == nil {
		j.byLayer[e.Layer] = e
	}
	j.order = insert(j.order, e, byLayer)
	j.ids = insert(j.ids, e, func(a, b *Entry) int { return cmp.Compare(a.ID, b.ID) })
	if e.Label != "" {
		j.byLabel[e.Label] = insert(j.byLabel[e.Label], e, byLayer)
	}
	if id, err := ulid.ParseStrict(e.ID); err == nil {
		j.lastMS = max(j.lastMS, id.Time())
	}
}

func byLayer(a, b *Entry) int {
	return cmp.Or(cmp.Compare(a.Layer, b.Layer), cmp.Compare(a.Seq, b.Seq))
}

// addOp. Preconditions: j.mu is held, or nobody else has j yet.
func (j *Journal) addOp(op Op) {
	j.ops = append(j.ops, op)
	w := j.walks[op.Branch]
	if w == nil {
		w = &walk{}
		j.walks[op.Branch] = w
	}
	w.apply(op)
}

// insert puts v into the sorted s. Its usual place is the end; for another one
// the slice is copied, because readers may hold s.
func insert(s []*Entry, v *Entry, compare func(a, b *Entry) int) []*Entry {
	if n := len(s); n == 0 || compare(s[n-1], v) < 0 {
		return append(s, v)
	}
	i, found := slices.BinarySearchFunc(s, v, compare)
	s = slices.Clone(s)
	if found {
		s[i] = v
		return s
	}
	return slices.Insert(s, i, v)
}

// Line says whether a layer lies under a head. The base (layer 0) always does.
type Line func(layer uint64) bool

// entries returns all entries by layer, to be read only.
func (j *Journal) entries() []*Entry {
	j.mu.RLock()
	defer j.mu.RUnlock()
	return j.order
}

// NextSeq returns the Seq of the next checkpoint of a layer that is sealed already.
func (j *Journal) NextSeq(layer uint64) uint64 {
	next := uint64(0)
	for _, e := range slices.Backward(j.entries()) {
		if e.Layer < layer {
			break
		}
		if e.Layer == layer {
			next = max(next, e.Seq+1)
		}
	}
	return max(next, 1) // 0 is for the one that seals
}

// Newest returns the newest checkpoint of a layer.
func (j *Journal) Newest(layer uint64) (Entry, bool) {
	for _, e := range slices.Backward(j.entries()) {
		if e.Layer == layer {
			return *e, true
		}
		if e.Layer < layer {
			break
		}
	}
	return Entry{}, false
}

// At returns the entry of the checkpoint that sealed layer.
func (j *Journal) At(layer uint64) (Entry, bool) {
	j.mu.RLock()
	defer j.mu.RUnlock()
	e, ok := j.byLayer[layer]
	if !ok {
		return Entry{}, false
	}
	return *e, true
}

// List returns the checkpoints in line, newest first; a nil line means all of
// the store. Auto entries are included.
func (j *Journal) List(line Line) []Entry {
	return j.Above(line, 0)
}

// Above returns the checkpoints in line that are newer than layer, newest first:
// what a rollback to layer drops from the line.
func (j *Journal) Above(line Line, layer uint64) []Entry {
	all := j.entries()
	var out []Entry
	for i := len(all) - 1; i >= 0 && all[i].Layer > layer; i-- {
		if line == nil || line(all[i].Layer) {
			out = append(out, *all[i])
		}
	}
	return out
}

// Latest returns the newest checkpoint in line that was asked for by somebody.
func (j *Journal) Latest(line Line) (Entry, bool) {
	e, _ := back(j.entries(), 0, j.counting(line))
	if e == nil {
		return Entry{}, false
	}
	return *e, true
}

// Count returns how many checkpoints lie in line.
func (j *Journal) Count(line Line) int {
	n := 0
	for _, e := range j.entries() {
		if line(e.Layer) {
			n++
		}
	}
	return n
}

// MadeSince counts the checkpoints of all lines made at or after the time at, to the millisecond.
func (j *Journal) MadeSince(at time.Time) int {
	var first ulid.ULID
	if err := first.SetTime(uint64(max(at.UnixMilli(), 0))); err != nil {
		return 0 // beyond all times
	}
	j.mu.RLock()
	defer j.mu.RUnlock()
	i, _ := slices.BinarySearchFunc(j.ids, first.String(), func(e *Entry, id string) int { return cmp.Compare(e.ID, id) })
	return len(j.ids) - i
}

// LabelFree reports whether label may be given in line: ErrDuplicateLabel when a
// checkpoint of the line has it, or when it is the id, or begins the id, of a checkpoint of
// the store, which would then be hidden behind it. A label that a rollback dropped is free.
func (j *Journal) LabelFree(label string, line Line) error {
	if e := inLine(j.labelled(label), line); e != nil {
		return fmt.Errorf("%w: %q names checkpoint %s of %s; choose another one", ErrDuplicateLabel, label, e.ID, e.CreatedAt.Local().Format(time.DateTime))
	}
	if ids := j.withID(label); len(ids) > 0 {
		e := ids[0]
		return fmt.Errorf("%w: %q means the checkpoint with the id %s, of %s; choose another one", ErrDuplicateLabel, label, e.ID, e.CreatedAt.Local().Format(time.DateTime))
	}
	return nil
}

// labelled returns the checkpoints that have, or had, the label.
func (j *Journal) labelled(label string) []*Entry {
	j.mu.RLock()
	defer j.mu.RUnlock()
	return j.byLabel[label]
}

// inLine returns the newest of es in line, or nil.
func inLine(es []*Entry, line Line) *Entry {
	for i := len(es) - 1; i >= 0; i-- {
		if line(es[i].Layer) {
			return es[i]
		}
	}
	return nil
}

// Ops returns the last n records of the operation log, newest first; all when n <= 0.
func (j *Journal) Ops(n int) []Op {
	j.mu.RLock()
	defer j.mu.RUnlock()
	if n <= 0 || n > len(j.ops) {
		n = len(j.ops)
	}
	out := slices.Clone(j.ops[len(j.ops)-n:])
	slices.Reverse(out)
	return out
}
