package crash

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/control"
	"github.com/rewindfs/rewindfs/internal/mounttest"
	"github.com/rewindfs/rewindfs/kv"
	"github.com/rewindfs/rewindfs/session"
)

// trial is an agent in a mount whose daemon is killed.
type trial struct {
	*testing.T
	m      *mounttest.Mount
	a      *agent
	book   *book
	rng    *rand.Rand
	gen    uint64
	pid    int
	hit    map[string][2]int // how often an operation was in flight, and was done all the same
	after  int               // kills with nothing in flight
	blind  bool              // the daemon cannot be traced
	traced int               // kills in front of a write
}

// TestFilesAndConversationStayTogether lets an agent work, kills the daemon at random
// moments and looks whether files, conversations, checkpoints and ledger still are of one
// piece. See the package comment for what is looked at.
func TestFilesAndConversationStayTogether(t *testing.T) {
	seed, kills := plan(t, 12)
	m := mounttest.New(t, mounttest.Options{Fill: mounttest.Empty})
	t.Cleanup(func() { keepStore(m) })
	dir := m.Path("work")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	m.Unmount()
	c := &trial{
		T: t, m: m, a: newAgent(dir, rand.New(rand.NewPCG(seed, 21))), book: newBook(session.LedgerDir(m.Store), storeID(t, m)),
		rng: rand.New(rand.NewPCG(seed, 22)), hit: map[string][2]int{}, gen: 1,
	}
	m.Mount()
	c.connect("at the start")
	if err := c.a.setUp(); err != nil {
		t.Fatalf("set up: %v %s", err, c.a.wrong)
	}
	for n := range kills {
		when := fmt.Sprint("kill ", n)
		c.killAtWork()
		if c.a.wrong != "" {
			c.fail(when, c.a.wrong)
		}
		c.book.verify(t, when+", nobody there", false)
		m.Mount()
		c.connect(when)
		c.check(when)
		c.refuseStale(when)
		c.goAnywhere(when)
	}
	c.every()
	isClean(m)
	m.Unmount()
	c.book.verify(t, "after the unmount", true)
	c.tell(kills)
}

// storeID is the id of a store that nobody serves, as its ledger has it.
func storeID(t *testing.T, m *mounttest.Mount) string {
	t.Helper()
	db, err := kv.Open(filepath.Join(m.Store, "kv"), kv.Options{})
	if err != nil {
		t.Fatal(err)
	}
	id := db.StoreID()
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	return hex.EncodeToString(id[:])
}

func (c *trial) fail(when, how string) {
	c.Helper()
	in := "nothing"
	if c.a.flight != nil {
		in = c.a.flight.kind + " " + c.a.flight.what
	}
	log := c.a.log[max(0, len(c.a.log)-40):]
	c.Fatalf("%s, in flight: %s: %s\n\t%s", when, in, how, strings.Join(log, "\n\t"))
}

// connect finds the new daemon, which must be of a generation that never was.
func (c *trial) connect(when string) {
	c.Helper()
	if c.a.client != nil {
		c.a.client.Close()
	}
	c.a.client = &control.Client{Socket: filepath.Join(c.m.Store, control.SocketName)}
	st, err := c.a.client.Status(context.Background())
	if err != nil {
		c.Fatalf("%s: %v", when, err)
	}
	if st.Generation != c.gen+1 {
		c.Fatalf("%s: the generation is %d and was %d", when, st.Generation, c.gen)
	}
	if len(st.Inflight) > 0 || st.Unaudited > 0 {
		c.Fatalf("%s: calls in flight: %v, events not recorded: %d", when, st.Inflight, st.Unaudited)
	}
	c.gen, c.pid = st.Generation, st.PID
	c.a.killed.Store(false)
	c.a.inflight = 0
}

// both are the operations that change files, conversations or history together.
var both = []string{"checkpoint with messages", "begin with messages", "rollback", "undo", "redo", "end with an error"}

// killAtWork lets the agent work and kills the daemon: at any moment; while an operation of some
// kind is likely to be under way; or in such an operation, in front of something that it writes.
func (c *trial) killAtWork() {
	c.Helper()
	a := c.a
	a.aim, a.aimed, a.hold = "", nil, nil
	wait, write := time.Duration(0), -1
	aimed, hold := make(chan struct{}), make(chan struct{})
	switch k := c.rng.IntN(10); {
	case k == 0 || len(a.took) == 0:
		wait = time.Duration(c.rng.IntN(8000)) * time.Microsecond
	case k < 3:
		wait = time.Duration(5+c.rng.IntN(250)) * time.Millisecond
	default:
		kinds := slices.Sorted(maps.Keys(a.took))
		if c.rng.IntN(2) == 0 {
			kinds = both
		}
		a.aim, a.skip, a.aimed = kinds[c.rng.IntN(len(kinds))], c.rng.IntN(3), aimed
		if k < 5 {
			wait = time.Duration(1.3 * c.rng.Float64() * float64(a.took[a.aim]))
			break
		}
		a.hold, write = hold, c.rng.IntN(8)
	}
	aiming := a.aimed != nil
	done := make(chan struct{})
	go func() {
		defer close(done)
		a.work()
	}()
	if aiming {
		select {
		case <-aimed:
		case <-done: // something is wrong
		case <-time.After(time.Second): // it is a rare kind: then at any moment
		}
	}
	fd, err := unix.PidfdOpen(c.pid, 0)
	if err != nil {
		c.Fatalf("find the daemon: %v", err)
	}
	defer unix.Close(fd)
	doomed := func() { a.killed.Store(true) }
	if write >= 0 {
		r := killAtWrite(c.pid, storeWrites, write, 100*time.Millisecond, func() { close(hold) }, doomed)
		if r.err != nil && !c.blind {
			c.blind = true
			c.Logf("kills by the clock alone: %v", r.err)
		}
		if r.writes > write {
			c.traced++
		}
	}
	if !a.killed.Load() {
		time.Sleep(wait) // the random moment
		doomed()
		if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil {
			c.Fatalf("kill the daemon: %v", err)
		}
	}
	mounttest.WaitFor(c.T, "all threads of the daemon to end", func() bool {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return err == nil && n == 1
	})
	<-done
}

func (c *trial) history(when string) *control.Log {
	c.Helper()
	log, err := c.a.client.Log(context.Background(), control.LogRequest{All: true, Ops: true})
	if err != nil {
		c.Fatalf("%s: %v", when, err)
	}
	return log
}

// check holds what is there against what may be there, and takes what it finds for what must be
// there from now on.
func (c *trial) check(when string) {
	c.Helper()
	a := c.a
	got, err := a.read()
	if err != nil {
		c.fail(when, err.Error())
	}
	log := c.history(when)
	fresh := c.compare(when, log)
	before := a.now.differs(got)
	if a.flight == nil {
		c.after++
		if before != "" || fresh != nil {
			c.fail(when, fmt.Sprintf("nothing was in flight, but %s (new checkpoint: %+v)", before, fresh))
		}
	} else {
		c.landed(when, got, before, fresh, log)
	}
	a.flight, a.back, a.forth, a.inflight = nil, nil, nil, 0
	a.now, a.log = wantOf(got), nil
	c.book.check(c.T, when, log, a, c.gen)
	c.book.verify(c.T, when+", mounted again", true)
}

// landed finds out whether the operation in flight was done. got is what is there, and before how
// that is not what was there before.
func (c *trial) landed(when string, got pair, before string, fresh *control.Checkpoint, log *control.Log) {
	c.Helper()
	a, o := c.a, c.a.flight
	moved := o.moves != "" && counts(log)[o.moves] == a.moves[o.moves]+1
	after := o.next.differs(got)
	done := before != ""
	switch {
	case o.point != nil:
		done = fresh != nil
	case o.moves != "":
		done = moved
	}
	if fresh != nil && o.point == nil {
		c.fail(when, fmt.Sprintf("there is a new checkpoint: %+v", fresh))
	}
	if done && after != "" {
		c.fail(when, fmt.Sprintf("it was done (a checkpoint: %v, a movement: %v), and what is there is not what it leads to: %s (nor what was before: %s)", fresh != nil, moved, after, before))
	}
	if !done && before != "" {
		c.fail(when, fmt.Sprintf("it was not done, but %s (after it: %s)", before, after))
	}
	h := c.hit[o.kind]
	h[0]++
	if done {
		h[1]++
	}
	c.hit[o.kind] = h
	if done {
		if fresh != nil {
			o.point.id = fresh.ID
			if fresh.Label != o.point.label || fresh.ToolCall != o.point.call {
				c.fail(when, fmt.Sprintf("the new checkpoint is %+v", fresh))
			}
		}
		a.acknowledge()
	}
}

// compare looks for every acknowledged checkpoint and movement in the store's own history. It
// returns the checkpoint that nobody acknowledged: there is one at most.
func (c *trial) compare(when string, log *control.Log) *control.Checkpoint {
	c.Helper()
	have := map[string]bool{}
	var fresh *control.Checkpoint
	for i, e := range log.Checkpoints {
		have[e.ID] = true
		p := c.a.byID[e.ID]
		switch {
		case p == nil && fresh != nil:
			c.fail(when, fmt.Sprintf("two checkpoints that nobody acknowledged: %+v, %+v", fresh, e))
		case p == nil:
			fresh = &log.Checkpoints[i]
		case e.Label != p.label || e.Conversation.Messages != len(p.pair.talk["main"]):
			c.fail(when, fmt.Sprintf("checkpoint %s is %+v", p.name(), e))
		}
	}
	for _, p := range c.a.points {
		if !have[p.id] {
			c.fail(when, fmt.Sprintf("the acknowledged checkpoint %s is gone", p.name()))
		}
	}
	for kind, n := range c.a.moves {
		more := 0
		if o := c.a.flight; o != nil && o.moves == kind {
			more = 1
		}
		if got := counts(log)[kind]; got != n && got != n+more {
			c.fail(when, fmt.Sprintf("%d movements of kind %s in the operation log, %d acknowledged", got, kind, n))
		}
	}
	return fresh
}

// refuseStale sends what an agent of the generation before may still send.
func (c *trial) refuseStale(when string) {
	c.Helper()
	old := c.gen - 1
	stale := &control.Client{Socket: c.a.client.Socket, Generation: &old}
	defer stale.Close()
	ctx, label := context.Background(), "late"
	calls := map[string]func() error{
		"checkpoint": func() error { _, err := stale.Checkpoint(ctx, control.CheckpointRequest{Label: &label}); return err },
		"rollback": func() error {
			_, err := stale.Rollback(ctx, control.RollbackRequest{Ref: c.a.points[0].id})
			return err
		},
		"undo":  func() error { _, err := stale.Undo(ctx, control.UndoRequest{}); return err },
		"sync":  func() error { _, err := c.a.put(ctx, stale, "main", []string{ask(1)}, false); return err },
		"begin": func() error { _, err := stale.ToolBegin(ctx, control.ToolBegin{Name: "late"}); return err },
		"write": func() error { _, err := stale.WriteFile(ctx, "work/f0", strings.NewReader("late")); return err },
	}
	for name, call := range calls {
		if err := call(); control.CodeOf(err) != control.CodeStaleGeneration {
			c.Fatalf("%s: a %s of generation %d, which is %d now: %v", when, name, old, c.gen, err)
		}
	}
	got, err := c.a.read()
	if err != nil {
		c.fail(when, err.Error())
	}
	if how := c.a.now.differs(got); how != "" {
		c.fail(when, "a call of an old generation was refused, but "+how)
	}
	if fresh := c.compare(when, c.history(when)); fresh != nil {
		c.fail(when, fmt.Sprintf("a call of an old generation was refused, but there is %+v", fresh))
	}
}

// goAnywhere looks at some checkpoints of long ago, goes to one of them, and comes back.
func (c *trial) goAnywhere(when string) {
	c.Helper()
	for range 3 {
		c.inspect(when, c.a.points[c.rng.IntN(len(c.a.points))])
	}
	c.visit(when, c.a.points[c.rng.IntN(len(c.a.points))])
	if c.a.back != nil && c.rng.IntN(2) == 0 {
		if err := c.a.undo(); err != nil {
			c.fail(when, fmt.Sprintf("undo: %v %s", err, c.a.wrong))
		}
	}
}

// visit rolls back to a checkpoint and fails the test unless that is what it was.
func (c *trial) visit(when string, p *point) {
	c.Helper()
	if err := c.a.rollback(p, control.RollbackRequest{Ref: p.id}); err != nil {
		c.fail(when, fmt.Sprintf("go back to %s (%s): %v %s", p.name(), p.id, err, c.a.wrong))
	}
	if p.number > 0 {
		if err := oneCounter(pair{c.a.now.files, itemsOf(c.a.now)}, p.number); err != nil {
			c.fail(when, fmt.Sprintf("checkpoint %s was made at the end of turn %d: %v", p.name(), p.number, err))
		}
	}
}

// inspect looks at a checkpoint without going there: files and conversations, byte for byte.
func (c *trial) inspect(when string, p *point) {
	c.Helper()
	ctx := context.Background()
	shape := control.Conversation{State: "present", Threads: map[string]control.Conversation{"sub": {}}}
	got, err := c.a.talkOf(ctx, p.id, shape)
	if err != nil {
		c.fail(when, fmt.Sprintf("the conversation of %s: %v", p.name(), err))
	}
	files := model{}
	for name, f := range p.pair.files {
		r, _, err := c.a.client.ReadFile(ctx, p.id, "work/"+name)
		if err != nil {
			c.fail(when, fmt.Sprintf("%s of %s: %v", name, p.name(), err))
		}
		b, err := io.ReadAll(r)
		r.Close()
		if err != nil {
			c.fail(when, fmt.Sprintf("%s of %s: %v", name, p.name(), err))
		}
		f.content = b
		files[name] = f
	}
	if how := wantOf(p.pair).differs(pair{files, got}); how != "" {
		c.fail(when, fmt.Sprintf("checkpoint %s (%s), looked at: %s", p.name(), p.id, how))
	}
}

// every goes to every acknowledged checkpoint.
func (c *trial) every() {
	c.Helper()
	for _, p := range c.a.points {
		c.inspect("at the end", p)
		c.visit("at the end", p)
	}
	log := c.history("at the end")
	if fresh := c.compare("at the end", log); fresh != nil {
		c.fail("at the end", fmt.Sprintf("there is %+v", fresh))
	}
	c.book.check(c.T, "at the end", log, c.a, c.gen)
}

// tell prints what was hit.
func (c *trial) tell(kills int) {
	var hit []string
	for _, kind := range slices.Sorted(maps.Keys(c.hit)) {
		hit = append(hit, fmt.Sprintf("%s %d (%d)", kind, c.hit[kind][0], c.hit[kind][1]))
	}
	c.Logf("%d kills, %d of them in front of a write, under %d acknowledged operations, %d checkpoints, movements %s; %d lines in the ledger",
		kills, c.traced, c.a.done, len(c.a.points), describe(c.a.moves), c.book.seq)
	c.Logf("in flight, and done all the same: nothing %d, %s", c.after, strings.Join(hit, ", "))
}
