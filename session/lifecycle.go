package session

import "slices"

// The states of a session's life, as status shows them. A store that no daemon serves
// is what its record says: PENDING before the first mount, CLEANED_UP never, as then
// there is no store.
const (
	lifePending    = "PENDING"     // a store is being made
	lifeCreated    = "CREATED"     // mounted, and nothing was done yet
	lifeActive     = "ACTIVE"      // work goes on
	lifeCommitted  = "COMMITTED"   // the result was written to the host
	lifeRolledBack = "ROLLED_BACK" // the last thing done was going back
	lifeErrored    = "ERRORED"     // the last thing was a failure: of a tool call, or of a verification
	lifeCleanedUp  = "CLEANED_UP"  // destroyed
)

// legalMoves says from where to where a session may go. Work always leads to ACTIVE.
var legalMoves = map[string][]string{
	lifePending:    {lifeCreated, lifeErrored, lifeCleanedUp},
	lifeCreated:    {lifeActive, lifeErrored, lifeRolledBack, lifeCommitted, lifeCleanedUp},
	lifeActive:     {lifeCommitted, lifeRolledBack, lifeErrored, lifeCleanedUp},
	lifeCommitted:  {lifeActive, lifeRolledBack, lifeErrored, lifeCleanedUp},
	lifeRolledBack: {lifeActive, lifeCommitted, lifeErrored, lifeCleanedUp},
	lifeErrored:    {lifeActive, lifeCommitted, lifeRolledBack, lifeCleanedUp},
	lifeCleanedUp:  {},
}

// lifecycle moves the session to a state. A move to where it stands, and one that is
// not legal, changes nothing. Preconditions: s.heads is held.
func (s *Session) lifecycle(to string) {
	if s.life == to || !slices.Contains(legalMoves[s.life], to) {
		return
	}
	if err := s.saveState(stateLifecycle, to); err != nil {
		s.log.Warn("the state of the session is not kept over a restart", "state", to, "error", err)
	}
	s.life = to
}

// lifeNow is the state to show: programs may have written since the last call.
func (s *Session) lifeNow() string {
	if s.branch.Changed() > 0 && slices.Contains(legalMoves[s.life], lifeActive) && s.life == lifeCreated {
		return lifeActive
	}
	return s.life
}
