package session

import (
	"fmt"
)

// OpenOffline opens a store that no daemon serves, to look after it: nothing is mounted, and there
// is no control API. Of the Options only what says which store it is, and for what, counts. Close it when done.
func OpenOffline(o Options) (*Session, error) {
	if err := o.Complete(); err != nil {
		return nil, err
	}
	if !isStore(o.Store) {
		return nil, badPath("%s is no store", o.Store)
	}
	s := newSession(newStore(o.Logger), o)
	s.served.Store(&[]*Session{s})
	if err := s.openOffline(); err != nil {
		return nil, firstOf(err, s.release())
	}
	return s, nil
}

func (s *Session) openOffline() error {
	old, err := s.lockStore()
	if err != nil {
		return err
	}
	if old != nil {
		s.record = *old
	}
	if err := s.openTree(); err != nil {
		return err
	}
	s.auditMissed()
	if err := s.payOld(); err != nil {
		return fmt.Errorf("open the store %s: %w", s.o.Store, err)
	}
	return nil
}

// Close puts everything on disk and gives the store back.
func (s *Session) Close() error {
	s.mu.Lock()
	s.stopping = true
	s.mu.Unlock()
	return s.release()
}
