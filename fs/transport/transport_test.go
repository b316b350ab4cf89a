package transport

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// Our decoder and go-fuse's say the same.
func TestRequests(t *testing.T) {
	for _, generic := range []bool{false, true} {
		tn := defaultTuning()
		tn.generic = generic
		c := mount(t, newMemFS(), &tn)
		hack := "echo x"
		if !generic { // go-fuse keeps this name for itself
			hack = "ln d/g .go-fuse-epoll-hack; rm .go-fuse-epoll-hack; echo x > .go-fuse-epoll-hack; cat .go-fuse-epoll-hack; rm .go-fuse-epoll-hack"
		}
		got := sh(t, c, `
			umask 022
			echo hello > f; mkdir d; mv f d/g; ln d/g h; ln -s d/g l; cat l h; readlink l
			stat -c '%s %h %a' d/g; ls -1 . d; rm h; chmod 600 d/g; truncate -s 3 d/g; od -c d/g
			`+hack+`
			mkdir e; rmdir e; test ! -e e
			head -c 3000000 /dev/urandom > big; cp big d/big; cmp big d/big
			getfattr --only-values -n user.hello big; stat -c %s big`)
		want := `hello
hello
d/g
6 2 644
d
h
l
d:
g
0000000   h   e   l
0000003
x
user.hello3000000`
		want = strings.Replace(want, "d\nh\nl\nd:\ng", ".:\nd\nh\nl\n\nd:\ng", 1)
		if got != want {
			t.Errorf("generic %v: got\n%s\nwant\n%s", generic, got, want)
		}
		n := c.Counters()
		for _, op := range []string{"INIT", "LOOKUP", "MKNOD", "MKDIR", "RENAME2", "LINK", "SYMLINK", "READLINK", "WRITE", "READ", "UNLINK", "RMDIR", "SETATTR", "GETXATTR"} {
			if n[op] == 0 {
				t.Errorf("no %s was counted: %v", op, n)
			}
		}
		if n["OPEN"] > 2 || n["INIT"] != 1 {
			t.Errorf("counters: %v", n)
		}
		mounts, _ := os.ReadFile("/proc/self/mounts")
		if !bytes.Contains(mounts, []byte(FSType)) || !bytes.Contains(mounts, []byte(`a,b\134c `)) {
			t.Errorf("not in /proc/mounts as %s with its source:\n%s", FSType, mounts)
		}
	}
}

func TestPanicIsEIO(t *testing.T) {
	m := newMemFS()
	m.entered = func(op, name string) fuse.Status {
		if name == "boom" || op == "FSYNC" {
			panic("told to")
		}
		return fuse.OK
	}
	c := mount(t, m, nil)
	for range 3 {
		if err := unix.Lstat(c.path("boom"), &unix.Stat_t{}); !errors.Is(err, unix.EIO) {
			t.Errorf("a panic in our decoder's handler: %v, want EIO", err)
		}
	}
	sh(t, c, "echo x > f")
	fd, err := unix.Open(c.path("f"), unix.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	for range 2 { // twice: were it ENOSYS, the kernel would not ask again
		if err := unix.Fsync(fd); !errors.Is(err, unix.EIO) {
			t.Errorf("a panic in a handler called by go-fuse: %v, want EIO", err)
		}
	}
}

// parkedFS parks lookups of names that begin with "park" until release is called.
func parkedFS() (m *memFS, parked chan string, release func()) {
	m = newMemFS()
	gate := make(chan struct{})
	release = sync.OnceFunc(func() { close(gate) })
	m.unpark = release
	parked = make(chan string, 100)
	m.entered = func(op, name string) fuse.Status {
		if strings.HasPrefix(name, "park") {
			parked <- name
			<-gate
		}
		return fuse.OK
	}
	return m, parked, release
}

// look stats a name in the background.
func look(c *Conn, name string) chan error {
	done := make(chan error, 1)
	go func() { done <- unix.Lstat(c.path(name), &unix.Stat_t{}) }()
	return done
}

func TestParkedHandlersDoNotStarveOthers(t *testing.T) {
	m, parked, release := parkedFS()
	tn := defaultTuning()
	c := mount(t, m, &tn)
	n := tn.base + 10
	var waiting []chan error
	// In directories of their own: lookups in one directory may wait for each other in the kernel.
	for i := range n {
		sh(t, c, fmt.Sprint("mkdir d", i))
		waiting = append(waiting, look(c, fmt.Sprintf("d%d/park", i)))
		<-parked
	}
	sh(t, c, "echo alive > f; cat f; rm f")
	release()
	for _, w := range waiting {
		if err := <-w; !errors.Is(err, unix.ENOENT) {
			t.Error(err)
		}
	}
	if got := c.threads(); got < n || got > tn.max {
		t.Errorf("%d workers, want at least %d", got, n)
	}
	sh(t, c, "for i in 1 2 3 4 5 6 7 8 9; do echo $i > f$i; done")
}

// With every thread that may be there parked, the mount stands still, and goes on
// when one is free.
func TestMaxWorkers(t *testing.T) {
	m, parked, release := parkedFS()
	tn := defaultTuning()
	tn.base, tn.max = 2, 4
	c := mount(t, m, &tn)
	var waiting []chan error
	for i := range tn.max {
		waiting = append(waiting, look(c, fmt.Sprint("park", i)))
		<-parked
	}
	last := look(c, "other")
	release()
	for _, w := range append(waiting, last) {
		if err := <-w; !errors.Is(err, unix.ENOENT) {
			t.Error(err)
		}
	}
	if got := c.threads(); got > tn.max {
		t.Errorf("%d workers, at most %d may be", got, tn.max)
	}
}

func (c *Conn) threads() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.workers)
}

func TestConcurrency(t *testing.T) {
	c := mount(t, newMemFS(), nil)
	sh(t, c, `
		work() { mkdir $1; i=0; while [ $i -lt 200 ]; do echo $1 > $1/$i; i=$((i+1)); done; cat $1/* | sort -u; }
		for w in a b c d; do work $w & done; wait; find . -type f | wc -l; rm -r a b c d`)
}

func TestUnmount(t *testing.T) {
	before := runtime.NumGoroutine()
	c := mount(t, newMemFS(), nil)
	sh(t, c, "echo x > f")
	fd, err := unix.Open(c.path("f"), unix.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Unmount(false); !errors.Is(err, unix.EBUSY) {
		t.Errorf("unmounting a mount in use: %v, want EBUSY", err)
	}
	sh(t, c, "cat f")
	unix.Close(fd)
	if err := c.Unmount(false); err != nil {
		t.Fatal(err)
	}
	c.Wait()
	if exists(c.path("f")) {
		t.Error("the mount is still there")
	}
	if err := c.InvalInode(1, -1, 0); !errors.Is(err, unix.ENODEV) {
		t.Errorf("a notice after the end: %v, want ENODEV", err)
	}
	eventually(t, "goroutines are gone", func() bool { return runtime.NumGoroutine() <= before+1 })
}

func TestLazyUnmount(t *testing.T) {
	c := mount(t, newMemFS(), nil)
	sh(t, c, "echo x > f")
	fd, err := unix.Open(c.path("f"), unix.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Unmount(true); err != nil {
		t.Fatal(err)
	}
	if n, err := unix.Read(fd, make([]byte, 9)); n != 2 || err != nil {
		t.Errorf("who had a file open reads %d, %v", n, err)
	}
	select {
	case <-c.Done():
		t.Error("the connection ended while in use")
	default:
	}
	unix.Close(fd)
	c.Wait()
}

func TestAbort(t *testing.T) {
	m, parked, release := parkedFS()
	c := mount(t, m, nil)
	waiting := look(c, "park")
	<-parked
	if err := c.Abort(); err != nil {
		t.Fatal(err)
	}
	if err := <-waiting; err == nil || errors.Is(err, unix.ENOENT) {
		t.Errorf("a request that was waiting at the abort: %v", err)
	}
	if err := unix.Lstat(c.path("f"), &unix.Stat_t{}); err == nil {
		t.Error("requests still work after an abort")
	}
	select {
	case <-c.Done():
		t.Error("done with a handler still running")
	default:
	}
	release()
	c.Wait()
}

// The number of a connection that has ended is soon another mount's.
func TestAbortOfAnEndedConnection(t *testing.T) {
	old := mount(t, newMemFS(), nil)
	if err := old.Unmount(false); err != nil {
		t.Fatal(err)
	}
	old.Wait()
	c := mount(t, newMemFS(), nil)
	if c.Dev() != old.Dev() {
		t.Logf("the kernel gave another number: %x after %x", c.Dev(), old.Dev())
	}
	if err := old.Abort(); err != nil {
		t.Error(err)
	}
	sh(t, c, "echo alive >f; grep -q alive f")
}

func TestNotifications(t *testing.T) {
	m := newMemFS()
	c := mount(t, m, nil)
	sh(t, c, "echo old > f; cat f; test ! -e new; mkdir d; echo x > d/x; ls -l . d")
	m.mu.Lock()
	f := m.nodes[1].names["f"]
	m.nodes[f].data = []byte("changed\n")
	m.nodes[1].names["new"] = f
	m.mu.Unlock()
	if got := sh(t, c, "cat f; ls; test -e new && echo new || :"); strings.Contains(got, "changed") || strings.Contains(got, "new") {
		t.Fatalf("the kernel does not remember what it should: %s", got)
	}
	for _, err := range []error{c.InvalInode(f, 0, 0), c.InvalInode(1, 0, 0), c.InvalEntry(1, "new")} {
		if err != nil {
			t.Error(err)
		}
	}
	if got := sh(t, c, "cat f; ls; test -e new && echo new"); got != "changed\nd\nf\nnew\nnew" {
		t.Errorf("after the notices: %s", got)
	}
	for what, err := range map[string]error{
		"inode": c.InvalInode(1<<40, 0, 0), "entry": c.InvalEntry(1<<40, "x"), "name": c.InvalEntry(1, "nobody"),
		"delete": c.Delete(1, 1<<40, "nobody"),
	} {
		if !errors.Is(err, unix.ENOENT) {
			t.Errorf("a notice about an unknown %s: %v, want ENOENT", what, err)
		}
	}
	m.mu.Lock()
	d := m.nodes[1].names["d"]
	delete(m.nodes[1].names, "new")
	m.mu.Unlock()
	if err := c.Delete(1, f, "new"); err != nil {
		t.Error(err)
	}
	if exists(c.path("new")) {
		t.Error("a name is still there after Delete")
	}
	if !c.HasEpoch() {
		t.Skip("this kernel has no epochs")
	}
	m.mu.Lock()
	delete(m.nodes[d].names, "x")
	m.mu.Unlock()
	if err := c.IncEpoch(); err != nil {
		t.Error(err)
	}
	if exists(c.path("d/x")) {
		t.Error("a name is still there after a new epoch")
	}
}

func TestQuiesce(t *testing.T) {
	m, parked, release := parkedFS()
	c := mount(t, m, nil)
	c.Quiesce()         // nothing to wait for
	sh(t, c, "mkdir d") // a lookup keeps others from changing its directory
	waiting := look(c, "d/park")
	<-parked
	var mu sync.Mutex
	answered := false
	done := make(chan struct{})
	go func() {
		c.Quiesce()
		mu.Lock()
		defer mu.Unlock()
		if !answered {
			t.Error("Quiesce did not wait for the request")
		}
		close(done)
	}()
	eventually(t, "Quiesce waits", func() bool { return c.waiting.Load() == 1 })
	sh(t, c, "echo other requests go on > f")
	select {
	case <-done:
		t.Fatal("Quiesce returned too early")
	default:
	}
	mu.Lock()
	answered = true
	mu.Unlock()
	release()
	<-waiting
	<-done
}

func TestDrain(t *testing.T) {
	m, parked, release := parkedFS()
	c := mount(t, m, nil)
	sh(t, c, "mkdir d")
	kicks := 0
	kick := func() error {
		kicks++
		return unix.Statfs(c.Mountpoint(), &unix.Statfs_t{})
	}
	if err := c.Drain(kick); err != nil {
		t.Fatal(err)
	}
	waiting := look(c, "d/park")
	<-parked
	done := make(chan error, 1)
	before := c.Counters()["STATFS"]
	go func() { done <- c.Drain(kick) }()
	eventually(t, "Drain kicks", func() bool { return c.Counters()["STATFS"] > before })
	eventually(t, "Drain waits", func() bool { return c.waiting.Load() == 1 })
	select {
	case <-done:
		t.Error("Drain did not wait for the request")
	default:
	}
	release()
	<-waiting
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := c.Drain(func() error { return unix.EIO }); err != unix.EIO {
		t.Errorf("a kick that fails: %v", err)
	}
}

// An interrupted wait ends when the handler does, and leaves nothing behind.
func TestInterrupt(t *testing.T) {
	m, parked, release := parkedFS()
	c := mount(t, m, nil)
	sh(t, c, "mkdir d")
	tid := make(chan int, 1)
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		tid <- unix.Gettid()
		done <- unix.Lstat(c.path("d/park"), &unix.Stat_t{})
	}()
	id := <-tid
	<-parked
	if err := unix.Tgkill(os.Getpid(), id, syscall.SIGURG); err != nil {
		t.Fatal(err)
	}
	eventually(t, "INTERRUPT arrives", func() bool { return c.Counters()["INTERRUPT"] > 0 })
	n := c.Counters()["INTERRUPT"]
	sh(t, c, "echo x > f; cat f")
	if again := c.Counters()["INTERRUPT"]; again > n+20 {
		t.Errorf("%d INTERRUPT requests: the kernel asks again and again", again)
	}
	release()
	if err := <-done; !errors.Is(err, unix.ENOENT) {
		t.Error(err)
	}
}

func TestTrace(t *testing.T) {
	m := newMemFS()
	var buf lockedBuffer
	c, err := Mount(t.TempDir(), m, Options{FSName: "x", Debug: true, Logger: debugLogger(&buf)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { c.Unmount(true); c.Wait() }()
	sh(t, c, "echo x > f; rm f; ! cat nothing 2>/dev/null")
	for _, want := range []string{"op=LOOKUP", "name=f", "op=WRITE", "op=UNLINK"} {
		if !strings.Contains(buf.String(), want) {
			t.Errorf("no %s in the trace:\n%s", want, buf.String())
		}
	}
}

func TestMountErrors(t *testing.T) {
	dir := t.TempDir()
	file := dir + "/file"
	os.WriteFile(file, nil, 0o644)
	for _, path := range []string{dir + "/none", file} {
		_, err := Mount(path, newMemFS(), Options{FSName: "x", Logger: quiet()})
		var me *MountError
		if !errors.As(err, &me) || me.Problem != BadMountpoint || me.Hint() == "" {
			t.Errorf("mount on %s: %v", path, err)
		}
	}
	for text, want := range map[string]Problem{
		"fusermount3: option allow_other only allowed if 'user_allow_other' is set in /etc/fuse.conf": AllowOtherDenied,
		"fusermount3: fuse device not found, try 'modprobe fuse' first":                               NoDevice,
		"fusermount3: failed to open /dev/fuse: Permission denied":                                    DeviceDenied,
		"fusermount3: user has no write access to mountpoint /x":                                      MountpointDenied,
		"fusermount3: mount failed: Operation not permitted":                                          NotPermitted,
		"fusermount3: bad mount point /x: No such file or directory":                                  BadMountpoint,
		"fusermount3: something else":                                                                 MountFailed,
	} {
		if got := helperProblem(text); got != want {
			t.Errorf("%q is %s, want %s", text, got, want)
		}
	}
}
