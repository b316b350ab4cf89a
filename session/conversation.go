package session

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/rewindfs/rewindfs/control"
	"github.com/rewindfs/rewindfs/journal"
	"github.com/rewindfs/rewindfs/kv"
	"github.com/rewindfs/rewindfs/memory"
	"github.com/rewindfs/rewindfs/memory/convo"
)

// maxThread is the longest name of a thread, in bytes; maxThreads bounds their number.
const (
	maxThread  = 200
	maxThreads = 1000
)

// snapshotOf is how the journal holds on to conversations.
func snapshotOf(now memory.Threads) journal.Conversation {
	c := journal.NoConversation()
	for name, ref := range now {
		one := journal.Conversation{
			Messages: ref.Messages, Digest: ref.Digest, State: journal.ConversationPresent,
			Format: string(ref.Format), Lines: ref.Lines,
		}
		if ref.Missing {
			one.State = journal.ConversationMissing
		}
		if name == memory.MainThread {
			one.Threads = c.Threads
			c = one
			continue
		}
		if c.Threads == nil {
			c.Threads = map[string]journal.Conversation{}
		}
		c.Threads[name] = one
	}
	return c
}

// threadsOf undoes snapshotOf.
func threadsOf(c journal.Conversation) memory.Threads {
	now := memory.Threads{}
	add := func(name string, c journal.Conversation) {
		if c.State == journal.ConversationPresent || c.State == journal.ConversationMissing {
			now[name] = memory.Ref{
				Format: convo.Format(c.Format), Lines: c.Lines, Messages: c.Messages, Digest: c.Digest,
				Missing: c.State == journal.ConversationMissing,
			}
		}
	}
	add(memory.MainThread, c)
	for name, c := range c.Threads {
		add(name, c)
	}
	return now
}

func wireConversation(c journal.Conversation) control.Conversation {
	out := control.Conversation{Messages: c.Messages, Digest: c.Digest, State: c.State, Format: c.Format}
	for name, t := range c.Threads {
		if out.Threads == nil {
			out.Threads = map[string]control.Conversation{}
		}
		out.Threads[name] = wireConversation(t)
	}
	return out
}

func checkThread(name string) error {
	if name == "" || len(name) > maxThread || !utf8.ValidString(name) || strings.ContainsFunc(name, func(r rune) bool { return r < 0x20 || r == 0x7f }) {
		return badRequest("thread %q: a name has 1 to %d bytes of text, without control characters", name, maxThread)
	}
	return nil
}

// merged is the live conversations with those of a request put over them: threads that were
// staged before, and those that the client could not read as missing.
func (s *Session) merged(sent map[string]control.Thread, missing []string) (memory.Threads, error) {
	now := maps.Clone(s.memory.Live(s.o.Branch))
	if now == nil {
		now = memory.Threads{}
	}
	for name, t := range sent {
		if err := checkThread(name); err != nil {
			return nil, err
		}
		ref := memory.Ref{Format: convo.Format(t.Format), Lines: t.Lines, Messages: t.Messages, Digest: t.Digest}
		if err := s.memory.Has(ref); err != nil {
			return nil, badRequest("thread %q: %v (send it with PUT %s?stage=1 first)", name, err, control.PathMemory)
		}
		now[name] = ref
	}
	for _, name := range missing {
		if err := checkThread(name); err != nil {
			return nil, err
		}
		now[name] = memory.Ref{Missing: true}
	}
	if len(now) > maxThreads {
		return nil, badRequest("a session has at most %d threads", maxThreads)
	}
	return now, nil
}

// heard is what is live once a checkpoint with the conversations now is made: what could not be
// read is missing in the checkpoint, and stays live as it was.
func (s *Session) heard(now memory.Threads) memory.Threads {
	live := maps.Clone(now)
	old := s.memory.Live(s.o.Branch)
	for name, ref := range now {
		if !ref.Missing {
			continue
		}
		if was, ok := old[name]; ok {
			live[name] = was
		} else {
			delete(live, name)
		}
	}
	return live
}

// putMemory takes a conversation: it becomes the live one of its thread or, staged,
// only gets into the store for a checkpoint that will name it.
func (s *Session) putMemory(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	thread := q.Get("thread")
	if thread == "" {
		thread = memory.MainThread
	}
	if err := checkThread(thread); err != nil {
		return err
	}
	if r.ContentLength > control.MaxMessages {
		return badRequest("the conversation is larger than %d MiB", control.MaxMessages>>20)
	}
	done, err := s.takeIn(w, r)
	if err != nil {
		return err
	}
	defer done()
	data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, control.MaxMessages))
	if err != nil {
		var big *http.MaxBytesError
		if errors.As(err, &big) {
			return badRequest("the conversation is larger than %d MiB", big.Limit>>20)
		}
		return badRequest("cannot read the conversation: %v", err)
	}
	h, err := convo.Parse(data, convo.Format(q.Get("format")))
	if err != nil {
		return badRequest("this is no conversation: %v", err)
	}
	ref, err := s.memory.Put(h)
	if err != nil {
		return apiError(err)
	}
	out := wireThread(thread, ref)
	if q.Get("stage") == "" {
		if err := s.setLive(thread, ref); err != nil {
			return err
		}
		if _, err := memory.Repair(h, convo.Options{}); err != nil { // staging is for each call, and too often to look
			out.Warning = fmt.Sprintf("a rollback cannot hand this conversation back, and will be refused but with --files-only: %v", err)
		}
	}
	s.countUsage(thread, h) // also of one that is only staged: the tokens are spent
	return answerJSON(w, out)
}

// slowest is how long a client may take to send a conversation once it is its turn.
const slowest = time.Minute

// takeIn waits until there is room for a conversation of the size that r announces: all
// that are taken in at a time are no larger than the largest one. Call done when it is stored.
func (s *Session) takeIn(w http.ResponseWriter, r *http.Request) (done func(), err error) {
	n := r.ContentLength
	if n < 0 {
		n = control.MaxMessages // nobody knows
	}
	if err := s.intake.Acquire(r.Context(), n); err != nil {
		return nil, badRequest("the client did not wait for its turn: %v", err)
	}
	if err := http.NewResponseController(w).SetReadDeadline(time.Now().Add(slowest)); err != nil {
		s.log.Warn("a client may send its conversation as slowly as it likes", "error", err)
	}
	return func() { s.intake.Release(n) }, nil
}

// setLive makes ref the live conversation of a thread.
func (s *Session) setLive(thread string, ref memory.Ref) error {
	s.heads.Lock()
	defer s.heads.Unlock()
	if err := s.alive(); err != nil {
		return err
	}
	now, err := s.merged(nil, nil)
	if err != nil {
		return err
	}
	now[thread] = ref
	if len(now) > maxThreads {
		return badRequest("a session has at most %d threads", maxThreads)
	}
	return apiError(s.applyLive(now))
}

// applyLive replaces the live conversations, on their own. Preconditions: s.heads is held.
func (s *Session) applyLive(now memory.Threads) error {
	var b kv.Batch
	commit, err := s.memory.StageLive(&b, s.o.Branch, now)
	if err == nil {
		err = s.db.Apply(&b)
	}
	if err != nil {
		return fmt.Errorf("make the conversation the live one: %w", err)
	}
	commit()
	return nil
}

func wireThread(name string, ref memory.Ref) control.Thread {
	return control.Thread{Thread: name, Format: string(ref.Format), Lines: ref.Lines, Messages: ref.Messages, Digest: ref.Digest}
}

// getMemory hands a conversation out: the live one, or that of a checkpoint; as it is,
// or repaired.
func (s *Session) getMemory(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	thread := q.Get("thread")
	if thread == "" {
		thread = memory.MainThread
	}
	now, name := s.memory.Live(s.o.Branch), "the live conversation"
	var entry *journal.Entry
	if ref := q.Get("ref"); ref != "" {
		to, err := s.resolve(ref)
		if err != nil {
			return err
		}
		now, name, entry = memory.Threads{}, "checkpoint "+to.Name(), to.Entry
		if entry != nil {
			now = threadsOf(entry.Conversation)
		}
	}
	ref, ok := now[thread]
	switch {
	case !ok:
		return &control.Error{Code: control.CodeNoConversation, Message: fmt.Sprintf("%s has no thread %q; it has %s", name, thread, threadNames(now))}
	case ref.Missing:
		return &control.Error{Code: control.CodeNoConversation, Message: fmt.Sprintf("%s has a conversation that could not be read when it was kept (sync it anew with: rewindfs memory sync FILE)", name)}
	}
	h, err := s.memory.Get(ref)
	if err != nil {
		return apiError(err)
	}
	out := control.Messages{Thread: thread, Format: string(ref.Format), Changes: []control.Repair{}}
	if q.Get("repair") != "" {
		fixed, err := memory.Repair(h, repairOptions(entry, ""))
		if err != nil {
			return unrepairable(thread, err)
		}
		h, out.Changes = fixed.History, wireRepairs(fixed.Changes)
	}
	if q.Get("raw") != "" {
		w.Header().Set("Content-Type", "application/octet-stream")
		_, err = w.Write(h.Encode())
		return err
	}
	out.Messages, out.Lines = h.Items, h.Lines
	if out.Messages == nil {
		out.Messages = []json.RawMessage{}
	}
	return answerJSON(w, &out)
}

func threadNames(now memory.Threads) string {
	if len(now) == 0 {
		return "none"
	}
	names := slices.Sorted(maps.Keys(now))
	if len(names) > 5 {
		return fmt.Sprintf("%q and %d more", names[:5], len(names)-5)
	}
	return fmt.Sprintf("%q", names)
}

func answerJSON(w http.ResponseWriter, v any) error {
	b, err := control.EncodeRaw(v)
	if err != nil {
		return fmt.Errorf("encode the answer: %w", err)
	}
	b = append(b, '\n')
	w.Header().Set("Content-Type", "application/json")
	_, err = w.Write(b)
	return err
}

// restored is what a movement makes of the conversations of where it goes.
type restored struct {
	live    memory.Threads // what becomes live
	main    memory.Repaired
	hasMain bool
	missing bool
}

// wanted says how a conversation is to be handed out.
type wanted struct {
	as       string // what the state gone back to is called
	reason   string // for the notice
	noNotice bool
	alone    bool // the files stay
	check    bool // only find out whether it can be done
	raw      bool // what becomes live is as it was; only what is handed out is repaired
}

// repairOptions are what the checkpoint of e knows about the calls around it. notice is "" for none.
func repairOptions(e *journal.Entry, notice string) convo.Options {
	o := convo.Options{Notice: notice}
	if e == nil {
		return o
	}
	o.Checkpoint = journal.Target{Entry: e}.Name()
	if t := e.Tool; t != nil {
		o.Pending, o.Answered, o.Inflight, o.Ran, o.AtCall = t.Pending, t.Answered, t.Inflight, t.Ran, true
		if t.BatchStart {
			o.Mode = convo.Drop // nothing of the step is in the layer
		}
	}
	return o
}

// restoreConversations repairs and stores the conversations of snap, the state of e (nil:
// no checkpoint's). Nothing is live yet.
func (s *Session) restoreConversations(e *journal.Entry, snap journal.Conversation, want wanted) (*restored, error) {
	out := &restored{live: memory.Threads{}}
	for name, ref := range threadsOf(snap) {
		if ref.Missing {
			out.live[name] = ref
			out.missing = out.missing || name == memory.MainThread
			continue
		}
		h, err := s.memory.Get(ref)
		if err != nil {
			return nil, apiError(fmt.Errorf("read the conversation of %s (thread %q): %w; to go back with the files alone: --files-only", want.as, name, err))
		}
		notice := ""
		if !want.noNotice {
			notice = convo.Notice(want.as, want.reason)
		}
		if notice != "" && want.alone {
			notice = convo.NoticeMessages(want.as, want.reason)
		}
		o := repairOptions(e, notice)
		o.Checkpoint, o.FilesStay = want.as, want.alone
		fixed, err := memory.Repair(h, o)
		switch {
		case want.raw:
			if out.live[name] = ref; err != nil {
				continue // it is live as it was; whoever wants to send it is told then
			}
		case err != nil:
			return nil, unrepairable(name, err)
		case want.check:
			out.live[name] = ref
		default:
			if out.live[name], err = s.memory.Put(fixed.History); err != nil {
				return nil, apiError(err)
			}
		}
		if name == memory.MainThread {
			out.main, out.hasMain = fixed, true
		}
	}
	return out, nil
}

func unrepairable(thread string, err error) error {
	return &control.Error{
		Code:    control.CodeUnrepairable,
		Message: fmt.Sprintf("thread %q: %v; nothing was changed (to go back with the files alone: --files-only)", thread, err),
	}
}

// tell fills in what a movement did to the conversation.
func (c *restored) tell(res *control.Rollback) {
	if c == nil {
		return
	}
	if c.hasMain {
		res.Messages, res.Notice = c.main.History.Items, c.main.Notice
		if res.Messages == nil {
			res.Messages = []json.RawMessage{}
		}
		res.Repairs = wireRepairs(c.main.Changes)
		res.Format, res.Lines = string(c.main.History.Format), c.main.History.Lines
	}
	for name, ref := range c.live {
		if name == memory.MainThread || ref.Missing {
			continue
		}
		if res.Threads == nil {
			res.Threads = map[string]control.Thread{}
		}
		res.Threads[name] = wireThread(name, ref)
	}
	res.Conversation = wireConversation(snapshotOf(c.live))
}

func wireRepairs(cs []convo.Change) []control.Repair {
	out := make([]control.Repair, 0, len(cs))
	for _, c := range cs {
		out = append(out, control.Repair(c))
	}
	return out
}

// countUsage reads what a synced conversation says about tokens.
func (s *Session) countUsage(thread string, h convo.History) {
	if err := s.budget.readMessages(context.Background(), thread, h.Items); err != nil {
		s.log.Warn("the usage in the conversation is not counted", "thread", thread, "error", err)
	}
}
