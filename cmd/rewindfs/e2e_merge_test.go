package main

import (
	"fmt"
	"strings"
	"testing"
)

func TestMergeMainJob(t *testing.T) {
	w := newWorld(t)
	w.mount()
	w.sh("seq 20 >$M/text; mkdir $M/old; echo x >$M/old/x")
	w.rewind("checkpoint", "start").want(t, 0)
	w.rewind("fork", "start", "--branch", "try").want(t, 0)
	try := w.mp + "-try"
	w.sh("cd $M-try; sed -i 's/^18$/try/' text; mv old new; echo try >added; rm a.txt")
	w.sh("cd $M; sed -i 's/^2$/main/' text; echo more >>old/x; echo main >mine")
	before := w.sh("cd $M; find . | sort; cat text old/x")

	w.rewind("merge", "try", "--dry-run").want(t, 0, "A  added", "D  a.txt", "M  text", "old -> new", "line by line", "would change", "Nothing was done")
	w.same("cd $M; find . | sort; cat text old/x", before)
	if out := w.rewind("log").out; strings.Contains(out, "merge") {
		t.Errorf("a dry run made a checkpoint:\n%s", out)
	}
	d := w.rewind("merge", "try", "--json").data(t)
	if d["branch"] != "try" || d["into"] != "main" || d["changed_paths"].(float64) != 4 || len(d["conflicts"].([]any)) != 0 || fmt.Sprint(d["merged"]) != "[map[path:text]]" {
		t.Errorf("the answer: %v", d)
	}
	merged := w.sh("cd $M; cat text new/x; ls")
	if want := strings.Replace(strings.Replace(seq(20), "\n18\n", "\ntry\n", 1), "\n2\n", "\nmain\n", 1) + "x\nmore\nadded\n"; !strings.HasPrefix(merged, want) || !strings.Contains(merged, "mine\nnew\n") {
		t.Errorf("merged:\n%s", merged)
	}
	w.same("cat $M-try/text | sed -n 2p; ls $M-try | grep -c mine || true", "2\n0\n")
	w.rewind("ledger", "--event", "merge").want(t, 0, "try")
	w.rewind("log", "--ops").want(t, 0, "merge")

	w.rewind("undo").want(t, 0, "before branch 'try' was merged")
	w.same("cd $M; find . | sort; cat text old/x", before)
	w.rewind("redo").want(t, 0)
	w.same("cd $M; cat text new/x; ls", merged)
	w.rewind("merge", "try").want(t, 0, "nothing that is not in main already")

	// A conflict is told whole, and changes nothing: also of a branch that is not mounted.
	w.sh("echo try >$M-try/clash; echo try >$M-try/fine; rm -r $M-try/new; echo main >$M/clash; echo even more >>$M/new/x")
	w.rewind("unmount", try).want(t, 0)
	before = w.sh("cd $M; find . | sort; cat clash")
	w.rewind("merge", "try").want(t, exitConflict, "add/add", "clash", "modify/delete", "new/x", "nothing was changed")
	w.same("cd $M; find . | sort; cat clash", before)
	out := w.rewind("merge", "try", "--json")
	out.want(t, exitConflict, `"kind":"add/add"`, `"path":"clash"`, `"success":false`)
	w.sh("echo try >$M/clash; rm -r $M/new")
	w.rewind("merge", "try").want(t, 0, "A  fine")
	w.same("cat $M/fine", "try\n")
	w.rewind("branch", "mount", "try").want(t, 0)
	w.same("cat $M-try/clash", "try\n")

	w.rewind("merge", "none").want(t, exitNoSession, "no branch", "main, try")
	w.rewind("merge", "main").want(t, exitUsage, "into itself")
	w.in(try, "merge", "main").want(t, 0, "A  mine")
	w.same("diff -r $M $M-try && echo same", "same\n")
	w.unmount()
	w.mount()
	w.same("diff -r $M $M-try && echo same", "same\n")
	w.unmount()
}

func seq(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintln(&b, i+1)
	}
	return b.String()
}

// What programs have open when a merge changes it is told apart from what is new, as after a rollback.
func TestMergeUnderOpenFiles(t *testing.T) {
	w := newWorld(t)
	w.mount()
	w.sh("echo old >$M/f; echo old >$M/gone; mkdir $M/d; echo in >$M/d/in")
	w.rewind("checkpoint", "start").want(t, 0)
	w.rewind("fork", "start", "--branch", "try").want(t, 0)
	w.sh("cd $M-try; echo theirs >f; rm gone; mv d e; echo new >new")
	out := w.sh(`cd $M; cat f gone d/in >/dev/null; ls . d >/dev/null
exec 3>>f 4<gone 5<d/in
` + asProgram + "=1 HOME=" + w.home + " " + w.bin + ` merge try >/dev/null
cat f new e/in; ls
echo lost 2>/dev/null >&3 && echo the write went somewhere
cat f
cat <&4; cat <&5
test ! -e gone && test ! -e d && echo gone`)
	if want := "theirs\nnew\nin\na.txt\n"; !strings.HasPrefix(out, want) || !strings.HasSuffix(out, "theirs\nold\nin\ngone\n") {
		t.Errorf("seen by programs:\n%s", out)
	}
	w.unmount()
}

// Programs that write all the while delay a merge, and lose nothing by it.
func TestMergeUnderWriters(t *testing.T) {
	w := newWorld(t)
	w.mount()
	w.rewind("fork", "--branch", "try").want(t, 0)
	out := w.sh(`cd /; run=$(mktemp)
(n=0; while test -e $run; do n=$((n+1)); echo $n >>$M/log; echo $n >$M/last; done; echo $n) >$run.n &
for i in 1 2 3 4 5 6; do
	echo $i >$M-try/f$i; echo $i >$M-try/same
	` + asProgram + "=1 HOME=" + w.home + " " + w.bin + ` merge try -s proj >/dev/null
	cat $M/f$i $M/same
done
rm $run; wait
test "$(cat $M/log)" = "$(seq $(cat $run.n))" && test $(cat $M/last) = $(cat $run.n) && echo whole; rm $run.n`)
	if want := "1\n1\n2\n2\n3\n3\n4\n4\n5\n5\n6\n6\nwhole\n"; out != want {
		t.Errorf("printed %q", out)
	}
	w.unmount()
}
