package verify

import (
	"encoding/json"
	"fmt"
	"strconv"
)

// Status is the outcome of a verification.
type Status string

const (
	// Pass means that a verifier said so, in the form the contract asks for.
	Pass Status = "pass"
	// Fail means that a verifier said so, in the form the contract asks for.
	Fail Status = "fail"
	// Unknown is everything else.
	Unknown Status = "unknown"
)

// Verdict is what a verifier printed.
type Verdict struct {
	Status  Status    `json:"status"`
	Summary string    `json:"summary,omitempty"`
	Errors  []Problem `json:"errors,omitempty"`
	// Extra are the fields that are not of the contract, as they were printed. Of a name used twice, the last.
	Extra map[string]json.RawMessage `json:"extra,omitempty"`
	// Raw is the whole object, byte for byte (in the JSON form of a Verdict, without white space between tokens).
	Raw json.RawMessage `json:"raw,omitempty"`
}

// Problem is one entry of a verdict's errors: a text, or a text with a place.
// In JSON it is a string where there is no place, else {file, line, message}.
type Problem struct {
	File    string // "" when unknown
	Line    int    // counted from 1; 0 when unknown
	Message string
}

// String is the form that compilers use, file:line: message. The text comes from
// outside: escape it before it goes to a terminal.
func (p Problem) String() string {
	switch {
	case p.File == "" && p.Line == 0:
		return p.Message
	case p.Line == 0:
		return p.File + ": " + p.Message
	default:
		return p.File + ":" + strconv.Itoa(p.Line) + ": " + p.Message
	}
}

// place is Problem as an object.
type place struct {
	File    string `json:"file,omitempty"`
	Line    int    `json:"line,omitempty"`
	Message string `json:"message"`
}

// MarshalJSON writes a string or an object; see Problem.
func (p Problem) MarshalJSON() ([]byte, error) {
	if p.File == "" && p.Line == 0 {
		return json.Marshal(p.Message)
	}
	return json.Marshal(place(p))
}

// UnmarshalJSON reads what MarshalJSON writes, and what verifiers print.
func (p *Problem) UnmarshalJSON(data []byte) error {
	got, err := parseProblem(data)
	if err != nil {
		return fmt.Errorf("read a verifier's error entry: %w", err)
	}
	*p = got
	return nil
}
