package ledger

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
)

// Set for the child of TestKill: its ledger, and what it does.
const (
	crashDir  = "LEDGER_CRASH_DIR"
	crashMode = "LEDGER_CRASH_MODE" // "append", or "reopen": open and close all the time
)

// TestCrashChild is no test but the daemon that TestKill kills. It says on stdout what has been recorded.
func TestCrashChild(t *testing.T) {
	dir := os.Getenv(crashDir)
	if dir == "" {
		t.Skip("runs as a child of TestKill only")
	}
	for {
		l, err := Open(dir, testStore, Options{MaxFile: 300_000})
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range l.Found() {
			fmt.Printf("found %s\n", f.Problem)
		}
		n := 1 << 30
		if os.Getenv(crashMode) == "reopen" {
			n = 3
		}
		var wg sync.WaitGroup
		for w := range 6 {
			wg.Add(1)
			go func() {
				defer wg.Done()
				for i := range n {
					// Long lines are torn more easily.
					text := strings.Repeat("x", []int{0, 10, 4000, 100, 60_000}[i%5])
					seq, err := l.Append(Event{Kind: KindExec, Session: fmt.Sprint("w", w), Details: map[string]any{"i": i, "text": text}})
					if err != nil {
						t.Error(err)
						return
					}
					// One write each: what was said is in the pipe when this process is killed.
					fmt.Printf("ack %d w%d %d\n", seq, w, i)
					if i%64 == 63 && w == 0 {
						if _, err := l.Sync(); err != nil {
							t.Error(err)
							return
						}
					}
				}
			}()
		}
		wg.Wait()
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

type ack struct {
	session string
	i       int
}

// A daemon that is killed at any moment has lost nothing that it said was recorded, and
// the ledger is whole, before and after the next one opens it.
func TestKill(t *testing.T) {
	dir := testDir(t)
	closeLedger(t, open(t, dir, Options{}))
	rnd := seeded(t)
	acked := map[uint64]ack{}
	torn := 0
	for round := range rounds(t, 60) {
		mode := "append"
		if round%4 == 3 {
			mode = "reopen"
		}
		out := killChild(t, dir, mode, rnd.IntN(120))
		for _, line := range out {
			var seq uint64
			var a ack
			if n, _ := fmt.Sscanf(line, "ack %d %s %d", &seq, &a.session, &a.i); n == 3 {
				if old, twice := acked[seq]; twice {
					t.Fatalf("line %d was said to be %v and %v", seq, old, a)
				}
				acked[seq] = a
			} else if line != "found repaired" {
				t.Fatalf("round %d: the child says %q", round, line)
			}
		}
		rep := verify(t, dir)
		if !rep.OK() {
			t.Fatalf("round %d, after the kill:\n%s", round, findings(rep.Damage))
		}
		for _, n := range rep.Notes {
			if n.Problem == Unfinished && n.Line > 0 {
				torn++
			}
		}
		l, err := Open(dir, testStore, Options{MaxFile: 300_000})
		if err != nil {
			t.Fatal(err)
		}
		appendN(t, l, 1)
		head := l.Head()
		closeLedger(t, l)
		mustVerify(t, dir, head.Seq, head)
	}
	there := map[uint64]ack{}
	for _, r := range records(t, dir, Filter{Kinds: []Kind{KindExec}}) {
		if i, ok := r.Details["i"]; ok {
			a := ack{session: r.Session}
			fmt.Sscan(fmt.Sprint(i), &a.i)
			there[r.Seq] = a
		}
	}
	for seq, a := range acked {
		if there[seq] != a {
			t.Errorf("line %d was said to be %v and is %v", seq, a, there[seq])
		}
	}
	if len(acked) == 0 {
		t.Error("nothing was recorded")
	}
	t.Logf("%d events were said to be recorded, %d kills tore a line", len(acked), torn)
}

// killChild kills a child after it has said a number of things, and returns all that it said.
func killChild(t *testing.T, dir, mode string, after int) (said []string) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestCrashChild$")
	cmd.Env = append(os.Environ(), crashDir+"="+dir, crashMode+"="+mode)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s := bufio.NewScanner(out)
	for s.Scan() {
		if said = append(said, s.Text()); len(said) == after+1 {
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := cmd.Wait(); err == nil || len(said) <= after {
		t.Fatalf("the child ended by itself: %v, %q", err, said)
	}
	return said
}
