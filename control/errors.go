package control

import (
	"errors"
	"net/http"
)

// Code says what went wrong, for programs.
type Code string

// The codes. A client must treat one that it does not know as CodeInternal.
const (
	CodeInternal            Code = "internal"
	CodeBadRequest          Code = "bad_request"
	CodeNoSuchCall          Code = "no_such_call"
	CodeForbidden           Code = "forbidden"
	CodeStaleGeneration     Code = "stale_generation"
	CodeUnknownCheckpoint   Code = "unknown_checkpoint"
	CodeAmbiguousCheckpoint Code = "ambiguous_checkpoint"
	CodeBadLabel            Code = "bad_label"
	CodeDuplicateLabel      Code = "duplicate_label"
	CodeBadPath             Code = "bad_path"
	CodeBusy                Code = "busy"
	CodeConflict            Code = "conflict"
	CodeNothing             Code = "nothing_to_undo"
	CodeNoSpace             Code = "no_space"
	CodeDamaged             Code = "damaged"
	CodeStopping            Code = "stopping"
	CodeGone                Code = "gone" // whoever asked does not wait any more
	CodeNewerStore          Code = "newer_store"
	CodeStoreHeld           Code = "store_held"
	CodeUnsupported         Code = "unsupported"
	CodeNoConversation      Code = "no_conversation"
	CodeUnrepairable        Code = "unrepairable"
	CodeBudget              Code = "budget"
	CodeBadArchive          Code = "bad_archive"
	CodeUnknownBranch       Code = "unknown_branch"
	CodeNoSession           Code = "no_session" // made by clients: there is nobody to ask
)

// Error is a failure as it goes over the wire.
type Error struct {
	Code    Code           `json:"code"`
	Message string         `json:"message"`
	Details map[string]any `json:"details,omitempty"`
}

func (e *Error) Error() string { return e.Message }

// CodeOf returns the code of the Error in err's chain, CodeInternal when there is none.
func CodeOf(err error) Code {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return CodeInternal
}

// ErrNoDaemon is returned by the client when nobody serves the socket.
var ErrNoDaemon = errors.New("no daemon answers")

// status is the HTTP status that goes with c.
func (c Code) status() int {
	switch c {
	case CodeBadRequest, CodeBadLabel, CodeUnsupported, CodeBadArchive:
		return http.StatusBadRequest
	case CodeForbidden:
		return http.StatusForbidden
	case CodeNoSuchCall, CodeUnknownCheckpoint, CodeBadPath, CodeNoConversation, CodeUnknownBranch:
		return http.StatusNotFound
	case CodeStaleGeneration, CodeAmbiguousCheckpoint, CodeDuplicateLabel, CodeBusy, CodeConflict, CodeNothing, CodeUnrepairable, CodeBudget:
		return http.StatusConflict
	case CodeStopping:
		return http.StatusServiceUnavailable
	case CodeGone:
		return http.StatusRequestTimeout
	case CodeNoSpace:
		return http.StatusInsufficientStorage
	}
	return http.StatusInternalServerError
}

// reply wraps an Error as the wire has it.
type reply struct {
	Error *Error `json:"error"`
}

// asError makes an Error of err, whatever it is.
func asError(err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		if e.Message == err.Error() {
			return e
		}
		return &Error{Code: e.Code, Message: err.Error(), Details: e.Details}
	}
	return &Error{Code: CodeInternal, Message: err.Error()}
}
