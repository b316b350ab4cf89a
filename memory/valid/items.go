package valid

// itemShape checks the fields of a Responses item that the rules, or the pairing of calls
// and results, depend on. An item of a type that is not known here is taken as it is.
func itemShape(at int, where, typ string, o object, opts Options) *Error {
	if err := o.maybe(at, where, "id", `"`); err != nil {
		return err
	}
	switch typ {
	case "message":
		return itemMessage(at, where, o, opts)
	case "reasoning":
		if err := o.need(at, where, "summary", "["); err != nil {
			return err
		}
		return o.maybe(at, where, "encrypted_content", `"`)
	case "item_reference":
		return o.needText(at, where, "id")
	case "mcp_approval_request":
		return o.needText(at, where, "id")
	case "mcp_approval_response":
		if err := o.needText(at, where, "approval_request_id"); err != nil {
			return err
		}
		return o.need(at, where, "approve", "tf")
	}
	if err := itemKeyShape(at, where, typ, o); err != nil {
		return err
	}
	for _, f := range itemFields(typ) {
		if err := o.need(at, where, f.key, f.kinds); err != nil {
			return err
		}
	}
	if s := o.str("status"); typ == "apply_patch_call_output" && s != "completed" && s != "failed" {
		return refuse(at, RuleShape, "%s.status: Invalid value: '%s'. Supported values are: 'completed' and 'failed'.", where, s)
	}
	return nil
}

func itemMessage(at int, where string, o object, opts Options) *Error {
	if err := o.need(at, where, "role", `"`); err != nil {
		return err
	}
	switch o.str("role") {
	case "user", "assistant", "system", "developer":
	default:
		if opts.Roles {
			return nil
		}
		return refuse(at, RuleRole, "%s.role: Invalid value: '%s'. Supported values are: 'assistant', 'system', 'developer', and 'user'.", where, o.str("role"))
	}
	if err := o.need(at, where, "content", `"[`); err != nil {
		return err
	}
	_, err := parts(at, where, o, false)
	return err
}

// itemKeyShape wants the call_id of every call and result that has one.
func itemKeyShape(at int, where, typ string, o object) *Error {
	switch {
	case noun(typ) == "" && len(answers(typ)) == 0, byServer(typ, o):
		return nil
	case typ == "local_shell_call_output" && !absent(o["id"]), typ == "local_shell_call" && absent(o["call_id"]) && !absent(o["id"]):
		return nil
	}
	return o.need(at, where, "call_id", `"`)
}

type field struct{ key, kinds string }

// itemFields are the fields without which a call or a result is none.
func itemFields(typ string) []field {
	switch typ {
	case "function_call":
		return []field{{"name", `"`}, {"arguments", `"`}}
	case "custom_tool_call":
		return []field{{"name", `"`}, {"input", `"`}}
	case "local_shell_call", "shell_call":
		return []field{{"action", "{"}}
	case "apply_patch_call":
		return []field{{"operation", "{"}}
	case "function_call_output", "custom_tool_call_output":
		return []field{{"output", `"[`}}
	case "local_shell_call_output":
		return []field{{"output", `"`}}
	case "shell_call_output":
		return []field{{"output", "["}}
	case "apply_patch_call_output":
		return []field{{"status", `"`}}
	case "computer_call_output":
		return []field{{"output", "{"}}
	case "tool_search_output":
		return []field{{"tools", "["}}
	case "program_output":
		return []field{{"result", `"`}}
	}
	return nil
}
