package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rewindfs/rewindfs/session"
)

// world is a place of its own for real mounts: a home, a base, and a user.
type world struct {
	t    *testing.T
	bin  string
	home string
	base string
	mp   string
	cred *syscall.Credential
}

// limit is for one command; none of them should take anywhere near it.
const limit = 2 * time.Minute

func newWorld(t *testing.T) *world {
	t.Helper()
	return newWorldFor(t, nil)
}

func newWorldFor(t *testing.T, cred *syscall.Credential) *world {
	t.Helper()
	if f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0); err != nil {
		t.Skipf("no mount can be made here: %v", err)
	} else {
		f.Close()
	}
	dir, err := os.MkdirTemp("", "rewindfs-cli-")
	if err != nil {
		t.Fatal(err)
	}
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, home: filepath.Join(dir, "home"), base: filepath.Join(dir, "proj"), cred: cred}
	w.mp = w.base + ".rewind"
	w.bin, err = os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"a.txt": "base a\n", "sub/b.txt": "base b\n", "sub/deep/c": "base c\n"} {
		p := filepath.Join(w.base, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(w.home, 0o755); err != nil {
		t.Fatal(err)
	}
	if cred != nil {
		// The test binary lies where only its user may look.
		b, err := os.ReadFile(w.bin)
		if err != nil {
			t.Fatal(err)
		}
		w.bin = filepath.Join(dir, "rewindfs")
		if err := os.WriteFile(w.bin, b, 0o755); err != nil {
			t.Fatal(err)
		}
		err = filepath.WalkDir(dir, func(p string, _ fs.DirEntry, err error) error {
			return errors.Join(err, os.Lchown(p, int(cred.Uid), int(cred.Gid)))
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.tearDown(dir) })
	return w
}

// tearDown leaves no mount and no daemon behind, whatever the test did.
func (w *world) tearDown(dir string) {
	mounts, err := session.Mounts()
	if err != nil {
		w.t.Error(err)
	}
	for _, m := range slices.Backward(mounts) {
		if !strings.HasPrefix(m.Path, dir+"/") {
			continue
		}
		if w.t.Failed() {
			w.t.Logf("%s was still mounted", m.Path)
		} else {
			w.t.Errorf("%s is still mounted", m.Path)
		}
		if err := session.CutOff(m.Path); err != nil {
			w.t.Error(err)
		}
	}
	if w.t.Failed() {
		logs, _ := filepath.Glob(filepath.Join(dir, "home", "*", "*", "*", "*", "daemon.log"))
		for _, l := range logs {
			b, _ := os.ReadFile(l)
			w.t.Logf("%s:\n%s", l, b)
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		w.t.Error(err)
	}
}

func (w *world) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, w.bin, args...)
	cmd.Dir = "/"
	cmd.Env = []string{asProgram + "=1", noRaceSleep, "HOME=" + w.home, "PATH=" + os.Getenv("PATH")}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: w.cred}
	cmd.WaitDelay = time.Second
	return cmd
}

// rewind runs a command line in a process of its own.
func (w *world) rewind(args ...string) outcome {
	w.t.Helper()
	return w.finish(args, nil)
}

func (w *world) finish(args []string, tweak func(*exec.Cmd)) outcome {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	var out, errs bytes.Buffer
	cmd := w.command(ctx, args...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	if tweak != nil {
		tweak(cmd)
	}
	err := cmd.Run()
	if ctx.Err() != nil {
		w.t.Fatalf("%q did not end: %s%s", args, out.String(), errs.String())
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		w.t.Fatalf("%q: %v", args, err)
	}
	return outcome{cmd.ProcessState.ExitCode(), out.String(), errs.String()}
}

// stdin gives a command something to read.
func stdin(text string) func(*exec.Cmd) {
	return func(c *exec.Cmd) { c.Stdin = strings.NewReader(text) }
}

func (w *world) mount(args ...string) outcome {
	w.t.Helper()
	return w.rewind(append([]string{"mount", w.base}, args...)...).want(w.t, 0)
}

func (w *world) unmount(args ...string) {
	w.t.Helper()
	w.rewind(append([]string{"unmount"}, args...)...).want(w.t, 0)
}

// as runs a file operation as the world's user: root may not enter another's mount.
func (w *world) sh(script string) string {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-euc", script)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: w.cred}
	cmd.Env = []string{"M=" + w.mp, "B=" + w.base, "PATH=" + os.Getenv("PATH")}
	b, err := cmd.CombinedOutput()
	if err != nil {
		w.t.Fatalf("%s: %v\n%s", script, err, b)
	}
	return string(b)
}

func (w *world) same(script, want string) {
	w.t.Helper()
	if got := w.sh(script); got != want {
		w.t.Fatalf("%s printed %q, want %q", script, got, want)
	}
}

func (w *world) pid() int {
	w.t.Helper()
	return int(w.rewind("status", "--json").data(w.t)["pid"].(float64))
}

// listing is all that stat and contents of the base say, but for atime.
func (w *world) listing() string {
	return w.sh(`cd $B && find . -printf '%p %y %m %U %G %s %T@ %C@ %i %n\n' | sort && find . -type f | sort | xargs cat`)
}

func testMainJob(t *testing.T, w *world) {
	before := w.listing()
	w.mount().want(t, 0, w.mp, "rewindfs checkpoint")
	w.same("cat $M/a.txt $M/sub/b.txt", "base a\nbase b\n")
	w.sh("echo one >$M/a.txt; mkdir $M/made; echo new >$M/made/file; ln $M/made/file $M/hard; ln -s file $M/made/link; touch -d @1000000000 $M/a.txt")
	stat := w.sh("cd $M; stat -c '%n %f %h %s %Y %Z %i' a.txt hard made made/file made/link sub")
	w.rewind("checkpoint", "stable", "-m", "all is well").want(t, 0, "'stable'", "rewindfs rollback stable")
	w.sh("echo two >>$M/a.txt; rm -r $M/made $M/sub; ln -s /etc/passwd $M/sub; echo other >$M/hard")
	w.rewind("diff", "--name-status").want(t, 0, "M\ta.txt\n", "T\tsub\n", "D\tmade/file\n")
	w.rewind("rollback", "stable", "--dry-run").want(t, 0, "Nothing was done")
	w.same("cat $M/a.txt", "one\ntwo\n")
	w.rewind("rollback", "stable").want(t, 0, "Back at 'stable'", "Undo with: rewindfs undo")
	w.same("cat $M/a.txt $M/made/file $M/hard $M/made/link $M/sub/b.txt", "one\nnew\nnew\nnew\nbase b\n")
	if got := w.sh("cd $M; stat -c '%n %f %h %s %Y %Z %i' a.txt hard made made/file made/link sub"); got != stat {
		t.Errorf("stat was\n%sand is\n%s", stat, got)
	}
	w.rewind("undo").want(t, 0)
	w.same("cat $M/a.txt $M/hard; readlink $M/sub", "one\ntwo\nother\n/etc/passwd\n")
	w.rewind("redo").want(t, 0)
	w.same("cat $M/a.txt $M/.rewind/checkpoints/stable/a.txt", "one\none\n")
	w.rewind("rollback", "stable").want(t, 0, "Already at 'stable'")
	w.unmount()
	if _, err := os.Lstat(w.mp); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the mount point is still there: %v", err)
	}
	w.mount().want(t, 0, "All is as you left it: 1 checkpoint, the latest is 'stable'")
	w.same("cat $M/a.txt $M/made/file", "one\nnew\n")
	w.rewind("cat", "base:a.txt").want(t, 0, "base a\n")
	w.rewind("destroy", "--yes").want(t, 0, "Deleted")
	if got := w.listing(); got != before {
		t.Errorf("the base was\n%s\nand is\n%s", before, got)
	}
	w.rewind("status").want(t, exitNoSession)
}

func TestEndToEnd(t *testing.T) { testMainJob(t, newWorld(t)) }

// ordinaryUser is one who can mount; without such the test is skipped.
func ordinaryUser(t *testing.T) *syscall.Credential {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root can become somebody else; the other tests ran as an ordinary user")
	}
	cred := &syscall.Credential{Uid: 65534, Gid: 65534}
	if _, err := exec.LookPath("fusermount3"); err != nil {
		t.Skip("there is no fusermount3")
	}
	probe := exec.Command("sh", "-c", ": <>/dev/fuse")
	probe.SysProcAttr = &syscall.SysProcAttr{Credential: cred}
	if err := probe.Run(); err != nil {
		t.Skip("/dev/fuse may be opened by root only: chmod 0666 /dev/fuse, as distributions ship it")
	}
	return cred
}

func TestEndToEndUnprivileged(t *testing.T) {
	w := newWorldFor(t, ordinaryUser(t))
	testMainJob(t, w)

	// Root steers, and may not enter.
	w.mount()
	if _, err := os.ReadFile(filepath.Join(w.mp, "a.txt")); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("root read another user's mount: %v", err)
	}
	w.finish([]string{"write", "by-root", "text"}, func(c *exec.Cmd) { c.SysProcAttr.Credential = nil }).want(t, 0)
	w.same("cat $M/by-root", "text")
	other := &syscall.Credential{Uid: 12345, Gid: 12345}
	w.finish([]string{"status"}, func(c *exec.Cmd) {
		c.SysProcAttr.Credential = other
		c.Env = append(c.Env, "HOME=/nonexistent")
	}).want(t, exitNoSession)
	// In another user's home there is nothing to be found, and nothing to be made.
	asOther := func(c *exec.Cmd) { c.SysProcAttr.Credential = other }
	for _, args := range [][]string{{"status"}, {"list"}, {"unmount", "proj"}} {
		w.finish(args, asOther).want(t, exitNoSession, "no permission to look for sessions", "XDG_STATE_HOME")
	}
	w.finish([]string{"mount", w.base, "/tmp/rewindfs-other"}, asOther).want(t, exitPath, "permission denied", "--store")
	w.unmount()
}

func (w *world) store() string {
	return session.DefaultStore(filepath.Join(w.home, ".local/state/rewindfs"), w.base)
}

func TestOver(t *testing.T) {
	w := newWorld(t)
	w.mp = w.base
	before := w.listing()
	w.mount("--over")
	w.sh("echo changed >$B/a.txt; rm -r $B/sub; echo n >$B/n")
	w.rewind("status").want(t, 0, "6 paths changed") // sub, 3 in it, a.txt, n
	w.unmount()
	if got := w.listing(); got != before {
		t.Errorf("the base was\n%s\nand is\n%s", before, got)
	}
	w.mount("--over")
	w.same("cat $B/a.txt; ls $B", "changed\na.txt\nn\n")
	w.rewind("mount", w.base, "--over").want(t, exitConflict, "held by the daemon with pid")
	w.unmount()
}

func TestBadInputEndToEnd(t *testing.T) {
	w := newWorld(t)
	full := filepath.Join(w.home, "full")
	w.sh("mkdir " + full + "; touch " + full + "/x")
	for _, c := range []struct {
		code int
		text string
		args []string
	}{
		{exitPath, "does not exist", []string{w.base + "-nope"}},
		{exitPath, "not a directory", []string{w.base + "/a.txt"}},
		{exitPath, "inside the base", []string{w.base, w.base + "/sub"}},
		{exitPath, "--over", []string{w.base, w.base}},
		{exitPath, "not empty", []string{w.base, full}},
		{exitPath, "inside the base", []string{w.base, "--store", w.base + "/.store"}},
		{exitPath, "inside the mount point", []string{w.base, "--store", w.mp + "/store"}},
		{exitPath, "neither empty nor", []string{w.base, "--store", full}},
		{exitPath, "is empty", []string{""}},
		{exitPath, "is empty", []string{w.base, ""}},
		{exitUsage, "cache mode", []string{w.base, "--cache", "fast"}},
		{exitFailure, "branch mount dev", []string{w.base, "--branch", "dev"}},
	} {
		w.rewind(append([]string{"mount"}, c.args...)...).want(t, c.code, c.text)
	}
	if _, err := os.Lstat(w.mp); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a mount point was left behind: %v", err)
	}
	w.rewind("list", "--json").want(t, 0)

	w.mount()
	pid := fmt.Sprintf("pid %d", w.pid())
	w.rewind("mount", w.base).want(t, exitConflict, pid, "rewindfs unmount")
	w.rewind("mount", w.base, w.home+"/other").want(t, exitConflict, pid)
	other := filepath.Join(w.home, "otherbase")
	w.sh("mkdir " + other)
	w.rewind("mount", other, w.mp).want(t, exitConflict, "another session is mounted at")
	w.rewind("mount", other, "--store", w.store()).want(t, exitConflict, pid)
	for _, label := range []string{"", "@x", " x", "x\n", "base", "latest", "..", "a/../b", "/x", strings.Repeat("x", 256), "a\x1b[0m", "\xff"} {
		w.rewind("checkpoint", "--", label).want(t, exitCheckpoint)
	}
	w.rewind("checkpoint", "--", "-x").want(t, exitCheckpoint)
	w.rewind("checkpoint", "one").want(t, 0)
	w.rewind("checkpoint", "one").want(t, exitCheckpoint, "label is taken")
	w.rewind("rollback", "two").want(t, exitCheckpoint, "the newest are: one")
	if got := w.rewind("log", "--json").data(t)["checkpoints"].([]any); len(got) != 1 {
		t.Errorf("checkpoints: %v", got)
	}
	w.unmount()
}

func TestNewerStore(t *testing.T) {
	w := newWorld(t)
	w.mount()
	w.unmount()
	format := filepath.Join(w.store(), "kv", "format")
	b, err := os.ReadFile(format)
	if err != nil {
		t.Fatal(err)
	}
	newer := regexp.MustCompile(` \d+\n`).ReplaceAll(b, []byte(" 99\n"))
	if err := os.WriteFile(format, newer, 0o600); err != nil {
		t.Fatal(err)
	}
	w.rewind("mount", w.base).want(t, exitFailure, "newer rewindfs")
	if err := os.WriteFile(format, b, 0o600); err != nil {
		t.Fatal(err)
	}
	w.mount()
	w.unmount()
}

func TestOddNames(t *testing.T) {
	w := newWorld(t)
	name := "odd\xff\n\x1b[31m"
	w.mount()
	for _, n := range []string{name, strings.Repeat("x", 255)} {
		if err := os.WriteFile(filepath.Join(w.mp, n), []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(w.mp, strings.Repeat("x", 256)), nil, 0o644); !errors.Is(err, syscall.ENAMETOOLONG) {
		t.Errorf("a name of 256 bytes: %v", err)
	}
	if o := w.rewind("diff"); strings.Contains(o.out, "\x1b") {
		t.Errorf("escape sequences reach the terminal: %q", o.out)
	}
	found := false
	for _, c := range w.rewind("diff", "--json").data(t)["changes"].([]any) {
		found = found || c.(map[string]any)["path_b64"] == base64.StdEncoding.EncodeToString([]byte(name))
	}
	if !found {
		t.Errorf("the name is not in %s", w.rewind("diff", "--json").out)
	}
	w.rewind("read", name).want(t, 0, "x")
	w.rewind("write", name, "y").want(t, 0)
	if b, err := os.ReadFile(filepath.Join(w.mp, name)); err != nil || string(b) != "y" {
		t.Errorf("%q, %v", b, err)
	}
	w.unmount()
}

// What the API writes is what the kernel shows, though it had cached otherwise.
func TestWriteIsSeenAtOnce(t *testing.T) {
	w := newWorld(t)
	w.mount()
	w.sh("ls -la $M $M/sub; cat $M/a.txt; test ! -e $M/sub/new")
	held, err := os.Open(filepath.Join(w.mp, "a.txt"))
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	w.rewind("write", "a.txt", "longer than it was before").want(t, 0)
	w.rewind("write", "sub/new", "new").want(t, 0)
	w.same("cat $M/a.txt $M/sub/new; ls $M/sub; stat -c %s $M/a.txt", "longer than it was beforenewb.txt\ndeep\nnew\n25\n")
	buf := make([]byte, 100)
	if n, err := held.ReadAt(buf, 0); n != 25 || string(buf[:n]) != "longer than it was before" {
		t.Errorf("through the old descriptor: %q, %v", buf[:n], err)
	}
	w.sh("echo more >>$M/a.txt")
	w.rewind("read", "a.txt").want(t, 0, "longer than it was beforemore\n")
	held.Close()
	w.unmount()
}

// A base whose path is not UTF-8 is found again under its own bytes.
func TestOddBase(t *testing.T) {
	w := newWorld(t)
	odd := w.base + " \xff\n"
	if err := os.Rename(w.base, odd); err != nil {
		t.Fatal(err)
	}
	w.base, w.mp = odd, odd+".rewind"
	w.mount()
	st := w.rewind("status", "--json").data(t)
	if st["base_b64"] != base64.StdEncoding.EncodeToString([]byte(odd)) {
		t.Errorf("%v", st)
	}
	if err := os.WriteFile(w.mp+"/x", []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	kill(t, w.pid())
	w.mount()
	w.rewind("read", w.mp+"/x").want(t, 0, "x")
	w.unmount(w.mp)
}

// The daemon runs with umask 0; what it keeps is its owner's all the same.
func TestStoreIsPrivate(t *testing.T) {
	w := newWorld(t)
	w.mount("--debug")
	w.sh("umask 0; echo secret >$M/s; ls -R $M >/dev/null")
	w.rewind("checkpoint", "--durable").want(t, 0)
	if open := w.sh("find " + w.store() + " -perm /077"); open != "" {
		t.Errorf("others may use %s", open)
	}
	w.unmount()
	if open := w.sh("find " + w.store() + " -perm /077"); open != "" {
		t.Errorf("others may use %s", open)
	}
}

// The API is for others, too: curl is enough to drive it.
func TestCurl(t *testing.T) {
	w := newWorld(t)
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("there is no curl")
	}
	w.mount()
	curl := "curl -sS --unix-socket " + w.store() + "/control.sock "
	for call, want := range map[string]string{
		`-d '{"label":"c"}' http://x/v1/checkpoint`:          `"label":"c"`,
		`'http://x/v1/status?generation=1'`:                  `"session":"proj"`,
		`'http://x/v1/status?generation=7'`:                  `"error":{"code":"stale_generation"`,
		`-d '{}' http://x/v1/diff`:                           `"result":{"from":`,
		`-T ` + w.base + `/a.txt 'http://x/v1/file?path=up'`: `{"size":7}`,
		`'http://x/v1/file?path=a.txt'`:                      "base a\n",
		`http://x/metrics`:                                   "rewindfs_generation 1",
		`'http://x/debug/pprof/goroutine?debug=1'`:           "goroutine profile",
		`-X DELETE http://x/v1/status`:                       "no_such_call",
	} {
		if got := w.sh(curl + call); !strings.Contains(got, want) {
			t.Errorf("%s printed %.300s", call, got)
		}
	}
	w.unmount()
}

func TestStoreElsewhere(t *testing.T) {
	w := newWorld(t)
	// Longer than a socket address can hold.
	store := filepath.Join(w.home, strings.Repeat("d", 100), strings.Repeat("e", 100))
	w.mount("--store", store, "--name", "else where", filepath.Join(w.home, "m p"))
	w.rewind("-s", "else where", "checkpoint", "c").want(t, 0)
	w.rewind("-s", store, "log").want(t, 0, "c  ")
	w.rewind("-s", w.home+"/m p", "write", "x", "1").want(t, 0)
	w.rewind("list").want(t, 0, "else where")
	w.rewind("unmount", "else where").want(t, 0, "--store")
	w.rewind("destroy", "-y", "else where").want(t, 0)
	if o := w.rewind("list"); strings.Contains(o.out, "else where") {
		t.Errorf("still listed: %s", o.out)
	}
}

func TestBaseInsideAnotherSession(t *testing.T) {
	w := newWorld(t)
	w.mount()
	w.sh("echo outer >$M/sub/b.txt")
	inner := filepath.Join(w.home, "inner")
	w.rewind("mount", w.mp+"/sub", inner).want(t, 0)
	if got := w.sh("cat " + inner + "/b.txt; echo inner >" + inner + "/b.txt; cat " + inner + "/b.txt $M/sub/b.txt"); got != "outer\ninner\nouter\n" {
		t.Errorf("%q", got)
	}
	w.rewind("unmount", inner).want(t, 0)
	w.unmount(w.mp)
}

func TestUserNamespace(t *testing.T) {
	w := newWorld(t)
	script := `set -eu
"$BIN" mount "$B" >/dev/null
echo x >"$M/x"
"$BIN" checkpoint c >/dev/null
rm "$M/x"
"$BIN" rollback c >/dev/null
cat "$M/x"
"$BIN" unmount >/dev/null
`
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "unshare", "-Urm", "sh", "-c", script)
	cmd.Env = []string{asProgram + "=1", noRaceSleep, "HOME=" + w.home, "PATH=" + os.Getenv("PATH"), "B=" + w.base, "M=" + w.mp, "BIN=" + w.bin}
	if err := exec.Command("unshare", "-Urm", "true").Run(); err != nil {
		t.Skipf("no user namespaces here: %v", err)
	}
	b, err := cmd.CombinedOutput()
	if err != nil || string(b) != "x\n" {
		t.Fatalf("%v: %s", err, b)
	}
}
