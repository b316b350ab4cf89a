package sandbox

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// What is standard input is not writable for that: not the file that was opened for reading, nor the directory.
func TestStandardInputIsNoDoor(t *testing.T) {
	asBoth(t, func(t *testing.T) {
		s := newSetup(t)
		dir := filepath.Join(s.top, "outside")
		write(t, filepath.Join(dir, "file"), "kept")
		for name, b := range map[string]backend{"local": local{}, "bare": bareLocal{}, "ns": ns{}} {
			for _, path := range []string{dir, filepath.Join(dir, "file")} {
				in, err := os.Open(path)
				if err != nil {
					t.Fatal(err)
				}
				spec := s.spec(Local, `for f in /dev/stdin /proc/self/fd/0 /proc/self/fd/0/file /proc/self/fd/0/new; do (echo bad >$f) 2>/dev/null; done
					ls /proc/self/fd/0/ 2>/dev/null; [ -e /proc/self/fd/0 ] && echo there`)
				spec.Stdin = in
				if r := run(t, b, spec); r.out != "there" {
					t.Errorf("%s, %s: %q", name, path, r.out)
				}
				in.Close()
			}
			if got := read(t, filepath.Join(dir, "file")); got != "kept" || exists(filepath.Join(dir, "new")) {
				t.Errorf("%s: outside of the project there is %q", name, got)
			}
		}
		// What was opened for writing stays so.
		out, err := os.Create(filepath.Join(dir, "out"))
		if err != nil {
			t.Fatal(err)
		}
		defer out.Close()
		spec := s.spec(Local, `echo one >/dev/stderr`)
		spec.Stdout, spec.Stderr = out, out
		if run(t, local{}, spec); read(t, filepath.Join(dir, "out")) != "one\n" {
			t.Error("standard error cannot be opened by its name")
		}
	})
}

// A command does not choose what the next one may write to, by a symlink where it may make one.
func TestPlantedSymlinks(t *testing.T) {
	asBoth(t, func(t *testing.T) {
		s := newSetup(t)
		home := s.home(t, ".cache/x", "letters/file", "data/x")
		link := func(to, at string) {
			os.Remove(at)
			if err := os.Symlink(to, at); err != nil {
				t.Fatal(err)
			}
		}
		for name, b := range map[string]backend{"local": local{}, "bare": bareLocal{}} {
			try := func(cache string) result {
				spec := s.spec(Local, `echo bad 2>/dev/null >`+home+`/letters/file; echo ok 2>/dev/null >`+home+`/data/new; true`)
				spec.Env = append(spec.Env, "GOCACHE="+cache)
				return run(t, b, spec)
			}
			inMount := s.project
			if name == "bare" {
				inMount = s.mount
			}
			link(home+"/letters", home+"/.cache/go")
			link("../../home/letters", filepath.Join(s.mount, "cache"))
			write(t, filepath.Join(s.project, "cache/x"), "x") // a directory on the host
			link("cache", filepath.Join(s.mount, "twice"))
			for _, cache := range []string{home + "/.cache/go", inMount + "/cache", s.mount + "/cache", s.mount + "/twice"} {
				r := try(cache)
				if read(t, home+"/letters/file") != "letters/file" {
					t.Fatalf("%s: written through %s", name, cache)
				}
				if cache != inMount+"/cache" && !strings.Contains(strings.Join(r.notes, " "), "--allow") {
					t.Errorf("%s: nothing is said of %s: %q", name, cache, r.notes)
				}
			}
			// The user's own are followed: one in the home, and one that the host's copy has as well.
			os.RemoveAll(filepath.Join(s.project, "cache"))
			link(home+"/data", home+"/go-build")
			try(home + "/go-build")
			if !exists(home + "/data/new") {
				t.Errorf("%s: a symlink of the user's own is not followed", name)
			}
			os.Remove(home + "/data/new")
		}
		link(home+"/data", filepath.Join(s.project, "data"))
		link(home+"/data", filepath.Join(s.mount, "data"))
		link(home+"/letters", filepath.Join(s.mount, "sly"))
		spec := s.spec(Local, `echo ok >data/new`)
		spec.Rules.Allow = []string{"data"}
		if r := run(t, local{}, spec); !exists(home + "/data/new") {
			t.Errorf("a symlink that the host has as well is not followed: %+v", r)
		}
		spec.Rules.Allow = []string{"sly"}
		var e *Error
		if _, err := tryRun(t, local{}, spec); !errors.As(err, &e) || !strings.Contains(err.Error(), "--allow "+home+"/letters") {
			t.Errorf("--allow through a planted symlink: %v", err)
		}
	})
}

// What was looked at is what is shown and made writable: a symlink that comes in the way meanwhile is an error, not a way out.
func TestSymlinkAfterTheLook(t *testing.T) {
	top := t.TempDir()
	write(t, filepath.Join(top, "letters/file"), "kept")
	if err := os.Symlink("letters", filepath.Join(top, "cache")); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{top + "/cache", top + "/cache/file"} {
		if fd, err := clone(path, false); !errors.Is(err, unix.ELOOP) {
			t.Errorf("%s is shown: %d, %v", path, fd, err)
		}
		if err := (&ruleset{ABI: max(1, landlockABI()), Write: []string{path}}).enforce(); !errors.Is(err, unix.ELOOP) {
			t.Errorf("%s is made writable: %v", path, err)
		}
	}
}

func TestEverythingIsNoPath(t *testing.T) {
	s := newSetup(t)
	for _, spec := range []*Spec{s.spec(Local, "true"), s.spec(NS, "true")} {
		spec.Rules.Allow = []string{"/"}
		b, _ := backendOf(spec.Kind)
		if _, err := tryRun(t, b, spec); err == nil || !strings.Contains(err.Error(), "--sandbox none") {
			t.Errorf("%s, --allow /: %v", spec.Kind, err)
		}
	}
	spec := s.spec(NS, "true")
	spec.Rules.Hide = []string{"/"}
	if _, err := tryRun(t, ns{}, spec); err == nil {
		t.Error("--hide / is taken")
	}
	s.home(t, ".cache/x")
	r, err := parseRules(`deny = ["~/", "/"]
hide = ["~/"]`, os.Environ())
	if err != nil || len(r.Deny) != 2 || len(r.Hide) == 0 {
		t.Errorf("rules about all are dropped: %+v, %v", r, err)
	}
	if _, err := parseRules(`env = ["A=\u0000"]`, nil); err == nil {
		t.Error("a variable with a NUL is taken")
	}
}

// A temporary directory of the project's is not made use of: what is in it is on the host. Nor is one that is none.
func TestOddTemporaryDirectories(t *testing.T) {
	asBoth(t, func(t *testing.T) {
		s := newSetup(t)
		t.Cleanup(func() { RemoveTemp(s.mount) })
		home := s.home(t, ".cache/tmp/x")
		for _, dir := range []string{s.project, s.mount, "/no/such/place", "relative", filepath.Join(s.mount, "mounted"), home + "/.cache/tmp"} {
			t.Setenv("TMPDIR", dir)
			if r := run(t, local{}, s.spec(Local, `echo x >/tmp/x; ls`)); r.code != 0 || r.out != "mounted" {
				t.Errorf("TMPDIR=%s: %+v", dir, r)
			}
		}
		if now, err := os.ReadDir(home + "/.cache/tmp"); err != nil || len(now) != 1 {
			t.Errorf("where commands may write there is %v, %v", now, err)
		}
		if now, err := os.ReadDir(s.project); err != nil || len(now) != 1 {
			t.Errorf("on the host there is %v, %v", now, err)
		}
		t.Setenv("TMPDIR", s.top)
		if err := RemoveTemp(s.mount); err != nil {
			t.Fatal(err)
		}
		if dir, err := tmpDir(tmpTop("/tmp"), s.mount); err != nil || exists(dir) {
			t.Errorf("%s stays: %v", dir, err)
		}
	})
}

// The session's /tmp is a directory, whatever somebody made of it who was allowed to.
func TestTemporaryDirectoryIsNoSymlink(t *testing.T) {
	s := newSetup(t)
	t.Setenv("TMPDIR", s.top)
	letters := filepath.Join(s.top, "letters")
	write(t, filepath.Join(letters, "file"), "kept")
	tmp, _, err := makeTmp(s.spec(Local, ""))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{tmp, filepath.Dir(tmp)} {
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(letters, path); err != nil {
			t.Fatal(err)
		}
		if r, err := tryRun(t, local{}, s.spec(Local, `echo bad >/tmp/file`)); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %+v, %v", path, r, err)
		}
		os.Remove(path)
		os.Mkdir(path, 0o700)
	}
	if fi, err := os.Stat(letters); err != nil || fi.Mode().Perm() != 0o755 || read(t, letters+"/file") != "kept" {
		t.Errorf("what the symlink leads to has changed: %v, %v", fi, err)
	}
}

// A tool that has no cache yet gets one; what a project lies in, or a home that is not there, nothing.
func TestFirstUseOfATool(t *testing.T) {
	asBoth(t, func(t *testing.T) {
		s := newSetup(t)
		home := s.home(t)
		bin := filepath.Join(s.top, "bin")
		for _, tool := range []string{"npm", "go"} {
			write(t, filepath.Join(bin, tool), "#!/bin/sh\n")
			os.Chmod(filepath.Join(bin, tool), 0o755)
		}
		t.Setenv("PATH", bin+":/usr/bin:/bin")
		t.Setenv("GOPATH", "")
		t.Setenv("CARGO_HOME", "")
		r := run(t, local{}, s.spec(Local, `for d in .npm/_cacache go/pkg/mod .cache/x .cargo; do mkdir -p ~/$d 2>/dev/null && echo $d; done`))
		if r.out != ".npm/_cacache\ngo/pkg/mod\n.cache/x" {
			t.Errorf("could make %q", r.out)
		}
		if exists(filepath.Join(home, ".cargo")) {
			t.Error("a directory was made for a tool that is not there")
		}
		for _, dir := range []string{s.project, filepath.Join(s.top, "none")} {
			t.Setenv("HOME", dir)
			run(t, local{}, s.spec(Local, `true`))
			if exists(filepath.Join(dir, ".cache")) || exists(filepath.Join(dir, ".npm")) {
				t.Errorf("something was made in %s", dir)
			}
		}
	})
}

func TestProjectThatIsGone(t *testing.T) {
	for _, kind := range []Kind{None, Local, NS} {
		s := newSetup(t)
		if err := os.RemoveAll(s.project); err != nil {
			t.Fatal(err)
		}
		_, err := Run(t.Context(), *s.spec(kind, "true"))
		if err == nil || !strings.Contains(err.Error(), "cd "+s.mount) || exists(s.project) {
			t.Errorf("%s: %v, and it is there: %t", kind, err, exists(s.project))
		}
	}
}

// Other descriptors than the first three are the caller's, too: a make has its jobserver there.
func TestFurtherDescriptors(t *testing.T) {
	asBoth(t, func(t *testing.T) {
		s := newSetup(t)
		out, err := os.Create(filepath.Join(s.top, "out"))
		if err != nil {
			t.Fatal(err)
		}
		defer out.Close()
		exe, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		// The shell between has them as a caller of rewindfs has.
		cmd := exec.Command("sh", "-c", `exec "$@" 3>&1 4>&1`, "sh", exe, "-test.run", "^TestInsideWithDescriptors$", "-test.v")
		cmd.Env = append(os.Environ(), descriptorsEnv+"="+s.top)
		cmd.Stdout = out
		if err := cmd.Run(); err != nil {
			t.Fatal(err)
		}
		if got := read(t, out.Name()); !strings.Contains(got, "three\nfour\n0 1 ") || strings.Contains(got, " 200 ") || strings.Contains(got, " 201 ") {
			t.Errorf("%q", got)
		}
	})
}

const descriptorsEnv = "REWINDFS_TEST_SANDBOX_DESCRIPTORS"

func TestInsideWithDescriptors(t *testing.T) {
	top := os.Getenv(descriptorsEnv)
	if top == "" {
		t.Skip("part of TestFurtherDescriptors")
	}
	s := &setup{top, filepath.Join(top, "proj"), filepath.Join(top, "proj.rewind")}
	spec := s.spec(Local, `echo three >&3; echo four >&4; ls /proc/$$/fd | tr '\n' ' '`)
	spec.Stdout, spec.Stderr = os.Stdout, os.Stderr
	b := local{}
	r, err := b.start(spec, func(*exec.Cmd) {})
	if err != nil {
		t.Fatal(err)
	}
	r.cmd.Wait()
	r.stop()
}

func TestLongNamesOfCommands(t *testing.T) {
	s := newSetup(t)
	spec := s.spec(Local, "")
	spec.Argv = []string{strings.Repeat("\x01", 30_000)}
	var e *Error
	if _, err := tryRun(t, local{}, spec); !errors.As(err, &e) || e.ExitCode != ExitNotFound {
		t.Errorf("%v", err)
	}
}

// bareLocal is Local where no namespaces can be made.
type bareLocal struct{}

func (bareLocal) start(s *Spec, prepare func(*exec.Cmd)) (*running, error) {
	m := thisMachine()
	m.spaces = false
	return m.local(s, prepare)
}
