package crash

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// talk is the conversations of a session by the name of the thread, message by message.
type talk map[string][]string

// pair is what belongs together: files and conversations.
type pair struct {
	files model
	talk  talk
}

// said is what a thread must be: items, as far as keep exactly. A rollback repairs what
// comes behind (an unfinished step, a last word of the user), and may add a notice.
type said struct {
	items []string
	keep  int
	as    string // the checkpoint that a notice must name; "": no notice
}

func exactly(items []string) said { return said{items: items, keep: len(items)} }

// want is what a pair must be.
type want struct {
	files model
	talk  map[string]said
}

func wantOf(p pair) want {
	w := want{p.files, map[string]said{}}
	for name, items := range p.talk {
		w.talk[name] = exactly(items)
	}
	return w
}

// with is w with some files, and some threads, as they are said to be.
func (w want) with(files []edit, threads talk) want {
	out := want{maps.Clone(w.files), maps.Clone(w.talk)}
	out.files.apply(files)
	for name, items := range threads {
		out.talk[name] = exactly(items)
	}
	return out
}

// restored is what a rollback to p makes of its conversations. as is as in said.
func restored(p pair, as string) want {
	w := want{p.files, map[string]said{}}
	for name, items := range p.talk {
		s := said{items, settled(items), as}
		if as == "" && len(openCalls(items)) == 0 {
			s.keep = len(items) // it is valid as it is
		}
		w.talk[name] = s
	}
	return w
}

// differs says how p is not what w says, "" if it is.
func (w want) differs(p pair) string {
	if name, how := diff(w.files, p.files); how != "" {
		return fmt.Sprintf("file %s %s", name, how)
	}
	for name := range p.talk {
		if _, ok := w.talk[name]; !ok {
			return fmt.Sprintf("there is a thread %q of %d messages", name, len(p.talk[name]))
		}
	}
	for name, s := range w.talk {
		if how := s.differs(p.talk[name]); how != "" {
			return fmt.Sprintf("thread %q: %s", name, how)
		}
	}
	return ""
}

func (s said) differs(got []string) string {
	for i := range s.keep {
		if i >= len(got) {
			return fmt.Sprintf("%d messages, the first %d of %d must be there", len(got), s.keep, len(s.items))
		}
		if got[i] != s.items[i] {
			return fmt.Sprintf("message %d is %.200s, want %.200s", i, got[i], s.items[i])
		}
	}
	rest := got[s.keep:]
	if s.keep == len(s.items) && s.as == "" && len(rest) > 0 {
		return fmt.Sprintf("%d messages behind the %d that must be there: %.200s", len(rest), s.keep, rest[0])
	}
	for i, item := range rest {
		// A result that is none of its own would be a word about files of another time.
		if !slices.Contains(s.items[s.keep:], item) && counters(item) != nil {
			return fmt.Sprintf("message %d is no part of it: %.200s", s.keep+i, item)
		}
	}
	noticed := len(got) > 0 && strings.Contains(got[len(got)-1], "<rewindfs-rollback")
	switch {
	case s.as != "" && (!noticed || !strings.Contains(got[len(got)-1], `<rewindfs-rollback checkpoint=\"`+s.as+`\"`)):
		return fmt.Sprintf("the last message has no notice about %s: %.300s", s.as, last(got))
	case s.as == "" && noticed && !slices.Contains(s.items, got[len(got)-1]):
		return fmt.Sprintf("there is a notice that nobody asked for: %.300s", last(got))
	}
	return ""
}

func last(items []string) string {
	if len(items) == 0 {
		return "(no message)"
	}
	return items[len(items)-1]
}

// counters are the numbers that a text carries, in order.
func counters(text string) []int {
	var out []int
	for {
		_, rest, ok := strings.Cut(text, "counter ")
		if !ok {
			return out
		}
		n := 0
		if _, err := fmt.Sscanf(rest, "%d", &n); err == nil {
			out = append(out, n)
		}
		text = rest
	}
}

// oneCounter returns an error unless the steady files and the last words of the threads carry
// all the same number. It knows nothing of what must be there.
func oneCounter(p pair, number int) error {
	for _, name := range steady {
		if got := counters(string(p.files[name].content)); len(got) != 1 || got[0] != number {
			return fmt.Errorf("%s carries the counters %v, want %d", name, got, number)
		}
	}
	for thread, items := range p.talk {
		var newest []int
		for _, item := range slices.Backward(items) {
			if newest = counters(item); newest != nil {
				break
			}
		}
		if len(newest) != 1 || newest[0] != number {
			return fmt.Errorf("thread %s carries the counters %v, want %d", thread, newest, number)
		}
	}
	return nil
}

// message is what the tests read of a message of either format.
type message struct {
	Role  string `json:"role"`
	Call  string `json:"tool_call_id"`
	Calls []struct {
		ID string `json:"id"`
	} `json:"tool_calls"`
}

func parse(item string) message {
	var m message
	if err := json.Unmarshal([]byte(item), &m); err != nil {
		panic(fmt.Sprintf("a message that is no JSON: %v: %s", err, item))
	}
	return m
}

// openCalls are the calls of the last step that have no result.
func openCalls(items []string) []string {
	var open []string
	for _, item := range items {
		m := parse(item)
		switch {
		case len(m.Calls) > 0:
			open = nil
			for _, c := range m.Calls {
				open = append(open, c.ID)
			}
		case m.Role == "tool":
			open = slices.DeleteFunc(open, func(id string) bool { return id == m.Call })
		default:
			open = nil
		}
	}
	return open
}

// settled is how many messages, from the first, no repair has a reason to touch: those in
// front of an unfinished step, and of what the user said last.
func settled(items []string) int {
	n := len(items)
	if len(openCalls(items)) > 0 {
		for n--; len(parse(items[n]).Calls) == 0; n-- {
		}
	}
	for n > 0 && parse(items[n-1]).Role == "user" {
		n--
	}
	return n
}

// list writes a thread as it is sent.
func list(items []string) string { return "[" + strings.Join(items, ",") + "]" }

// unlist reads one as it comes back.
func unlist(b []byte) ([]string, error) {
	var raw []json.RawMessage
	if err := json.NewDecoder(bytes.NewReader(b)).Decode(&raw); err != nil {
		return nil, fmt.Errorf("read a conversation: %w", err)
	}
	out := make([]string, 0, len(raw))
	for _, m := range raw {
		out = append(out, string(m))
	}
	return out, nil
}

// The messages of an agent. Their spelling is odd: no byte of it may change.

func system() string { return `{"content":"You <edit> files & \u0074alk.","role":"system"}` }

func ask(n int) string {
	return fmt.Sprintf(`{"role":"user","content":"do \u00fc %d","x":1.50e+1}`, n)
}

func callOf(ids ...string) string {
	var calls []string
	for _, id := range ids {
		calls = append(calls, fmt.Sprintf(`{"id":%q,"type":"function","function":{"name":"write","arguments":"{\"x\": 1.0}"}}`, id))
	}
	return `{"role":"assistant","content":null,"tool_calls":[` + strings.Join(calls, ",") + `]}`
}

func resultOf(id, text string) string {
	return fmt.Sprintf(`{"role":"tool","tool_call_id":%q,"content":%q}`, id, text)
}

func answer(n int) string { return fmt.Sprintf(`{"role":"assistant","content":"counter %d"}`, n) }
