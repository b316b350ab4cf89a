package sandbox

import "fmt"

// Error is a command that was not run because its sandbox could not be made.
type Error struct {
	What string // what went wrong
	Fix  string // what to do about it
	err  error  // nil, or why
}

func (e *Error) Error() string {
	s := e.What
	if e.err != nil {
		s += ": " + e.err.Error()
	}
	return s + " (" + e.Fix + ")"
}

func (e *Error) Unwrap() error { return e.err }

// failed makes an Error. err may be nil.
func failed(err error, fix, format string, args ...any) error {
	return &Error{What: fmt.Sprintf(format, args...), Fix: fix, err: err}
}
