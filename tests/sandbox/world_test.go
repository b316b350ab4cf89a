package sandbox

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/rewindfs/rewindfs/internal/fstree"
	"github.com/rewindfs/rewindfs/internal/mounttest"
)

// TestMain keeps the tests' directories out of /tmp, which sandboxes replace: what they are to protect must be in sight.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == attackerName {
		os.Exit(attack(os.Args[1:]))
	}
	os.Exit(tests(m))
}

func tests(m *testing.M) int {
	top := "/srv"
	if os.Geteuid() != 0 {
		top = os.Getenv("HOME")
	}
	dir, err := os.MkdirTemp(top, "rewindfs-attacks-")
	if err == nil {
		err = os.Chmod(dir, os.ModeSticky|0o777)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	os.Setenv("TMPDIR", dir)
	return mounttest.Main(m)
}

const nobody = 65534

// secret is what nobody in a sandbox may get to see.
const secret = "hunter2-in-the-clear"

// done is what an attack prints that has succeeded, where that is not to be seen from outside.
const done = "DONE"

// world is a project in a session, and all that may be harmed around it.
type world struct {
	t             *testing.T
	as            uint32
	m, other      *mounttest.Mount
	around        string // holds the next two, and the programs that attack
	outside, home string
	victim        *exec.Cmd // a process of the same user outside of all sandboxes
	hits          atomic.Int64
	env           []string // names for scripts
	before        map[string]*fstree.Tree
	caches        []string // in home, where anything may change
	pid, otherPID int      // of the daemons
	program       string   // what binary says
}

// newWorld makes one. Everything belongs to the user as. The project is mounted with more arguments.
func newWorld(t *testing.T, as uint32, args ...string) *world {
	t.Helper()
	w := &world{t: t, as: as, before: make(map[string]*fstree.Tree)}
	var err error
	w.around, err = os.MkdirTemp("", "around-")
	ok(t, err)
	t.Cleanup(func() { os.RemoveAll(w.around) })
	w.outside, w.home = filepath.Join(w.around, "outside"), filepath.Join(w.around, "home")
	for path, content := range map[string]string{
		"outside/file": "outside\n", "outside/dir/file": "outside\n", "home/.bashrc": "# mine\n", "home/.cache/keep": "", "home/plain/x": "plain\n", "home/.bashrc.d/x": "",
		"home/.ssh/id_rsa": secret, "home/.ssh/authorized_keys": "", "home/.netrc": secret, "home/.git-credentials": secret, "home/.aws/credentials": secret,
		"home/.config/gcloud/x": secret, "home/.docker/config.json": secret, "home/.kube/config": secret, "home/.gnupg/x": secret,
		"home/.mozilla/firefox/x": secret, "home/.config/google-chrome/x": secret, "home/hidden/x": secret,
	} {
		path = filepath.Join(w.around, path)
		ok(t, os.MkdirAll(filepath.Dir(path), 0o755))
		ok(t, os.WriteFile(path, []byte(content), 0o644))
	}
	exe, err := os.ReadFile("/proc/self/exe")
	ok(t, err)
	ok(t, os.WriteFile(filepath.Join(w.around, attackerName), exe, 0o755))
	if as != 0 {
		ok(t, filepath.WalkDir(w.around, func(p string, _ os.DirEntry, err error) error {
			if err != nil {
				return err
			}
			return os.Lchown(p, int(as), int(as))
		}))
	}
	ok(t, os.Chmod(w.around, 0o755))
	env := []string{"SERVICE_TOKEN=" + secret, "HOME=" + w.home, "SSH_AUTH_SOCK=" + filepath.Join(w.around, "agent")}
	w.m = mounttest.New(t, mounttest.Options{As: as, Loose: true, Fill: fill, Env: env, Args: args})
	state := "XDG_STATE_HOME=" + filepath.Join(w.m.Top, "state")
	w.other = mounttest.New(t, mounttest.Options{As: as, Fill: fill, Env: append(env, state)})
	w.pid, w.otherPID = w.m.PID(), w.other.PID()
	w.victim = exec.Command("sleep", "1000")
	w.victim.Env = env
	if as != 0 {
		w.victim.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: as, Gid: as}}
	}
	ok(t, w.victim.Start())
	t.Cleanup(func() { w.victim.Process.Kill(); w.victim.Wait() })
	w.serve()
	for name, value := range map[string]string{
		"O": w.outside, "H": w.home, "P": w.m.Base, "M": w.m.Dir, "S": w.m.Store, "OM": w.other.Dir, "OS": w.other.Store, "V": strconv.Itoa(w.victim.Process.Pid),
		"D": strconv.Itoa(w.pid), "R": mounttest.Binary(), "A": filepath.Join(w.around, attackerName), "AROUND": w.around, "RUN": filepath.Join(w.m.Top, "run"),
	} {
		w.env = append(w.env, name+"="+value)
	}
	// The first command makes the directories for caches that tools here have.
	before := names(t, w.home)
	if r := w.m.Run("exec", "--sandbox", "local", "--", "true"); r.Code != 0 {
		t.Fatalf("%s", r.Stderr)
	}
	w.caches = slices.DeleteFunc(names(t, w.home), func(name string) bool { return name != ".cache" && slices.Contains(before, name) })
	w.look()
	return w
}

// names are those of a directory's entries.
func names(t testing.TB, dir string) (all []string) {
	entries, err := os.ReadDir(dir)
	ok(t, err)
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}

// serve has servers on the host wait for whoever reaches them.
func (w *world) serve() {
	for _, at := range [][2]string{
		{"tcp", "127.0.0.1:0"}, {"unix", "@" + filepath.Base(w.around)}, {"unix", filepath.Join(w.m.Top, "run", "bus")}, {"unix", filepath.Join(w.around, "agent")},
	} {
		l, err := net.Listen(at[0], at[1])
		ok(w.t, err)
		w.t.Cleanup(func() { l.Close() })
		if a, isTCP := l.Addr().(*net.TCPAddr); isTCP {
			w.env = append(w.env, "TCP="+a.String())
		} else if at[1][0] != '@' {
			ok(w.t, os.Chmod(at[1], 0o777))
			if w.as != 0 {
				ok(w.t, os.Chown(at[1], int(w.as), int(w.as)))
			}
		}
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				w.hits.Add(1)
				c.Write([]byte("hello\n"))
				c.Close()
			}
		}()
	}
	udp, err := net.ListenPacket("udp", "127.0.0.1:0")
	ok(w.t, err)
	w.t.Cleanup(func() { udp.Close() })
	w.env = append(w.env, "UDP="+udp.LocalAddr().String(), "ABSTRACT=@"+filepath.Base(w.around))
	go func() {
		buf := make([]byte, 64)
		for {
			_, from, err := udp.ReadFrom(buf)
			if err != nil {
				return
			}
			w.hits.Add(1)
			udp.WriteTo([]byte("hello\n"), from)
		}
	}()
}

func fill(dir string) error {
	return os.WriteFile(filepath.Join(dir, "file"), []byte("of the project\n"), 0o644)
}

// guarded are the directories in which nothing may change. Caches may.
func (w *world) guarded() []string {
	dirs := []string{w.outside, w.other.Base}
	for _, name := range names(w.t, w.home) {
		if !slices.Contains(w.caches, name) {
			dirs = append(dirs, filepath.Join(w.home, name))
		}
	}
	return dirs
}

// binary is what stat(2) says of the program under test. What else is in its directory may be others' at work, such as the logs of all tests.
func (w *world) binary() string {
	var st syscall.Stat_t
	if err := syscall.Stat(mounttest.Binary(), &st); err != nil {
		return err.Error()
	}
	return fmt.Sprint(st.Ino, st.Mode, st.Uid, st.Gid, st.Nlink, st.Size, st.Mtim, st.Ctim)
}

func (w *world) look() {
	clear(w.before)
	w.program = w.binary()
	for _, dir := range w.guarded() {
		w.before[dir] = mounttest.Snapshot(w.t, dir)
	}
	w.hits.Store(0)
}

// harm says what has been harmed since the last look, and what a command's output gives away.
func (w *world) harm(r *mounttest.Result) (harm []string) {
	for dir, before := range w.before {
		if after, err := fstree.Scan(dir); err != nil {
			harm = append(harm, err.Error())
		} else {
			harm = append(harm, fstree.Diff(before, after, fstree.Exact, "before", "after")...)
		}
	}
	if now := w.binary(); now != w.program {
		harm = append(harm, fmt.Sprintf("the program was %s and is %s", w.program, now))
	}
	if n := len(w.guarded()); n != len(w.before) {
		harm = append(harm, fmt.Sprintf("there were %d guarded names, now %d", len(w.before), n))
	}
	if mounttest.Mounted(w.other.Dir) && mounttest.Alive(w.otherPID) {
		if now := w.other.Sh("cat file; ls -A"); now != "of the project\nfile\n" {
			harm = append(harm, "the mount of another session has "+now)
		}
	}
	if raw, err := os.ReadFile(filepath.Join(w.m.Base, "file")); string(raw) != "of the project\n" {
		harm = append(harm, fmt.Sprintf("the project's file on the host: %q, %v", raw, err))
	}
	if raw, err := os.ReadFile(filepath.Join(w.m.Store, "session.json")); err != nil || len(raw) == 0 {
		harm = append(harm, fmt.Sprintf("the store: %v", err))
	}
	for _, name := range []string{"new", "x"} {
		for _, dir := range []string{w.m.Base, w.m.Store, "/tmp", "/dev/shm", "/etc"} {
			if _, err := os.Lstat(filepath.Join(dir, attackerName+"-"+name)); err == nil {
				harm = append(harm, "new on the host: "+filepath.Join(dir, name))
				os.Remove(filepath.Join(dir, attackerName+"-"+name))
			}
		}
	}
	for what, pid := range map[string]int{"daemon": w.pid, "other daemon": w.otherPID, "bystander": w.victim.Process.Pid} {
		if !mounttest.Alive(pid) {
			harm = append(harm, what+" has been ended")
		}
	}
	if !mounttest.Mounted(w.m.Dir) || !mounttest.Mounted(w.other.Dir) {
		harm = append(harm, "a mount is gone")
	}
	if n := w.hits.Load(); n > 0 {
		harm = append(harm, fmt.Sprintf("%d connections from the sandbox", n))
	}
	if strings.Contains(r.Stdout+r.Stderr, secret) {
		harm = append(harm, "a secret is in the output")
	}
	if strings.Contains(r.Stdout, done) {
		harm = append(harm, "it says so itself")
	}
	if r.Code < 0 {
		harm = append(harm, "rewindfs itself did not end by itself")
	}
	return harm
}

// attack runs a script in the project, by sh. It has the names in w.env.
func (w *world) attack(kind, script string, flags ...string) *mounttest.Result {
	w.t.Helper()
	args := append([]string{"exec", "--sandbox", kind}, flags...)
	for _, v := range w.env {
		args = append(args, "--env", v)
	}
	return w.m.Run(append(args, "--", "sh", "-c", script)...)
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
