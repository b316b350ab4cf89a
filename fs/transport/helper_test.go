package transport

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// mount serves m on a directory until the test ends.
func mount(t *testing.T, m *memFS, tn *tuning) *Conn {
	t.Helper()
	if os.Geteuid() == 0 {
		os.Chmod(devFuse, 0o666) // as distributions ship it
	}
	if _, err := os.Stat(devFuse); err != nil {
		t.Skip("no /dev/fuse here")
	}
	c, err := Mount(t.TempDir(), m, Options{FSName: "a,b\\c", Logger: slog.New(slog.NewTextHandler(logTo{t}, nil)), tune: tn})
	if err != nil {
		t.Fatal(err)
	}
	guard := time.AfterFunc(time.Minute, func() { m.unpark(); c.Abort() })
	t.Cleanup(func() {
		guard.Stop()
		m.unpark()
		if err := c.Unmount(true); err != nil && !strings.Contains(err.Error(), "invalid argument") {
			t.Error(err)
		}
		c.Wait()
	})
	return c
}

type logTo struct{ t *testing.T }

func (l logTo) Write(p []byte) (int, error) {
	l.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

// sh runs a script in the mount, as another process: this one must not open files of
// its own mount with the os package (the Go scheduler would poll them).
func sh(t *testing.T, c *Conn, script string) string {
	t.Helper()
	out, err := exec.Command("sh", "-euc", `cd "$0"; `+script, c.Mountpoint()).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", script, err, out)
	}
	return strings.TrimSpace(string(out))
}

func (c *Conn) path(name string) string { return filepath.Join(c.dir, name) }

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			buf := make([]byte, 1<<16)
			t.Fatalf("waited in vain: %s\n%s", what, buf[:runtime.Stack(buf, true)])
		}
	}
}

func exists(path string) bool {
	var st unix.Stat_t
	return unix.Lstat(path, &st) == nil
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func debugLogger(w io.Writer) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// TestMain lets the test binary be another process: a client, because one in the daemon's
// own process would compete for its goroutine scheduler, or a daemon of another user.
func TestMain(m *testing.M) {
	switch {
	case os.Getenv("REWINDFS_CLIENT") != "":
		json.NewEncoder(os.Stdout).Encode(workload(os.Getenv("REWINDFS_CLIENT")))
	case os.Getenv("REWINDFS_DAEMON") != "":
		if err := daemon(os.Getenv("REWINDFS_DAEMON")); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	default:
		os.Exit(m.Run())
	}
}

// daemon serves a mount on dir until its standard input ends.
func daemon(dir string) error {
	c, err := Mount(dir, newMemFS(), Options{FSName: "test", AllowOther: os.Getenv("REWINDFS_OTHER") != "", Logger: quiet()})
	if err != nil {
		return err
	}
	fmt.Println("ready")
	io.Copy(io.Discard, os.Stdin)
	err = c.Unmount(false)
	if err != nil {
		c.Unmount(true)
	}
	c.Wait()
	fmt.Println("done")
	return err
}
