package crash

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/control"
	"github.com/rewindfs/rewindfs/internal/fstree"
)

// The names of an agent's files: those that every turn writes, and those that come and go.
var (
	steady   = []string{"f0", "f1", "f2", "f3"}
	passing  = []string{"n0", "n1", "n2", "n3", "n4", "n5"}
	allNames = slices.Concat(steady, passing)
)

// size is that of a steady file, in bytes: one page, so a write of it is one request.
const size = 3000

// point is a checkpoint, and what it must give back for ever.
type point struct {
	id, label string
	call      string // the tool call that it was made in front of
	pair      pair
	number    int // of the turn that it ended; 0: taken somewhere in between
}

func (p *point) name() string {
	if p.label != "" {
		return p.label
	}
	return p.id
}

// told is what a notice calls it.
func (p *point) told() string {
	if p.label == "" && p.call != "" {
		return "before the tool call " + p.call
	}
	return p.name()
}

// op is something that an agent does. It is done or it is not.
type op struct {
	kind  string
	what  string // for people
	next  want   // what holds once it is done
	point *point // the checkpoint that it makes
	moves string // the movement that it is, in the journal's words
	talks bool   // of the conversation alone: calls go on
	run   func(ctx context.Context, c *control.Client) error
}

// agent works in a mount over the control API, as one that edits files and talks about
// it, and knows what must be there.
type agent struct {
	dir    string
	client *control.Client
	rng    *rand.Rand

	now      want                     // acknowledged
	number   int                      // of the turn
	points   []*point                 // checkpoints, oldest first
	byID     map[string]*point        // the same
	moves    map[string]int           // movements, by kind
	quiet    int                      // rollbacks that changed nothing
	inflight int                      // mutating tool calls
	back     *want                    // what undo leads to, if known
	forth    *want                    // what redo leads to, if known
	flight   *op                      // not acknowledged
	done     int                      // operations acknowledged
	log      []string                 // since the last check
	wrong    string                   // an operation that a living daemon refused
	killed   atomic.Bool              // the daemon is being killed
	took     map[string]time.Duration // how long operations of a kind take, smoothed

	aim   string        // tell about an operation of this kind
	skip  int           // but not about the first ones
	aimed chan struct{} // closed when it begins
	hold  chan struct{} // nil, or what it then waits for
}

func newAgent(dir string, rng *rand.Rand) *agent {
	return &agent{dir: dir, rng: rng, now: wantOf(pair{model{}, talk{}}), byID: map[string]*point{}, moves: map[string]int{}, took: map[string]time.Duration{}}
}

var errWrong = errors.New("the daemon is there, but failed")

// mistake is an answer of the daemon that is wrong.
type mistake struct{ error }

func wrong(format string, args ...any) error { return mistake{fmt.Errorf(format, args...)} }

// do does an operation. What it leaves in now and flight is right whether it was done or not.
func (a *agent) do(o op) error {
	a.log = append(a.log, fmt.Sprintf("%d %s: %s", a.number, o.kind, o.what))
	a.flight = &o
	if o.kind == a.aim && a.aimed != nil {
		if a.skip--; a.skip < 0 {
			close(a.aimed)
			a.aimed = nil
			if a.hold != nil {
				<-a.hold
			}
		}
	}
	start := time.Now()
	if err := o.run(context.Background(), a.client); err != nil {
		var e *control.Error
		if !a.killed.Load() || errors.As(err, &e) || errors.As(err, new(mistake)) {
			a.wrong = fmt.Sprintf("%s (%s): %v", o.kind, o.what, err)
			return errWrong
		}
		return err
	}
	a.learn(o.kind, time.Since(start))
	a.acknowledge()
	return nil
}

// learn notes how long an operation of a kind took. One that was held up says little.
func (a *agent) learn(kind string, took time.Duration) {
	usual := a.took[kind]
	if usual == 0 {
		usual = took
	}
	a.took[kind] = usual + (min(took, 2*usual)-usual)/8
}

// acknowledge takes the operation in flight for done.
func (a *agent) acknowledge() {
	o := a.flight
	a.flight = nil
	a.done++
	if o.moves != "" {
		a.moves[o.moves]++
		if !o.talks {
			a.inflight = 0 // calls under way belong to what was left
		}
	}
	if o.point != nil {
		a.points = append(a.points, o.point)
		a.byID[o.point.id] = o.point
	}
	a.back, a.forth = nil, nil
	a.now = o.next
}

// look reads what is live and takes it for what must be there from now on. A movement is
// known exactly only then.
func (a *agent) look() error {
	got, err := a.read()
	if err != nil {
		if !a.killed.Load() {
			a.wrong = fmt.Sprintf("read what is live: %v", err)
			return errWrong
		}
		return err
	}
	if how := a.now.differs(got); how != "" {
		a.wrong = "after " + last(a.log) + ": " + how
		return errWrong
	}
	a.now = wantOf(got)
	return nil
}

// read is what is live.
func (a *agent) read() (pair, error) {
	files, err := read(a.dir, allNames)
	if err != nil {
		return pair{}, err
	}
	ctx := context.Background()
	st, err := a.client.Status(ctx)
	if err != nil {
		return pair{}, err
	}
	t, err := a.talkOf(ctx, "", st.Conversation)
	return pair{files, t}, err
}

// talkOf reads the conversations of ref, which has those in c.
func (a *agent) talkOf(ctx context.Context, ref string, c control.Conversation) (talk, error) {
	out := talk{}
	names := slices.Collect(maps.Keys(c.Threads))
	if c.State == "present" {
		names = append(names, "main")
	}
	for _, name := range names {
		r, err := a.client.GetMemoryRaw(ctx, ref, name, false)
		if err != nil {
			return nil, err
		}
		b, err := io.ReadAll(r)
		r.Close()
		if err == nil {
			out[name], err = unlist(b)
		}
		if err != nil {
			return nil, fmt.Errorf("thread %s: %w", name, err)
		}
	}
	return out, nil
}

func (a *agent) live(thread string) []string { return a.now.talk[thread].items }

func (a *agent) path(name string) string { return filepath.Join(a.dir, name) }

// content is what a steady file holds in a turn.
func content(name string, number int) []byte {
	head := fmt.Sprintf("counter %d\n", number)
	return append([]byte(head), fstree.Bytes(uint64(number)<<8|uint64(name[1]), size-len(head))...)
}

// write writes a file whole.
func (a *agent) write(name string) error {
	p := content(name, a.number)
	f := file{content: p, mode: 0o644}
	return a.do(op{kind: "write", what: name, next: a.now.with([]edit{{name, &f}}, nil), run: func(context.Context, *control.Client) error {
		fd, err := unix.Open(a.path(name), unix.O_WRONLY, 0)
		if err != nil {
			return err
		}
		n, err := unix.Pwrite(fd, p, 0)
		if err == nil && n != len(p) {
			err = errors.New("short write")
		}
		return errors.Join(err, unix.Close(fd))
	}})
}

func (a *agent) create(name string) error {
	return a.do(op{kind: "create", what: name, next: a.now.with([]edit{{name, &file{mode: 0o644}}}, nil), run: func(context.Context, *control.Client) error {
		fd, err := unix.Open(a.path(name), unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY, 0o644)
		if err != nil {
			return err
		}
		return unix.Close(fd)
	}})
}

func (a *agent) unlink(name string) error {
	return a.do(op{kind: "unlink", what: name, next: a.now.with([]edit{{name, nil}}, nil), run: func(context.Context, *control.Client) error {
		return unix.Unlink(a.path(name))
	}})
}

func (a *agent) rename(from, to string) error {
	f := a.now.files[from]
	return a.do(op{kind: "rename", what: from + " to " + to, next: a.now.with([]edit{{from, nil}, {to, &f}}, nil), run: func(context.Context, *control.Client) error {
		return unix.Rename(a.path(from), a.path(to))
	}})
}

// sync makes items the live conversation of a thread.
func (a *agent) sync(thread string, items []string) error {
	return a.do(op{kind: "sync", what: thread, next: a.now.with(nil, talk{thread: items}), run: func(ctx context.Context, c *control.Client) error {
		th, err := a.put(ctx, c, thread, items, false)
		if err == nil && th.Messages != len(items) {
			err = wrong("%d messages were sent, and the answer is %+v", len(items), th)
		}
		return err
	}})
}

var formats = map[string]string{"main": "openai-chat", "sub": "anthropic"}

func (a *agent) put(ctx context.Context, c *control.Client, thread string, items []string, stage bool) (*control.Thread, error) {
	return c.PutMemory(ctx, thread, formats[thread], stage, strings.NewReader(list(items)))
}

// stage sends conversations that a later call will name. Nothing changes.
func (a *agent) stage(threads talk) (map[string]control.Thread, error) {
	out := map[string]control.Thread{}
	for name, items := range threads {
		err := a.do(op{kind: "stage", what: name, next: a.now, run: func(ctx context.Context, c *control.Client) error {
			th, err := a.put(ctx, c, name, items, true)
			if err == nil {
				out[name] = *th
			}
			return err
		}})
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

// begin begins a tool call. threads were staged as sent.
func (a *agent) begin(call, step string, threads talk, sent map[string]control.Thread) error {
	o := op{kind: "begin", what: call, next: a.now.with(nil, threads)}
	if len(threads) > 0 {
		o.kind = "begin with messages"
	}
	seals := a.inflight == 0
	if seals {
		o.point = newPoint("", o.next)
		o.point.call = call
	}
	o.run = func(ctx context.Context, c *control.Client) error {
		res, err := c.ToolBegin(ctx, control.ToolBegin{Name: "write", Call: call, Step: step, Threads: sent})
		switch {
		case err != nil:
			return err
		case res.Sealed != seals || res.Checkpoint == nil:
			return wrong("sealed: %v, want %v; checkpoint %+v", res.Sealed, seals, res.Checkpoint)
		case seals:
			o.point.id = res.Checkpoint.ID
		}
		return nil
	}
	err := a.do(o)
	if err == nil {
		a.inflight++
	}
	return err
}

// reset says that no call is under way any more.
func (a *agent) reset() error {
	err := a.do(op{kind: "reset", next: a.now, run: func(ctx context.Context, c *control.Client) error {
		_, err := c.ToolReset(ctx, control.None{})
		return err
	}})
	if err == nil {
		a.inflight = 0
	}
	return err
}

// end ends a tool call; with an error, the policy goes back to the first checkpoint.
func (a *agent) end(call string, failed bool) error {
	o := op{kind: "end", what: call, next: a.now}
	req := control.ToolEnd{Call: call}
	before := a.now
	if failed {
		first := a.points[0]
		o.kind, o.moves, o.next = "end with an error", "rollback", restored(first.pair, first.told())
		req.Error = "it broke"
	}
	o.run = func(ctx context.Context, c *control.Client) error {
		res, err := c.ToolEnd(ctx, req)
		if err != nil {
			return err
		}
		if !res.Known || (res.RolledBack != nil) != failed || failed && res.RolledBack.Noop {
			return wrong("the answer is %+v", res)
		}
		return nil
	}
	err := a.do(o)
	if err == nil && !failed {
		a.inflight--
	}
	if err == nil && failed {
		return a.moved(before)
	}
	return err
}

// moved looks where the head is, after it left a state that undo leads back to.
func (a *agent) moved(left want) error {
	if err := a.look(); err != nil {
		return err
	}
	a.back = &left
	return nil
}

func itemsOf(w want) talk {
	t := talk{}
	for name, s := range w.talk {
		t[name] = s.items
	}
	return t
}

func newPoint(label string, w want) *point {
	return &point{label: label, pair: pair{maps.Clone(w.files), itemsOf(w)}}
}

// checkpoint makes one. threads were staged as sent. number is as in point.
func (a *agent) checkpoint(number int, threads talk, sent map[string]control.Thread) error {
	o := op{kind: "checkpoint", next: a.now.with(nil, threads)}
	if len(threads) > 0 {
		o.kind = "checkpoint with messages"
	}
	label := fmt.Sprintf("L-%d.%d", a.number, a.done)
	o.what = label
	o.point = newPoint(label, o.next)
	o.point.number = number
	durable := a.rng.IntN(20) == 0
	if durable {
		o.kind = "durable checkpoint"
	}
	o.run = func(ctx context.Context, c *control.Client) error {
		res, err := c.Checkpoint(ctx, control.CheckpointRequest{Label: &label, Threads: sent, Durable: durable})
		if err == nil {
			o.point.id = res.ID
			if n := res.Conversation.Messages; n != len(o.point.pair.talk["main"]) {
				err = wrong("it has %d messages, want %d", n, len(o.point.pair.talk["main"]))
			}
		}
		return err
	}
	return a.do(o)
}
