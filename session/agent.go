package session

import (
	"context"
	"errors"
	"fmt"

	"github.com/rewindfs/rewindfs/control"
	"github.com/rewindfs/rewindfs/ledger"
	"github.com/rewindfs/rewindfs/memory"
)

// openAgentSide loads what belongs to the agent and not to its files.
func (s *Session) openAgentSide() error {
	var err error
	if s.memory, err = memory.Open(s.db); err != nil {
		return fmt.Errorf("open the store %s: %w", s.o.Store, err)
	}
	if err := s.loadBranchSide(); err != nil {
		return err
	}
	if s.budget, err = openBudget(s); err != nil {
		return fmt.Errorf("open the store %s: %w", s.o.Store, err)
	}
	if err := s.openLedger(); err != nil {
		return fmt.Errorf("open the store %s: %w", s.o.Store, err)
	}
	return nil
}

// loadBranchSide loads what of it is the branch's own.
func (s *Session) loadBranchSide() error {
	s.arrived = s.memory.Live(s.o.Branch)
	s.life = lifePending
	for name, v := range map[string]any{statePolicy: &s.policy, stateLastAuto: &s.lastAuto, stateLifecycle: &s.life} {
		if err := s.loadState(name, v); err != nil {
			return fmt.Errorf("open branch %s of the store %s: %w", s.o.Branch, s.o.Store, err)
		}
	}
	return s.tellOwed()
}

// welcome records that the session is served, and what a crash kept from the ledger.
func (s *Session) welcome() {
	s.auditMissed()
	if err := s.payOld(); err != nil {
		s.log.Warn("some lines of the ledger may be missing since a crash", "error", err)
	}
	event := s.event(ledger.KindMount)
	event.Op = s.mountOp
	event.Details = map[string]any{"base": s.o.Base, "mountpoint": s.o.Mountpoint, "generation": s.record.Generation, "version": s.o.Version}
	s.audit(event)
	s.heads.Lock()
	defer s.heads.Unlock()
	s.lifecycle(lifeCreated)
	s.lookAtRuns(context.Background())
}

// farewell puts down what the agent's side has in memory. The store is still open.
func (s *Session) farewell() error {
	s.background.Wait()
	if s.ledger == nil {
		return nil
	}
	if s.mount != nil {
		s.audit(s.event(ledger.KindUnmount))
	}
	err := s.ledger.Close()
	if errors.Is(err, ledger.ErrClosed) {
		err = nil
	}
	return firstOf(s.budget.keep(true), err)
}

// agentSide is what status says about the agent.
type agentSide struct {
	life     string
	inflight []string
	lastAuto *control.AutoRolledBack
}

// describeAgentSide fills in what status says about the agent. While a checkpoint or a
// rollback is being made, that is what was so before.
func (s *Session) describeAgentSide(st *control.Status) {
	if s.heads.TryLock() {
		now := &agentSide{life: s.lifeNow(), inflight: s.calls.inflight(), lastAuto: s.lastAuto}
		s.heads.Unlock()
		s.shown.Store(now)
	}
	st.Inflight = []string{}
	if shown := s.shown.Load(); shown != nil {
		st.Lifecycle, st.Inflight, st.LastAutoRollback = shown.life, shown.inflight, shown.lastAuto
	}
	st.Conversation = wireConversation(snapshotOf(s.memory.Live(s.o.Branch)))
	st.Unaudited = s.unaudited.Load()
}
