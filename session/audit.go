package session

import (
	"encoding/hex"
	"fmt"
	"path/filepath"

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
	last := s.ledger.LastOp()
	for _, op := range s.journal.Ops(0) {
		if op.N <= last {
			break // newest first
		}
		s.missed = append(s.missed, op)
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
	e := s.event(ledger.Kind(op.Kind))
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
