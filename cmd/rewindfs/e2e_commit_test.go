package main

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// tree is what a user sees of a directory: types, modes, links, contents; of files also times.
func (w *world) tree(dir string) string {
	return w.sh("cd " + dir + ` && find . -path ./.rewind -prune -o -printf '%P %y %m %l\n' | sort && find . -type f -printf '%P %s %T@ %n\n' | sort && find . -type f | sort | xargs md5sum`)
}

func TestCommitMainJob(t *testing.T) {
	w := newWorld(t)
	w.sh("ln $B/a.txt $B/hard; mkdir $B/gone; echo x >$B/gone/x; ln -s /etc $B/etc")
	before := w.tree(w.base)
	passwd := w.sh("stat -c '%i %Z' /etc /etc/passwd")
	w.mount()
	w.sh(`cd $M; echo new >a.txt; mkdir -p n/m; echo 1 >n/m/1; rm -r gone; mkdir gone; touch gone/new; mv sub sub2; mkfifo ff; chmod 755 sub2/b.txt
rm etc; mkdir etc; echo in >etc/passwd; mkdir -p .git/hooks; echo evil >.git/hooks/post-checkout; cp /bin/true suid; chmod 4755 suid; mkdir empty; ln n/m/1 n/2; touch -d @1000000000 n/2`)
	w.rewind("commit", "--dry-run").want(t, 0, "M  a.txt", "M  hard", "A  n/m/1", "D  gone/x", "A  sub2/deep/c", "T  etc/", "held: .git/hooks/post-checkout", "Would change")
	if w.tree(w.base) != before {
		t.Fatal("a dry run changed the base")
	}
	w.rewind("commit", "base").want(t, exitUsage, "commit --undo")
	w.rewind("checkpoint", "first").want(t, 0)
	w.rewind("commit", "first").want(t, 0, "held: .git/hooks/post-checkout", "commit-hold", "Take it back with: rewindfs commit --undo")
	w.sh("test ! -e $B/.git/hooks/post-checkout; test ! -u $B/suid; cmp $B/suid /bin/true; ls -A $B | grep -c rewindfs-commit | grep -qx 0")
	w.rewind("commit", "--include-executable-config", "--allow-special").want(t, 0, "Wrote 2 paths") // the hook, and the bit
	w.sh("chmod 755 $M/suid")
	w.rewind("commit").want(t, 0)
	if got, want := w.tree(w.base), w.tree(w.mp); got != want {
		t.Fatalf("the mount is\n%s\nthe base is\n%s", want, got)
	}
	if got := w.sh("stat -c '%i %Z' /etc /etc/passwd"); got != passwd {
		t.Errorf("something behind a symlink was changed: %s, was %s", got, passwd)
	}
	w.rewind("commit").want(t, 0, "Nothing to do")
	if d := w.rewind("status", "--json").data(t); d["changed_paths"].(float64) != 0 || d["lifecycle"] != "COMMITTED" || len(d["drift"].([]any)) != 0 {
		t.Errorf("status after a commit: %v", d)
	}
	w.rewind("diff").want(t, 0, "No difference")
	w.same("cat $M/.rewind/checkpoints/first/a.txt", "new\n")
	w.rewind("cat", "base:a.txt").want(t, 0, "base a\n")

	// The user's own edit.
	w.sh("echo mine >$B/a.txt; echo agent >$M/a.txt; echo other >$M/other; echo mine >$B/unrelated")
	w.rewind("commit").want(t, exitConflict, "conflict: a.txt", "nothing was written", "--on-conflict")
	out := w.rewind("commit", "--json")
	if out.code != exitConflict || !strings.Contains(out.out, `"code":6`) || !strings.Contains(out.out, `"conflicts":[{"path":"a.txt"`) {
		t.Errorf("commit --json with a conflict: %+v", out)
	}
	w.same("cat $B/a.txt; test ! -e $B/other", "mine\n")
	w.rewind("commit", "--", "other").want(t, 0)
	w.same("cat $B/other $B/a.txt", "other\nmine\n")
	w.rewind("commit", "--on-conflict", "theirs").want(t, 0, "theirs: a.txt")
	w.same("cat $B/a.txt", "mine\n")
	w.rewind("commit", "--on-conflict", "ours").want(t, 0, "note: a.txt")
	w.same("cat $B/a.txt $B/hard $B/unrelated", "agent\nagent\nmine\n")
	for range 4 { // the last two, the first three, but for one that had nothing to do
		w.rewind("commit", "--undo").want(t, 0)
	}
	w.sh("rm $B/unrelated")
	w.rewind("commit", "--undo", "--dry-run").want(t, exitConflict, "conflict: a.txt") // the user's edit is there again
	w.rewind("commit", "--undo", "--dry-run", "--on-conflict", "ours").want(t, 0, "Would change")
	w.unmount()
	w.mount()
	w.rewind("commit", "--undo").want(t, exitConflict, "conflict: a.txt")
	w.same("cat $B/a.txt", "mine\n")
	w.rewind("commit", "--undo", "--on-conflict", "ours").want(t, 0, "Put back")
	if got := w.tree(w.base); got != before {
		t.Errorf("the base was\n%s\nafter the undo of all it is\n%s", before, got)
	}
	w.rewind("commit", "--undo").want(t, exitFailure, "no commit to undo")
	w.same("cat $M/a.txt", "agent\n")

	dir := w.base + ".out"
	w.rewind("commit", "--to", dir, "--include-executable-config", "--allow-special").want(t, 0, dir)
	if got, want := w.tree(dir), w.tree(w.mp); got != want {
		t.Errorf("the mount is\n%s\nthe other directory is\n%s", want, got)
	}
	w.rewind("commit", "--to", dir).want(t, 0, "Nothing to do")
	w.rewind("commit", "--to", w.mp+"/x").want(t, exitPath)
	w.rewind("ledger", "--event", "commit").want(t, 0, "undo_of")
	w.rewind("ledger", "verify").want(t, 0)
	w.unmount()
}

// What an ordinary user may not do is an error that leaves all as it was.
func TestCommitUnprivileged(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can become somebody else")
	}
	if _, err := exec.LookPath("fusermount3"); err != nil {
		t.Skip("there is no fusermount3")
	}
	w := newWorldFor(t, &syscall.Credential{Uid: 65534, Gid: 65534})
	if w.finish([]string{"mount", w.base}, nil).code != 0 {
		t.Skip("no mount can be made by an ordinary user here")
	}
	w.sh("mkdir $M/ro; echo x >$M/ro/x; chmod 555 $M/ro; echo y >$M/a.txt; mkdir $M/sub/new")
	w.rewind("commit").want(t, 0)
	w.same("cat $B/ro/x $B/a.txt; stat -c %a $B/ro", "x\ny\n555\n")
	w.rewind("commit", "--undo").want(t, 0)
	w.same("cat $B/a.txt; ls $B", "base a\na.txt\nsub\n")
	w.sh("chmod 555 $B/sub")
	w.sh("echo z >$M/a.txt; echo z >$M/sub/b.txt")
	before := w.tree(w.base)
	w.rewind("commit").want(t, exitFailure, "permission denied")
	if got := w.tree(w.base); got != before {
		t.Errorf("the base was\n%s\nand is\n%s", before, got)
	}
	w.sh("chmod 755 $B/sub")
	w.rewind("commit").want(t, 0)
	w.same("cat $B/a.txt $B/sub/b.txt", "z\nz\n")
	w.unmount()
}

func TestCommitInteractive(t *testing.T) {
	w := newWorld(t)
	w.mount()
	w.sh("mkdir $M/q; echo 1 >$M/q/1; echo 2 >$M/q/2; echo 3 >$M/zz; rm -r $M/sub")
	w.finish([]string{"commit", "-i"}, stdin("n\nq\n")).want(t, exitFailure, "nothing was written")
	w.finish([]string{"commit", "-i"}, stdin("d\n")).want(t, exitFailure, "nothing was chosen")
	w.finish([]string{"commit", "-i"}, stdin("y\n")).want(t, exitFailure, "the answers ended")
	w.rewind("commit", "-i", "--undo").want(t, exitUsage)
	w.same("ls $B; cat $B/sub/b.txt", "a.txt\nsub\nbase b\n")
	w.finish([]string{"commit", "-i"}, stdin("l\nn\nwhat\ny\ny\nn\n")).want(t, 0, "Wrote 6 paths") // q/2, and sub with all in it
	w.same("cd $B; find . | sort", ".\n./a.txt\n./q\n./q/2\n")
	w.rewind("commit").want(t, 0, "Wrote 2 paths")
	w.same("ls $B $B/q | xargs", w.base+": a.txt q zz "+w.base+"/q: 1 2\n")
	w.unmount()
}
