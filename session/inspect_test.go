package session

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/rewindfs/rewindfs/control"
)

func TestDiff(t *testing.T) {
	r := start(t, options(t))
	list := func(req control.DiffRequest) string {
		t.Helper()
		var out []string
		sum, err := r.Diff(t.Context(), req, func(c control.Change) error {
			out = append(out, c.Status+" "+c.Path)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("%s..%s %v", sum.From, sum.To, out)
	}
	r.write(t, "a.txt", "changed")
	r.write(t, "sub/new\xff", "n")
	for _, c := range []struct {
		req  control.DiffRequest
		want string
	}{
		{control.DiffRequest{}, "base..head [M a.txt A sub/new\uFFFD]"},
		{control.DiffRequest{Paths: [][]byte{[]byte("sub/")}}, "base..head [A sub/new\uFFFD]"},
		{control.DiffRequest{Paths: [][]byte{[]byte("./a.txt"), []byte("nope")}}, "base..head [M a.txt]"},
		{control.DiffRequest{Paths: [][]byte{[]byte(".")}}, "base..head [M a.txt A sub/new\uFFFD]"},
		{control.DiffRequest{Paths: [][]byte{[]byte("su")}}, "base..head []"},
		{control.DiffRequest{Paths: [][]byte{[]byte("gone/../a.txt")}}, "base..head [M a.txt]"},
	} {
		if got := list(c.req); got != c.want {
			t.Errorf("diff %+v: %s, want %s", c.req, got, c.want)
		}
	}
	r.checkpoint(t, "c")
	r.write(t, "z", "z")
	if got := list(control.DiffRequest{}); got != "c..head [A z]" {
		t.Errorf("since the latest: %s", got)
	}
	if got := list(control.DiffRequest{From: "base", To: "c"}); got != "base..c [M a.txt A sub/new\uFFFD]" {
		t.Errorf("between: %s", got)
	}
	_, err := r.Diff(t.Context(), control.DiffRequest{From: "nope"}, nil)
	wantCode(t, err, control.CodeUnknownCheckpoint)
	for _, p := range []string{"/abs", "..", "../x", "sub/../../x"} {
		_, err = r.Diff(t.Context(), control.DiffRequest{Paths: [][]byte{[]byte(p)}}, nil)
		wantCode(t, err, control.CodeBadPath)
	}
}

func TestMetricsAndStatus(t *testing.T) {
	r := start(t, options(t))
	r.write(t, "x", "1")
	r.checkpoint(t, "c")
	st, err := r.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if st.State != StateLive || st.Head.Label != "c" || st.Checkpoints != 1 || st.PID != os.Getpid() || st.StoreBytes <= 0 || st.MemoryBytes < 1<<20 || st.ChangedPaths != 0 || st.Requests["LOOKUP"] != 3 || st.Base != r.o.Base {
		t.Fatalf("%+v", st)
	}
	m := &control.Metrics{}
	r.s.collect(m)
}

func TestCheckpointsDirectory(t *testing.T) {
	r := start(t, options(t))
	a := r.checkpoint(t, "fix/a")
	c, err := r.Checkpoint(t.Context(), control.CheckpointRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(r.s.Names()); got != fmt.Sprintf("[%s fix/a]", c.ID) {
		t.Fatalf("names: %s", got)
	}
	for name, want := range map[string]uint64{"fix/a": a.Layer, a.ID: a.Layer, c.ID: c.Layer, "base": 0} {
		if l, ok := r.s.Lookup(name); !ok || uint64(l) != want {
			t.Errorf("%s is layer %d, %v", name, l, ok)
		}
	}
	for _, name := range []string{"latest", "@{0}", "nope", c.ID[:20], strings.ToLower(c.ID), "", ".."} {
		if _, ok := r.s.Lookup(name); ok {
			t.Errorf("%q was found", name)
		}
	}
	r.rollback(t, "base")
	if got := fmt.Sprint(r.s.Names()); got != fmt.Sprintf("[%s %s]", c.ID, a.ID) {
		t.Fatalf("names after a rollback: %s", got)
	}
}
