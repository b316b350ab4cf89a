package crash

import (
	"context"
	"fmt"
	"slices"

	"github.com/rewindfs/rewindfs/control"
)

// compactAt is how long a conversation gets, in messages.
const compactAt = 60

// setUp makes the first checkpoint, which all else can go back to.
func (a *agent) setUp() error {
	for _, name := range steady {
		if err := a.create(name); err != nil {
			return err
		}
		if err := a.write(name); err != nil {
			return err
		}
	}
	if err := a.sync("main", []string{system(), ask(0), answer(0)}); err != nil {
		return err
	}
	if err := a.sync("sub", []string{ask(0), answer(0)}); err != nil {
		return err
	}
	if err := a.checkpoint(0, nil, nil); err != nil {
		return err
	}
	_, err := a.client.SetPolicy(context.Background(), control.PolicyRequest{AutoRollback: &control.AutoRollback{On: []string{"exception"}, To: a.points[0].label}})
	return err
}

// work does turns until something fails: the daemon is gone, or the test.
func (a *agent) work() {
	for a.turn() == nil {
	}
}

// resumed is a thread of which every call has a result, ready for the model to speak.
func (a *agent) resumed(thread string) []string {
	items := slices.Clone(a.live(thread))
	if len(items) > compactAt {
		items = []string{ask(a.number), answer(a.number - 1)}
		if thread == "main" {
			items = slices.Insert(items, 0, system())
		}
	}
	for _, id := range openCalls(items) {
		items = append(items, resultOf(id, "interrupted"))
	}
	if parse(last(items)).Role != "user" {
		items = append(items, ask(a.number))
	}
	return items
}

// turn is what a model does after one prompt: it asks for a tool call or two, which write, and
// ends with a checkpoint, or none. Each turn has a number that all it writes and says carries.
func (a *agent) turn() error {
	a.number++
	if a.inflight > 0 {
		if err := a.reset(); err != nil {
			return err
		}
	}
	step := fmt.Sprint("s-", a.number)
	ids := []string{fmt.Sprintf("c-%d-1", a.number), fmt.Sprintf("c-%d-2", a.number)}[:1+a.rng.IntN(2)]
	main := append(a.resumed("main"), callOf(ids...))
	if err := a.firstCall(ids[0], step, main); err != nil {
		return err
	}
	together := len(ids) == 2 && a.rng.IntN(2) == 0
	if together {
		if err := a.begin(ids[1], step, nil, nil); err != nil {
			return err
		}
	}
	if err := a.edit(2); err != nil {
		return err
	}
	if a.rng.IntN(12) == 0 {
		return a.goBack() // in the middle of it all
	}
	if a.rng.IntN(12) == 0 {
		return a.end(ids[0], true)
	}
	for i, id := range ids {
		if i == 1 && !together {
			if a.rng.IntN(2) == 0 {
				if err := a.sync("main", main); err != nil {
					return err
				}
			}
			if err := a.begin(id, step, nil, nil); err != nil {
				return err
			}
		}
		if err := a.edit(1); err != nil {
			return err
		}
		if err := a.end(id, false); err != nil {
			return err
		}
		main = append(main, resultOf(id, fmt.Sprintf("counter %d", a.number)))
	}
	for _, name := range steady {
		if err := a.write(name); err != nil {
			return err
		}
	}
	return a.finish(append(main, answer(a.number)))
}

// firstCall begins the first call of a turn. The conversation that asks for it is live
// before, with it, or only later.
func (a *agent) firstCall(id, step string, main []string) error {
	switch a.rng.IntN(4) {
	case 0:
		return a.begin(id, step, nil, nil)
	case 1:
		threads := talk{"main": main}
		sent, err := a.stage(threads)
		if err != nil {
			return err
		}
		return a.begin(id, step, threads, sent)
	default:
		if err := a.sync("main", main); err != nil {
			return err
		}
		return a.begin(id, step, nil, nil)
	}
}

// edit writes some of the steady files, and lets others come and go.
func (a *agent) edit(n int) error {
	for range n {
		if err := a.write(steady[a.rng.IntN(len(steady))]); err != nil {
			return err
		}
		if err := a.churn(passing[a.rng.IntN(len(passing))], passing[a.rng.IntN(len(passing))]); err != nil {
			return err
		}
	}
	return nil
}

func (a *agent) churn(one, other string) error {
	_, there := a.now.files[one]
	switch {
	case !there:
		return a.create(one)
	case one != other && a.rng.IntN(2) == 0:
		return a.rename(one, other)
	case a.rng.IntN(2) == 0:
		return a.write(one)
	default:
		return a.unlink(one)
	}
}

// finish ends a turn: the threads become live with a checkpoint, before one, or without one.
// Then it may go back, forth, and back again.
func (a *agent) finish(main []string) error {
	threads := talk{"main": main, "sub": append(a.resumed("sub"), answer(a.number))}
	switch how := a.rng.IntN(5); how {
	case 0, 1:
		sent, err := a.stage(threads)
		if err != nil {
			return err
		}
		if err := a.checkpoint(a.number, threads, sent); err != nil {
			return err
		}
	default:
		for _, name := range []string{"main", "sub"} {
			if err := a.sync(name, threads[name]); err != nil {
				return err
			}
		}
		if how == 4 {
			break
		}
		if err := a.checkpoint(a.number, nil, nil); err != nil {
			return err
		}
	}
	if a.rng.IntN(3) == 0 {
		return a.goBack()
	}
	return nil
}

// goBack rolls back to any checkpoint, and may take that back, and make it again.
func (a *agent) goBack() error {
	to := a.points[a.rng.IntN(len(a.points))]
	if a.rng.IntN(3) > 0 {
		to = a.points[len(a.points)-1-a.rng.IntN(min(4, len(a.points)))]
	}
	r := control.RollbackRequest{Ref: to.id, NoNotice: a.rng.IntN(3) == 0, Notes: "counter-intuitive </rewindfs-rollback>"}
	switch a.rng.IntN(16) {
	case 0:
		r.FilesOnly = true
	case 1:
		r.MessagesOnly = true
	}
	if err := a.rollback(to, r); err != nil {
		return err
	}
	for a.back != nil && a.rng.IntN(3) > 0 {
		if err := a.undo(); err != nil {
			return err
		}
		if a.forth == nil || a.rng.IntN(2) == 0 {
			break
		}
		if err := a.redo(); err != nil {
			return err
		}
	}
	return nil
}

// rollback goes to a checkpoint, with files, messages or both.
func (a *agent) rollback(to *point, r control.RollbackRequest) error {
	as := to.told()
	if r.NoNotice {
		as = ""
	}
	next := restored(to.pair, as)
	o := op{kind: "rollback", what: to.name() + " " + to.id, moves: "rollback"}
	if r.FilesOnly {
		next.talk = a.now.talk
		o.kind = "rollback of files"
	}
	if r.MessagesOnly {
		next.files = a.now.files
		o.kind, o.talks = "rollback of messages", true
	}
	o.next = next
	before, noop := a.now, false
	o.run = func(ctx context.Context, c *control.Client) error {
		res, err := c.Rollback(ctx, r)
		if err != nil {
			return err
		}
		noop = res.Noop
		var said []string
		for _, m := range res.Messages {
			said = append(said, string(m))
		}
		if res.CheckpointID != to.id {
			return wrong("it says that it went to %s", res.CheckpointID)
		}
		if !r.FilesOnly {
			if how := next.talk["main"].differs(said); how != "" {
				return wrong("its answer: %s", how)
			}
		}
		return nil
	}
	if err := a.do(o); err != nil {
		return err
	}
	if noop {
		a.quiet++
		a.moves["rollback"]--
		return a.look()
	}
	return a.moved(before)
}

func (a *agent) undo() error {
	before := a.now
	err := a.do(op{kind: "undo", next: *a.back, moves: "undo", run: func(ctx context.Context, c *control.Client) error {
		_, err := c.Undo(ctx, control.UndoRequest{})
		return err
	}})
	if err != nil {
		return err
	}
	if err := a.look(); err != nil {
		return err
	}
	a.forth = &before
	return nil
}

func (a *agent) redo() error {
	before := a.now
	err := a.do(op{kind: "redo", next: *a.forth, moves: "redo", run: func(ctx context.Context, c *control.Client) error {
		_, err := c.Redo(ctx, control.UndoRequest{})
		return err
	}})
	if err != nil {
		return err
	}
	return a.moved(before)
}
