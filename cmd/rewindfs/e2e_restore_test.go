package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// sameWith is world.same for a script that calls the program itself.
func (w *world) sameWith(script, want string) {
	w.t.Helper()
	cmd := exec.Command("sh", "-c", script)
	cmd.Env = []string{asProgram + "=1", noRaceSleep, "HOME=" + w.home, "PATH=" + os.Getenv("PATH"), "B=" + w.base, "M=" + w.mp, "BIN=" + w.bin}
	if got, err := cmd.CombinedOutput(); err != nil || string(got) != want {
		w.t.Errorf("%s\nsays %q, %v; want %q", script, got, err, want)
	}
}

// Single paths come back, and go again, beside programs that have them open, with the conversation going on.
func TestRestoreEndToEnd(t *testing.T) {
	w := newWorld(t)
	w.mount()
	w.sh("cd $M && printf 'changed\n' >>sub/b.txt && ln sub/deep/c hard && mkdir new && echo n >new/n && chmod 600 a.txt")
	w.rewind("checkpoint", "good").want(t, 0)
	w.sh("cd $M && echo keep >kept && rm -r sub && echo file >sub2 && echo bad >a.txt && mv new moved && echo other >hard")

	w.rewind("restore", "--dry-run", "good", "--", "sub", "a.txt").want(t, 0, "A  sub/b.txt", "M  a.txt", "Nothing was done")
	w.same("cat $M/a.txt; ls $M", "bad\na.txt\nhard\nkept\nmoved\nsub2\n")
	w.rewind("restore", "good", "--", "sub", "a.txt", "sub2").want(t, 0, "as at 'good'", "Undo with: rewindfs undo")
	w.same("cd $M && cat a.txt sub/b.txt sub/deep/c hard; ls; stat -c %a a.txt", "base a\nbase b\nchanged\nbase c\nother\na.txt\nhard\nkept\nmoved\nsub\n600\n")
	w.rewind("restore", "good", "--", "sub", "a.txt").want(t, 0, "Already as at 'good'")
	w.rewind("diff", "good", "--", "sub", "a.txt").want(t, 0, "No difference")

	// Undone and done again; the checkpoint of the state before is one to go back to.
	w.rewind("undo").want(t, 0, "before paths of 'good' were restored", "left as it is")
	w.same("cat $M/a.txt; ls $M", "bad\na.txt\nhard\nkept\nmoved\nsub2\n")
	w.rewind("redo").want(t, 0)
	w.same("cat $M/a.txt $M/sub/deep/c", "base a\nbase c\n")

	// Who has the old file open keeps it; the name leads to the new one, also through what the kernel has cached.
	w.sameWith("cd $M && echo now >a.txt && exec 3<>a.txt && $BIN -s $M restore good -- a.txt >/dev/null && cat a.txt && cat <&3 && echo more >&3 && cat a.txt", "base a\nnow\nbase a\n")
	w.sameWith("cd $M/moved && $BIN -s $M restore good -- moved new >/dev/null; ls $M/new; ls; touch x 2>/dev/null || echo gone", "n\ngone\n")

	// What comes from the base stays right when its path is changed here.
	w.rewind("restore", "base", "--", "sub/b.txt").want(t, 0)
	w.sh("cd $M && mv sub sub9 && mkdir sub && echo hidden >sub/b.txt && rm sub9/deep/c")
	w.same("cat $M/sub9/b.txt", "base b\n")
	w.unmount()
	w.mount()
	w.same("cat $M/sub9/b.txt $M/sub/b.txt", "base b\nhidden\n")
	w.rewind("restore", "base", "--", "sub9/b.txt").want(t, 0, "D  sub9/b.txt")

	// Refusals say what to do.
	w.sh("rm -rf $M/sub && echo f >$M/sub")
	w.rewind("restore", "good", "--", "sub/deep/c").want(t, exitPath, "sub", "no directory now", "restore that path itself")
	w.rewind("restore", "good", "--", "nowhere").want(t, exitPath, "nowhere", "no such path", "rewindfs diff good")
	w.rewind("restore", "good", "--", "../x").want(t, exitPath, "leads out")
	w.rewind("restore", "nothing", "--", "a.txt").want(t, exitCheckpoint, "nothing")
	w.rewind("restore", "good").want(t, exitUsage, "restore REF -- PATH")

	// Everything at once is as good as a rollback, but the line goes on.
	d := w.rewind("restore", "--json", "good", "--", ".").data(t)
	if d["noop"] != false || d["saved"] == "" || d["op"] == 0.0 || len(d["changes"].([]any)) == 0 {
		t.Errorf("restore --json: %v", d)
	}
	w.rewind("diff", "good").want(t, 0, "No difference")
	if out := w.rewind("ledger", "--event", "restore").want(t, 0).out; strings.Count(out, "restore") < 4 {
		t.Errorf("the ledger says:\n%s", out)
	}
	w.rewind("log", "--ops").want(t, 0, "restore", "good")
	w.unmount()
}
