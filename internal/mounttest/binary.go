package mounttest

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// binEnv names the binary to test. Main sets it for the test's own children too.
const binEnv = "REWINDFS_BIN"

// Main is the body of a TestMain: it builds the binary unless REWINDFS_BIN names
// one, runs the tests with umask 0, and returns the exit code.
// REWINDFS_TEST_RACE=1 builds it with the race detector.
func Main(m *testing.M) int {
	flag.Parse()
	syscall.Umask(0)
	if os.Getenv(binEnv) != "" {
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "rewindfs-bin-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil { // other users run it too
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	bin := filepath.Join(dir, "rewindfs")
	args := []string{"build", "-o", bin}
	if os.Getenv("REWINDFS_TEST_RACE") == "1" {
		args = append(args, "-race")
	}
	build := exec.Command("go", append(args, "github.com/rewindfs/rewindfs/cmd/rewindfs")...)
	build.Stdout, build.Stderr = os.Stderr, os.Stderr
	if err := build.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "build rewindfs:", err)
		return 1
	}
	os.Setenv(binEnv, bin)
	return m.Run()
}

// Binary is the path of the binary under test.
func Binary() string { return os.Getenv(binEnv) }
