package crash

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

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
			t.Cleanup(func() { keepStore(m) })
			rng := rand.New(rand.NewPCG(seed, 7))
			var writers []*writer
			for i := range 4 {
				dir := m.Path(fmt.Sprint("w", i))
				if err := os.Mkdir(dir, 0o755); err != nil {
					t.Fatal(err)
				}
				writers = append(writers, newWriter(dir, rand.New(rand.NewPCG(seed, uint64(i))), cache == "writeback"))
			}
			for round := range kills {
				pid := m.PID()
				limit, moment := -1, 20+rng.IntN(300)
				if round%8 == 7 {
					// They rest, or the files do: that is when the daemon puts things in order.
					limit, moment = []int{500, -1}[rng.IntN(2)], 500+rng.IntN(1500)
				}
				var wg sync.WaitGroup
				for _, w := range writers {
					wg.Go(func() { w.work(limit) })
				}
				time.Sleep(time.Duration(moment) * time.Millisecond) // the random moment
				kill(m, pid)
				wg.Wait()
				m.Mount()
				checkAll(t, writers, fmt.Sprint("kill ", round))
			}
			m.Remount()
			checkAll(t, writers, "after all kills and an unmount")
			isClean(m)
			total, files := 0, 0
			for _, w := range writers {
				total, files = total+w.done, files+len(w.now)
			}
			t.Logf("%d kills under %d acknowledged operations, none lost; %d files at the end", kills, total, files)
		})
	}
}

// isClean fails the test unless fsck finds nothing.
func isClean(m *mounttest.Mount) {
	m.T.Helper()
	if r := m.Run("fsck"); r.Code != 0 {
		m.T.Fatalf("the store is not clean: %s%s", r.Stdout, r.Stderr)
	}
}

// kill ends the daemon with SIGKILL and waits until the last of its threads is gone:
// until then it holds the store.
func kill(m *mounttest.Mount, pid int) {
	m.T.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		m.T.Fatalf("find the daemon: %v", err)
	}
	defer unix.Close(fd)
	m.Kill(pid)
	mounttest.WaitFor(m.T, fmt.Sprintf("all threads of process %d to end", pid), func() bool {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return err == nil && n == 1
	})
}

// checkAll fails the test if a writer's directory is not what it must be.
func checkAll(t *testing.T, writers []*writer, when string) {
	t.Helper()
	var wg sync.WaitGroup
	for i, w := range writers {
		wg.Go(func() {
			if wrong := w.check(); wrong != "" {
				t.Errorf("%s, writer %d: %s", when, i, wrong)
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

// keepStore saves the store of a test that failed from the end of the test.
func keepStore(m *mounttest.Mount) {
	if !m.T.Failed() {
		return
	}
	m.T.Log(m.Run("unmount", "--force"))
	dir, err := os.MkdirTemp("", "rewindfs-crash-store-")
	if err != nil {
		m.T.Log("the store is not kept:", err)
		return
	}
	out, err := exec.Command("cp", "-a", m.Store, dir).CombinedOutput()
	m.T.Logf("the store is kept in %s (cp: %v %s)", dir, err, out)
}

// TestALostOperationIsFound shows, without a mount, that the check can fail: what
// is claimed but not done is found. What was in flight may be done or not.
func TestALostOperationIsFound(t *testing.T) {
	w := newWriter(t.TempDir(), rand.New(rand.NewPCG(1, 1)), false)
	silent := func(when string) {
		if wrong := w.check(); wrong != "" {
			t.Fatalf("%s: %s", when, wrong)
		}
	}
	for i := range 120 {
		edits, do := w.choose()
		claim := &writer{dir: w.dir, pool: w.pool, now: maps.Clone(w.now)}
		claim.now.apply(edits)
		if claim.check() == "" {
			t.Fatalf("%q was acknowledged but not done, and the check does not see it", w.what)
		}
		w.flight = edits
		silent("in flight, not done")
		if err := do(); err != nil {
			t.Fatal(err)
		}
		w.flight = edits
		if i%2 == 0 {
			w.acknowledge()
		}
		silent("done")
	}
}

// TestCheckpointsAndRollbacksSurviveKills kills the daemon while the CLI makes
// checkpoints and rolls back. Each round has a state of its own; after the
// restart the tree is one of the states that a command which was running may have
// left, and nothing between.
func TestCheckpointsAndRollbacksSurviveKills(t *testing.T) {
	seed, kills := plan(t, 15)
	m := mounttest.New(t, mounttest.Options{})
	t.Cleanup(func() { keepStore(m) })
	rng := rand.New(rand.NewPCG(seed, 11))
	first := m.Snapshot()
	m.Checkpoint("clean")
	ids := map[int]string{} // by round, of the checkpoints that were acknowledged
	shows := func(ref string, of int) bool {
		r := m.Run("cat", ref+":a")
		return r.Code == 0 && r.Stdout == fmt.Sprintln(of)
	}
	for round := range kills {
		label := "round" + strconv.Itoa(round)
		m.Sh(fmt.Sprintf(`for i in $(seq 40); do echo %d.$i >>d/log$i; done; rm -rf src odd; mv d/e moved; echo %d >a; chmod 600 b`, round, round))
		wrecked := m.Snapshot()
		pid := m.PID()
		done := make(chan *mounttest.Result, 1)
		cmd := []string{"--json", "checkpoint", label}
		if round%3 != 0 {
			cmd = []string{"rollback", "clean"}
		}
		go func() { done <- m.Run(cmd...) }()
		time.Sleep(time.Duration(rng.IntN(25_000)) * time.Microsecond) // the random moment
		kill(m, pid)
		r := <-done
		m.Mount()
		after := m.Snapshot()
		isFirst, isWrecked := same(first, after), same(wrecked, after)
		switch {
		case cmd[0] == "--json":
			has := shows(label, round)
			if !isWrecked || r.Code == 0 && !has {
				t.Fatalf("kill %d in a checkpoint (exit code %d): tree unchanged: %v, checkpoint there: %v", round, r.Code, isWrecked, has)
			}
			if r.Code == 0 {
				var c struct{ ID string }
				if err := r.Data(&c); err != nil {
					t.Fatal(err)
				}
				ids[round] = c.ID
			}
		case r.Code == 0 && !isFirst, !isFirst && !isWrecked:
			mounttest.Same(t, first, after, fields, "at the checkpoint", "after the kill")
			t.Fatalf("kill %d in a rollback (exit code %d): neither the state before nor after", round, r.Code)
		}
		m.Rollback("clean")
		if got := m.Snapshot(); !same(first, got) {
			mounttest.Same(t, first, got, fields, "at the checkpoint", "after a rollback")
			t.Fatalf("kill %d: a later rollback is not exact", round)
		}
		for old, id := range ids { // map order: a random one
			if !shows(id, old) {
				t.Fatalf("kill %d: the checkpoint of round %d is damaged or gone", round, old)
			}
			break
		}
	}
	for round, id := range ids {
		if !shows(id, round) {
			t.Errorf("after all kills: the checkpoint of round %d is damaged or gone", round)
		}
	}
	isClean(m)
	t.Logf("%d kills, %d checkpoints acknowledged", kills, len(ids))
}

// fields leaves out the device number, which each mount has anew.
var fields = fstree.Fields{Nlink: true, Mtime: true, Ctime: true}

func same(a, b *fstree.Tree) bool {
	return len(fstree.Diff(a, b, fields, "", "")) == 0
}
