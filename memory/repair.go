package memory

import (
	"errors"
	"fmt"

	"github.com/rewindfs/rewindfs/memory/convo"
	"github.com/rewindfs/rewindfs/memory/valid"
)

// ErrUnrepairable is returned for a history that a strict provider would refuse, and
// that no repair can make valid. Such a history is never handed out.
var ErrUnrepairable = errors.New("the conversation cannot be made valid")

// Repaired is a history that a strict provider takes, and what was done to it.
type Repaired struct {
	History convo.History
	Changes []convo.Change
	Notice  string // the text for the model, "" when none was added
}

// Repair makes h valid for its provider. What comes out was checked by a validator
// that shares no code with the repair. Errors: ErrUnrepairable, and convo's for an
// h that is no history.
func Repair(h convo.History, o convo.Options) (Repaired, error) {
	out, changes, err := convo.Repair(h, o)
	if err != nil {
		return Repaired{}, fmt.Errorf("repair the conversation: %w", err)
	}
	if err := valid.Check(out.Format, out.Items, valid.Options{MidSystem: o.MidSystem, Roles: true}); err != nil {
		return Repaired{}, fmt.Errorf("%w: %w", ErrUnrepairable, err)
	}
	r := Repaired{History: out, Changes: changes}
	if r.Changes == nil {
		r.Changes = []convo.Change{} // [] in JSON, not null
	}
	for _, c := range changes {
		if c.Action == "append_notice" || c.Action == "notice_in_last_tool_result" {
			r.Notice = o.Notice
		}
	}
	return r, nil
}
