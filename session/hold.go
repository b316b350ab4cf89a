package session

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/rewindfs/rewindfs/apply"
)

// Files in the store about what commits hold back.
const (
	holdName         = "commit-hold"          // what the user says
	holdDefaultsName = holdName + ".defaults" // what this version of the program says, for the user to read
	holdTempName     = holdName + ".tmp"
)

// holdList reads what is held back. The user's file is made when it is missing, and that of an earlier version brought up to date.
func (s *Session) holdList() (*apply.Hold, error) {
	path := filepath.Join(s.o.Store, holdName)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		text, err = []byte(apply.HoldHeader), s.replaceFile(holdName, apply.HoldHeader)
	}
	if now := apply.NewHoldFile(string(text)); err == nil && now != string(text) {
		text, err = []byte(now), s.replaceFile(holdName, now)
	}
	if err == nil {
		err = s.replaceFile(holdDefaultsName, apply.DefaultHold)
	}
	if err != nil {
		return nil, apiError(fmt.Errorf("read what commits hold back: %w", err))
	}
	hold, err := apply.ParseHold(string(text))
	if err != nil {
		return nil, badRequest("%s: %v: mend it, or remove it to have the defaults", path, err)
	}
	return hold, nil
}

// replaceFile puts a text into a file of the store, if it has another one: whole or not at all.
func (s *Session) replaceFile(name, text string) error {
	path, temp := filepath.Join(s.o.Store, name), filepath.Join(s.o.Store, holdTempName)
	if old, err := os.ReadFile(path); err == nil && string(old) == text {
		return nil
	}
	if err := os.WriteFile(temp, []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(temp, path)
}
