package transport

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

const nobody = 65534 // fusermount3 wants a user that has a name

// asUser starts cmd, a daemon, for another user in a directory of its own, and returns the line it says.
func asUser(t *testing.T, dir string, env []string, argv ...string) (said string, end func() string) {
	t.Helper()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir = "/"
	cmd.Env = append(append(os.Environ(), "REWINDFS_DAEMON="+dir), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	line := func() string {
		lines.Scan()
		return lines.Text()
	}
	said = line()
	end = func() string {
		in.Close()
		defer cmd.Wait()
		return line()
	}
	t.Cleanup(func() {
		in.Close()
		cmd.Wait()
		exec.Command("umount", "-l", dir).Run()
	})
	return said, end
}

// userDir is a directory of the other user, and a copy of this binary it may run.
func userDir(t *testing.T) (dir, exe string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("becomes another user: needs root")
	}
	if helper() == "" {
		t.Skip("no fusermount3 here")
	}
	os.Chmod(devFuse, 0o666)
	top, err := os.MkdirTemp("", "rewindfs-user")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(top) })
	dir, exe = filepath.Join(top, "mnt"), filepath.Join(top, "exe")
	if out, err := exec.Command("cp", os.Args[0], exe).CombinedOutput(); err != nil {
		t.Fatal(err, string(out))
	}
	os.Mkdir(dir, 0o755)
	for _, p := range []string{top, dir} {
		os.Chmod(p, 0o755)
		os.Chown(p, nobody, nobody)
	}
	return dir, exe
}

func runAs(uid uint32, script string) (string, error) {
	cmd := exec.Command("sh", "-euc", script)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

func TestUnprivilegedUser(t *testing.T) {
	dir, exe := userDir(t)
	said, end := asUser(t, dir, nil, exe)
	if said != "ready" {
		t.Fatal(said)
	}
	if out, err := runAs(nobody, "cd "+dir+"; echo hi > f; cat f; grep "+dir+" /proc/self/mounts"); err != nil || !strings.Contains(out, FSType) {
		t.Errorf("%s, %v", out, err)
	}
	if out, err := runAs(0, "cat "+dir+"/f"); err == nil {
		t.Errorf("root gets in without allow_other: %s", out)
	}
	if said := end(); said != "done" {
		t.Error(said)
	}
	if out, _ := runAs(nobody, "ls "+dir); out != "" {
		t.Errorf("still mounted: %s", out)
	}
}

func TestAllowOtherNeedsConfiguration(t *testing.T) {
	dir, exe := userDir(t)
	conf, _ := os.ReadFile("/etc/fuse.conf")
	for line := range strings.Lines(string(conf)) {
		if strings.TrimSpace(line) == "user_allow_other" {
			t.Skip("user_allow_other is set here")
		}
	}
	said, _ := asUser(t, dir, []string{"REWINDFS_OTHER=1"}, exe)
	if !strings.Contains(said, "user_allow_other") || !strings.Contains(said, "/etc/fuse.conf") {
		t.Errorf("the error does not say what to do: %s", said)
	}
}

func TestUserNamespace(t *testing.T) {
	dir, exe := userDir(t)
	if out, err := runAs(nobody, "unshare -Urm true"); err != nil {
		t.Skipf("no user namespaces here: %s", out)
	}
	said, end := asUser(t, dir, []string{"PATH=/nonexistent"}, "/usr/bin/unshare", "-Urm", exe)
	if said != "ready" {
		t.Fatal(said)
	}
	if out, err := runAs(nobody, "ls -A "+dir); err != nil || out != "" {
		t.Errorf("the mount is seen outside of its namespace: %s, %v", out, err)
	}
	if said := end(); said != "done" {
		t.Error(said)
	}
}

func TestUnwritableMountpoint(t *testing.T) {
	dir, exe := userDir(t)
	os.Chown(dir, 0, 0)
	said, _ := asUser(t, dir, nil, exe)
	if !strings.Contains(said, "own") {
		t.Errorf("the error does not say what to do: %s", said)
	}
}
