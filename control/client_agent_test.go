package control

import (
	"encoding/json"
	"strings"
	"testing"
)

// Messages keep their bytes, whatever an encoder would like to do to them; all else is as json.Marshal has it.
func TestEncodeRaw(t *testing.T) {
	raw := []json.RawMessage{
		json.RawMessage("{ \"a\" :\t1.0E+2, \"a\":\"<&\\u003c\u2028\xff\" }"), json.RawMessage(`[ ]`), json.RawMessage(`"\"x\""`),
	}
	want := `[` + string(raw[0]) + `,[ ],"\"x\""]`
	rolled := &Rollback{Checkpoint: `"]}<`, Messages: raw}
	for _, v := range []any{
		rolled, &Messages{Messages: raw}, &ToolEnded{RolledBack: rolled}, &Verified{RolledBack: rolled},
	} {
		b, err := EncodeRaw(v)
		if err != nil || !strings.Contains(string(b), `"messages":`+want) || !json.Valid(b) {
			t.Errorf("%T: %v: %s", v, err, b)
		}
	}
	if len(rolled.Messages) != 3 || string(rolled.Messages[2]) != `"\"x\""` {
		t.Errorf("the value was changed: %s", rolled.Messages)
	}
	for want, v := range map[string]any{
		`"messages":null`: &Rollback{}, `"messages":[]`: &Messages{Messages: []json.RawMessage{}}, `"rolled_back":null`: &ToolEnded{}, `"skipped_noop"`: &Verified{}, `"<x>"`: "<x>",
	} {
		if b, err := EncodeRaw(v); err != nil || !strings.Contains(string(b), want) {
			t.Errorf("%T: %v: %s", v, err, b)
		}
	}
	if _, err := EncodeRaw(&struct {
		*Rollback
		F func()
	}{Rollback: rolled}); err == nil || len(rolled.Messages) != 3 {
		t.Errorf("what cannot be encoded: %v, %s", err, rolled.Messages)
	}
}
