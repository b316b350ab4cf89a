package convo

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// Repair makes a history that was cut anywhere valid for its format, and says what it
// changed, in the order in which it did (CONVERSATIONS 1.9). A valid history comes back
// as it is, byte for byte, unless there is a notice to add; repairing twice is
// repairing once. h is not changed; the result shares its items.
//
// The error is ErrNotHistory when an item is not what the format says, or the options
// make no sense. Whether the result is what a provider takes is for package valid to
// say: some histories cannot be made so.
func Repair(h History, o Options) (History, []Change, error) {
	a := h.Format.adapter()
	if a == nil {
		return History{}, nil, fmt.Errorf("repair a history of format %q: no such format", h.Format)
	}
	switch o.Mode {
	case "":
		o.Mode = Auto
	case Auto, Drop, Synthesize:
	default:
		return History{}, nil, fmt.Errorf("repair with mode %q: use auto, drop or synthesize", o.Mode)
	}
	w := &work{adapter: a, traits: a.traits(), opt: o, notice_: o.Notice}
	for i, raw := range h.Items {
		n, err := read(a, raw)
		if err != nil {
			return History{}, nil, fmt.Errorf("repair: item %d: %w: %w", i, ErrNotHistory, err)
		}
		n.in = i
		w.nodes = append(w.nodes, n)
		if n.uuid != "" {
			if w.ids == nil {
				w.ids = map[string]bool{}
			}
			w.ids[n.uuid] = true
		}
	}
	w.input = slices.Clone(w.nodes)
	if err := w.run(); err != nil {
		return History{}, nil, fmt.Errorf("repair: %w", err)
	}
	for _, n := range w.nodes {
		if n.edited {
			n.raw = a.write(n)
		}
	}
	out := History{Format: h.Format, Lines: h.Lines, Items: make([]json.RawMessage, 0, len(w.nodes))}
	for _, n := range w.nodes {
		out.Items = append(out.Items, n.raw)
	}
	return out, w.changes, nil
}

// run is the algorithm.
func (w *work) run() error {
	w.renumber()
	w.prepare(w)
	w.renumber()
	w.link()
	w.cutPending()
	w.renumber()
	w.settle()
	w.renumber()
	w.tails()
	w.prune()
	w.renumber()
	w.dropUnanswerable()
	if w.blocks {
		w.placeBlocks()
	} else {
		w.placeItems()
	}
	w.renumber()
	w.rules(w)
	w.renumber()
	if w.bound {
		w.strip()
		w.renumber()
	}
	if err := w.finish(w); err != nil {
		return err
	}
	w.renumber()
	if w.notice_ != "" {
		w.nameTheRun()
		w.notice(w)
	}
	return nil
}

// read reads one item, with the links that every adapter would have to set.
func read(a adapter, raw json.RawMessage) (*node, error) {
	n, err := a.read(raw)
	if err != nil {
		return nil, err
	}
	n.raw = raw
	for _, p := range n.parts {
		p.node = n
	}
	return n, nil
}

// notRun begins every invented result of a call that did not run.
const notRun = "[rewindfs] Not executed: "

// wasRunning begins that of one whose effect is not known.
const wasRunning = "[rewindfs] Interrupted: "

// resultLost begins that of one that ran and ended.
const resultLost = "[rewindfs] Result not recorded: "

// mayHaveRun begins that of one whose effect would still be there.
const mayHaveRun = "[rewindfs] Unknown: "

// excuse is the text of an invented result.
func (w *work) excuse(c *part) string {
	to := ""
	if name := clip(clean(w.opt.Checkpoint), 200); name != "" {
		to = ` to checkpoint "` + name + `"`
	}
	if w.ended(c) {
		return resultLost + "this call had ended when the checkpoint was taken, but its result was not in the conversation yet. What it did is in the files: look there before running it again."
	}
	if w.opt.FilesStay {
		return mayHaveRun + "this conversation was rolled back" + to + " and the files were not; this call may have run. Look at the files before running it again."
	}
	if slices.Contains(w.opt.Inflight, c.ref()) {
		return wasRunning + "this call was running when the checkpoint was taken, and the workspace and this conversation were rolled back" + to +
			"; its effect may be partial. Look at what it left before running it again."
	}
	return notRun + "the workspace and this conversation were rolled back" + to + " before this call ran. Run it again only if it is still needed."
}

// ended reports whether a call is known to have ended in front of the checkpoint.
func (w *work) ended(c *part) bool {
	id := c.ref()
	return id != w.opt.Pending && (slices.Contains(w.opt.Answered, id) || slices.Contains(w.opt.Ran, id))
}

// trimmed stands for what is missing at the front, where the first word must be the user's.
const trimmed = "[rewindfs] (earlier messages are not part of this checkpoint)"

// nameTheRun adds to the notice the calls that had run and whose step had to be dropped
// all the same: what they did is in the files, and no longer in the history.
func (w *work) nameTheRun() {
	if len(w.ran) == 0 {
		return
	}
	names := make([]string, 0, len(w.ran))
	for _, c := range w.ran {
		name := c.ref()
		if c.name != "" && c.name != name {
			name += " (" + c.name + ")"
		}
		names = append(names, clip(name, 80))
	}
	add := " Not shown any more, but already in the files: the effect of " + clean(strings.Join(names, ", ")) + "."
	head, end := splitNotice(w.notice_)
	w.notice_ = head + add + end
}

// splitNotice parts a notice in front of its closing tag.
func splitNotice(s string) (head, end string) {
	if i := strings.LastIndex(s, "</"); i >= 0 && strings.HasSuffix(s, ">") {
		return s[:i], s[i:]
	}
	return s, ""
}

// says tells whether text is, or ends in, the notice of w, so that it is not added twice.
func (w *work) says(text string) bool {
	if strings.HasSuffix(text, w.notice_) {
		return true
	}
	head, end := splitNotice(w.opt.Notice)
	i := strings.LastIndex(text, head)
	return i >= 0 && strings.HasSuffix(text, end) && strings.HasPrefix(text[i+len(head):], " Not shown any more, ")
}
