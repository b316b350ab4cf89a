package fs

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("acts as several users: needs root")
	}
}

func needTool(t *testing.T, tool string) {
	t.Helper()
	if _, err := exec.LookPath(tool); err != nil {
		t.Skipf("needs %s", tool)
	}
}

const (
	alice = 1001
	bob   = 1002
)

func TestOwnership(t *testing.T) {
	needRoot(t)
	r := newRig(t, nil)
	r.sh(0, "chmod 777 .; mkdir plain shared; chmod 777 plain; chown 0:1500 shared; chmod 2777 shared")
	r.sh(alice, `
		umask 027
		for d in plain shared; do
			mkdir $d/dir; echo x > $d/file; ln -s x $d/link; mkfifo $d/fifo
		done
		umask 0; echo x > plain/open`)
	got := r.sh(0, "stat -c '%n %u %g %a' plain/* shared/*")
	want := `plain/dir 1001 1001 750
plain/fifo 1001 1001 640
plain/file 1001 1001 640
plain/link 1001 1001 777
plain/open 1001 1001 666
shared/dir 1001 1500 2750
shared/fifo 1001 1500 640
shared/file 1001 1500 640
shared/link 1001 1500 777`
	if got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}

func TestPermissionsEnforced(t *testing.T) {
	needRoot(t)
	r := newRig(t, nil)
	r.sh(0, "chmod 1777 .")
	r.sh(alice, "echo secret > f; chmod 600 f; mkdir d; chmod 700 d; echo x > open; chmod 644 open")
	for _, script := range []string{"cat f", "ls d", "echo y > open", "rm -f open", "mv f g", "chmod 777 open", "chown 1002 open", "touch d/x"} {
		if out, err := r.trySh(bob, script); err == nil {
			t.Errorf("bob may %s: %s", script, out)
		}
	}
	r.sh(bob, "cat open; ! test -r f; ! test -w open; echo mine > mine; rm mine")
	r.sh(0, "cat f; ! test -x open; echo root >> f")
}

func TestACL(t *testing.T) {
	needRoot(t)
	needTool(t, "setfacl")
	r := newRig(t, nil)
	r.sh(0, "chmod 777 .")
	// An ACL entry lets bob in, and the mask shuts him out again.
	r.sh(alice, "echo secret > f; chmod 600 f; setfacl -m u:1002:rw f")
	r.sh(bob, "cat f; echo more >> f")
	if got := r.sh(0, "stat -c %a f"); got != "660" {
		t.Errorf("mode with an ACL is %s, want 660: the mask shows as the group's bits", got)
	}
	r.sh(alice, "chmod 600 f")
	if out, err := r.trySh(bob, "cat f"); err == nil {
		t.Errorf("bob reads past the mask: %s", out)
	}
	if got := facl(r, "f"); got != "user::rw- user:1002:rw- #effective:--- group::--- mask::--- other::---" {
		t.Errorf("after chmod: %s", got)
	}
	r.sh(alice, "chmod 640 f")
	r.sh(bob, "cat f; ! sh -c 'echo x >> f' 2>/dev/null")
	// Removing the ACL leaves the mode; an ACL that is a mode is kept as one.
	r.sh(alice, "setfacl -b f; ! getfattr -n system.posix_acl_access f 2>/dev/null; setfacl -m u::rw,g::r,o::r f")
	if got := r.sh(0, "stat -c %a f; getfattr -d -m - f"); got != "644" {
		t.Errorf("plain ACL: %s", got)
	}
	// Default ACLs take the umask's place and are handed down.
	r.sh(alice, `umask 022; mkdir d; setfacl -d -m u:1002:rwx d; umask 077
		echo x > d/f; mkdir d/sub; echo y > d/sub/g; ln -s x d/l`)
	for path, want := range map[string]string{
		"d/f":   "user::rw- user:1002:rwx #effective:rw- group::r-x #effective:r-- mask::rw- other::r--",
		"d/sub": "user::rwx user:1002:rwx group::r-x mask::rwx other::r-x default:user::rwx default:user:1002:rwx default:group::r-x default:mask::rwx default:other::r-x",
	} {
		if got := facl(r, path); got != want {
			t.Errorf("%s: %s\nwant %s", path, got, want)
		}
	}
	r.sh(bob, "echo bob > d/sub/new; cat d/sub/g")
	r.sh(alice, "setfacl -k d; umask 077; echo x > d/after")
	if got := r.sh(0, "stat -c %a d/after"); got != "600" {
		t.Errorf("without a default ACL the umask holds: %s", got)
	}
	// Rollback takes ACLs along.
	r.checkpoint("acl")
	r.sh(alice, "setfacl -m u:1002:r f; setfacl -d -m u:1002:rwx d")
	r.sh(bob, "cat f")
	r.rollback("acl")
	r.sh(alice, "umask 077; echo x > d/later")
	if got := r.sh(0, "stat -c %a d/later"); got != "600" {
		t.Errorf("the default ACL outlived the rollback: %s", got)
	}
}

func facl(r *rig, path string) string {
	return strings.Join(strings.Fields(r.sh(0, "getfacl -cnp "+path)), " ")
}

func TestPrivilegesCleared(t *testing.T) {
	needRoot(t)
	r := newRig(t, nil)
	r.sh(0, "chmod 777 .")
	for _, c := range []struct {
		uid                int
		mode, script, want string
	}{
		{alice, "6777", "echo x >> f", "777"},
		{alice, "6777", ": > f", "777"},
		{alice, "6777", "truncate -s 1 f", "777"},
		{alice, "2767", "echo x >> f", "2767"}, // not executable by the group: not setgid, but mandatory locking of old
		{alice, "6777", "fallocate -l 100 f", "777"},
		{alice, "6777", "dd if=/etc/hostname of=f conv=notrunc status=none", "777"},
		{0, "6777", "echo x >> f", "6777"},
		{0, "6777", "chown 1001 f", "777"},
		{0, "6777", "chgrp 1002 f", "777"},
		{0, "6777", "chmod 6755 f", "6755"},
		{0, "6777", "mv f g; mv g f; touch f", "6777"},
	} {
		r.sh(0, "rm -f f; echo 0123456789 > f; chown 1001:1001 f; chmod "+c.mode+" f")
		r.sh(c.uid, c.script)
		if got := r.sh(0, "stat -c %a f"); got != c.want {
			t.Errorf("%s as %d on mode %s leaves %s, want %s", c.script, c.uid, c.mode, got, c.want)
		}
	}
}

func TestCapabilitiesCleared(t *testing.T) {
	needRoot(t)
	r := newRig(t, nil)
	// A version 2 capability set: cap_net_raw.
	caps := string([]byte{1, 0, 0, 2, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	has := func() bool {
		_, err := unix.Getxattr(r.path("f"), xattrCaps, make([]byte, 100))
		return err == nil
	}
	for script, keeps := range map[string]bool{
		"echo x >> f": false, ": > f": false, "truncate -s 3 f": false, "chown 1001 f": false,
		"chmod 700 f": true, "mv f g; mv g f": true, "touch f": true,
	} {
		r.sh(0, "rm -f f; echo x > f; chmod 755 f")
		if err := unix.Setxattr(r.path("f"), xattrCaps, []byte(caps), 0); err != nil {
			t.Fatal(err)
		}
		if !has() {
			t.Fatal("the capability does not stick")
		}
		r.sh(0, script)
		if has() != keeps {
			t.Errorf("%s: capability there: %v, want %v", script, has(), keeps)
		}
	}
}

func TestXattrNamespaces(t *testing.T) {
	needRoot(t)
	needTool(t, "setfattr")
	r := newRig(t, nil)
	r.sh(0, `chmod 777 .; echo > f; chmod 666 f
		setfattr -n trusted.t -v 1 f; setfattr -n security.s -v 2 f; setfattr -n user.u -v 3 f`)
	if got := r.sh(0, "getfattr -d -m - f"); !strings.Contains(got, "trusted.t") || !strings.Contains(got, "security.s") {
		t.Errorf("root sees %s", got)
	}
	if got := r.sh(alice, "getfattr -d -m - f"); strings.Contains(got, "trusted.") || !strings.Contains(got, `user.u="3"`) {
		t.Errorf("alice sees %s", got)
	}
	for _, script := range []string{"setfattr -n trusted.x -v 1 f", "setfattr -n system.x -v 1 f", "setfattr -n nonsense -v 1 f", "setfattr -n user. -v 1 f"} {
		if out, err := r.trySh(alice, script); err == nil {
			t.Errorf("%s worked: %s", script, out)
		}
	}
}
