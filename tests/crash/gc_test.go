package crash

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/rewindfs/rewindfs/internal/mounttest"
)

// TestCollectionsSurviveKills kills the daemon in the middle of collections, while a writer works: what the rules
// keep is there, what they drop is there whole or unknown, what the writer knows is there, and the store is clean.
func TestCollectionsSurviveKills(t *testing.T) {
	seed, kills := plan(t, 4)
	const keep, each = 3, 6
	m := mounttest.New(t, mounttest.Options{})
	t.Cleanup(func() { keepStore(m) })
	rng := rand.New(rand.NewPCG(seed, 13))
	dir := m.Path("writer")
	m.Sh("mkdir writer")
	w := newWriter(dir, rand.New(rand.NewPCG(seed, 1)), false)
	made, longest, mid := 0, 100*time.Millisecond, 0
	shows := func(n int) (there, right bool) {
		r := m.Run("cat", fmt.Sprintf("c%d:a", n))
		return r.Code == 0, r.Stdout == fmt.Sprintln(n) && same3(m, n)
	}
	for round := range kills {
		for range each {
			made++
			m.Sh(fmt.Sprintf(`echo %d >a; for i in $(seq 30); do seq %d $((%d + i * 40)) >d/f$((i + %d %% 7)); done; rm -f d/f$((%d %% 30)); mv b b2; mv b2 b`, made, made, made, made, made))
			m.Checkpoint("c" + strconv.Itoa(made))
		}
		m.Rollback("c" + strconv.Itoa(made-1)) // the way back is kept
		m.Run("undo")
		pid := m.PID()
		var wg sync.WaitGroup
		wg.Go(func() { w.work(-1) })
		done := make(chan *mounttest.Result, 1)
		start := time.Now()
		go func() { done <- m.Run("gc", "--keep", strconv.Itoa(keep)) }()
		time.Sleep(time.Duration(rng.Int64N(int64(longest)))) // the random moment
		kill(m, pid)
		wg.Wait()
		if r := <-done; r.Code == 0 {
			longest = max(10*time.Millisecond, min(longest, time.Since(start)))
		} else {
			mid++
		}
		m.Mount()
		checkAll(t, []*writer{w}, fmt.Sprint("kill ", round))
		for n := max(1, made-8); n <= made; n++ {
			there, right := shows(n)
			if there && !right || !there && n > made-keep {
				t.Fatalf("kill %d in a collection: checkpoint %d of %d is there: %v, and right: %v", round, n, made, there, right)
			}
		}
		isClean(m)
	}
	r := m.Run("gc", "--keep", "1")
	if r.Code != 0 {
		t.Fatal(r)
	}
	if there, right := shows(made); !there || !right {
		t.Errorf("the last checkpoint is there: %v, and right: %v", there, right)
	}
	isClean(m)
	t.Logf("%d kills, %d of them before the collection had ended; %d checkpoints made", kills, mid, made)
}

// same3 looks into a file of checkpoint n that is unlike those of others.
func same3(m *mounttest.Mount, n int) bool {
	r := m.Run("cat", fmt.Sprintf("c%d:d/f%d", n, 20+n%7))
	want := ""
	for i := n; i <= n+20*40; i++ {
		want += fmt.Sprintln(i)
	}
	return n%30 == 20+n%7 || r.Code == 0 && r.Stdout == want
}
