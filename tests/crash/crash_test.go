package crash

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rewindfs/rewindfs/internal/fstree"
	"github.com/rewindfs/rewindfs/internal/mounttest"
	"github.com/rewindfs/rewindfs/internal/twin"
)

func TestMain(m *testing.M) { os.Exit(mounttest.Main(m)) }

func plan(t *testing.T, kills int) (seed uint64, n int) {
	s := twin.FromEnv(t, twin.Sequences{Seed: 1, Count: kills}, "REWINDFS_TEST_KILLS")
	return uint64(s.Seed), s.Count
}

// TestAcknowledgedOperationsSurviveKills lets writers work and kills the daemon
// again and again. What they know is in their memory, outside of the mount.
func TestAcknowledgedOperationsSurviveKills(t *testing.T) {
	seed, kills := plan(t, 15)
	for _, cache := range []string{"through", "writeback"} {
		t.Run(cache, func(t *testing.T) {
			if cache == "writeback" {
				kills = (kills + 4) / 5
			}
			m := mounttest.New(t, mounttest.Options{Fill: mounttest.Empty, Args: []string{"--cache", cache}})
			rng := rand.New(rand.NewPCG(seed, 7))
			var writers []*writer
			for i := range 4 {
				dir := m.Path(fmt.Sprint("w", i))
				if err := os.Mkdir(dir, 0o755); err != nil {
					t.Fatal(err)
				}
				writers = append(writers, &writer{dir: dir, rng: rand.New(rand.NewPCG(seed, uint64(i))), now: newModel()})
			}
			total := 0
			for kill := range kills {
				pid := m.PID()
				var wg sync.WaitGroup
				for _, w := range writers {
					wg.Go(func() { w.work() })
				}
				time.Sleep(time.Duration(20+rng.IntN(400)) * time.Millisecond) // the random moment
				m.Kill(pid)
				wg.Wait()
				m.Mount()
				for i, w := range writers {
					total += w.n
					w.settle(t, fmt.Sprintf("kill %d, writer %d", kill, i))
				}
				if t.Failed() {
					return
				}
			}
			t.Logf("%d kills under %d operations", kills, total)
		})
	}
}

// work goes on until the daemon is gone.
func (w *writer) work() {
	for w.step() == nil {
	}
}

// settle looks at what survived, and takes the operation in flight as done or not.
func (w *writer) settle(t *testing.T, when string) {
	t.Helper()
	got, err := read(w.dir)
	if err != nil {
		t.Fatalf("%s: %v", when, err)
	}
	name, how := diff(w.now, got)
	if how == "" {
		w.flight = nil
		return
	}
	if w.flight != nil {
		if _, how := diff(w.flight, got); how == "" {
			w.now, w.flight = w.flight, nil
			return
		}
	}
	t.Errorf("%s: after %d operations, in flight: %q: neither the state before nor after: %s %s\n\t%s", when, w.n, w.what, name, how, strings.Join(w.about(name), "\n\t"))
}

// TestCheckpointsAndRollbacksSurviveKills kills the daemon while the CLI makes
// checkpoints and rolls back. Each round has a state of its own; after the
// restart the tree is one of the states that a command which was running may have
// left, and nothing between.
func TestCheckpointsAndRollbacksSurviveKills(t *testing.T) {
	seed, kills := plan(t, 15)
	m := mounttest.New(t, mounttest.Options{})
	rng := rand.New(rand.NewPCG(seed, 11))
	first := m.Snapshot()
	m.Checkpoint("clean")
	for kill := range kills {
		label := "round" + strconv.Itoa(kill)
		m.Sh(fmt.Sprintf(`for i in $(seq 40); do echo %d.$i >>d/log$i; done; rm -rf src odd; mv d/e moved; echo %d >a; chmod 600 b`, kill, kill))
		wrecked := m.Snapshot()
		pid := m.PID()
		done := make(chan *mounttest.Result, 1)
		cmd := []string{"checkpoint", label}
		if kill%3 != 0 {
			cmd = []string{"rollback", "clean"}
		}
		go func() { done <- m.Run(cmd...) }()
		time.Sleep(time.Duration(rng.IntN(25_000)) * time.Microsecond) // the random moment
		m.Kill(pid)
		r := <-done
		m.Mount()
		after := m.Snapshot()
		isFirst, isWrecked := same(first, after), same(wrecked, after)
		switch {
		case cmd[0] == "checkpoint":
			has := m.Run("cat", label+":a").Code == 0
			if !isWrecked || r.Code == 0 && !has {
				t.Fatalf("kill %d in a checkpoint (exit code %d): tree unchanged: %v, checkpoint there: %v", kill, r.Code, isWrecked, has)
			}
		case r.Code == 0 && !isFirst, !isFirst && !isWrecked:
			mounttest.Same(t, first, after, fields, "at the checkpoint", "after the kill")
			t.Fatalf("kill %d in a rollback (exit code %d): neither the state before nor after", kill, r.Code)
		}
		m.Rollback("clean")
		if got := m.Snapshot(); !same(first, got) {
			mounttest.Same(t, first, got, fields, "at the checkpoint", "after a rollback")
			t.Fatalf("kill %d: a later rollback is not exact", kill)
		}
	}
}

// fields leaves out the device number, which each mount has anew.
var fields = fstree.Fields{Nlink: true, Mtime: true, Ctime: true}

func same(a, b *fstree.Tree) bool {
	return len(fstree.Diff(a, b, fields, "", "")) == 0
}
