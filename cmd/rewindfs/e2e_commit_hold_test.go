package main

import (
	"strings"
	"testing"
)

// Git finds a repository by what is in a directory, and its configuration through commondir: whatever it is called, an
// agent cannot make one on the host that runs something, in one commit or in several.
func TestCommitHoldsGitByContents(t *testing.T) {
	w := newWorld(t)
	w.sh("mkdir $B/.git; echo x >$B/.git/HEAD")
	w.mount()
	w.sh(`cd $M; mkdir -p evil/objects evil/refs; echo fsmonitor >evil/config; echo ../evil >.git/commondir
mkdir -p bare/objects bare/refs; echo ref >bare/HEAD; ln -s ../evil bare/hooks; mkdir wt; echo ref >wt/HEAD; echo ../evil >wt/commondir; echo x >wt/config.worktree
mkdir later; echo fsmonitor >later/config; mkdir -p fine.git/objects fine.git/refs; echo ref >fine.git/HEAD; mkdir objects; echo o >objects/o`)
	w.rewind("commit").want(t, 0, "held: evil/config", "held: .git/commondir", "held: bare/hooks", "held: bare/HEAD", "held: wt/commondir", "held: wt/config.worktree")
	w.sh("cd $B; test ! -e evil/config -a ! -e .git/commondir -a ! -L bare/hooks -a ! -e wt/commondir -a ! -e bare/HEAD; test -e later/config -a -e wt/HEAD -a -e fine.git/HEAD -a -e objects/o")
	// What was a file like any other becomes a configuration by what comes around it.
	w.sh("cd $M/later; mkdir -p objects/ab refs/heads; echo ref >HEAD; echo o >objects/ab/c")
	w.rewind("commit").want(t, 0, "held: later/HEAD", "held: later/objects/ab/c", "held: later/refs/heads")
	w.sh("cd $B/later; test ! -e HEAD -a ! -e objects -a ! -e refs")
	w.rewind("commit", "--include-executable-config").want(t, 0, "Wrote")
	if got, want := w.tree(w.base), w.tree(w.mp); got != want {
		t.Fatalf("the mount is\n%s\nthe base is\n%s", want, got)
	}
	w.sh("echo o >$M/later/objects/ab/d; echo o >$M/bare/objects/d")
	w.rewind("commit", "--undo").want(t, 0, "Put back")
	w.sh("test ! -e $B/later/objects -a ! -e $B/evil/config")
	w.unmount()
}

// The tree has no say in what is kept and left out: not by taking the file with the rules away either, or by making it such that
// the next mount refuses it.
func TestCommitHoldsRules(t *testing.T) {
	for name, change := range map[string]string{
		"gone": "rm rewindfs.toml", "a directory": "rm rewindfs.toml; mkdir rewindfs.toml; echo x >rewindfs.toml/x", "moved": "mv rewindfs.toml x",
		"a link": "ln -sf /etc/passwd rewindfs.toml", "a FIFO": "rm rewindfs.toml; mkfifo rewindfs.toml", "another": "echo >rewindfs.toml", "mode": "chmod 600 rewindfs.toml",
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.sh(`printf '[paths]\nignore = ["secret/"]\n' >$B/rewindfs.toml; mkdir $B/secret`)
			w.mount()
			w.sh("cd $M; " + change + "; echo y >other")
			w.rewind("commit").want(t, 0, "held: rewindfs.toml", "Wrote")
			w.same("stat -c %F:%a $B/rewindfs.toml; tail -n1 $B/rewindfs.toml; cat $B/other", "regular file:644\nignore = [\"secret/\"]\ny\n")
			w.unmount()
		})
	}
}

// A bit that is left out is named, and an empty path is not everything.
func TestCommitSaysWhatItLeavesOut(t *testing.T) {
	w := newWorld(t)
	w.mount()
	w.sh("cp /bin/true $M/suid; chmod 4755 $M/suid; cp /bin/true $M/plain")
	w.rewind("commit", "--", "").want(t, exitPath, "empty")
	w.rewind("diff", "base", "--", "").want(t, exitPath, "empty")
	w.sh("test ! -e $B/plain")
	out := w.rewind("commit")
	out.want(t, 0, "note: suid: without its setuid or setgid bit: bring that with --allow-special")
	if strings.Contains(out.out, "note: plain") {
		t.Errorf("a file without such a bit: %s", out.out)
	}
	out = w.rewind("commit", "--allow-special")
	if out.want(t, 0, "Wrote 1 path"); strings.Contains(out.out, "note:") {
		t.Errorf("with the bit: %s", out.out)
	}
	w.sh("test -u $B/suid")
	w.unmount()
}
