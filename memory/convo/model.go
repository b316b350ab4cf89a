package convo

import (
	"encoding/json"
	"slices"
)

// role is what an item is to the algorithm.
type role uint8

const (
	roleOther  role = iota // not known here: nothing may be concluded from it
	roleUser               // said by the user, or for him
	roleModel              // emitted by the model
	roleTool               // results only, where results are items of their own
	roleSystem             // instructions inside of the history
	roleSkip               // bookkeeping that the model never sees
)

// kind is what a part of an item is.
type kind uint8

const (
	kText   kind = iota // anything the other kinds are not
	kThink              // reasoning, thinking: bound to what it was produced with
	kCall               // asks for a tool to be run
	kResult             // answers a call
)

// part is a call, a result or a piece of content of one item.
type part struct {
	kind   kind
	node   *node
	raw    json.RawMessage // the block; nil where the item as a whole is meant
	id     string          // of the call, or the call that is answered; may be empty
	name   string          // of the tool; may be unknown
	typ    string          // the block's or item's own type
	empty  bool            // text that is refused for being empty
	server bool            // the provider runs this call and adds the result itself
	mute   bool            // a call whose result nobody but its tool can produce
	loose  bool            // ids are optional in this format: the name decides where one is missing
	ghost  bool            // a call known only from a compacted history: needs no answer here
	dead   bool
	answer *part // of a call: its result
	call   *part // of a result: its call
	seq    int   // of a call: its place among all calls
	moved  bool  // of a result: it stands where it may not, and goes behind its call
}

// ref names a call or result in a list of changes.
func (p *part) ref() string {
	if p.id != "" {
		return p.id
	}
	return p.name
}

// node is one item of the history.
type node struct {
	raw      json.RawMessage
	role     role
	parts    []*part
	group    string // items of one response that may have others between them share it
	step     *step  // of a model's item
	in       int    // index in the input; -1 for one that was added
	pos      int    // what Change.At says for it
	dead     bool
	edited   bool // parts have changed: raw must be written anew
	from     int  // the first part that has changed, when edited
	homeless bool // an instruction for which there is no place
	dropID   bool // Responses: to be sent without its id
	follows  bool // bookkeeping that goes with the step it stands behind
	bare     bool // content is one string, not a list of blocks
	list     array
	uuid     string // LangChain, Claude Code: the id of this item
	parent   string // Claude Code: the row that this one hangs on
	side     bool   // Claude Code: of a subagent
}

// edit says that the parts from index i on are no longer what they were.
func (n *node) edit(i int) {
	if !n.edited || i < n.from {
		n.from = i
	}
	n.edited = true
}

// remove takes out the parts that match.
func (n *node) remove(match func(*part) bool) bool {
	at := slices.IndexFunc(n.parts, match)
	if at < 0 {
		return false
	}
	n.edit(at)
	n.parts = slices.DeleteFunc(n.parts, match)
	return true
}

// add puts a part in at index i.
func (n *node) add(i int, p *part) {
	p.node = n
	n.edit(i)
	n.parts = slices.Insert(n.parts, i, p)
}

// results returns how many of the parts are results, and the index behind the last.
func (n *node) results() (count, end int) {
	for i, p := range n.parts {
		if p.kind == kResult && !p.server {
			count, end = count+1, i+1
		}
	}
	return count, end
}

// answers tells whether the node holds results only, all of calls of s; with s nil, of
// any step.
func (n *node) answers(s *step) bool {
	if len(n.parts) == 0 || n.role != roleTool && n.role != roleUser {
		return false
	}
	for _, p := range n.parts {
		if p.kind != kResult || s != nil && (p.call == nil || p.call.node.step != s) {
			return false
		}
	}
	return true
}

// step is everything that the model emitted in one response.
type step struct {
	nodes  []*node
	calls  []*part // that a tool of the client's must answer, in order
	server []*part // that the provider answers
	group  string
	moved  bool // has results that were taken out, to be put behind it
	tail   bool // nothing but its results stands behind it
}

// has reports whether one of its calls has this id.
func (s *step) has(id string) bool {
	return slices.ContainsFunc(s.calls, func(c *part) bool { return c.ref() == id })
}

// open returns the calls that have no result.
func (s *step) open() []*part {
	var open []*part
	for _, c := range s.calls {
		if c.answer == nil && !c.dead {
			open = append(open, c)
		}
	}
	return open
}

// serverOpen tells whether a call of the provider's has no result yet.
func (s *step) serverOpen() bool {
	return slices.ContainsFunc(s.server, func(c *part) bool { return c.answer == nil && !c.dead })
}

// only tells whether all that is left of the step is of one kind.
func (s *step) only(k kind) bool {
	some := false
	for _, n := range s.nodes {
		for _, p := range n.parts {
			if some = true; p.kind != k {
				return false
			}
		}
	}
	return some
}

// traits are the differences between formats that the algorithm asks for.
type traits struct {
	blocks    bool   // results are blocks of the user's turn behind the step, not items of their own
	join      bool   // neighbouring items of the model are one response
	anywhere  bool   // a result may stand anywhere behind its call
	ordered   bool   // results must stand in the order of their calls
	bound     bool   // thinking is valid only behind the very prefix it was made with
	countRows bool   // bookkeeping rows count in Change.At
	fragment  string // action for a response of which only reasoning is left
}

// adapter is one format.
type adapter interface {
	traits() traits
	// read tells what an item is; the error says what is wrong with its shape.
	read(raw json.RawMessage) (*node, error)
	// answer makes the result of a call: a block for the user's turn, or an item, which
	// will stand behind prev.
	answer(w *work, c *part, text string, prev *node) json.RawMessage
	// write gives an edited item its new text.
	write(n *node) json.RawMessage
	// prepare runs before calls and results are paired, rules after all of them are.
	prepare(w *work)
	rules(w *work)
	// notice puts w.notice where this format allows one.
	notice(w *work)
	// finish runs last.
	finish(w *work) error
}

// turner makes a user's turn of blocks. Formats whose results are blocks have it.
type turner interface {
	turn(blocks ...json.RawMessage) json.RawMessage
}

// plain is what most formats do.
type plain struct{}

func (plain) write(n *node) json.RawMessage { return n.raw }
func (plain) prepare(*work)                 {}
func (plain) rules(*work)                   {}
func (plain) finish(*work) error            { return nil }

func (f Format) adapter() adapter {
	switch f {
	case OpenAIChat:
		return chat{}
	case Responses:
		return responses{}
	case Anthropic:
		return anthropic{}
	case Gemini:
		return gemini{}
	case LangChain:
		return langchain{}
	case Mistral:
		return mistral{}
	case Ollama:
		return ollama{}
	case ClaudeCode:
		return claudeCode{}
	case Codex:
		return codex{}
	}
	return nil
}

// work is one repair under way. It belongs to one goroutine.
type work struct {
	adapter
	traits
	opt     Options
	nodes   []*node
	input   []*node // as it came
	steps   []*step
	changes []Change
	notice_ string          // Options.Notice, with what must be added to it
	ran     []*part         // calls that had run and went with a dropped step
	ids     map[string]bool // ids of items that there are, where new ones are made
}

func (w *work) log(action string, at int, id string) {
	w.changes = append(w.changes, Change{Action: action, At: at, ID: id})
}

// renumber takes out the dead and counts the living.
func (w *work) renumber() {
	w.nodes = slices.DeleteFunc(w.nodes, func(n *node) bool { return n.dead })
	count := 0
	for _, n := range w.nodes {
		n.pos = count
		if n.role != roleSkip || w.countRows {
			count++
		}
	}
}

// last returns the last item that the model sees; nil when there is none.
func (w *work) last() *node {
	for i := len(w.nodes) - 1; i >= 0; i-- {
		if w.nodes[i].role != roleSkip {
			return w.nodes[i]
		}
	}
	return nil
}

// first returns the index of the first item that the model sees; len when there is none.
func (w *work) first() int {
	i := slices.IndexFunc(w.nodes, func(n *node) bool { return n.role != roleSkip })
	if i < 0 {
		return len(w.nodes)
	}
	return i
}

// push appends an item and returns it.
func (w *work) push(n *node) *node {
	w.nodes = append(w.nodes, n)
	w.renumber()
	return n
}

// fresh reads an item made here.
func fresh(a adapter, raw json.RawMessage) *node {
	n, err := read(a, raw)
	if err != nil {
		// What an adapter makes it must be able to read: a mistake in this package.
		panic("convo: unreadable item made: " + err.Error())
	}
	n.in = -1
	return n
}
