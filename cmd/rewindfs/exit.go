package main

import (
	"errors"
	"fmt"

	"github.com/rewindfs/rewindfs/control"
	"github.com/rewindfs/rewindfs/sandbox"
)

// The exit codes. They are part of the interface.
const (
	exitOK         = 0
	exitFailure    = 1
	exitNoSession  = 2
	exitCheckpoint = 3
	exitSandbox    = 4
	exitPath       = 5
	exitConflict   = 6
	exitFailed     = 7
	exitHalted     = 8
	exitStale      = 9
	exitUsage      = 64
)

// exitHelp is the table as help shows it.
const exitHelp = `Exit codes:
  0   done
  1   other failure
  2   no such session or branch, or not mounted
  3   bad or unknown checkpoint
  4   the sandbox failed
  5   bad path
  6   conflict, or in use
  7   verification failed
  8   halted: no verdict, or the budget is used up
  9   stale generation
  64  usage`

// exitOf is what each failure of the control API exits with; others exit with 1.
func exitOf(code control.Code) int {
	switch code {
	case control.CodeStopping, control.CodeNoSession, control.CodeUnknownBranch:
		return exitNoSession
	case control.CodeUnknownCheckpoint, control.CodeAmbiguousCheckpoint, control.CodeBadLabel, control.CodeDuplicateLabel, control.CodeNoConversation:
		return exitCheckpoint
	case control.CodeBadPath:
		return exitPath
	case control.CodeBusy, control.CodeConflict, control.CodeStoreHeld:
		return exitConflict
	case control.CodeBudget:
		return exitHalted
	case control.CodeStaleGeneration:
		return exitStale
	case control.CodeBadRequest:
		return exitUsage
	}
	return exitFailure
}

// exitError is an error with the code to exit with.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

func failf(code int, format string, args ...any) error {
	return &exitError{code, fmt.Errorf(format, args...)}
}

func usagef(format string, args ...any) error { return failf(exitUsage, format, args...) }

// exitCode finds the code for err.
func exitCode(err error) int {
	var own *exitError
	var api *control.Error
	var box *sandbox.Error
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &own):
		return own.code
	case errors.As(err, &box):
		return box.ExitCode
	case errors.As(err, &api):
		return exitOf(api.Code)
	case errors.Is(err, control.ErrNoDaemon):
		return exitNoSession
	}
	return exitFailure
}
