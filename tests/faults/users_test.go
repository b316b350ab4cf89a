package faults

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/rewindfs/rewindfs/internal/mounttest"
)

// mainJob is what everybody must be able to do. It runs with $R the binary, $B a
// base with a file `a` ("base") and a directory `d`, $M an empty directory.
const mainJob = `
set -eu
export REWINDFS_SESSION="$M"
"$R" -q mount "$B" "$M"
cd "$M"
[ "$(cat a)" = base ]
echo mine >a; mkdir -p new/dir; echo x >new/dir/f; ln a link; mv d moved
"$R" -q checkpoint good
rm -rf new moved; echo wrecked >a; echo junk >junk
"$R" -q rollback good
[ "$(cat a)" = mine ] && [ "$(cat new/dir/f)" = x ] && [ -e moved/f ] && [ ! -e junk ] && [ ! -e d ]
[ "$(stat -c %h a)" = 2 ]
"$R" diff base --name-status | sort
cd /
"$R" -q unmount
[ -z "$(ls -A "$M")" ]
"$R" -q mount "$B" "$M"
[ "$(cat "$M/a")" = mine ]
"$R" -q rollback base
[ "$(cat "$M/a")" = base ]
"$R" -q undo
[ "$(cat "$M/a")" = mine ]
"$R" -q unmount
[ "$(cat "$B/a")" = base ] && [ -e "$B/d/f" ]
echo main job done
`

// nobody is in every /etc/passwd.
const nobody = 65534

// runMainJob runs it in a fresh directory, with a command in front of bash.
func runMainJob(t *testing.T, uid int, prefix ...string) {
	t.Helper()
	top, err := os.MkdirTemp("", "rewindfs-users-")
	ok(t, err)
	t.Cleanup(func() {
		mounttest.Abort(j(top, "mnt"))
		if err := os.RemoveAll(top); err != nil {
			t.Error(err)
		}
	})
	for _, d := range []string{"base", "base/d", "mnt", "state"} {
		ok(t, os.Mkdir(j(top, d), 0o755))
	}
	put(t, j(top, "base/a"), "base")
	put(t, j(top, "base/d/f"), "f")
	if os.Getuid() == 0 {
		for _, d := range []string{"", "base", "base/a", "base/d", "base/d/f", "mnt", "state"} {
			ok(t, os.Lchown(j(top, d), uid, uid))
		}
	}
	guard := mounttest.NewGuard(t, j(top, "base"))
	args := append(prefix, "timeout", "120", "bash", "-c", mainJob)
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), "R="+mounttest.Binary(), "B="+j(top, "base"), "M="+j(top, "mnt"), "HOME="+top, "XDG_STATE_HOME="+j(top, "state"),
		"XDG_RUNTIME_DIR="+j(top, "state"))
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.HasSuffix(string(out), "main job done\n") {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{"a", "link", "new"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the diff does not name %s:\n%s", want, out)
		}
	}
	guard.Check()
}

func TestUsersRoot(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	runMainJob(t, 0)
}

func TestUsersOrdinaryUserThroughFusermount(t *testing.T) {
	if os.Getuid() != 0 {
		runMainJob(t, os.Getuid())
		return
	}
	needUserFuse(t)
	// fusermount3 wants a name in /etc/passwd.
	runMainJob(t, nobody, "setpriv", fmt.Sprint("--reuid=", nobody), fmt.Sprint("--regid=", nobody), "--clear-groups", "--inh-caps=-all")
}

func TestUsersUserNamespace(t *testing.T) {
	if out, err := exec.Command("unshare", "-Urm", "true").CombinedOutput(); err != nil {
		t.Skipf("user namespaces are not allowed here: %s", out)
	}
	if os.Getuid() == 0 {
		needUserFuse(t)
		// As somebody who is nobody outside of the namespace.
		runMainJob(t, alice, "setpriv", fmt.Sprint("--reuid=", alice), fmt.Sprint("--regid=", alice), "--clear-groups", "--inh-caps=-all", "unshare", "-Urm")
		return
	}
	runMainJob(t, os.Getuid(), "unshare", "-Urm")
}

// needUserFuse skips where ordinary users cannot mount at all.
func needUserFuse(t *testing.T) {
	t.Helper()
	st, err := os.Stat("/dev/fuse")
	ok(t, err)
	if st.Mode().Perm()&0o006 != 0o006 {
		t.Skip("/dev/fuse is closed to ordinary users here: chmod 0666 /dev/fuse, as distributions ship it")
	}
	if _, err := exec.LookPath("fusermount3"); err != nil {
		t.Skip("fusermount3 is not installed")
	}
}

func TestUsersOthersCannotEnterUnlessAllowed(t *testing.T) {
	m := mounttest.New(t, mounttest.Options{})
	as(t, alice, alice, func() {
		if _, err := os.ReadDir(m.Dir); err == nil {
			t.Error("another user can list a mount without --allow-other")
		}
	})
	m2 := mounttest.New(t, shared())
	as(t, alice, alice, func() {
		if p, err := os.ReadFile(m2.Path("a")); err != nil || len(p) != 100 {
			t.Errorf("with --allow-other: %v", err)
		}
	})
}

func TestUsersStoreIsPrivate(t *testing.T) {
	m := mounttest.New(t, mounttest.Options{})
	put(t, m.Path("secret"), "secret")
	m.Checkpoint("c")
	// The test's umask is 0: the daemon must not rely on it.
	tree := mounttest.Snapshot(t, m.Store)
	for p, e := range tree.Entries {
		if e.Mode&0o077 != 0 {
			t.Errorf("%s in the store has mode %o", p, e.Mode&0o7777)
		}
	}
}
