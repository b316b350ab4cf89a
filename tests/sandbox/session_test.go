package sandbox

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/rewindfs/rewindfs/internal/mounttest"
)

// What commands leave in /tmp is kept for the next one, and goes with the session.
func TestTemporaryDirectoryOfASession(t *testing.T) {
	m := mounttest.New(t, mounttest.Options{})
	m.OK("exec", "--", "sh", "-c", "echo kept >/tmp/rewindfs-test-kept")
	if got := m.OK("exec", "--", "cat", "/tmp/rewindfs-test-kept"); got != "kept\n" {
		t.Errorf("the next command finds %q", got)
	}
	pattern := filepath.Join(os.TempDir(), "rewindfs-*/*/tmp/rewindfs-test-kept")
	if found, _ := filepath.Glob(pattern); len(found) != 1 {
		t.Errorf("on the host there are %q", found)
	}
	m.OK("destroy", "--yes")
	if found, _ := filepath.Glob(pattern); len(found) != 0 {
		t.Errorf("after the end of the session there are %q", found)
	}
}

// What the sandbox did not allow is said at the end, with the flag that allows it; and then it does.
func TestRefusedWritesAreNamed(t *testing.T) {
	m := mounttest.New(t, mounttest.Options{})
	out := filepath.Join(m.Top, "out")
	ok(t, os.Mkdir(out, 0o755))
	r := m.Run("exec", "--", "sh", "-c", "echo x >"+out+"/f")
	want := "rewindfs: refused: write to " + out + "/f (allow it with --allow " + out + ")\n"
	if r.Code == 0 || len(r.Stderr) < len(want) || r.Stderr[len(r.Stderr)-len(want):] != want {
		t.Errorf("want %q at the end: %s", want, r)
	}
	m.OK("exec", "--allow", out, "--", "sh", "-c", "echo x >"+out+"/f")
	if raw, err := os.ReadFile(out + "/f"); err != nil || string(raw) != "x\n" {
		t.Errorf("%q, %v", raw, err)
	}
}
