package sandbox

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// home gives the test a home directory of its own, with files.
func (s *setup) home(t *testing.T, files ...string) string {
	t.Helper()
	home := filepath.Join(s.top, "home")
	for _, f := range append(files, ".profile") {
		write(t, filepath.Join(home, f), f)
	}
	t.Setenv("HOME", home)
	for _, name := range []string{"XDG_CACHE_HOME", "XDG_CONFIG_HOME", "GOCACHE", "GOPATH", "GOMODCACHE", "CARGO_HOME", "TMPDIR", "XDG_RUNTIME_DIR", "SSH_AUTH_SOCK"} {
		t.Setenv(name, "")
	}
	return home
}

func TestAllowDenyAndGuard(t *testing.T) {
	asBoth(t, func(t *testing.T) {
		s := newSetup(t)
		home := s.home(t, ".cargo/bin/tool", ".cargo/registry/x", ".cache/mine/x", ".npm/x", ".config/app/x", "out/x")
		write(t, filepath.Join(s.mount, "deep/denied/x"), "denied")
		write(t, filepath.Join(s.mount, "deep/free/x"), "free")
		for _, c := range []struct {
			name        string
			allow, deny []string
			writable    []string
			refused     []string
		}{
			{"by default", nil, nil,
				[]string{".cargo/registry/x", ".cargo/new", ".cache/mine/x", ".cache/new", ".npm/x"},
				[]string{".cargo/bin/tool", ".cargo/bin/new", ".config/app/x", "out/x", ".profile", "new"}},
			{"allowed", []string{"~/out", home + "/.cargo/bin", "~/.profile", "~/made/"}, nil,
				[]string{"out/x", "out/new", ".cargo/bin/tool", ".cargo/bin/new2", ".profile", "made/new"}, []string{".config/app/x"}},
			{"denied", []string{"~/out"}, []string{"~/out", "~/.cache/mine"},
				[]string{".cache/new2"}, []string{"out/x", ".cache/mine/x", ".cache/mine/new"}},
		} {
			t.Run(c.name, func(t *testing.T) {
				for _, kind := range []Kind{Local, NS} {
					if kind == NS && c.allow == nil {
						continue // no caches there
					}
					spec := s.spec(kind, `for f; do (echo bad >>~/"$f") 2>/dev/null && echo "$f"; done; true`)
					spec.Argv = append(append(spec.Argv, "sh"), slices.Concat(c.writable, c.refused)...)
					spec.Rules.Allow, spec.Rules.Deny = c.allow, c.deny
					b, _ := backendOf(kind)
					r := run(t, b, spec)
					want := strings.Join(c.writable, "\n")
					if kind == NS && c.name == "denied" {
						want = ""
					}
					if r.out != want {
						t.Errorf("%s: could write to\n%s\nwant\n%s", kind, r.out, want)
					}
				}
			})
		}
		t.Run("in the project", func(t *testing.T) {
			for _, kind := range []Kind{Local, NS} {
				spec := s.spec(kind, `for f in deep/denied/x deep/denied/new $M/deep/denied/x deep/free/x $M/deep/free/x; do (echo bad >>$f) 2>/dev/null && echo $f; done; true`)
				spec.Env = append(spec.Env, "M="+s.mount)
				spec.Rules.Deny = []string{"deep/denied"}
				b, _ := backendOf(kind)
				if r, want := run(t, b, spec), "deep/free/x\n"+s.mount+"/deep/free/x"; r.out != want {
					t.Errorf("%s: could write to\n%s\nwant\n%s", kind, r.out, want)
				}
			}
			if got := read(t, filepath.Join(s.mount, "deep/denied/x")); got != "denied" {
				t.Errorf("what was denied is %q", got)
			}
		})
	})
}

func TestAllowOfNothingIsAnError(t *testing.T) {
	s := newSetup(t)
	spec := s.spec(Local, "true")
	spec.Rules.Allow = []string{"/no/such/place"}
	if _, err := tryRun(t, local{}, spec); err == nil || !strings.Contains(err.Error(), "--allow /no/such/place/") {
		t.Errorf("%v; want an error that says what to do", err)
	}
}

func TestRefusedWritesThatAreReported(t *testing.T) {
	asBoth(t, func(t *testing.T) {
		s := newSetup(t)
		home := s.home(t, "dir/file", "dir/sub/x", "plain")
		os.Symlink(home+"/plain", filepath.Join(s.mount, "link"))
		os.Chmod(home+"/plain", 0o444)
		const flag = "--allow "
		for script, want := range map[string][]Refusal{
			`echo >>~/dir/file`:                         {{home + "/dir/file", flag + home + "/dir/file"}},
			`cd ~/dir; echo >>file; echo >../dir/file`:  {{home + "/dir/file", flag + home + "/dir/file"}},
			`echo >~/dir/new; mkdir ~/dir/d`:            {{home + "/dir/new", flag + home + "/dir"}, {home + "/dir/d", flag + home + "/dir"}},
			`mkdir -p ~/dir/sub; mkdir ~/dir`:           nil, // EEXIST
			`rm -f ~/dir/none; rmdir ~/none`:            nil, // ENOENT
			`mv ~/dir/file ~/dir/f2`:                    {{home + "/dir/file", flag + home + "/dir"}, {home + "/dir/f2", flag + home + "/dir"}},
			`chmod 700 ~/dir/sub; touch -c ~/dir/sub/x`: {{home + "/dir/sub", flag + home + "/dir/sub"}, {home + "/dir/sub/x", flag + home + "/dir/sub/x"}},
			`cat ~/dir/file; ls ~; cp ~/dir/file .; echo >/dev/null; echo >/tmp/x; mkdir -p a/b; rm -r a; echo >>mounted`: nil,
			`cat <~/dir/file >/dev/full`: nil,
		} {
			spec := s.spec(Local, `export HOME=`+home+`; `+script)
			if got := run(t, local{}, spec).refused; !slices.Equal(got, want) {
				t.Errorf("%s: refused %v, want %v", script, got, want)
			}
		}
		// Through a symlink it is the file that is named, and only where its mode would let the user write.
		got := run(t, local{}, s.spec(Local, `echo >>link`)).refused
		var want []Refusal
		if os.Geteuid() == 0 {
			want = []Refusal{{home + "/plain", flag + home + "/plain"}}
		}
		if len(got) > 0 && got[0].Path != home+"/plain" || len(got) != len(want) {
			t.Errorf("through a symlink: refused %v, want %v", got, want)
		}
	})
}

func TestReportsAreBounded(t *testing.T) {
	s := newSetup(t)
	home := s.home(t)
	r := run(t, local{}, s.spec(Local, `i=0; while [ $i -lt 300 ]; do echo >`+home+`/f$i; i=$((i+1)); done 2>/dev/null; true`))
	if len(r.refused) != MaxRefused || r.code == 0 && len(r.out) > 0 {
		t.Errorf("%d refusals, want %d; %q", len(r.refused), MaxRefused, r.out)
	}
}

func TestRulesOfTheUser(t *testing.T) {
	home := t.TempDir()
	env := []string{"HOME=" + home, "GOPATH=" + home + "/go"}
	if r, err := HostRules(env); err != nil || r.Allow != nil || r.Writable != nil {
		t.Errorf("without a file: %+v, %v", r, err)
	}
	file := filepath.Join(home, ".config/rewindfs", RulesFile)
	for _, dir := range []string{"a1", "a2", "go/bin"} {
		write(t, filepath.Join(home, dir, "x"), "")
	}
	write(t, file, `
		allow = ["~/a*", "$GOPATH/bin", "~/missing", "$UNSET/x"]
		deny = ["/etc"]
		env = ["GITHUB_TOKEN", "A=1"]
		writable = []
	`)
	r, err := HostRules(env)
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{home + "/a1", home + "/a2", home + "/go/bin"}; !slices.Equal(r.Allow, want) {
		t.Errorf("allow %q, want %q", r.Allow, want)
	}
	if r.writable() == nil || len(r.writable()) != 0 || len(r.secrets()) == 0 || !slices.Equal(r.Env, []string{"GITHUB_TOKEN", "A=1"}) {
		t.Errorf("%+v", r)
	}
	for text, want := range map[string]string{
		`alow = ["/x"]`: "alow", `allow = ["x"]`: "begin paths", `allow = "x"`: "allow", `allow = [`: "line 1", `deny = ["./x"]`: "begin paths",
	} {
		write(t, file, text)
		if _, err := HostRules(env); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), RulesFile) {
			t.Errorf("%s: %v; want an error about %q in the file", text, err, want)
		}
	}
	write(t, file, strings.Repeat("#", maxRules+1))
	if _, err := HostRules(env); err == nil {
		t.Error("a file of any size is read")
	}
}

func TestShowRulesNamesWhatApplies(t *testing.T) {
	s := newSetup(t)
	home := s.home(t, ".cache/x", ".npm/x", ".ssh/id")
	env := []string{"HOME=" + home, "MY_TOKEN=x"}
	var out bytes.Buffer
	ShowRules(&out, Local, Rules{Allow: []string{"/opt"}}, env)
	for _, want := range []string{"~/.cache", "~/.npm", "/opt", "MY_TOKEN"} {
		if !strings.Contains(out.String(), want+"\n") {
			t.Errorf("%s is missing:\n%s", want, &out)
		}
	}
	out.Reset()
	ShowRules(&out, NS, Rules{}, env)
	if !strings.Contains(out.String(), "~/.ssh\n") || strings.Contains(out.String(), "~/.npm\n") {
		t.Errorf("%s", &out)
	}
}
