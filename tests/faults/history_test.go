package faults

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/internal/fstree"
	"github.com/rewindfs/rewindfs/internal/mounttest"
)

// back makes a checkpoint, lets wreck change the mount, rolls back, and fails the
// test unless the tree is what it was, to the last stat field.
func back(t *testing.T, m *mounttest.Mount, wreck func()) {
	t.Helper()
	before := m.Snapshot()
	m.Checkpoint("before")
	wreck()
	m.Rollback("before")
	mounttest.Same(t, before, m.Snapshot(), fstree.Exact, "at the checkpoint", "after the rollback")
}

func TestHistoryObjectsMadeAfterTheCheckpointAreGone(t *testing.T) {
	m := mounttest.New(t, mounttest.Options{})
	back(t, m, func() {
		m.Sh(`mkdir -p new/deep/er; echo x >new/deep/er/f; mkfifo new/fifo d/fifo; ln -s x new/sym; ln a d/link
			python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("sock")'; [ "$(id -u)" != 0 ] || mknod dev c 1 3`)
	})
	for _, p := range []string{"new", "d/fifo", "d/link", "sock", "dev"} {
		gone(t, m.Path(p))
	}
}

func TestHistoryShellCommandsAreUndone(t *testing.T) {
	m := mounttest.New(t, mounttest.Options{})
	back(t, m, func() {
		m.Sh(`sed -i 's/^/x/' a b c; find . -name 'f?' -delete; mv src elsewhere; chmod -R go-rwx d; touch big; tar cf t.tar d; rm -rf odd
			for i in $(seq 50); do echo $i >>log; done; truncate -s 10 big; dd if=/dev/urandom of=d/b bs=1000 seek=3 count=2 conv=notrunc status=none`)
	})
}

func TestHistoryDeletedTreeComesBack(t *testing.T) {
	m := mounttest.New(t, mounttest.Options{Fill: func(dir string) error {
		for i := range 2000 {
			d := fmt.Sprintf("%s/t/%d/%d", dir, i%10, i%50)
			if err := errors.Join(os.MkdirAll(d, 0o755), os.WriteFile(fmt.Sprintf("%s/%d", d, i), fstree.Bytes(uint64(i), i), 0o644)); err != nil {
				return err
			}
		}
		return nil
	}})
	back(t, m, func() {
		m.Sh(`rm -rf t`)
		listed(t, m.Dir)
	})
}

func TestHistoryIgnoredFilesNestedRepositoriesAndGitState(t *testing.T) {
	m := mounttest.New(t, mounttest.Options{Fill: func(dir string) error {
		return exec.Command("bash", "-euc", `cd "$0"
			export GIT_AUTHOR_NAME=t GIT_AUTHOR_EMAIL=t@example.invalid GIT_COMMITTER_NAME=t GIT_COMMITTER_EMAIL=t@example.invalid
			git init -q .; echo .env >.gitignore; echo secret >.env; echo one >f; git add .gitignore f; git commit -qm one
			git init -q vendor/lib; echo lib >vendor/lib/l; git -C vendor/lib add l; git -C vendor/lib commit -qm lib
			echo two >f; git stash -q; echo three >f`, dir).Run()
	}})
	t.Setenv("GIT_AUTHOR_NAME", "t")
	t.Setenv("GIT_AUTHOR_EMAIL", "t@example.invalid")
	t.Setenv("GIT_COMMITTER_NAME", "t")
	t.Setenv("GIT_COMMITTER_EMAIL", "t@example.invalid")
	status := m.Sh("git status --porcelain; git stash list; git log --oneline")
	back(t, m, func() {
		m.Sh(`rm .env; git commit -qam work; git stash drop -q; git gc -q; rm -rf vendor/lib/.git; git branch other; echo new >untracked`)
	})
	is(t, "git's view", m.Sh("git status --porcelain; git stash list; git log --oneline"), status)
	m.Sh("git diff-files --quiet -- .gitignore; git fsck; git -C vendor/lib fsck; git -C vendor/lib diff-files --quiet")
	content(t, m.Path(".env"), "secret\n")
}

func TestHistoryTypesModesXattrsLinks(t *testing.T) {
	m := mounttest.New(t, mounttest.Options{})
	back(t, m, func() {
		m.Sh(`rm a; mkdir a; touch a/x; rm -rf d/empty; echo file >d/empty; rm sym; mkfifo sym; rm fifo; ln -s a fifo
			chmod 0 d/b; chmod 755 modes/suid; chmod 4777 b; setfattr -n user.k -v other b; setfattr -x user.dir d; setfattr -n user.n -v n c
			rm hl1; ln b newlink; ln src/hl3 another; rmdir odd 2>/dev/null || true; rm -rf modes; mkdir modes; touch -d 1999-01-01 big src
			: >sparse; rm odd/.wh.a; mv odd/-rf odd/rf`)
	})
}

func TestHistoryBytesAreNeverReencoded(t *testing.T) {
	files := map[string]string{
		"crlf": "a\r\nb\r\n", "bom": "\xef\xbb\xbftext\n", "utf16": "\xff\xfeh\x00i\x00", "nul": "a\x00b\x00", "nonl": "no newline",
		"empty": "", "binary": string(fstree.Bytes(9, 4<<20)), "latin1": "caf\xe9\n",
	}
	m := mounttest.New(t, mounttest.Options{Fill: mounttest.Empty})
	for n, c := range files {
		put(t, m.Path(n), c)
	}
	back(t, m, func() {
		for n := range files {
			put(t, m.Path(n), "wrecked")
		}
	})
	for n, c := range files {
		content(t, m.Path(n), c)
	}
}

func TestHistoryRollbackCanBeUndone(t *testing.T) {
	m := mounttest.New(t, mounttest.Options{})
	m.Checkpoint("one")
	m.Sh("echo more >>a; rm -rf src; mkdir made")
	wrecked := m.Snapshot()
	m.Rollback("one")
	clean := m.Snapshot()
	m.OK("undo")
	mounttest.Same(t, wrecked, m.Snapshot(), fstree.Exact, "before the rollback", "after undo")
	m.OK("redo")
	mounttest.Same(t, clean, m.Snapshot(), fstree.Exact, "after the rollback", "after redo")
	m.Fails(1, "redo")
	m.Remount()
	m.OK("undo") // also after a restart
	again := m.Snapshot()
	f := fstree.Exact
	f.Ino = false // another mount, another device number
	mounttest.Same(t, wrecked, again, f, "before the rollback", "after undo in another session")
	for p, e := range wrecked.Entries {
		is(t, "inode of "+p, again.Entries[p].Ino, e.Ino)
	}
}

func TestHistoryKernelCachesShowTheRestoredState(t *testing.T) {
	m := mounttest.New(t, mounttest.Options{Fill: func(dir string) error {
		return errors.Join(os.Mkdir(j(dir, "dir"), 0o755), os.WriteFile(j(dir, "grown"), []byte(strings.Repeat("g", 5000)), 0o644),
			os.WriteFile(j(dir, "shrunk"), []byte(strings.Repeat("s", 9000)), 0o644), os.WriteFile(j(dir, "dir/x"), nil, 0o644))
	}})
	r := open(t, m.Path("grown"), os.O_RDONLY)
	mm, err := unix.Mmap(int(r.Fd()), 0, 5000, unix.PROT_READ, unix.MAP_SHARED)
	ok(t, err)
	defer unix.Munmap(mm)
	is(t, "mapped", mm[4000], 'g')
	sh := child(t, m.Path("dir"))
	m.Checkpoint("c")
	for round := range 20 {
		put(t, m.Path("grown"), strings.Repeat("G", 15000))
		put(t, m.Path("shrunk"), "S")
		put(t, m.Path("dir/new"), "")
		ok(t, os.Remove(m.Path("dir/x")))
		ok(t, os.Chmod(m.Path("shrunk"), 0o600))
		// Everything is in the kernel's caches, negative entries too.
		is(t, "listing", sh.run("ls; cat ../shrunk; stat -c %a ../shrunk; wc -c <../grown; cat x 2>&1"), "new\nS600\n15000\ncat: x: No such file or directory")
		is(t, "mapped", mm[4000], 'G')
		m.Rollback("c")
		is(t, "mapped after the rollback", mm[4000], 'g')
		is(t, "after the rollback", sh.run("ls; stat -c %a ../shrunk; wc -c <../grown; wc -c <../shrunk; cat new 2>&1"), "x\n644\n5000\n9000\ncat: new: No such file or directory")
		content(t, m.Path("grown"), strings.Repeat("g", 5000))
		content(t, m.Path("shrunk"), strings.Repeat("s", 9000))
		is(t, "size by the old descriptor", fstat(t, r).Size, 5000)
		if t.Failed() {
			t.Fatalf("in round %d", round)
		}
	}
}

func TestHistoryWatchersAreToldOrStatChanges(t *testing.T) {
	m := mounttest.New(t, mounttest.Options{})
	before := stat(t, m.Path("a"))
	m.Checkpoint("c")
	put(t, m.Path("a"), "changed")
	changed := stat(t, m.Path("a"))
	m.Rollback("c")
	after := stat(t, m.Path("a"))
	is(t, "mtime", mtime(after), mtime(before))
	if ctime(after) == ctime(changed) && after.Size == changed.Size {
		t.Error("a rescan would see no change")
	}
	// For tools outside of the mount that only look for something newer.
	put(t, m.Path("a"), "changed")
	tick(t)
	m.Rollback("c", "--touch")
	touched := stat(t, m.Path("a"))
	content(t, m.Path("a"), string(fstree.Bytes(1, 100)))
	if !mtime(changed).Before(mtime(touched)) {
		t.Errorf("--touch gave the restored file the time %v", mtime(touched))
	}
	is(t, "mtime of an unchanged file", mtime(stat(t, m.Path("b"))), mtime(stat(t, j(m.Base, "b"))))
}
