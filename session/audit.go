package session

import (
	"encoding/hex"
	"fmt"
	"path/filepath"
	"time"

	"github.com/rewindfs/rewindfs/journal"
	"github.com/rewindfs/rewindfs/kv"
	"github.com/rewindfs/rewindfs/ledger"
)

// LedgerDir is where the ledger of a store is.
func LedgerDir(store string) string { return filepath.Join(store, ledgerName) }

// LedgerID is the name under which the ledger of a store begins its chain.
func LedgerID(store string) (string, error) {
	id, err := kv.ReadID(filepath.Join(store, kvName))
	if err != nil {
		return "", err
	}
	return hex.EncodeToString(id[:]), nil
}

// openLedger opens the audit log and puts down what a crash kept from it: operations that
// the journal has and the ledger has not.
func (s *Session) openLedger() error {
	id := s.db.StoreID()
	var err error
	if s.ledger, err = ledger.Open(LedgerDir(s.o.Store), hex.EncodeToString(id[:]), ledger.Options{Now: s.o.Now}); err != nil {
		return fmt.Errorf("open the ledger: %w", err)
	}
	for _, f := range s.ledger.Found() {
		s.log.Warn("the ledger needed a look", "found", f.String())
	}
	return s.findMissed()
}

// lateBy is how long after an operation of one branch those of others may have been recorded before it. A kernel
// that takes a minute to forget what a rollback changed is slow.
const lateBy = time.Hour

// findMissed finds the operations that the ledger has not, newest first. In one branch they are recorded one by
// one; so what is missing is newer than the last one recorded, or it is the last one of a branch that was overtaken by another.
func (s *Session) findMissed() error {
	last := s.ledger.LastOp()
	var late []journal.Op
	seen := map[string]bool{}
	var newest time.Time
	for _, op := range s.journal.Ops(0) { // newest first
		if newest.IsZero() {
			newest = op.At
		}
		first := !seen[op.Branch]
		seen[op.Branch] = true
		switch {
		case op.N > last:
			s.missed = append(s.missed, op)
		case newest.Sub(op.At) > lateBy:
			return s.missLate(late)
		case op.N < last && first:
			late = append(late, op)
		}
	}
	return s.missLate(late)
}

// missLate adds those of late, newest first, that the ledger has not to the missed ones.
func (s *Session) missLate(late []journal.Op) error {
	if len(late) == 0 {
		return nil
	}
	have := map[uint64]bool{}
	f := ledger.Filter{
		Kinds: []ledger.Kind{ledger.KindMount, ledger.KindCheckpoint, ledger.KindRollback, ledger.KindUndo, ledger.KindRedo, ledger.KindRestore, ledger.KindMerge, ledger.KindExec, ledger.KindFork, ledger.KindDropBranch, ledger.KindImport, ledger.KindForgetUndo},
		Since: late[len(late)-1].At.Add(-lateBy),
	}
	err := ledger.Read(LedgerDir(s.o.Store), f, func(r *ledger.Record) error {
		have[r.Op] = true
		return nil
	})
	if err != nil {
		return fmt.Errorf("look for operations that the ledger has not: %w", err)
	}
	for _, op := range late {
		if !have[op.N] {
			s.missed = append(s.missed, op)
		}
	}
	return nil
}

// auditMissed records what openLedger found missing, oldest first.
func (s *Session) auditMissed() {
	for i := len(s.missed) - 1; i >= 0; i-- {
		op := s.missed[i]
		e := s.opEvent(&op)
		e.Details = map[string]any{"recovered": true}
		e.At = op.At
		s.audit(e)
	}
	s.missed = nil
}

// opEvent is the ledger's record of an operation.
func (s *Session) opEvent(op *journal.Op) ledger.Event {
	kind := ledger.Kind(op.Kind)
	if op.Kind == journal.OpRun {
		kind = ledger.KindExec
	}
	e := s.event(kind)
	e.Branch, e.Op, e.Label, e.Layer = op.Branch, op.N, op.Label, op.To
	entry, ok := s.journal.At(op.To)
	if op.Kind == journal.OpCheckpoint { // several may share the layer
		entry, ok = s.journal.Newest(op.To)
	}
	if ok {
		e.Checkpoint = entry.ID
		if e.Label == "" {
			e.Label = entry.Label
		}
	}
	return e
}

// audit appends to the ledger. What happened has happened: that it could not be
// recorded is an error of the log, and of status.
func (s *Session) audit(e ledger.Event) {
	if _, err := s.ledger.Append(e); err != nil {
		s.unaudited.Add(1)
		s.log.Error("not recorded in the ledger", "event", e.Kind, "error", err)
	}
}
