package valid

import (
	"encoding/json"
	"fmt"
)

// checkCodex holds a Codex rollout (CONVERSATIONS 2.2) to what its client reads: the row
// that names the session comes first, and the items between the other rows are to be
// valid Responses items. The client would patch an unanswered call by itself, as "aborted"; here
// it is refused, since after a rollback more is known than that.
func checkCodex(items []json.RawMessage, o Options) *Error {
	all, err := codexItems(items)
	if err != nil {
		return err
	}
	return checkItems(all, o)
}

// codexItems finds the Responses items in the rows.
func codexItems(items []json.RawMessage) ([]place, *Error) {
	var all []place
	for i, raw := range items {
		o, err := message(i, raw)
		if err != nil {
			return nil, err
		}
		row := fmt.Sprintf("row %d", i)
		if err := o.needText(i, row, "type"); err != nil {
			return nil, err
		}
		typ := o.str("type")
		if i == 0 && typ != "session_meta" {
			return nil, refuse(i, RuleMeta, "rollout does not start with session metadata: its first row must have type 'session_meta', not '%s'", typ)
		}
		switch typ {
		case "session_meta":
			if err := codexMeta(i, row, o); err != nil {
				return nil, err
			}
		case "response_item":
			if all, err = codexItem(all, i, row, o); err != nil {
				return nil, err
			}
		case "compacted":
			if all, err = codexCompacted(all, i, row, o); err != nil {
				return nil, err
			}
		}
	}
	return all, nil
}

func codexMeta(i int, row string, o object) *Error {
	if err := o.need(i, row, "timestamp", `"`); err != nil {
		return err
	}
	if err := o.need(i, row, "payload", "{"); err != nil {
		return err
	}
	meta, _ := asObject(o["payload"])
	return meta.needText(i, row+".payload", "id")
}

func codexItem(all []place, i int, row string, o object) ([]place, *Error) {
	if err := o.need(i, row, "timestamp", `"`); err != nil {
		return nil, err
	}
	if err := o.need(i, row, "payload", "{"); err != nil {
		return nil, err
	}
	item, _ := asObject(o["payload"])
	if err := item.needText(i, row+".payload", "type"); err != nil {
		return nil, err
	}
	if item.str("type") == "ghost_snapshot" { // the client's own, never sent
		return all, nil
	}
	return append(all, place{i, o["payload"]}), nil
}

// codexCompacted starts anew with what a compaction put in place of the rows in front.
func codexCompacted(all []place, i int, row string, o object) ([]place, *Error) {
	if err := o.need(i, row, "payload", "{"); err != nil {
		return nil, err
	}
	p, _ := asObject(o["payload"])
	list, err := p.list(i, row+".payload", "replacement_history")
	if err != nil {
		return nil, err
	}
	if list == nil {
		return all, nil
	}
	all = nil
	for _, raw := range list {
		all = append(all, place{i, raw})
	}
	return all, nil
}
