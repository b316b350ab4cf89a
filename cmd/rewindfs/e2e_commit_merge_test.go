package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// lines is a text of n lines, some of them changed.
func lines(n int, changed map[int]string) string {
	var b strings.Builder
	for i := 1; i <= n; i++ {
		if s, ok := changed[i]; ok {
			b.WriteString(s)
			continue
		}
		fmt.Fprintf(&b, "line %d\n", i)
	}
	return b.String()
}

// put writes a file. One of the base is settled then.
func (w *world) put(at, p, text string) {
	w.t.Helper()
	if err := os.WriteFile(filepath.Join(at, p), []byte(text), 0o644); err != nil {
		w.t.Fatal(err)
	}
	if at == w.base {
		w.settled(p)
	}
}

// settled waits until a file of the base is so old that its times would tell if it changed again: else merges do not know it.
func (w *world) settled(p string) {
	w.t.Helper()
	var st syscall.Stat_t
	if err := syscall.Stat(filepath.Join(w.base, p), &st); err != nil {
		w.t.Fatal(err)
	}
	<-time.After(time.Until(time.Unix(st.Ctim.Unix()).Add(30 * time.Millisecond))) // layers: originalGrain
}

// has checks what a file on the host or in the mount has. It is read by another program: this one must not use the mount.
func (w *world) has(at, p, want string) {
	w.t.Helper()
	if got := w.sh("cat " + filepath.Join(at, p) + "; echo ."); got != want+".\n" {
		w.t.Errorf("%s in %s has\n%s\nwant\n%s", p, at, strings.TrimSuffix(got, ".\n"), want)
	}
}

// edit writes to the mount, by another program, in place or as editors do.
func (w *world) edit(p, text string, atomic bool) {
	w.t.Helper()
	tmp := filepath.Join(w.home, "edited")
	w.put(w.home, "edited", text)
	if atomic {
		w.sh("cp " + tmp + " $M/" + p + ".tmp && mv $M/" + p + ".tmp $M/" + p)
		return
	}
	w.sh("cat " + tmp + " >$M/" + p)
}

func TestCommitMerge(t *testing.T) {
	w := newWorld(t)
	w.put(w.base, "f", lines(30, nil))
	w.put(w.base, "same", lines(30, nil))
	w.put(w.base, "saved", lines(30, nil))
	w.mount()
	ours, theirs := map[int]string{3: "ours 3\n", 12: ""}, map[int]string{20: "theirs 20\n", 25: "theirs 25\ntheirs 25b\n"}
	both := map[int]string{3: ours[3], 12: "", 20: theirs[20], 25: theirs[25]}
	w.edit("f", lines(30, ours), false)
	w.edit("saved", lines(30, ours), true)
	w.edit("same", lines(30, map[int]string{9: "ours 9\n"}), false)
	w.sh("echo alone >$M/alone")
	w.rewind("checkpoint", "ours", "--durable").want(t, 0)
	w.put(w.base, "f", lines(30, theirs)) // in place
	w.sh("mv $B/saved $B/.old")
	w.put(w.base, "saved", lines(30, theirs)) // another file
	w.sh("rm $B/.old; chmod 755 $B/saved")
	w.put(w.base, "same", lines(30, map[int]string{9: "theirs 9\n"}))
	before := w.tree(w.base)

	w.rewind("commit").want(t, exitConflict, "conflict: f: ", "conflict: saved: ", "conflict: same: ")
	w.rewind("commit", "--merge", "ours").want(t, exitUsage, "present state")
	w.rewind("commit", "--markers").want(t, exitUsage, "--merge")
	w.rewind("commit", "--merge", "--dry-run").want(t, exitConflict, "note: f: merged", "conflict: same: ", "places: 1", "--markers")
	out := w.rewind("commit", "--merge")
	out.want(t, exitConflict, "conflict: same: ", "1 conflict: nothing was written")
	if got := w.tree(w.base); got != before {
		t.Fatalf("a commit with conflicts changed the base:\n%s", got)
	}
	w.has(w.mp, "f", lines(30, ours))

	// The clean ones alone.
	w.rewind("commit", "--merge", "--", "f", "saved", "alone").want(t, 0, "note: f: merged in the mount", "note: saved: merged", "Wrote 3 paths")
	for _, at := range []string{w.base, w.mp} {
		w.has(at, "f", lines(30, both))
		w.has(at, "saved", lines(30, both))
		w.same("stat -c %a "+at+"/saved", "755\n")
	}
	w.rewind("commit", "--", "f", "saved", "alone").want(t, 0, "Nothing to do")

	// With markers, in the mount only; a commit refuses until they are resolved.
	marked := lines(30, map[int]string{9: "<<<<<<< mount\nours 9\n=======\ntheirs 9\n>>>>>>> host\n"})
	res := w.rewind("commit", "--merge", "--markers", "--json")
	if res.code != exitConflict || !strings.Contains(res.out, `"merge":"markers"`) || !strings.Contains(res.out, `"merged":1`) {
		t.Errorf("commit --merge --markers: %+v", res)
	}
	w.has(w.mp, "same", marked)
	w.has(w.base, "same", lines(30, map[int]string{9: "theirs 9\n"}))
	w.rewind("commit").want(t, exitConflict, "conflict: same: it still has conflict markers")
	w.rewind("commit", "--merge", "--markers").want(t, exitConflict, "it still has conflict markers")
	w.rewind("undo").want(t, 0)
	w.has(w.mp, "same", lines(30, map[int]string{9: "ours 9\n"}))
	w.rewind("commit").want(t, exitConflict, "conflict: same: it was changed on the host, too")
	w.rewind("commit", "--merge", "--markers").want(t, exitConflict, "it has conflict markers in the mount now", "Resolve them in the mount")
	w.has(w.mp, "same", marked)
	w.edit("same", lines(30, map[int]string{9: "resolved 9\n"}), true)
	w.rewind("commit").want(t, 0, "Wrote 1 path")
	w.has(w.base, "same", lines(30, map[int]string{9: "resolved 9\n"}))
	w.rewind("status").want(t, 0)

	// Both go on: now what was brought is what the two have in common.
	next := map[int]string{3: ours[3], 12: "", 20: "theirs 20 again\n", 25: theirs[25]}
	w.put(w.base, "f", lines(30, next))
	next[20], next[28] = both[20], "ours 28\n"
	w.edit("f", lines(30, next), true)
	w.rewind("commit").want(t, exitConflict, "conflict: f: ")
	w.rewind("commit", "--merge").want(t, 0, "note: f: merged")
	next[20] = "theirs 20 again\n"
	w.has(w.base, "f", lines(30, next))
	w.has(w.mp, "f", lines(30, next))
	w.rewind("fsck").want(t, 0)
	w.rewind("ledger", "verify").want(t, 0)
	w.rewind("ledger", "--event", "merge").want(t, 0, "changes on the host")
	w.unmount()
}

// What was on the host before a merge comes back by an undo of the commit, and is in nobody's way: with it merged, a commit brings
// it again; for who went back to before the merge it is a conflict, as it was.
func TestCommitMergeUndo(t *testing.T) {
	w := newWorld(t)
	w.put(w.base, "f", lines(30, nil))
	w.mount()
	ours, theirs := lines(30, map[int]string{3: "ours 3\n"}), lines(30, map[int]string{20: "theirs 20\n"})
	both := lines(30, map[int]string{3: "ours 3\n", 20: "theirs 20\n"})
	w.edit("f", ours, false)
	w.rewind("checkpoint", "before", "--durable").want(t, 0)
	w.put(w.base, "f", theirs)
	w.rewind("commit", "--merge").want(t, 0, "note: f: merged")
	w.rewind("commit", "--undo").want(t, 0)
	w.has(w.base, "f", theirs)
	w.has(w.mp, "f", both)
	w.rewind("commit").want(t, 0, "Wrote 1 path")
	w.has(w.base, "f", both)
	w.rewind("commit", "--undo").want(t, 0)
	w.rewind("rollback", "before").want(t, 0)
	w.has(w.mp, "f", ours)
	w.rewind("commit").want(t, exitConflict, "conflict: f: ")
	w.has(w.base, "f", theirs)
	w.rewind("undo").want(t, 0)
	w.rewind("commit").want(t, 0, "Wrote 1 path")
	w.rewind("rollback", "before").want(t, 0)
	w.rewind("commit").want(t, exitConflict, "conflict: f: ") // what the user did is in none of the mount
	w.has(w.base, "f", both)
	w.rewind("commit", "--merge").want(t, 0)
	w.has(w.base, "f", both)
	w.has(w.mp, "f", both)
	w.rewind("fsck").want(t, 0)
	w.unmount()
}

// Where it is not known what a file was, or it is no text, nothing is merged.
func TestCommitMergeUnknown(t *testing.T) {
	w := newWorld(t)
	w.sh(`printf 'a\000b\n' >$B/bin`)
	w.put(w.base, "f", lines(30, nil))
	w.mount()
	w.put(w.base, "made", "their\n")
	w.sh(`printf 'a\000c\n' >$M/bin; rm $M/f; echo ours >$M/new`)
	w.rewind("checkpoint", "--durable").want(t, 0)
	w.sh(`printf 'a\000d\n' >$B/bin; echo more >>$B/f; echo theirs >$B/new`)
	before := w.tree(w.base)
	w.rewind("commit", "--merge", "--markers").want(t, exitConflict, "conflict: bin: ", "conflict: f: ", "conflict: new: it was made on the host, too")
	if got := w.tree(w.base); got != before {
		t.Errorf("the base was\n%s\nand is\n%s", before, got)
	}
	w.unmount()
}

func TestCommitHunks(t *testing.T) {
	w := newWorld(t)
	w.put(w.base, "f", lines(60, nil))
	w.put(w.base, "g", lines(10, nil))
	w.mount()
	all := map[int]string{3: "ours 3\n", 20: "ours 20\n", 22: "ours 22\n", 40: "", 59: "ours 59\n"}
	w.edit("f", lines(60, all), false)
	w.edit("g", lines(10, map[int]string{5: "ours 5\n"}), true)
	w.edit("new", lines(20, nil), false)
	w.sh("chmod 755 $M/f")
	// f: not the mode, the first, of the next two, which are one, the second, then nothing of it; not g; of new, all of its only hunk.
	w.finish([]string{"commit", "-i"}, stdin("h\nn\ny\ns\nn\ny\nd\nn\nh\n?\ny\n")).want(t, 0, "Wrote 2 paths", "note: f: a part of it")
	w.has(w.base, "f", lines(60, map[int]string{3: all[3], 22: all[22]}))
	w.has(w.base, "g", lines(10, nil))
	w.has(w.base, "new", lines(20, nil))
	w.has(w.mp, "f", lines(60, all))
	w.same("stat -c %a $B/f", "644\n")
	w.finish([]string{"commit", "-i"}, stdin("h\nq\n")).want(t, exitFailure, "given up")
	w.finish([]string{"commit", "-i"}, stdin("h\ny\nd\nd\n")).want(t, 0, "Wrote 1 path") // the mode alone
	w.same("stat -c %a $B/f", "755\n")

	// The rest by a patch that is edited.
	patch := w.rewind("commit", "--dry-run", "--patch")
	patch.want(t, 0, "diff --git a/f b/f", "+ours 59", "diff --git a/g b/g")
	var few []string
	skip := false
	for _, l := range strings.SplitAfter(patch.out, "\n") {
		if strings.HasPrefix(l, "@@ ") || strings.HasPrefix(l, "diff ") {
			skip = false
		}
		if strings.HasPrefix(l, "@@ -37") {
			skip = true
		}
		if !skip {
			few = append(few, l)
		}
	}
	w.finish([]string{"commit", "--hunks", "-"}, stdin(strings.Join(few, ""))).want(t, 0, "Wrote 2 paths")
	w.has(w.base, "f", lines(60, map[int]string{3: all[3], 20: all[20], 22: all[22], 59: all[59]}))
	w.finish([]string{"commit", "--hunks", "-"}, stdin(strings.Join(few, ""))).want(t, exitConflict, "does not fit", "nothing was written")
	w.finish([]string{"commit", "--hunks", "-"}, stdin("")).want(t, exitFailure, "nothing was chosen")
	w.finish([]string{"commit", "--hunks", "-"}, stdin("diff --git a/../x b/../x\n--- a/../x\n+++ b/../x\n@@ -1 +1 @@\n-a\n+b\n")).want(t, exitPath)
	w.rewind("commit", "--undo").want(t, 0)
	w.has(w.base, "f", lines(60, map[int]string{3: all[3], 22: all[22]}))
	w.rewind("commit").want(t, 0, "Wrote 2 paths")
	w.has(w.base, "f", lines(60, all))
	w.rewind("commit").want(t, 0, "Nothing to do")
	if got, want := w.tree(w.base), w.tree(w.mp); got != want {
		t.Errorf("the mount is\n%s\nthe base is\n%s", want, got)
	}
	w.unmount()
}

// One line of the markers is enough to hold a file back, and another name does not let it through.
func TestCommitMarkersHold(t *testing.T) {
	w := newWorld(t)
	w.put(w.base, "half", lines(20, nil))
	w.put(w.base, "moved", lines(20, nil))
	w.mount()
	w.sh("echo more | tee -a $M/half >>$M/moved") // what a commit brought is what both sides had, however soon
	w.rewind("commit").want(t, 0, "Wrote 2 paths")
	w.edit("half", lines(20, map[int]string{3: "ours 3\n"}), false)
	w.edit("moved", lines(20, map[int]string{3: "ours 3\n"}), false)
	for _, name := range []string{"half", "moved"} {
		w.put(w.base, name, lines(20, map[int]string{3: "theirs 3\n"}))
	}
	w.rewind("commit", "--merge", "--markers").want(t, exitConflict, "Resolve them in the mount")
	before := w.tree(w.base)
	w.sh("cd $M && sed -i '/^<<<</d' half && mv moved sub/b.txt")
	w.rewind("commit").want(t, exitConflict, "half: it still has conflict markers", "sub/b.txt: it still has conflict markers")
	if got := w.tree(w.base); got != before {
		t.Errorf("the base was\n%s\nand is\n%s", before, got)
	}
	w.sh("cd $M && sed -i '/^[=>]/d' half && sed -i '/^[<=>]/d' sub/b.txt")
	w.rewind("commit").want(t, 0, "Wrote")
	w.unmount()
}

// A patch that was cut or edited brings what is in it, or is refused. It never stands for more than it says.
func TestCommitHunksSayNoMore(t *testing.T) {
	w := newWorld(t)
	for _, name := range []string{"f", "g", "gone", "old", "link", "kind"} {
		w.put(w.base, name, lines(20, nil))
	}
	w.sh("ln $B/link $B/link2; ln -s f $B/sym; ln -s f $B/target")
	w.mount()
	changed := lines(20, map[int]string{3: "ours 3\n", 18: "ours 18\n"})
	w.edit("f", changed, false)
	w.edit("g", changed, false)
	w.edit("link", changed, false)
	w.edit("new", lines(3, nil), false)
	w.sh("cd $M && mv old moved && rm gone sym kind && echo file >sym && ln -s g kind && ln -sfn g target")
	before := w.tree(w.base)
	for patch, why := range map[string]string{
		"diff --git a/f b/f\n--- a/f\n+++ b/f\n":                                                                                     `no hunk of "f"`,
		"diff --git a/f b/f\n":                                                                                                       `no hunk of "f"`,
		"diff --git a/new b/new\nnew file mode 100644\n--- /dev/null\n+++ b/new\n":                                                   `no hunk of "new"`,
		"diff --git a/gone b/gone\ndeleted file mode 100644\n--- a/gone\n+++ /dev/null\n":                                            `no hunk of "gone"`,
		"diff --git a/gone b/gone\ndeleted file mode 100644\n--- a/gone\n+++ /dev/null\n@@ -1 +0,0 @@\n-line 1\n":                    "leave some of its lines",
		"diff --git a/f b/f\ndeleted file mode 100644\n":                                                                             "not both",
		"diff --git a/g b/f\nrename from g\nrename to f\n":                                                                           "there in the checkpoint",
		"diff --git a/g b/f\n--- a/g\n+++ b/f\n@@ -3 +3 @@\n-line 3\n+ours 3\n":                                                      "there in the checkpoint",
		"diff --git a/f b/f\nBinary files a/f and b/f differ\ndiff --git a/f b/f\n--- a/f\n+++ b/f\n@@ -3 +3 @@\n-line 3\n+ours 3\n": "twice",
		"diff --git a/kind b/kind\n--- a/kind\n+++ b/kind\n@@ -3 +3 @@\n-line 3\n+ours 3\n":                                          "no file in the checkpoint",
		"diff --git a/sym b/sym\nnew file mode 100644\n--- /dev/null\n+++ b/sym\n@@ -0,0 +1 @@\n+other\n":                            "no file on the host",
		"diff --git a/link b/link\n--- a/link\n+++ b/link\n@@ -3 +3 @@\n-line 3\n+ours 3\n":                                          "several names",
	} {
		out := w.finish([]string{"commit", "--hunks", "-"}, stdin(patch))
		if out.code == 0 || !strings.Contains(out.err, why) {
			t.Errorf("%q: exit %d, %s%s; want %q", patch, out.code, out.out, out.err, why)
		}
	}
	if got := w.tree(w.base); got != before {
		t.Fatalf("the base was\n%s\nand is\n%s", before, got)
	}
	// All of it, as it was printed, is all there is, also when it is long.
	w.edit("long", strings.Repeat(strings.Repeat("x", 99)+"\n", 9000), false)
	w.edit("long2", strings.Repeat(strings.Repeat("y", 99)+"\n", 9000), false)
	patch := w.rewind("commit", "--dry-run", "--patch")
	w.finish([]string{"commit", "--hunks", "-"}, stdin(patch.out)).want(t, 0, "Wrote")
	if got, want := w.tree(w.base), w.tree(w.mp); got != want {
		t.Errorf("the mount is\n%s\nthe base is\n%s", want, got)
	}
	w.rewind("commit").want(t, 0, "Nothing to do")
	w.unmount()
}

// What was brought of a file by hunks is what both sides have in common when the user goes on with it.
func TestCommitHunksThenMerge(t *testing.T) {
	w := newWorld(t)
	w.put(w.base, "f", lines(60, nil))
	w.put(w.base, "g", lines(60, nil))
	w.mount()
	ours := map[int]string{3: "ours 3\n", 30: "ours 30\n"}
	w.edit("f", lines(60, ours), false)
	w.edit("g", lines(60, ours), false)
	w.put(w.base, "g", lines(60, map[int]string{50: "theirs 50\n"}))
	patch := "diff --git a/g b/g\n--- a/g\n+++ b/g\n@@ -3 +3 @@\n-line 3\n+ours 3\n"
	w.finish([]string{"commit", "--on-conflict", "ours", "--hunks", "-"}, stdin(patch)).want(t, exitConflict, "a part of it cannot be brought over that")
	w.has(w.base, "g", lines(60, map[int]string{50: "theirs 50\n"}))
	w.rewind("commit", "--on-conflict", "ours", "--", "g").want(t, 0, "Wrote 1 path")
	w.has(w.base, "g", lines(60, ours))

	w.finish([]string{"commit", "-i"}, stdin("h\ny\nn\n")).want(t, 0, "Wrote 1 path")
	theirs := lines(60, map[int]string{3: "theirs 3\n", 50: "theirs 50\n"})
	w.put(w.base, "f", theirs)
	w.rewind("commit").want(t, exitConflict, "conflict: f: ")
	w.rewind("commit", "--merge").want(t, 0, "note: f: merged")
	want := lines(60, map[int]string{3: "theirs 3\n", 30: "ours 30\n", 50: "theirs 50\n"})
	w.has(w.base, "f", want)
	w.has(w.mp, "f", want)
	w.unmount()
}

// diff --patch of what was never committed says the same as a dry run of the commit, and git takes it.
func TestCommitHunksAsGit(t *testing.T) {
	git, err := exec.LookPath("git")
	if err != nil {
		t.Skip("no git")
	}
	w := newWorld(t)
	w.put(w.base, "f", lines(60, nil))
	w.mount()
	w.edit("f", lines(60, map[int]string{3: "ours 3\n", 30: "ours 30\n"}), false)
	diff := w.rewind("diff", "--patch", "base")
	diff.want(t, 0)
	w.rewind("commit", "--dry-run", "--patch").want(t, 0, diff.out)
	w.sh("cp -a $B $B.git")
	cmd := exec.Command(git, "apply", "-")
	cmd.Dir, cmd.Stdin = w.base+".git", strings.NewReader(diff.out)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("git apply: %v: %s", err, out)
	}
	w.finish([]string{"commit", "--hunks", "-"}, stdin(diff.out)).want(t, 0, "Wrote 1 path")
	w.same("cmp $B/f $B.git/f && echo same", "same\n")
	w.unmount()
}

// Programs go on writing beside it, and both sides go on with the file: nothing of either is lost.
func TestCommitMergeUnderWriters(t *testing.T) {
	w := newWorld(t)
	w.put(w.base, "f", lines(40, nil))
	w.mount()
	w.edit("f", lines(40, map[int]string{1: "ours 0\n"}), false)
	w.rewind("checkpoint", "--durable").want(t, 0)
	goOn := filepath.Join(w.home, "go")
	w.put(w.home, "go", "")
	busy := exec.Command("sh", "-c", "cd $M; i=0; while test -e $GO; do i=$((i+1)); echo $i >busy; echo $i >busy.new; mv busy.new busy2; done")
	busy.Env = append(os.Environ(), "M="+w.mp, "GO="+goOn)
	if err := busy.Start(); err != nil {
		t.Fatal(err)
	}
	stop := func() { // a shell that is killed would leave its mv in the mount
		_ = os.Remove(goOn)
		_ = busy.Wait()
	}
	defer stop()
	want := map[int]string{1: "ours 0\n"}
	for i := range 10 {
		theirs := map[int]string{}
		for k, v := range want {
			theirs[k] = v
		}
		if i == 0 {
			delete(theirs, 1)
		}
		theirs[10+i] = fmt.Sprintf("theirs %d\n", i)
		w.put(w.base, "f", lines(40, theirs))
		want[1], want[30] = fmt.Sprintf("ours %d\n", i), fmt.Sprintf("ours too %d\n", i)
		w.edit("f", lines(40, want), i%2 == 0)
		want[10+i] = theirs[10+i]
		w.rewind("commit", "--merge").want(t, 0, "note: f: merged")
		w.has(w.base, "f", lines(40, want))
		w.has(w.mp, "f", lines(40, want))
	}
	stop()
	w.rewind("fsck").want(t, 0)
	w.unmount()
}

func TestCommitMergeUnprivileged(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can become somebody else")
	}
	if _, err := exec.LookPath("fusermount3"); err != nil {
		t.Skip("there is no fusermount3")
	}
	w := newWorldFor(t, &syscall.Credential{Uid: 65534, Gid: 65534})
	w.sh("seq 30 >$B/f")
	w.settled("f")
	if w.finish([]string{"mount", w.base}, nil).code != 0 {
		t.Skip("no mount can be made by an ordinary user here")
	}
	w.sh("sed -i s/^3$/three/ $M/f; seq 5 >$M/g")
	w.rewind("checkpoint", "--durable").want(t, 0)
	w.sh("sed -i s/^20$/twenty/ $B/f")
	w.rewind("commit", "--merge").want(t, 0, "note: f: merged")
	w.same("cmp $B/f $M/f && grep -c t $B/f", "2\n")
	w.sh("sed -i 's/^1$/one/; s/^30$/thirty/' $M/f")
	w.finish([]string{"commit", "-i"}, stdin("h\ny\nn\n")).want(t, 0, "Wrote 1 path")
	w.same("grep -c [eo] $B/f", "3\n")
	w.unmount()
}
