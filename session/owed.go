package session

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"

	"github.com/rewindfs/rewindfs/kv"
	"github.com/rewindfs/rewindfs/ledger"
)

// Changes that are no operation of the journal (a policy, a decision about a checkpoint, a commit) owe the
// ledger a line: it is kept in the batch that makes the change, until it is in the
// ledger. What a crash leaves owing is paid by the next start.

// owedPrefix starts the names of the kv.Meta keys of owed lines.
const owedPrefix = "owed/"

// owed is a line that the ledger is to get.
type owed struct {
	key   []byte
	event ledger.Event
}

// owe adds to b that e is owed.
func (s *Session) owe(b *kv.Batch, e ledger.Event) (owed, error) {
	e.At = s.o.Now().UTC()
	name := fmt.Sprintf("%020d-%06d", e.At.UnixNano(), s.owes.Add(1))
	if e.Details = maps.Clone(e.Details); e.Details == nil {
		e.Details = map[string]any{}
	}
	e.Details[detailOwed] = name
	v, err := json.Marshal(e)
	if err != nil {
		return owed{}, fmt.Errorf("encode a line of the ledger: %w", err)
	}
	o := owed{key: kv.Meta(owedPrefix + name), event: e}
	b.Put(o.key, v)
	return o, nil
}

// detailOwed names the line in its details, so that none is written twice.
const detailOwed = "note"

// applyOwing applies b and records the events of it.
func (s *Session) applyOwing(b *kv.Batch, events ...ledger.Event) error {
	all := make([]owed, len(events))
	for i, e := range events {
		var err error
		if all[i], err = s.owe(b, e); err != nil {
			return err
		}
	}
	if err := s.db.Apply(b); err != nil || len(all) == 0 {
		return err
	}
	s.pay(all)
	return nil
}

// pay records what is owed. Preconditions: the batches that owe it were applied.
func (s *Session) pay(all []owed) {
	var paid kv.Batch
	paid.UseReserve()
	for _, o := range all {
		s.audit(o.event)
		paid.Delete(o.key)
	}
	if err := s.db.Apply(&paid); err != nil {
		s.log.Warn("some lines of the ledger will be looked for again at the next start", "error", err)
	}
}

// payOld records what the last daemon was still owing.
func (s *Session) payOld() error {
	var old []owed
	var bad error
	err := s.db.Scan(kv.Meta(owedPrefix), nil, func(k, v []byte) bool {
		o := owed{key: bytes.Clone(k)}
		if bad = json.Unmarshal(v, &o.event); bad != nil {
			return false
		}
		old = append(old, o)
		return true
	})
	if err = firstOf(bad, err); err != nil || len(old) == 0 {
		return err
	}
	have := map[string]bool{}
	f := ledger.Filter{Kinds: []ledger.Kind{ledger.KindPolicy, ledger.KindCommit, ledger.KindExec}, Since: old[0].event.At}
	if err := ledger.Read(LedgerDir(s.o.Store), f, func(r *ledger.Record) error {
		if name, ok := r.Details[detailOwed].(string); ok {
			have[name] = true
		}
		return nil
	}); err != nil {
		return fmt.Errorf("read the ledger: %w", err)
	}
	var b kv.Batch
	b.UseReserve()
	for _, o := range old {
		if name, _ := o.event.Details[detailOwed].(string); !have[name] {
			o.event.Details["recovered"] = true
			s.audit(o.event)
		}
		b.Delete(o.key)
	}
	return s.db.Apply(&b)
}
