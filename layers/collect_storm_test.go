package layers

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// collectStorm is what the goroutines of TestCollectStorm share.
type collectStorm struct {
	s    *store
	stop chan struct{}

	// heads is held by who seals or moves a head, and while a list of what to keep is made.
	heads sync.Mutex
	known []Layer          // heads: that may be asked for
	was   map[Layer]string // heads: what the other branch's layers showed
}

func (c *collectStorm) over() bool {
	select {
	case <-c.stop:
		return true
	default:
		return false
	}
}

// TestCollectStorm collects while files are written and read, checkpoints made, another
// head rolled back and forth, and layers looked at that may go any moment.
func TestCollectStorm(t *testing.T) {
	c := &collectStorm{s: newStore(t, sampleBase(t)), stop: make(chan struct{}), was: map[Layer]string{}}
	other, err := c.s.tree.Branch("other")
	c.s.ok(err)
	var wg, others sync.WaitGroup
	run := func(what string, f func() error) {
		others.Go(func() {
			for !c.over() {
				if err := f(); err != nil {
					t.Errorf("%s: %v", what, err)
					return
				}
			}
		})
	}
	for w := range 4 {
		wg.Go(func() {
			if err := stormWriter(c.s.b, w, 25); err != nil {
				t.Errorf("writer %d: %v", w, err)
			}
		})
	}
	rngs := make([]*rand.Rand, 4)
	for i := range rngs {
		rngs[i] = rand.New(rand.NewPCG(9, uint64(i)))
	}
	run("seal", c.seal)
	run("other head", func() error { return c.roll(other, rngs[0]) })
	run("collect", func() error { return c.collect(rngs[1]) })
	run("look", func() error { return c.look(rngs[2]) })
	run("reclaim", func() error { _, err := c.s.tree.Reclaim(); return err })
	run("read", func() error { return stormReader(&c.s.b.View, RootIno) })
	wg.Wait()
	close(c.stop)
	others.Wait()
	c.s.collect(c.known...)
	before := dump(t, &c.s.b.View)
	for l, want := range c.was {
		if !c.s.tree.Has(l) {
			continue
		}
		v, err := c.s.tree.View(l)
		c.s.ok(err)
		if got := strings.Join(dump(t, v), "\n"); got != want {
			t.Errorf("layer %d shows\n%s\nit was\n%s", l, got, want)
		}
		v.Close()
	}
	c.s.audit()
	c.s.reopen()
	same(t, dump(t, &c.s.b.View), before)
}

func (c *collectStorm) seal() error {
	c.heads.Lock()
	defer c.heads.Unlock()
	r, err := c.s.b.Seal(nil)
	c.known = append(c.known, r.Layer)
	return err
}

// roll changes something on the other head, seals it or goes to any layer of its own.
func (c *collectStorm) roll(b *Branch, rng *rand.Rand) error {
	name := fmt.Sprintf("o%d", rng.IntN(4))
	a, err := b.Mknod(RootIno, name, unix.S_IFREG|0o644, 0, Cred{})
	switch {
	case errors.Is(err, unix.EEXIST):
		err = b.Unlink(RootIno, name)
	case err == nil:
		_, err = b.Write(a.Ino, noise(rng.Uint64(), 1+rng.IntN(60_000)), 0, WriteFlags{})
		b.Forget(a.Ino, 1)
	}
	if err != nil {
		return err
	}
	c.heads.Lock()
	defer c.heads.Unlock()
	var mine []Layer
	for _, l := range c.known {
		if c.was[l] != "" {
			mine = append(mine, l)
		}
	}
	shows := strings.Join(dump(c.s.t, &b.View), "\n")
	if len(mine) > 0 && rng.IntN(3) == 0 {
		to := mine[rng.IntN(len(mine))]
		m, err := b.MoveHead(to, false, nil, nil)
		if err != nil {
			return err
		}
		if now := strings.Join(dump(c.s.t, &b.View), "\n"); now != c.was[to] {
			return fmt.Errorf("layer %d shows\n%s\nit was\n%s", to, now, c.was[to])
		}
		if !m.Noop {
			c.known, c.was[m.From] = append(c.known, m.From), shows
		}
		return nil
	}
	r, err := b.Seal(nil)
	c.known, c.was[r.Layer] = append(c.known, r.Layer), shows
	return err
}

// collect keeps some of what is known; sometimes it is stopped in the middle.
func (c *collectStorm) collect(rng *rand.Rand) error {
	c.heads.Lock()
	unlock := sync.OnceFunc(c.heads.Unlock)
	defer unlock()
	var keep []Layer
	for i, l := range c.known {
		if rng.IntN(3) == 0 || i > len(c.known)-4 {
			keep = append(keep, l)
		}
	}
	c.known = slices.Clone(keep)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	parts := 0
	_, err := c.s.tree.Collect(ctx, keep, CollectOptions{Marked: unlock, Progress: func(_ CollectStats, done, total int64) {
		if parts++; parts == 3 && rng.IntN(3) == 0 {
			cancel()
		}
		if done > total {
			c.s.t.Errorf("%d of %d done", done, total)
		}
	}})
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		err = nil
	}
	return err
}

// look reads all that a layer shows. If it goes meanwhile, that is said: what is shown is never wrong.
func (c *collectStorm) look(rng *rand.Rand) error {
	c.heads.Lock()
	var l Layer
	if len(c.known) > 0 {
		l = c.known[rng.IntN(len(c.known))]
	}
	want := c.was[l]
	c.heads.Unlock()
	v, err := c.s.tree.View(l)
	if errors.Is(err, ErrNoLayer) {
		return nil
	}
	if err != nil {
		return err
	}
	defer v.Close()
	if want == "" {
		err = stormReader(v, RootIno)
	} else {
		err = sameLines(v, want)
	}
	if errors.Is(err, unix.ESTALE) && !c.s.tree.Has(l) {
		return nil
	}
	return err
}

// sameLines compares the files in the root of a view with lines of a dump of it.
func sameLines(v *View, want string) error {
	var entries []Entry
	if err := v.ReadDir(RootIno, 0, func(e Entry) bool { entries = append(entries, e); return true }); err != nil {
		return err
	}
	for _, e := range entries {
		if e.Type != unix.S_IFREG {
			continue
		}
		a, err := v.Lookup(RootIno, e.Name)
		if err != nil {
			return err
		}
		got, err := readAll(v, a.Ino)
		if err != nil {
			return err
		}
		if line := fileLine(e.Name, a, got); !strings.Contains("\n"+want+"\n", "\n"+line+"\n") {
			return fmt.Errorf("layer %d shows\n%s\nit was\n%s", v.layer, line, want)
		}
		v.Forget(a.Ino, 1)
	}
	return nil
}
