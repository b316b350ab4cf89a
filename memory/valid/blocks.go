package valid

// blockShape checks the fields of an Anthropic content block, and that it stands on the
// side it belongs to. A block of a type that is not known here is taken as it is.
func blockShape(at int, path, role, typ string, o object) *Error {
	side := "assistant"
	var err *Error
	switch {
	case typ == "text":
		side = role
		if err = o.need(at, path, "text", `"`); err == nil && isEmptyText(o["text"]) {
			err = refuse(at, RuleEmpty, "%s: messages: text content blocks must be non-empty", path)
		}
	case typ == "tool_result":
		side = "user"
		err = toolResultShape(at, path, o)
	case typ == "tool_use", typ == "server_tool_use", typ == "mcp_tool_use":
		err = toolUseShape(at, path, o)
	case typ == "thinking":
		if err = o.need(at, path, "thinking", `"`); err == nil {
			err = o.need(at, path, "signature", `"`)
		}
	case typ == "redacted_thinking":
		err = o.need(at, path, "data", `"`)
	case isServerResult(typ):
		err = o.needText(at, path, "tool_use_id")
	case typ == "compaction":
	case typ == "tool_addition", typ == "tool_removal":
		side = role
	default:
		if side = role; role == "system" {
			side = "user or assistant"
		}
	}
	if err != nil {
		return err
	}
	if role != side {
		return refuse(at, RuleShape, "%s: `%s` blocks can only be in `%s` messages", path, typ, side)
	}
	return nil
}

func toolUseShape(at int, path string, o object) *Error {
	for _, key := range []string{"id", "name"} {
		if err := o.needText(at, path, key); err != nil {
			return err
		}
	}
	return o.need(at, path, "input", "{")
}

func toolResultShape(at int, path string, o object) *Error {
	if err := o.needText(at, path, "tool_use_id"); err != nil {
		return err
	}
	if err := o.maybe(at, path, "is_error", "tf"); err != nil {
		return err
	}
	_, err := parts(at, path, o, false)
	return err
}
