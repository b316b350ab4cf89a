package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestKeptPaths(t *testing.T) {
	w := newWorld(t)
	rules := filepath.Join(w.base, "rewindfs.toml")
	if err := os.WriteFile(rules, []byte("[paths]\nkeep = ['*.log', '/cache/']\nignore = ['/out/']\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	w.mount()
	w.sh("cd $M; mkdir cache; echo one >cache/x; echo one >app.log; echo one >f")
	w.rewind("checkpoint", "start").want(t, 0)
	w.sh("cd $M; echo two >cache/x; echo new >cache/new; echo two >>app.log; echo two >f; mkdir out; echo o >out/o; rm -r sub; echo 'keep = []' >rewindfs.toml")
	w.rewind("status").want(t, 0, rules, "*.log", "/cache/", "/out/")
	if p := w.rewind("status", "--json").data(t)["paths"].(map[string]any); p["file"] != rules || len(p["keep"].([]any)) != 2 {
		t.Errorf("status says %v", p)
	}
	w.rewind("diff").want(t, 0, "app.log", "[kept]", "out/o", "[ignored]")
	w.rewind("rollback", "start", "--dry-run").want(t, 0, "Kept as now", "3 paths")

	// A program that writes its log all the while goes on with the same file.
	out := w.sh(`cd $M; exec 3>>app.log; ino=$(stat -c %i app.log)
` + asProgram + "=1 HOME=" + w.home + " " + w.bin + ` rollback start >/dev/null
echo three >&3; test $ino = $(stat -c %i app.log); cat app.log cache/x cache/new f; ls; cat rewindfs.toml`)
	if want := "one\ntwo\nthree\ntwo\nnew\none\na.txt\napp.log\ncache\nf\n"; !strings.HasPrefix(out, want) || strings.Contains(out, "out") && !strings.Contains(out, "'/out/'") || !strings.Contains(out, "/cache/") {
		t.Errorf("after the rollback:\n%s", out)
	}
	w.sh("echo four >>$M/app.log; rm $M/cache/new")
	w.rewind("undo").want(t, 0)
	w.same("cd $M; cat app.log f out/o; ls cache", "one\ntwo\nthree\nfour\ntwo\no\nx\n")
	w.rewind("redo").want(t, 0)
	w.same("cd $M; cat app.log f; ls cache", "one\ntwo\nthree\nfour\none\nx\n")
	if d := w.rewind("rollback", "start", "--json").data(t); d["noop"] != false && d["noop"] != true {
		t.Errorf("%v", d)
	}
	w.rewind("rollback", "start").want(t, 0, "Already at")
	w.unmount()

	// What the agent has written into its copy decides nothing; the host's file does, from the next mount on. A bad one is refused.
	if err := os.WriteFile(rules, []byte("[paths]\nkeep = ['[']\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	w.rewind("mount", w.base).want(t, exitPath, rules, "malformed", "correct the file")
	w.rewind("doctor").want(t, exitFailure, "malformed")
	if err := os.Remove(rules); err != nil {
		t.Fatal(err)
	}
	w.mount()
	w.same("cat $M/app.log", "one\ntwo\nthree\nfour\n")
	w.rewind("rollback", "start").want(t, 0)
	w.same("cat $M/app.log $M/cache/x", "one\none\n")
	w.unmount()
}

func TestIgnoredPaths(t *testing.T) {
	w := newWorld(t)
	w.sh("cd $B; mkdir out; echo base >out/o; echo base >sub/s.tmp; printf \"[paths]\\nignore = ['/out/', '*.tmp']\\n\" >rewindfs.toml")
	w.mount()
	w.sh("cd $M; echo new >out/new; echo changed >out/o; echo x >x.tmp; echo new >f; rm -r sub")
	w.rewind("commit", "--dry-run").want(t, 0, "x.tmp", "rewindfs.toml says to ignore it")
	w.rewind("commit").want(t, 0)
	w.same("cd $B; cat out/o f; ls out; test ! -e x.tmp; ls sub", "base\nnew\no\ns.tmp\n")
	w.same("cd $M; cat out/o out/new x.tmp; test ! -e sub", "changed\nnew\nx\n")
	w.sh("rm -r $M/out")
	w.rewind("commit").want(t, 0)
	w.same("cat $B/out/o", "base\n")
	w.unmount()
}
