package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// hostWriter writes numbered lines to a file on the host, in all the ways there are, until it is stopped.
type hostWriter struct {
	*world
	at    string
	r     *rand.Rand
	ways  []string
	lines []string // that were written; to be read once it has ended
	stop  chan struct{}
	wg    sync.WaitGroup
	err   error
}

func (w *world) hostWriter(seed uint64, p string, ways ...string) *hostWriter {
	h := &hostWriter{world: w, at: filepath.Join(w.base, p), r: rand.New(rand.NewPCG(seed, 1)), ways: ways, stop: make(chan struct{})}
	h.wg.Go(func() {
		for h.err == nil {
			pause := time.Duration(h.r.IntN(2000)) * time.Microsecond // so somebody writes, in bursts: else no commit would come to its end
			if h.r.IntN(8) == 0 {
				pause *= 100
			}
			select {
			case <-h.stop:
				return
			case <-time.After(pause):
			}
			h.err = h.write(fmt.Sprintf("host %d\n", len(h.lines)))
		}
	})
	return h
}

// write appends a line; who replaces the file has in it all the lines that it saw.
func (h *hostWriter) write(line string) error {
	how := h.ways[h.r.IntN(len(h.ways))]
	flags := os.O_WRONLY | os.O_APPEND
	body, at := "", h.at
	if how == "rename" || how == "truncate" {
		b, err := os.ReadFile(h.at)
		if err != nil {
			return err
		}
		body = string(b)
		flags = os.O_WRONLY | os.O_CREATE | os.O_TRUNC
		if how == "rename" {
			at += ".new"
		}
	}
	f, err := os.OpenFile(at, flags, 0o644)
	if err != nil {
		return err
	}
	if how == "slow" { // who takes his time between opening and writing
		<-time.After(time.Duration(h.r.IntN(20)) * time.Millisecond)
	}
	_, err = f.WriteString(body + line)
	if err = errors.Join(err, f.Close()); err == nil && how == "rename" {
		err = os.Rename(at, h.at)
	}
	if err == nil {
		h.lines = append(h.lines, line)
	}
	return err
}

func (h *hostWriter) end() []string {
	h.t.Helper()
	close(h.stop)
	h.wg.Wait()
	if h.err != nil {
		h.t.Fatal(h.err)
	}
	return h.lines
}

// mountWriter appends numbered lines to a file in the mount, by another program, until it is stopped; it holds the file lock while it writes one. A
// write that is refused, as the file was merged meanwhile, is made again.
func (w *world) mountWriter(p string) (end func() []string) {
	w.t.Helper()
	go1 := filepath.Join(w.home, "go")
	w.sh("touch " + go1 + " " + w.home + "/lock")
	script := `i=0; while [ -e ` + go1 + ` ]; do if flock ` + w.home + `/lock sh -c "echo mount $i >>$M/` + p + `" 2>/dev/null; then i=$((i+1)); fi; done; echo $i`
	cmd := exec.Command("sh", "-c", script)
	cmd.Dir, cmd.Env = "/", []string{"M=" + w.mp, "PATH=" + os.Getenv("PATH")}
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, os.Stderr
	if err := cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	ended := false
	end = func() (lines []string) {
		if ended {
			return nil
		}
		ended = true
		_ = os.Remove(go1)
		if err := cmd.Wait(); err != nil {
			w.t.Error(err)
		}
		n := 0
		if _, err := fmt.Sscan(out.String(), &n); err != nil {
			w.t.Error(err)
		}
		for i := range n {
			lines = append(lines, fmt.Sprintf("mount %d\n", i))
		}
		return lines
	}
	w.t.Cleanup(func() { end() })
	return end
}

// missing lists the lines that none of the texts has.
func missing(lines []string, texts ...string) (out []string) {
	have := map[string]bool{}
	for _, text := range texts {
		for l := range strings.Lines(text) {
			have[l] = true
		}
	}
	for _, l := range lines {
		if !have[l] {
			out = append(out, strings.TrimSpace(l))
		}
	}
	return out
}

func (w *world) onHost(p string) string {
	w.t.Helper()
	b, err := os.ReadFile(filepath.Join(w.base, p))
	if err != nil {
		w.t.Fatal(err)
	}
	return string(b)
}

// commitDuring commits while others write, which may come to an end, or to a conflict that is named.
func (w *world) commitDuring(seen map[string]int, args ...string) outcome {
	w.t.Helper()
	res := w.rewind(append([]string{"commit"}, args...)...)
	if strings.Contains(res.out+res.err, "merged") {
		seen["merged"]++
	}
	switch {
	case res.code == 0:
		seen["done"]++
	case res.code == exitConflict && strings.Contains(res.out+res.err, "f"):
		seen["conflict"]++
	default:
		w.t.Fatalf("commit %q: %+v", args, res)
	}
	return res
}

// Somebody writes to a file on the host without a pause, in every way, while commits of that file run: all that he wrote is there afterwards.
func TestCommitWhileHostWrites(t *testing.T) {
	w := newWorld(t)
	w.put(w.base, "f", lines(30, nil))
	w.mount()
	w.sh("sed -i '3s/.*/mount/' $M/f")
	w.rewind("checkpoint", "--durable").want(t, 0) // what the file was is known then
	seen := map[string]int{}
	h := w.hostWriter(1, "f", "append", "slow", "rename", "truncate")
	for i := range rounds(8) {
		w.sh(fmt.Sprintf(`sed -i '3s/.*/mount %d/' $M/f`, i))
		for _, args := range [][]string{{"--merge"}, {}, {"--merge", "--on-conflict", "theirs"}} {
			w.commitDuring(seen, args...)
		}
	}
	written := h.end()
	t.Logf("%d lines written; commits: %v", len(written), seen)
	if lost := missing(written, w.onHost("f")); len(lost) > 0 {
		t.Errorf("of %d lines that were written on the host, these are not there: %q", len(written), lost)
	}
	for undone := 0; ; undone++ {
		if res := w.rewind("commit", "--undo"); res.code != 0 {
			t.Logf("%d commits undone, then: %s", undone, res.err+res.out)
			break
		}
		if undone > 100 {
			t.Fatal("there is no end")
		}
	}
	if left, _ := filepath.Glob(filepath.Join(w.base, "*rewindfs*")); len(left) > 0 {
		t.Logf("beside it: %q", left)
	}
	w.rewind("fsck").want(t, 0)
	w.unmount()
}

// A program appends to a file in the mount while commits run: its lines are in the mount, and after a last commit on the host.
func TestCommitWhileMountWrites(t *testing.T) {
	w := newWorld(t)
	w.put(w.base, "f", lines(30, nil))
	w.mount()
	seen := map[string]int{}
	end := w.mountWriter("f")
	for !strings.Contains(w.sh("cat $M/f"), "mount 1\n") { // else it may be built on a state of the base that nobody knows: put empties the file first
	}
	w.rewind("checkpoint", "--durable").want(t, 0) // what the file was is known then
	for i := range rounds(8) {
		w.put(w.base, "f", strings.Replace(w.onHost("f"), "line 4\n", fmt.Sprintf("line 4\nhost %d\n", i), 1))
		w.commitDuring(seen, "--merge")
		w.commitDuring(seen)
	}
	written := end()
	t.Logf("%d lines written; commits: %v", len(written), seen)
	w.rewind("commit", "--merge").want(t, 0)
	for where, text := range map[string]string{"the mount": w.sh("cat $M/f"), "the host": w.onHost("f")} {
		if lost := missing(written, text); len(lost) > 0 {
			t.Errorf("of %d lines that were written in the mount, these are not in %s: %q", len(written), where, lost)
			for l := range strings.Lines(text) {
				if strings.Contains(l, lost[0]) {
					t.Logf("but %q", l)
				}
			}
		}
	}
	w.unmount()
}

// Both append to one file while commits run, with markers where they meet, which are taken out of the mount: each line is on one side or the other.
func TestCommitWhileBothWrite(t *testing.T) {
	w := newWorld(t)
	w.put(w.base, "f", lines(30, nil))
	w.mount()
	w.sh("echo mount >>$M/f")
	w.rewind("checkpoint", "--durable").want(t, 0) // what the file was is known then
	seen := map[string]int{}
	h := w.hostWriter(2, "f", "append", "slow")
	end := w.mountWriter("f")
	for range rounds(8) {
		w.commitDuring(seen, "--merge", "--markers")
		w.sh(`flock ` + w.home + `/lock sed -i '/^<<<<<<< \|^=======$\|^>>>>>>> /d' $M/f`)
		w.commitDuring(seen, "--merge")
	}
	theirs, ours := h.end(), end()
	t.Logf("%d lines written on the host, %d in the mount; commits: %v", len(theirs), len(ours), seen)
	host, mount := w.onHost("f"), w.sh("cat $M/f")
	if lost := missing(append(theirs, ours...), host, mount); len(lost) > 0 {
		t.Errorf("on neither side: %q", lost)
	}
	if lost := missing(theirs, host); len(lost) > 0 {
		t.Errorf("not on the host, where they were written: %q", lost)
	}
	if lost := missing(ours, mount); len(lost) > 0 {
		t.Errorf("not in the mount, where they were written: %q", lost)
	}
	w.unmount()
}

// Whoever has the mount win, as a whole, gets what the host had by an undo of that; what comes on the host while a commit runs is not replaced
// even then. A commit of some hunks goes by what the host has now, or not at all.
func TestCommitOverHost(t *testing.T) {
	w := newWorld(t)
	w.put(w.base, "f", lines(30, nil))
	w.mount()
	ours := lines(30, map[int]string{3: "ours 3\n"})
	w.edit("f", ours, false)
	patch := w.rewind("commit", "--dry-run", "--patch")
	patch.want(t, 0)
	theirs := lines(30, map[int]string{3: "theirs 3\n", 30: "line 30\nmore\n"})
	w.put(w.base, "f", theirs)
	w.finish([]string{"commit", "--hunks", "-"}, stdin(patch.out)).want(t, exitConflict, "f")
	w.has(w.base, "f", theirs)
	w.rewind("commit", "--on-conflict", "ours").want(t, 0, "Wrote 1 path")
	w.has(w.base, "f", ours)
	w.rewind("commit", "--undo").want(t, 0)
	w.has(w.base, "f", theirs)
	w.has(w.mp, "f", ours)
	w.rewind("commit").want(t, exitConflict, "conflict: f: ") // as it was

	held, err := os.OpenFile(filepath.Join(w.base, "f"), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	w.rewind("commit", "--on-conflict", "theirs").want(t, 0, "theirs: f")
	w.rewind("commit", "--on-conflict", "ours").want(t, 0, "Wrote 1 path", "has it open for writing")
	w.rewind("commit", "--undo").want(t, 0)
	if err := held.Close(); err != nil {
		t.Fatal(err)
	}
	held, err = os.OpenFile(filepath.Join(w.base, "a.txt"), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	w.sh("echo ours >>$M/a.txt")
	w.rewind("commit", "--", "a.txt").want(t, exitConflict, "a program on the host has it open for writing")
	w.has(w.base, "a.txt", "base a\n")
	if err := held.Close(); err != nil {
		t.Fatal(err)
	}
	w.rewind("commit", "--", "a.txt").want(t, 0, "Wrote 1 path")
	w.has(w.base, "a.txt", "base a\nours\n")
	w.rewind("fsck").want(t, 0)
	w.unmount()
}

// rounds is how often commits are made.
func rounds(n int) int {
	if s := os.Getenv("REWINDFS_TEST_CHECKS"); s != "" {
		_, _ = fmt.Sscan(s, &n)
	}
	return n
}
