package sandbox

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestLocalWritesInTheProjectOnly(t *testing.T) {
	asBoth(t, func(t *testing.T) {
		s := newSetup(t)
		outside := filepath.Join(s.top, "outside")
		write(t, filepath.Join(outside, "file"), "kept")
		home := filepath.Join(s.top, "home")
		if err := os.Mkdir(home, 0o755); err != nil {
			t.Fatal(err)
		}
		t.Setenv("HOME", home)
		spec := s.spec(Local, `
			echo in >new && mkdir d && mv new d/ && ln d/new link && cat mounted && chmod 600 mounted
			echo tmp >/tmp/t && cat /tmp/t && ls /tmp
			echo cache >~/.cache/c
			for try in "echo bad >`+outside+`/file" "echo bad >`+outside+`/new" "rm -f `+outside+`/file" "chmod 777 `+outside+`/file" "touch `+outside+`/file" "mv `+outside+`/file ." "ln `+outside+`/file ln2" "echo >~/x" "truncate -s 0 `+outside+`/file"; do
				(eval "$try") 2>/dev/null && echo "DONE: $try"
			done
			echo end >/dev/stderr; echo >/dev/null; exit 5`)
		r := run(t, local{}, spec)
		if r.code != 5 || len(r.notes) > 0 {
			t.Errorf("exit %d, notes %q", r.code, r.notes)
		}
		if strings.Contains(r.out, "DONE") || !strings.HasPrefix(r.out, "of the mounttmp\nt\n") || !strings.HasSuffix(r.out, "end") {
			t.Errorf("output %q", r.out)
		}
		if read(t, filepath.Join(outside, "file")) != "kept" || exists(filepath.Join(outside, "new")) || exists(filepath.Join(home, "x")) {
			t.Error("something outside of the project has changed")
		}
		if !exists(filepath.Join(s.mount, "d/new")) || read(t, filepath.Join(home, ".cache/c")) != "cache\n" {
			t.Error("something was not written")
		}
		want := []Refusal{
			{outside + "/file", "--allow " + outside}, {outside + "/new", "--allow " + outside}, {home + "/x", "--allow " + home},
		}
		if !slices.Equal(r.refused, want) {
			t.Errorf("refused %v, want %v", r.refused, want)
		}
		if exists("/tmp/t") {
			t.Error("/tmp is the host's")
		}
	})
}
