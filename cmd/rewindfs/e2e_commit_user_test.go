package main

import "testing"

// Directories that forbid it to their owner, too, are changed all the same, and are afterwards what they were; a file that
// the daemon may not read is not taken away, as nobody could bring it back.
func TestCommitForbiddenToOwner(t *testing.T) {
	w := newWorldFor(t, ordinaryUser(t))
	w.sh("mkdir -p $B/ro/s; echo 1 >$B/ro/x; echo 1 >$B/ro/s/y; echo secret >$B/key; chmod 0 $B/key; chmod 555 $B/ro/s $B/ro")
	before := w.sh("cd $B; find . -printf '%P %y %m %T@\\n' | sort")
	w.mount()
	w.sh("cd $M; chmod 755 ro ro/s; echo 2 >ro/x; rm ro/s/y; echo n >ro/s/n; mkdir ro/d; echo n >ro/d/n; chmod 555 ro/d ro/s ro")
	w.rewind("commit").want(t, 0, "Wrote")
	w.same("cd $B; stat -c '%n %a' ro ro/s ro/d; cat ro/x ro/s/n ro/d/n; ls ro/s", "ro 555\nro/s 555\nro/d 555\n2\nn\nn\nn\n")
	w.rewind("commit", "--undo").want(t, 0, "Put back")
	if got := w.sh("cd $B; find . -printf '%P %y %m %T@\\n' | sort"); got != before {
		t.Errorf("the base was\n%s\nafter an undo it is\n%s", before, got)
	}
	w.sh("chmod 755 $M/ro $M/ro/d; rm -r $M/ro/d; chmod 755 $M/ro; echo 3 >$M/ro/x") // it is allowed from now on
	w.rewind("commit").want(t, 0, "Wrote")
	w.same("cd $B; stat -c '%n %a' ro ro/s; cat ro/x", "ro 755\nro/s 555\n3\n")
	w.sh("rm -f $M/key")
	for _, on := range []string{"abort", "ours"} {
		w.rewind("commit", "--on-conflict", on).want(t, exitConflict, "conflict: key: ", "may not be read")
	}
	w.rewind("commit", "--on-conflict", "theirs").want(t, 0, "theirs: key")
	w.same("chmod 400 $B/key; cat $B/key", "secret\n")
	w.unmount()
	w.sh("chmod -R u+w $B")
}
