package session

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"syscall"

	"github.com/rewindfs/rewindfs/control"
	"github.com/rewindfs/rewindfs/journal"
	"github.com/rewindfs/rewindfs/kv"
)

// What a session keeps in kv about itself.
var (
	baseKey       = kv.Meta("session/base")
	generationKey = "session/generation/" // + branch
)

// baseID tells which directory a store was made over.
type baseID struct {
	V    int    `json:"v"`
	Path string `json:"path"`
	Dev  uint64 `json:"dev"`
	Ino  uint64 `json:"ino"`
}

func identify(path string) (baseID, error) {
	fi, err := os.Stat(path)
	if err != nil {
		return baseID{}, fmt.Errorf("look at the base: %w", err)
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return baseID{}, fmt.Errorf("the base %s has no inode number", path)
	}
	return baseID{V: 1, Path: path, Dev: st.Dev, Ino: st.Ino}, nil
}

// claimBase records the base in a new store, and refuses another base than the
// recorded one. A directory that was moved is the same one; so is one of the
// same path and inode number whose device got another number at a reboot.
func (s *Session) claimBase() error {
	now, err := identify(s.o.Base)
	if err != nil {
		return err
	}
	v, ok, err := s.db.Get(baseKey)
	if err != nil {
		return fmt.Errorf("read which base the store is for: %w", err)
	}
	if ok {
		var was baseID
		if err := json.Unmarshal(v, &was); err != nil {
			return fmt.Errorf("read which base the store is for: %w", err)
		}
		switch {
		case was == now:
			return nil
		case was.Ino == now.Ino && (was.Dev == now.Dev || was.Path == now.Path):
			s.log.Info("the base was moved or its device renumbered", "was", was.Path, "is", now.Path)
		case was.Path == now.Path:
			return otherBase("the directory %s was replaced since the store %s was made over it: its layers belong to the old one; give another --store, or drop them with: rewindfs destroy -s %s", now.Path, s.o.Store, s.o.Store)
		default:
			return otherBase("the store %s was made over %s, not over %s: give another --store", s.o.Store, was.Path, now.Path)
		}
	}
	b, err := json.Marshal(now)
	if err != nil {
		return fmt.Errorf("record the base: %w", err)
	}
	var batch kv.Batch
	batch.UseReserve()
	batch.Put(baseKey, b)
	if err := s.db.Apply(&batch); err != nil {
		return fmt.Errorf("record the base: %w", err)
	}
	return nil
}

func otherBase(format string, args ...any) error {
	return &control.Error{Code: control.CodeConflict, Message: fmt.Sprintf(format, args...)}
}

// raiseGeneration makes calls that were prepared for an earlier daemon stale, and
// notes the mount in the operation log.
func (s *Session) raiseGeneration() (uint64, error) {
	key := kv.Meta(generationKey + s.o.Branch)
	v, ok, err := s.db.Get(key)
	if err != nil {
		return 0, fmt.Errorf("read the generation: %w", err)
	}
	gen := uint64(1)
	if ok {
		if len(v) != 8 {
			return 0, fmt.Errorf("the generation has %d bytes, not 8", len(v))
		}
		gen = binary.BigEndian.Uint64(v) + 1
	}
	var batch kv.Batch
	batch.UseReserve()
	batch.Put(key, binary.BigEndian.AppendUint64(nil, gen))
	head, parent := uint64(s.branch.HeadLayer()), uint64(s.branch.Parent())
	op, err := s.journal.StageOp(&batch, journal.Op{Kind: journal.OpMount, Branch: s.o.Branch, From: head, To: parent, Open: head})
	if err == nil {
		err = s.db.Apply(&batch)
	}
	if err != nil {
		return 0, fmt.Errorf("raise the generation: %w", err)
	}
	s.journal.Commit(nil, &op)
	s.mountOp = op.N
	return gen, nil
}
