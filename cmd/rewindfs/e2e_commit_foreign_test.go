package main

import (
	"strings"
	"testing"
)

// What the user puts into a directory on the host after the agent removed it is not the agent's: it stays, whether
// the directory is to go, is another one now, is a file, had been moved first, or comes again with a file of that name.
func TestCommitLeavesWhatCameInRemovedDirectories(t *testing.T) {
	w := newWorld(t)
	w.sh("cd $B; for d in gone again file moved same; do mkdir -p $d/s; echo 1 >$d/1; echo 2 >$d/s/2; done; mkdir -p far/s; echo 1 >far/s/1")
	w.mount()
	w.sh("cd $M; rm -r gone again file moved/s same; mkdir again same; echo n >again/n; echo a >same/u; echo f >file; mv moved m; mv m/1 m1; rm -r m; mv far away")
	w.rewind("checkpoint", "c").want(t, 0)
	w.sh("cd $B; for d in gone again file moved same far; do echo user >$d/u; mkdir -p $d/s/t; echo user >$d/s/t/u; done")
	before := w.tree(w.base)
	out := w.rewind("commit")
	out.want(t, exitConflict, "conflict: gone: on the host it has something of others in it: u", "conflict: gone/s: ", "conflict: file: ", "conflict: moved: ", "conflict: same/u: it was made on the host, too")
	if w.tree(w.base) != before {
		t.Fatal("a commit with conflicts changed the base")
	}
	w.rewind("commit", "--on-conflict", "ours").want(t, 0, "skipped: gone", "skipped: file", "note: same/u", "skipped: again/u: it came on the host")
	w.same("cd $B; cat gone/u gone/s/t/u again/u again/s/t/u file/u moved/u same/s/t/u; cat same/u again/n away/u away/s/t/u",
		"user\nuser\nuser\nuser\nuser\nuser\nuser\na\nn\nuser\nuser\n")
	w.sh("cd $B; test ! -e gone/1 -a ! -e gone/s/2 -a ! -e again/1 -a ! -e far -a ! -e moved/1")
	w.unmount()
}

// What the user makes where the agent's own came and went, or in a directory of a name that the agent used, too, is
// no conflict, and --on-conflict ours does not remove it.
func TestCommitLeavesWhatCameBesides(t *testing.T) {
	w := newWorld(t)
	w.sh("mkdir $B/d")
	w.mount()
	w.sh("cd $M; mkdir logs logs/s; echo a >logs/a; for p in tmp d/tmp; do echo x >$p; done; rm tmp d/tmp; mkdir td; echo >td/x; rm -r td; echo a >both")
	w.sh("cd $B; mkdir -p logs/s logs/t td; for p in logs/b logs/s/b logs/t/b tmp d/tmp td/y; do echo user >$p; done; echo user >both")
	out := w.rewind("commit")
	out.want(t, exitConflict, "1 conflict:", "conflict: both: it was made on the host, too")
	w.rewind("commit", "--on-conflict", "ours").want(t, 0, "note: both")
	w.same("cd $B; cat logs/b logs/s/b logs/t/b tmp d/tmp td/y logs/a both", strings.Repeat("user\n", 6)+"a\na\n")
	w.rewind("commit").want(t, 0, "Nothing to do")
	w.rewind("commit", "--undo").want(t, 0)
	w.same("cd $B; cat logs/b logs/s/b logs/t/b tmp d/tmp td/y both; ls logs", strings.Repeat("user\n", 7)+"b\ns\nt\n")
	w.unmount()
}

// What came on the host in a directory that was removed and made anew is named, and stays; once.
func TestCommitNamesWhatCameInRemadeDirectories(t *testing.T) {
	w := newWorld(t)
	w.sh("cd $B; mkdir -p d/s kept; echo 1 >d/1; echo 2 >d/s/2")
	w.mount()
	w.sh("cd $M; rm -r d; mkdir d; echo n >d/n; echo k >kept/k")
	w.sh("cd $B; echo user >d/u; mkdir d/t; echo user >d/t/u; echo user >kept/u")
	for _, args := range [][]string{{"commit", "--dry-run"}, {"commit"}} {
		out := w.rewind(args...)
		if out.want(t, 0, "skipped: d/u: it came on the host", "skipped: d/t: "); strings.Contains(out.out, "kept/u") || strings.Contains(out.out, "d/t/u") || strings.Contains(out.out, "d/s: ") {
			t.Errorf("%v: %s", args, out.out)
		}
	}
	w.same("cd $B; cat d/u d/t/u d/n kept/u kept/k; ls d", "user\nuser\nn\nuser\nk\nn\nt\nu\n")
	if out := w.rewind("commit"); strings.Contains(out.out, "skipped") {
		t.Errorf("and again: %s", out.out)
	}
	w.unmount()
}
