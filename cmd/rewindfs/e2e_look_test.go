package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// A patch between two states is applied by git, and counts lines as git does; branches are compared, and drawn.
func TestLookEndToEnd(t *testing.T) {
	w := newWorld(t)
	git := func(dir string, args ...string) string {
		t.Helper()
		cmd := exec.Command("git", args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GIT_CONFIG_NOSYSTEM=1", "HOME="+w.home, "COLUMNS=80", "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@b", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@b")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
		return string(out)
	}
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("no git")
	}
	w.mount()
	w.sh(`cd $M && mkdir -p src/deep old && seq 1 400 >src/numbers && seq 1 30 >'with blank' && printf 'no end' >end && ln -s src link
		printf '\000\001bin' >bin && seq 1 50 >old/kept && seq 1 50 >old/edited && echo x >run && echo y >"$(printf 'odd\n\303\251"')" && : >empty && seq 1 9 >gone`)
	w.rewind("checkpoint", "before").want(t, 0)
	w.sh(`cd $M && sed -i 's/^7$/seven/; s/^300$/&\nmore/' src/numbers && seq 2 31 >'with blank' && printf 'no end\nbut one' >end && ln -sfn old link && printf '\000\002' >bin
		mv old src/deep/new && echo 51 >>src/deep/new/edited && chmod +x run && echo z >>"$(printf 'odd\n\303\251"')" && rm gone empty && seq 1 200 >src/added && chmod 600 a.txt && mkfifo pipe`)
	w.rewind("checkpoint", "after").want(t, 0)

	// The copies: git's own patch is made between the same two states.
	one, two := filepath.Join(w.home, "one"), filepath.Join(w.home, "two")
	w.sh("mkdir " + one + " && cp -a $M/.rewind/checkpoints/before/. " + one + " && mkdir " + two + " && cp -a $M/.rewind/checkpoints/after/. " + two + " && rm " + two + "/pipe")
	patch := w.rewind("diff", "--patch", "--binary", "before", "after").want(t, 0,
		"rename from old/kept", "rename to src/deep/new/kept", "similarity index 100%", "old mode 100644\nnew mode 100755", `"a/odd\n\303\251\""`,
		"\\ No newline at end of file", "GIT binary patch", "--- a/with blank\t\n", "# new fifo", "# mode 0644 -> 0600: a.txt").out
	file := filepath.Join(w.home, "patch")
	if err := os.WriteFile(file, []byte(patch), 0o644); err != nil {
		t.Fatal(err)
	}
	git(one, "init", "-q")
	git(one, "add", "-A")
	git(one, "commit", "-qm", "before")
	git(one, "apply", "--index", file)
	applied := strings.TrimSpace(git(one, "write-tree"))
	git(one, "--work-tree="+two, "add", "-A")
	if want := strings.TrimSpace(git(one, "write-tree")); applied != want {
		t.Errorf("the patch gives a tree that differs from the state after:\n%s", git(one, "diff", applied, want))
	}
	odd := regexp.MustCompile(`(?m)^ "odd.*\n`) // git writes such names in octal
	stat := odd.ReplaceAllString(git(one, "diff", "-M", "--stat=80", "HEAD", applied), "")
	if got := odd.ReplaceAllString(w.rewind("diff", "--stat", "before", "after").want(t, 0).out, ""); got != stat {
		t.Errorf("--stat says\n%s\ngit\n%s", got, stat)
	}
	w.rewind("diff", "-p", "before", "after", "--", "src/added").want(t, 0, "diff --git a/src/added", "@@ -0,0 +1,200 @@")
	w.rewind("diff", "-p", "before", "after", "--", "bin").want(t, 0, "Binary files a/bin and b/bin differ")

	// Branches: labels of one are known in the other, and the graph shows both.
	try := w.mp + "-try"
	w.rewind("fork", "before", "--branch", "try").want(t, 0)
	w.sh("echo tried >" + try + "/tried")
	w.in(try, "checkpoint", "tried").want(t, 0)
	w.rewind("diff", "tried", "after", "--name-status").want(t, 0, "D\ttried\n", "A\tsrc/added\n")
	w.rewind("restore", "tried", "--", "tried").want(t, 0, "A  tried")
	w.same("cat $M/tried", "tried\n")
	w.rewind("rollback", "before").want(t, 0)
	graph := w.rewind("log", "--graph").want(t, 0, "[main]  nothing changed", "[try]", "after  ", "(dropped)", "tried  ", "base", "left by the rollback to 'before'").out
	if !regexp.MustCompile(`(?m)^\|.*/`).MatchString(graph) {
		t.Errorf("no lines join:\n%s", graph)
	}
	ops := w.rewind("oplog").want(t, 0, "rollback to 'before'", "undo 1", "restore of paths from 'tried'", "undo 2", "checkpoint 'after'").out
	id := regexp.MustCompile(`checkpoint 'after'.*(01[0-9A-Z]{24})`).FindStringSubmatch(ops)
	if id == nil {
		t.Fatalf("no id of 'after' in\n%s", ops)
	}
	w.rewind("rollback", id[1]).want(t, 0)
	w.same("cat $M/run; ls $M/src/added", "x\n"+w.mp+"/src/added\n")
	w.unmount()
}
