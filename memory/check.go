package memory

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/rewindfs/rewindfs/kv"
)

// Damage is something of the conversations that is not there or not right.
type Damage struct {
	Key  []byte // of a record that does not decode, and that keeps Open from working; nil: none does
	What string
}

// Checker checks conversations, each message once.
type Checker struct {
	s    *Store
	good map[digest]bool // links up to which all is there
}

// NewChecker is for the conversations of db, which nobody needs to have opened.
func NewChecker(db *kv.DB) *Checker { return &Checker{s: &Store{db: db}, good: map[digest]bool{}} }

// Live checks the live conversations, and calls found for what is wrong with them.
func (c *Checker) Live(found func(branch, thread string, d Damage)) error {
	err := c.s.db.Scan(kv.ThreadPrefix(), nil, func(k, v []byte) bool {
		branch, thread, ok := kv.ParseThread(k)
		var rec threadRecord
		if err := json.Unmarshal(v, &rec); !ok || err != nil || rec.V < 1 {
			found(branch, thread, Damage{slices.Clone(k), fmt.Sprintf("the note of the live conversation %q does not decode", k)})
		} else if err := c.History(rec.Ref); err != nil {
			found(branch, thread, Damage{nil, err.Error()})
		}
		return true
	})
	if err != nil {
		return fmt.Errorf("check the live conversations: %w", err)
	}
	return nil
}

// History returns an ErrCorrupt unless all of the history that ref names is there, byte for byte.
func (c *Checker) History(ref Ref) error {
	if ref.Digest == "" {
		return nil
	}
	at, err := parseDigest(ref.Digest)
	if err != nil {
		return err
	}
	var walked []digest
	for i := ref.Messages - 1; i >= 0 && !c.good[at]; i-- {
		walked = append(walked, at)
		before, m, err := c.s.link(i, at)
		if err == nil {
			_, err = c.s.message(m)
		}
		if err != nil {
			return fmt.Errorf("conversation %s: %w", ref.Digest, err)
		}
		at = before
	}
	for _, d := range walked {
		c.good[d] = true
	}
	return nil
}
