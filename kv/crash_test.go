package kv

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"
)

// The crash test: a child process applies batches and says which were accepted,
// until it is killed. Each of its writers has keys of its own, so that what must
// be there can be told from the number of its last batch.

const (
	crashEnv     = "REWIND_KV_CRASH"
	crashRounds  = "REWIND_KV_CRASH_ROUNDS" // default 20
	crashWriters = 3
	crashKeys    = 40
)

// crashBatch is the n-th batch of writer w.
func crashBatch(w, n int) *Batch {
	return batchOf(
		fmt.Sprintf("w%d/last", w), strconv.Itoa(n),
		fmt.Sprintf("w%d/k%02d", w, n%crashKeys), strings.Repeat(strconv.Itoa(n), n%300),
		fmt.Sprintf("w%d/k%02d", w, (n+crashKeys/2)%crashKeys), "-",
	)
}

// crashState is what batches 1 to n of writer w make.
func crashState(w, n int) map[string]string {
	m := map[string]string{}
	for i := max(1, n-2*crashKeys); i <= n; i++ {
		for k, v := range crashBatch(w, i).Ops() {
			if v == nil {
				delete(m, string(k))
			} else {
				m[string(k)] = string(v)
			}
		}
	}
	return m
}

// TestCrashChild is the child; by itself it does nothing.
func TestCrashChild(t *testing.T) {
	dir := os.Getenv(crashEnv)
	if dir == "" {
		t.Skip("only as a child of TestCrash")
	}
	db, err := Open(dir, Options{FlushIdle: time.Millisecond, sizes: tiny(), Logger: testLog(t)})
	if err != nil {
		fmt.Println("error", err)
		return
	}
	for w := range crashWriters {
		last, _, _ := db.Get(fmt.Appendf(nil, "w%d/last", w))
		n, _ := strconv.Atoi(string(last))
		go func() {
			for {
				n++
				if err := db.Apply(crashBatch(w, n)); err != nil {
					fmt.Println("error", err)
					return
				}
				// One write for one line: it is out, or the batch counts as in flight.
				fmt.Fprintf(os.Stdout, "ok %d %d\n", w, n)
				if n%97 == 0 {
					db.Sync()
				}
				if n%301 == 0 {
					db.Flush()
				}
			}
		}()
	}
	io.Copy(io.Discard, os.Stdin) // the parent's end closes with it
}

func TestCrash(t *testing.T) {
	rounds := 20
	if s := os.Getenv(crashRounds); s != "" {
		rounds, _ = strconv.Atoi(s)
	} else if testing.Short() {
		rounds = 3
	}
	dir := t.TempDir()
	var acked [crashWriters]int
	for round := range rounds {
		crashOnce(t, dir, 1+rand.IntN(1500), &acked)
		db, err := Open(dir, Options{FlushIdle: manual, Logger: testLog(t)})
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		all := dump(t, db)
		for w := range crashWriters {
			prefix := fmt.Sprintf("w%d/", w)
			got := map[string]string{}
			for k, v := range all {
				if strings.HasPrefix(k, prefix) {
					got[k] = v
				}
			}
			n, _ := strconv.Atoi(got[prefix+"last"])
			if n != acked[w] && n != acked[w]+1 {
				t.Fatalf("round %d: writer %d: batch %d was acknowledged, the store has %d", round, w, acked[w], n)
			}
			acked[w] = n
			same(t, got, crashState(w, n))
		}
		if round%2 == 0 {
			must(t, db.Close())
		} else {
			dir = crashed(t, db) // nothing flushed in between
		}
	}
}

// crashOnce runs a child until it has acknowledged some batches, and kills it.
func crashOnce(t *testing.T, dir string, batches int, acked *[crashWriters]int) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestCrashChild$", "-test.v")
	cmd.Env = append(os.Environ(), crashEnv+"="+dir)
	in, err := cmd.StdinPipe()
	must(t, err)
	defer in.Close()
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	lines := bufio.NewScanner(out)
	var last string
	for lines.Scan() {
		last = lines.Text()
		var w, n int
		if c, _ := fmt.Sscanf(last, "ok %d %d", &w, &n); c != 2 {
			continue
		}
		acked[w] = n
		if batches--; batches == 0 {
			must(t, cmd.Process.Kill())
		}
	}
	cmd.Wait()
	if batches > 0 {
		t.Fatalf("child ended by itself: %s", last)
	}
}
