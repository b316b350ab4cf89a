package layers

import (
	"os"
	"os/exec"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// firstApart has TestMain give the first thread a table of descriptors of its own, as
// transport.Apart does when its goroutine happens to run there.
const firstApart = "REWINDFS_TEST_FIRST_THREAD_APART"

func init() {
	if os.Getenv(firstApart) != "" {
		runtime.LockOSThread() // who calls TestMain is on the first thread, and stays there
	}
}

func TestMain(m *testing.M) {
	if os.Getenv(firstApart) != "" {
		if err := unix.Unshare(unix.CLONE_FILES); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}

// What is read of the base does not depend on which thread is the process's first.
func TestBaseIsReadByAnyThread(t *testing.T) {
	if os.Getenv(firstApart) != "" {
		base := sampleBase(t)
		if err := unix.Setxattr(base+"/src/main.go", "user.k", []byte("v"), 0); err != nil {
			t.Skipf("no extended attributes here: %v", err)
		}
		s := newStore(t, base)
		v, err := s.b.Getxattr(s.ino("src/main.go"), "user.k")
		if err != nil || string(v) != "v" {
			t.Errorf("the attribute is %q, %v", v, err)
		}
		if err := s.b.Setxattr(s.ino("src/main.go"), "user.other", []byte("w"), 0); err != nil {
			t.Fatal(err)
		}
		if v, err := s.b.Getxattr(s.ino("src/main.go"), "user.k"); err != nil || string(v) != "v" {
			t.Errorf("copied up, the attribute is %q, %v", v, err)
		}
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestBaseIsReadByAnyThread$", "-test.v")
	cmd.Env = append(os.Environ(), firstApart+"=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
