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

// The setgid bit of a directory decides whose what is made there will be: it reaches the host if the directory there has it or a new one
// would inherit it.
func TestCommitSetgidDirectories(t *testing.T) {
	w := newWorld(t)
	w.sh("cd $B; mkdir had plain shared; chmod 2755 had shared")
	w.mount()
	w.sh("cd $M; chmod g+w had; chmod g+ws plain; mkdir -p new/sub shared/sub/sub; chmod g+s new/sub; rmdir had; mkdir had; chmod 2775 had")
	w.rewind("commit").want(t, 0, "note: new/sub: without its setuid or setgid bit", "note: plain: without its setuid or setgid bit")
	w.same("cd $B; stat -c '%n %a' had plain new new/sub shared/sub shared/sub/sub", "had 2775\nplain 775\nnew 755\nnew/sub 755\nshared/sub 2755\nshared/sub/sub 2755\n")
	w.rewind("commit").want(t, 0, "Nothing to do")
	w.rewind("commit", "--allow-special").want(t, 0, "Wrote 2 paths")
	w.same("cd $B; stat -c '%n %a' plain new/sub", "plain 2775\nnew/sub 2755\n")
	w.rewind("commit", "--undo").want(t, 0)
	w.rewind("commit", "--undo").want(t, 0)
	w.same("cd $B; ls -d new shared/sub 2>&- || stat -c '%n %a' had plain shared", "had 2755\nplain 755\nshared 2755\n")
	w.unmount()
}

// A list that an earlier version wrote has what the user added and took out, and new patterns hold all the same.
func TestCommitHoldListOfEarlierVersion(t *testing.T) {
	w := newWorld(t)
	w.mount()
	w.sh("cd $M; touch .npmrc .envrc .Rprofile mine")
	w.rewind("commit", "--dry-run").want(t, 0, "held: .npmrc", "held: .envrc", "held: .Rprofile", "commit-hold.defaults", "A  mine")
	list := "$(find $B/../home -name commit-hold)"
	w.sh("test $(wc -l <" + list + ") = 2; cp " + list + ".defaults " + list + "; sed -i '/npmrc/d; /Rprofile/d; $a mine' " + list)
	out := w.rewind("commit", "--dry-run")
	if out.want(t, 0, "held: .envrc", "held: .Rprofile", "held: mine", "A  .npmrc"); strings.Contains(out.out, "A  .Rprofile") {
		t.Errorf("a pattern that came later: %s", out.out)
	}
	w.same("tail -n +3 "+list, "!.npmrc\nmine\n")
	w.unmount()
}

// A path that is nowhere was mistyped; one that is only on one side was not.
func TestCommitOfUnknownPath(t *testing.T) {
	w := newWorld(t)
	w.sh("echo 1 >$B/same; echo 1 >$B/gone; echo 1 >$B/both; mkdir $B/dir")
	w.mount()
	w.sh("rm $M/gone; echo 2 >$M/new; rm $M/both")
	w.rewind("commit", "--", "new", "nosuch").want(t, exitPath, "\"nosuch\": neither the checkpoint nor the host has anything of that name")
	w.rewind("commit", "-n", "--", "dir/nosuch").want(t, exitPath, "dir/nosuch")
	w.rewind("commit", "-n", "--", "same/nosuch").want(t, exitPath, "same/nosuch")
	w.rewind("commit", "--to", "", "--", "new").want(t, exitUsage, "--to is empty")
	w.sh("test ! -e $B/new")
	for _, path := range []string{"same", "gone", "both", "dir", "./dir/", "new", "."} {
		w.rewind("commit", "--dry-run", "--", path).want(t, 0)
	}
	w.unmount()
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
	w.sh("test -u $B/suid; mkdir $M/sgid; chmod 2775 $M/sgid")
	w.rewind("commit", "--allow-special").want(t, 0, "Wrote 1 path")
	// What was brought once with leave stays; a new file of that name needs it again.
	if d := w.rewind("commit", "--json").data(t); d["noop"] != true {
		t.Errorf("a second commit: %v", d)
	}
	w.sh("echo x >$M/sgid/f")
	w.rewind("commit").want(t, 0, "Wrote 1 path")
	w.sh("test -u $B/suid; test -g $B/sgid; echo other >$M/suid; chmod 4755 $M/suid")
	w.rewind("commit").want(t, 0, "note: suid: without")
	w.sh("test ! -u $B/suid")
	w.unmount()
}
