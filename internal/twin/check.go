package twin

import (
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// Sequences says which sequences Check runs.
type Sequences struct {
	Seed, Count int
}

// FromEnv returns def changed by the environment: REWINDFS_TEST_SEED gives the
// first seed, "fresh" one that no run had before; the variable called countEnv
// gives the number of sequences.
func FromEnv(t testing.TB, def Sequences, countEnv string) Sequences {
	t.Helper()
	num := func(name string, to *int) {
		v := os.Getenv(name)
		if v == "" {
			return
		}
		n, err := strconv.Atoi(v)
		if err != nil {
			t.Fatalf("%s=%q: %v", name, v, err)
		}
		*to = n
	}
	if os.Getenv("REWINDFS_TEST_SEED") == "fresh" {
		def.Seed = int(time.Now().UnixNano() >> 10 & (1<<40 - 1))
		t.Logf("seeds from %d on", def.Seed)
	} else {
		num("REWINDFS_TEST_SEED", &def.Seed)
	}
	num(countEnv, &def.Count)
	return def
}

// failure is what a sequence that failed panics with.
type failure string

// catcher is the TB of one sequence.
type catcher struct{}

func (catcher) Helper() {}

func (catcher) Fatalf(format string, args ...any) { panic(failure(fmt.Sprintf(format, args...))) }

// Check runs sequences drawn from gen, one for each seed. The first that fails is
// made as short as it can be, and the test ends. run gets a TB of its own: its
// Fatalf unwinds run.
func Check(t *testing.T, seq Sequences, gen *rapid.Generator[[]Step], run func(tb TB, steps []Step)) {
	t.Helper()
	for i := range seq.Count {
		seed := seq.Seed + i
		steps := gen.Example(seed)
		msg := Try(run, steps)
		if msg == "" {
			continue
		}
		short, shortMsg := shorten(run, steps, msg)
		var lines []string
		for _, s := range short {
			lines = append(lines, s.GoString())
		}
		t.Fatalf("sequence with seed %d (the %dth) fails:\n%s\n\nthe shortest that fails:\n\t%s\n\nrepeat it with REWINDFS_TEST_SEED=%d",
			seed, i+1, shortMsg, strings.Join(lines, "\n\t"), seed)
	}
}

// Try runs steps and returns how they fail, "" if they do not.
func Try(run func(TB, []Step), steps []Step) (msg string) {
	defer func() {
		switch p := recover().(type) {
		case nil:
		case failure:
			msg = string(p)
		default:
			msg = fmt.Sprintf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	run(catcher{}, steps)
	return ""
}

// shortenRuns bounds how often a failing sequence is run again.
const shortenRuns = 150

// shorten leaves out steps, large parts first, as long as the rest still fails.
func shorten(run func(TB, []Step), steps []Step, msg string) ([]Step, string) {
	runs := 0
	for size := len(steps) / 2; size > 0 && runs < shortenRuns; size /= 2 {
		for at := 0; at+size <= len(steps) && runs < shortenRuns; {
			without := append(append([]Step(nil), steps[:at]...), steps[at+size:]...)
			runs++
			if m := Try(run, without); m != "" {
				steps, msg = without, m
			} else {
				at += size
			}
		}
	}
	return steps, msg
}
