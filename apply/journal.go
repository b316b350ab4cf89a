package apply

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/rewindfs/rewindfs/kv"
	"github.com/rewindfs/rewindfs/layers"
)

// Record describes a commit.
type Record struct {
	Version    int       `json:"v"`
	N          uint64    `json:"n"`                // of commits to the base, the generation that it started
	Target     string    `json:"target,omitempty"` // absolute path; "" is the base
	Branch     string    `json:"branch"`
	Checkpoint string    `json:"checkpoint"` // id
	Label      string    `json:"label,omitempty"`
	Layer      uint64    `json:"layer"`
	Gen        uint64    `json:"gen"`            // the generation of the base that it ended
	Undo       uint64    `json:"undo,omitempty"` // the commit that it takes back
	At         time.Time `json:"at"`
	Paths      int       `json:"paths"`          // that it changes
	Bytes      int64     `json:"bytes"`          // that it brings
	Part       bool      `json:"part,omitempty"` // of the changes, only some were asked for
	Over       int       `json:"over"`           // conflicts decided for the checkpoint
}

const recordVersion = 2

// flatStages is the last version whose stages had no directories but those that were brought.
const flatStages = 1

// The states of a commit that is under way.
const (
	stateStaging  = "staging"  // nothing on the host has changed but for the stage
	stateSwapping = "swapping" // some steps may have been made: they are to be taken back
	stateSwapped  = "swapped"  // all were made: what follows is to be done
)

// journal says what is under way, so that the next start knows.
type journal struct {
	Record
	State string `json:"state"`
	Stage string `json:"stage"` // name of the directory
	Dir   []byte `json:"dir"`   // Target, as it is: JSON knows no text that is not UTF-8
	Key   []byte `json:"key"`   // of the target in the records
	Parts uint64 `json:"parts"` // of the steps
	Root  *times `json:"root"`  // that the target's root had
	// Linked are objects of the host that get further names: whoever writes to one needs none of those.
	Linked []layers.Ino `json:"linked,omitempty"`
}

var journalKey = kv.Meta("commit")

func (j *journal) put(b *kv.Batch) error {
	j.Dir = []byte(j.Target)
	v, err := json.Marshal(j)
	if err != nil {
		return fmt.Errorf("encode the commit's journal: %w", err)
	}
	b.Put(journalKey, v)
	return nil
}

// readJournal returns the commit that is under way, nil if none is.
func readJournal(db *kv.DB) (*journal, error) {
	v, ok, err := db.Get(journalKey)
	if err != nil || !ok {
		return nil, err
	}
	j := &journal{}
	if err := json.Unmarshal(v, j); err != nil {
		return nil, fmt.Errorf("the commit's journal: %w: %w", errDamaged, err)
	}
	if j.Version != recordVersion && j.Version != flatStages {
		return nil, fmt.Errorf("a commit was begun by another version of the program (%d): finish it with that one", j.Version)
	}
	j.Target = string(j.Dir)
	return j, nil
}

// The operations of steps.
const (
	opNew  = "new"  // a staged object gets a free name
	opSwap = "swap" // one is exchanged with what is there
	opGone = "gone" // what is there goes to the stage
	opDir  = "dir"  // a directory gets its mode, owner, attributes, times; after all others
)

// step is one change of the host. In the stage its object is "n<I>", and "o<I>" what goes, in a directory for some of them: in one for
// all, which grows large, making and removing take longer, and workers wait for each other.
type step struct {
	Op   string     `json:"op"`
	Path []byte     `json:"p"`
	I    int        `json:"i"`
	New  layers.Ino `json:"new,omitempty"`  // on the host: of the staged object
	Old  layers.Ino `json:"old,omitempty"`  // of what is there
	Mode uint32     `json:"mode,omitempty"` // of a directory that is there and must be made writable to be moved, or for what is in it
	Meta *meta      `json:"meta,omitempty"`
	Set  *times     `json:"set,omitempty"` // the times that a directory gets
	Was  *times     `json:"was,omitempty"` // and those it had

	it   *item // not in the journal, as the next two
	flat bool  // its object lies in the stage itself
	held bool  // somebody goes on writing to what it takes away
}

// stageDirOf is how many steps have their objects in one directory.
const stageDirOf = 256

type meta struct {
	Mode   uint32            `json:"mode"`
	UID    uint32            `json:"uid"`
	GID    uint32            `json:"gid"`
	Xattrs map[string][]byte `json:"xattrs"`
	All    bool              `json:"all"` // Xattrs are all there are to be; else they stay
}

type times struct {
	Atime layers.Time `json:"a"`
	Mtime layers.Time `json:"m"`
}

func timesOf(a *layers.Attr) *times { return &times{a.Atime, a.Mtime} }

// stageName is the path of the step's object in the stage.
func (s *step) stageName() string {
	name := fmt.Sprintf("n%d", s.I)
	if s.Op == opGone {
		name = fmt.Sprintf("o%d", s.I)
	}
	if s.flat {
		return name
	}
	return join(fmt.Sprint(s.I/stageDirOf), name)
}

// partBytes is how much of the steps one record holds, about.
const partBytes = 128 << 10

// putSteps keeps steps and notes in j how many records they are.
func (w *writer) putSteps(j *journal, steps []*step) error {
	j.Parts = 0
	for len(steps) > 0 {
		n, size := 0, 0
		for n < len(steps) && size < partBytes {
			size += 2*len(steps[n].Path) + 100
			if m := steps[n].Meta; m != nil {
				for _, v := range m.Xattrs {
					size += 2 * len(v)
				}
			}
			n++
		}
		v, err := json.Marshal(steps[:n])
		if err != nil {
			return fmt.Errorf("encode the steps of a commit: %w", err)
		}
		if err := w.put(kv.CommitSteps(j.Parts), v); err != nil {
			return err
		}
		j.Parts++
		steps = steps[n:]
	}
	return w.flushAt(1)
}

func readSteps(db *kv.DB, j *journal) (all []*step, err error) {
	for part := range j.Parts {
		v, ok, err := db.Get(kv.CommitSteps(part))
		if err != nil {
			return nil, err
		}
		var some []*step
		if !ok || json.Unmarshal(v, &some) != nil {
			return nil, fmt.Errorf("part %d of the steps of a commit: %w", part, errDamaged)
		}
		all = append(all, some...)
	}
	for _, st := range all {
		st.flat = j.Version == flatStages
	}
	return all, nil
}

func encodeRecord(r *Record) ([]byte, error) {
	v, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("encode the record of a commit: %w", err)
	}
	return v, nil
}

// Records lists the commits that can be undone, the oldest first.
func Records(db *kv.DB) (all []Record, err error) {
	var bad error
	err = db.Scan(kv.CommitPrefix(), nil, func(_, v []byte) bool {
		var r Record
		if bad = json.Unmarshal(v, &r); bad == nil {
			all = append(all, r)
		}
		return bad == nil
	})
	if bad != nil {
		bad = fmt.Errorf("%w: %w", errDamaged, bad)
	}
	if err == nil {
		err = bad
	}
	return all, err
}
