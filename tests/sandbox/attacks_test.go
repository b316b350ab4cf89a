package sandbox

import (
	"os"
	"strings"
	"testing"
)

// try is something that a command tries. In a sandbox it must harm nothing; without one it must succeed, or it would show nothing.
type try struct {
	name   string
	script string
	kinds  string   // that refuse it, "" for all
	flags  []string // of exec
	who    string   // root or user, "" for both
	// moot says why it harms nothing without a sandbox either.
	moot string
}

const (
	byKernel = "the kernel refuses it to this user anyway"
	limits   = "it is the limit that refuses it"
	notSeen  = "what it reaches is seen by no one, or depends on the machine"
)

var tries = []try{
	// Writes outside of the project.
	{name: "overwrite a file", script: `echo bad >$O/file`},
	{name: "append to a file", script: `echo bad >>$O/file`},
	{name: "make a file", script: `echo bad >$O/new`},
	{name: "make a directory", script: `mkdir $O/newdir`},
	{name: "remove a file", script: `rm -f $O/file`},
	{name: "remove a tree", script: `rm -rf $O/dir`},
	{name: "remove the home", script: `rm -rf $H/* $H/.[a-z]*`},
	{name: "truncate by path", script: `$A truncate $O/file`},
	{name: "rename a file into the project", script: `mv $O/file stolen`},
	{name: "rename over a file", script: `echo bad >f; mv f $O/file`},
	{name: "rename a directory outside", script: `mv $O/dir $O/dir2`},
	{name: "chmod", script: `chmod 777 $O/file`},
	{name: "chmod -R of the home", script: `chmod -R 000 $H`},
	{name: "chown", script: `chown 12345:12345 $O/file`, who: "root"},
	{name: "times", script: `touch -d 2001-01-01 $O/file`},
	{name: "an extended attribute", script: `$A setxattr $O/file`},
	{name: "through a symlink to a file", script: `ln -s $O/file l; echo bad >l`},
	{name: "through a symlink to a directory", script: `ln -s $O l; echo bad >l/new`},
	{name: "through a chain of symlinks", script: `ln -s b a; ln -s $O/dir b; echo bad >a/../file`},
	{name: "through a symlink to the root", script: `ln -s / r; echo bad >r$O/file`},
	{name: "through a hard link", script: `ln $O/file h && echo bad >h`, moot: "the mount is another file system"},
	{name: "through dots", script: `cd $P; echo bad >"$(realpath --relative-to=. $O)/file"`},
	{name: "through /proc/self/root", script: `echo bad >/proc/self/root$O/file`},
	{name: "through /proc/self/cwd", script: `cd $O; echo bad >/proc/self/cwd/file`},
	{name: "through a descriptor of a directory", script: `exec 7<$O; echo bad >/proc/self/fd/7/file`},
	{name: "through a descriptor opened for reading", script: `exec 7<$O/file; echo bad >/proc/self/fd/7`},
	{name: "through the parent's root", script: `echo bad >/proc/$PPID/root$O/file`},
	{name: "through the parent's working directory", script: `ls /proc/$PPID/cwd/ >/dev/null && echo DONE`},
	{name: "through the first process's root", script: `echo bad >/proc/1/root$O/file`, who: "root", moot: notSeen},
	{name: "through a bystander's root", script: `echo bad >/proc/$V/root$O/file`},
	{name: "through the parent's descriptors", script: `for fd in /proc/$PPID/fd/*; do readlink $fd; done | grep -q . && echo DONE`},
	{name: "the host's copy of the project", script: `$A umount $P; echo bad >$P/file`, who: "root"},
	{name: "the host's copy through the root of others", script: `echo bad >/proc/$V/root$P/file`},
	{name: "start-up files of shells", script: `echo evil >>$H/.bashrc`},
	{name: "keys of ssh", script: `echo evil >>$H/.ssh/authorized_keys`},
	{name: "/etc", script: `echo x >/etc/rewindfs-attacker-x`, who: "root"},
	{name: "the host's /tmp", script: `echo x >/tmp/rewindfs-attacker-x`},
	{name: "the host's /dev/shm", script: `echo x >/dev/shm/rewindfs-attacker-x`},
	{name: "the mount of another session", script: `echo bad >$OM/file`},
	{name: "our own binary", script: `cp $R r2; mv r2 $R`},
	{name: "our own binary through /proc", script: `$A open /proc/$PPID/exe; cat /proc/$PPID/exe >/dev/null && echo DONE`},
	{name: "a path that is denied", script: `echo bad >../file && echo DONE`, flags: []string{"--deny", "file"}, moot: "it is a rule of sandboxes"},

	// Mounts and namespaces.
	{name: "bind mount", script: `mkdir d; $A bind $O d && echo bad >d/file`, who: "root"},
	{name: "remount the root", script: `$A remount / && echo bad >$O/file`, moot: notSeen},
	{name: "unmount the mount", script: `$A umount $M; $A umount $P`, who: "root"},
	{name: "cover the project", script: `$A tmpfs $P`, who: "root"},
	{name: "pivot_root", script: `$A pivot $O`, moot: byKernel},
	{name: "clone a mount and make it writable", script: `$A open-tree $O`, who: "root"},
	{name: "a user namespace to remount in", script: `unshare -Urm sh -c "mount -o remount,bind,rw / && $A open-tree / && echo bad >$O/file"`, moot: notSeen},
	{name: "a user namespace to unmount in", script: `unshare -Urm sh -c "umount -l $P; echo bad >$P/file"`, moot: notSeen},
	{name: "fusermount", script: `fusermount3 -uz $M || fusermount3 -uz $P || fusermount -uz $M`, moot: "the mounts are the command's own already"},
	{name: "the parent's mount namespace", script: `$A setns $PPID mnt`, who: "root"},
	{name: "the first process's mount namespace", script: `$A setns 1 mnt`, who: "root", moot: notSeen},
	{name: "a bystander's user namespace", script: `$A setns $V user`, moot: byKernel},
	{name: "the host's network namespace", script: `$A setns $V net`, who: "root"},
	{name: "out of a chroot", script: `$A chroot $O/file`, who: "root"},
	{name: "a device of one's own", script: `$A mknod /`, who: "root", moot: "the mount knows no devices"},
	{name: "the disk", script: `for d in $(lsblk -lnpo NAME 2>/dev/null || ls /dev/vd? /dev/sd? 2>/dev/null); do $A open $d; done`, moot: notSeen, who: "root"},
	{name: "file handles", script: `$A handle $O/file`, who: "root"},

	// Switches of the system, which root's files are.
	{name: "sysctl", script: `$A open /proc/sys/kernel/core_pattern`, who: "root"},
	{name: "sysrq", script: `$A open /proc/sysrq-trigger`, who: "root", moot: notSeen},
	{name: "aborting FUSE", script: `for f in /sys/fs/fuse/connections/*/abort; do $A open $f; done`},
	{name: "cgroups", script: `for f in $(find /sys/fs/cgroup -name cgroup.procs | head -20); do $A open $f; done`, who: "root"},
	{name: "a new cgroup", script: `for d in /sys/fs/cgroup /sys/fs/cgroup/*; do mkdir $d/rewindfs-attacker-x && rmdir $d/rewindfs-attacker-x && echo DONE; done`, who: "root"},

	// Other processes.
	{name: "kill the parent", script: `kill -9 $PPID; sleep 0.2`},
	{name: "kill the daemon", script: `kill -9 $D`},
	{name: "kill a bystander", script: `kill -9 $V`},
	{name: "kill the group", script: `trap "" TERM; kill -TERM 0; exit 0`, moot: "the parent sends it back to the command"},
	{name: "bound the daemon to death", script: `$A prlimit $D`},
	{name: "ptrace the parent", script: `$A ptrace $PPID`},
	{name: "ptrace the daemon", script: `$A ptrace $D`},
	{name: "ptrace a bystander", script: `$A ptrace $V`},
	{name: "the parent's environment", script: `cat /proc/$PPID/environ`},
	{name: "a bystander's environment", script: `cat /proc/$V/environ`},
	{name: "everybody's environment", script: `cat /proc/[0-9]*/environ`},
	{name: "a bystander's memory", script: `$A peek $V`},
	{name: "the daemon's memory", script: `$A open /proc/$D/mem`},
	{name: "a bystander's descriptors", script: `$A take-fd $V`},
	{name: "one's own environment", script: `env`},

	// Sessions and stores.
	{name: "commit", script: `echo bad >../file; $R --session $M commit; $R commit`},
	{name: "unmount by command", script: `$R unmount --force; $R --session $M unmount`},
	{name: "the control socket of another session", script: `$R --session $OM status && echo DONE`},
	{name: "read the store", script: `ls $S/kv $S/packs && echo DONE`},
	{name: "write to the store", script: `echo x >$S/rewindfs-attacker-x`},
	{name: "remove the store", script: `rm -rf $S/session.json $S/kv`, moot: "it would take the clean-up of this test with it"},
	{name: "read another session's store", script: `ls $OS/kv && echo DONE`},

	// Servers, and the network.
	{name: "an abstract socket", script: `$A dial unix $ABSTRACT`},
	{name: "the message bus", script: `$A dial unix $RUN/bus`},
	{name: "the agent for ssh", script: `$A dial unix $AROUND/agent`},
	{name: "the address of the agent for ssh", script: `test -z "$SSH_AUTH_SOCK" || echo DONE`},
	{name: "TCP to the host", script: `$A dial tcp $TCP`, kinds: "ns"},
	{name: "UDP to the host", script: `$A dial udp $UDP`, kinds: "ns"},
	{name: "TCP without a network", script: `$A dial tcp $TCP`, kinds: "local", flags: []string{"--network", "none"}, moot: "it is a rule of sandboxes"},

	// Secrets, and system calls.
	{name: "keys and tokens in the home", script: `cd $H; cat .ssh/id_rsa .netrc .git-credentials .aws/credentials .config/gcloud/x .docker/config.json .kube/config .gnupg/x`, kinds: "ns"},
	{name: "profiles of browsers", script: `cat $H/.mozilla/firefox/x $H/.config/google-chrome/x`, kinds: "ns"},
	{name: "a secret through a symlink", script: `ln -s $H/.ssh s; cat s/id_rsa /proc/self/root$H/.netrc`, kinds: "ns"},
	{name: "a path that is hidden", script: `cat $H/hidden/x`, kinds: "ns", flags: []string{"--hide", "hidden-of-home"}, moot: "it is a rule of sandboxes"},
	{name: "the users' passwords", script: `cat /etc/shadow | grep -q . && echo DONE`, kinds: "ns", who: "root"},
	{name: "kernel keys", script: `$A keyring`, kinds: "ns"},
	{name: "io_uring", script: `$A uring`, kinds: "ns", moot: notSeen},
	{name: "bpf", script: `$A bpf`, kinds: "ns", moot: notSeen},
	{name: "capabilities", script: `$A caps`, kinds: "ns"},
	{name: "programs with more rights", script: `$A priv`},

	// Using everything up.
	{name: "fork bomb", script: `$A fork-bomb 200`, flags: []string{"--limit", "processes=64"}, moot: limits},
	{name: "memory", script: `$A memory-bomb 512`, flags: []string{"--limit", "memory=256M"}, moot: limits},
	{name: "filling the disk by /tmp", script: `dd if=/dev/zero of=/tmp/big bs=1M count=32 2>&1 && echo DONE`, flags: []string{"--limit", "tmp=8M"}, moot: limits},
	{name: "a large file", script: `dd if=/dev/zero of=big bs=1M count=32 2>&1 && echo DONE`, flags: []string{"--limit", "file=8M"}, moot: limits},
}

func TestAttacks(t *testing.T) {
	for _, user := range []struct {
		name string
		as   uint32
	}{{"root", 0}, {"user", nobody}} {
		if user.as == 0 && os.Geteuid() != 0 {
			continue
		}
		for _, kind := range []string{"local", "ns"} {
			t.Run(kind+"/"+user.name, func(t *testing.T) {
				w := newWorld(t, user.as)
				for _, try := range tries {
					if (try.kinds == "" || strings.Contains(try.kinds, kind)) && (try.who == "" || try.who == user.name) {
						t.Run(try.name, func(t *testing.T) { w.refuses(t, kind, try) })
					}
				}
			})
		}
	}
}

func (w *world) refuses(t *testing.T, kind string, try try) {
	whole := w.t
	w.tell(t)
	defer w.tell(whole)
	r := w.attack(kind, "cd $P && mkdir try && cd try && cp ../file . && "+try.script, w.flags(try)...)
	if strings.Contains(r.Stderr, "is not bounded") {
		t.Skip("no cgroup can be made on this machine")
	}
	if harm := w.harm(r); len(harm) > 0 {
		t.Errorf("harm: %s\n%s", strings.Join(harm, "\n      "), r)
		w.look()
	}
	if r.Code == 4 {
		t.Errorf("it was not even tried: %s", r)
	}
	w.m.Sh("chmod -R u+rwx try; rm -rf try; cp $B/file file")
}

func (w *world) flags(try try) (flags []string) {
	for _, f := range try.flags {
		flags = append(flags, strings.ReplaceAll(f, "hidden-of-home", w.home+"/hidden"))
	}
	return flags
}

// tell has errors be those of t.
func (w *world) tell(t *testing.T) { w.t, w.m.T, w.other.T = t, t, t }

// Without a sandbox each of them does harm: what is refused above is refused by the sandbox.
func TestAttacksWork(t *testing.T) {
	for _, try := range tries {
		if try.moot != "" {
			continue
		}
		t.Run(try.name, func(t *testing.T) {
			// As root: what comes with a user namespace, which others need to be shown the project at its path, is part of a sandbox.
			if try.who == "root" && os.Geteuid() != 0 {
				t.Skip("it takes root")
			}
			w := newWorld(t, 0)
			r := w.attack("none", "cd $P && mkdir try && cd try && cp ../file . && "+try.script, w.flags(try)...)
			if len(w.harm(r)) == 0 {
				t.Errorf("no harm was done: %s", r)
			}
		})
	}
}
