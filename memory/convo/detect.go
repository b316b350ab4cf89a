package convo

import (
	"encoding/json"
	"strings"
)

// Detect tells the format of a history by the shape of its items. Plain text between a
// user and an assistant looks the same in several formats: it is taken for OpenAIChat,
// which is what most others copy, and so is an empty history.
func Detect(items []json.RawMessage) (Format, error) {
	s := signs{}
	for i, raw := range items {
		o, ok := asObject(raw)
		if !ok {
			return "", refuse("item %d is not an object", i)
		}
		if f := byFrame(o); f != "" {
			return f, nil
		}
		if !isString(o.get("role")) {
			if o.str("type") == "" {
				return "", refuse("item %d has neither a role nor a type that is known: give the format, or the list of messages itself", i)
			}
			continue
		}
		if f := s.message(o); f != "" {
			return f, nil
		}
	}
	return s.verdict(len(items))
}

// byFrame knows the formats whose items are unlike those of all others.
func byFrame(o object) Format {
	typ := o.str("type")
	_, data := asObject(o.get("data"))
	_, message := asObject(o.get("message"))
	_, parts := asArray(o.get("parts"))
	switch {
	case typ != "" && data:
		return LangChain
	case typ != "" && o.has("payload"):
		return Codex
	case typ != "" && (message && (o.has("uuid") || o.has("sessionId")) || ofSession[typ] && o.has("sessionId")):
		return ClaudeCode
	case parts:
		return Gemini
	case typ == "reasoning" || wholeKinds[typ] || callKinds[typ].key != "" || answerKinds[typ] != "" || typ == "item_reference":
		return Responses
	}
	return ""
}

// signs are what the messages seen so far have in common with a format.
type signs struct {
	messages  int
	calls     int
	nineIDs   bool // every id of a call is of Mistral's kind
	otherIDs  bool
	chat      bool // something that OpenAI's shape alone has
	listed    bool // an assistant speaks in a list of blocks
	responses bool
}

// message looks at one message; it returns the format when that is beyond doubt.
func (s *signs) message(o object) Format {
	s.messages++
	if o.str("role") == "tool" || o.has("tool_call_id") || o.str("role") == "developer" || o.str("role") == "function" {
		s.chat = true
	}
	if isString(o.get("tool_name")) || o.has("images") || isString(o.get("thinking")) {
		return Ollama
	}
	if f := s.blocks(o); f != "" {
		return f
	}
	if o.str("type") == "message" && isString(o.get("content")) {
		s.responses = true
	}
	list, ok := asArray(o.get("tool_calls"))
	if !ok {
		return ""
	}
	s.chat = true
	for _, raw := range list.items {
		c, _ := asObject(raw)
		if _, object := asObject(c.sub("function").get("arguments")); object {
			return Ollama
		}
		s.calls++
		if nine(c.str("id")) {
			s.nineIDs = true
		} else {
			s.otherIDs = true
		}
	}
	return ""
}

// blocks looks at the content of a message.
func (s *signs) blocks(o object) Format {
	list, ok := asArray(o.get("content"))
	if !ok {
		return ""
	}
	if o.str("role") == "assistant" && len(list.items) > 0 {
		s.listed = true
	}
	for _, raw := range list.items {
		b, _ := asObject(raw)
		switch typ := b.str("type"); typ {
		case "thinking":
			if isString(b.get("thinking")) {
				return Anthropic
			}
			return Mistral // there it is a list of chunks
		case "tool_use", "tool_result", "redacted_thinking", "server_tool_use", "mcp_tool_use", "image", "document", "search_result":
			return Anthropic
		case "input_text", "output_text", "input_image", "input_file":
			s.responses = true
		case "image_url", "input_audio", "refusal", "file":
			s.chat = true
		default:
			if strings.HasSuffix(typ, "_tool_result") {
				return Anthropic
			}
		}
	}
	return ""
}

func (s *signs) verdict(items int) (Format, error) {
	switch {
	case items > 0 && s.messages == 0:
		return "", refuse("its items have a type that is known in no format: give the format")
	case s.responses:
		return Responses, nil
	case s.nineIDs && !s.otherIDs:
		return Mistral, nil
	case !s.chat && s.listed:
		return Anthropic, nil
	}
	return OpenAIChat, nil
}

// nine tells whether an id is of the kind that Mistral asks for.
func nine(id string) bool {
	for _, c := range []byte(id) {
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9') {
			return false
		}
	}
	return len(id) == 9
}
