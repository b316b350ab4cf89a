package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/rewindfs/rewindfs/control"
	"github.com/rewindfs/rewindfs/memory/convo"
)

// fixture is a case of the repair, as package convo's tests have it.
type fixture struct {
	Format  convo.Format
	Options struct {
		Checkpoint, Mode, Notice, Pending string
		MidSystem                         bool   `json:"mid_system"`
		NewID                             string `json:"new_id"`
	}
	History []json.RawMessage
	Cut     *int
	want    struct {
		Changes json.RawMessage
		History []json.RawMessage
	}
}

func fixtures(t *testing.T) map[string]*fixture {
	t.Helper()
	names, err := filepath.Glob("../../memory/convo/testdata/*/*.expected.json")
	if err != nil || len(names) < 30 {
		t.Fatalf("%d fixtures, %v", len(names), err)
	}
	all := map[string]*fixture{}
	for _, name := range names {
		f := &fixture{}
		for path, into := range map[string]any{strings.TrimSuffix(name, ".expected.json") + ".json": f, name: &f.want} {
			b, err := os.ReadFile(path)
			if err == nil {
				err = json.Unmarshal(b, into)
			}
			if err != nil {
				t.Fatalf("%s: %v", path, err)
			}
		}
		if f.Cut != nil {
			f.History = f.History[:*f.Cut]
		}
		all[filepath.Base(name)] = f
	}
	return all
}

func (f *fixture) lines() bool { return f.Format == convo.ClaudeCode || f.Format == convo.Codex }

// input is the history as a file. Of JSON lines each is one line.
func (f *fixture) input(t *testing.T) []byte {
	t.Helper()
	h := convo.History{Items: f.History, Lines: f.lines()}
	if h.Lines {
		h.Items = nil
		for _, it := range f.History {
			h.Items = append(h.Items, compact(t, it))
		}
	}
	return h.Encode()
}

func (f *fixture) args(file string) []string {
	o := f.Options
	args := []string{"memory", "repair", file, "--format", string(f.Format), "--mode", o.Mode, "--checkpoint", o.Checkpoint,
		"--pending-call", o.Pending, "--new-id", o.NewID, fmt.Sprintf("--mid-system=%v", o.MidSystem)}
	if o.Notice == "" {
		return append(args, "--no-notice")
	}
	return append(args, "--notice", o.Notice)
}

func compact(t *testing.T, raw json.RawMessage) json.RawMessage {
	t.Helper()
	var b bytes.Buffer
	if err := json.Compact(&b, raw); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// madeID matches ids that the repair makes; only their shape is promised.
var madeID = regexp.MustCompile(`"[0-9a-f]{8}-[0-9a-f]{4}-5[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"`)

func TestMemoryRepairFixtures(t *testing.T) {
	dir := t.TempDir()
	for name, f := range fixtures(t) {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(dir, "in")
			in := f.input(t)
			if err := os.WriteFile(file, in, 0o600); err != nil {
				t.Fatal(err)
			}
			o := rewind("", append(f.args(file), "--json")...).want(t, 0)
			var res struct {
				Data struct {
					Format   convo.Format
					Messages []json.RawMessage
					Changes  json.RawMessage
					Notice   string
				}
			}
			if err := json.Unmarshal([]byte(o.out), &res); err != nil || o.err != "" {
				t.Fatalf("%v\n%+v", err, o)
			}
			d := res.Data
			if got, want := string(compact(t, d.Changes)), string(compact(t, f.want.Changes)); got != want {
				t.Errorf("changes %s, want %s", got, want)
			}
			list := func(items []json.RawMessage) string {
				var out []string
				for _, it := range items {
					out = append(out, string(madeID.ReplaceAll(compact(t, it), []byte(`"made"`))))
				}
				return strings.Join(out, "\n")
			}
			if got, want := list(d.Messages), list(f.want.History); got != want {
				t.Errorf("messages\n%s\nwant\n%s", got, want)
			}
			if d.Format != f.Format {
				t.Errorf("format %s", d.Format)
			}
			// For people: the history in its shape on stdout, what was done on stderr.
			plain := rewind(string(in), f.args("-")...).want(t, 0)
			h, err := convo.Parse([]byte(plain.out), f.Format)
			if err != nil || h.Lines != f.lines() || list(h.Items) != list(d.Messages) {
				t.Errorf("%v, lines %v, %s", err, h.Lines, plain.out)
			}
			if string(f.want.Changes) == "[]" {
				if plain.out != string(in) {
					t.Errorf("a valid history was changed: %q", plain.out)
				}
				return
			}
			if !strings.Contains(plain.err, "to the conversation:\n  ") {
				t.Errorf("stderr: %q", plain.err)
			}
			if quiet := rewind(string(in), append(f.args("-"), "-q")...); quiet.err != "" || quiet.out != plain.out {
				t.Errorf("%+v", quiet)
			}
		})
	}
}

// Of messages that need no change every byte comes out again, also as JSON.
func TestMemoryRepairKeepsBytes(t *testing.T) {
	odd := []string{
		`{"role" : "user",	"content":"<b> & \u003c \u2028 ` + "\u2028\x7f" + ` \/ é", "n":1.0E+2, "n":  -0 , "big":123456789012345678901234567890}`,
		"{\n\"role\":\"assistant\",\"content\":\"x\"\n}",
	}
	call := `{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"w","arguments":"{}"}}]}`
	in := "\ufeff [" + odd[0] + "\n,  " + odd[1] + " ,\r\n" + call + " ]\n\n"
	for _, args := range [][]string{{}, {"--json"}} {
		o := rewind(in, append([]string{"memory", "repair", "-", "--checkpoint", "a <b>"}, args...)...).want(t, 0, odd...)
		if !json.Valid([]byte(o.out)) {
			t.Errorf("%v: no JSON: %s", args, o.out)
		}
		for _, text := range []string{"c1", `<rewindfs-rollback checkpoint=\"a &lt;b&gt;\">`} {
			if strings.Contains(o.out, call) || !strings.Contains(o.out, text) && len(args) > 0 {
				t.Errorf("%q is missing in %s", text, o.out)
			}
		}
	}
	valid := "\ufeff [" + odd[0] + "\n,  " + odd[1] + " ]\r\n"
	if o := rewind(valid, "memory", "repair", "-").want(t, 0, "valid as it is"); o.out != valid {
		t.Errorf("%q", o.out)
	}
}

func TestMemoryRepairRefuses(t *testing.T) {
	dir := t.TempDir()
	big := filepath.Join(dir, "big")
	if err := os.WriteFile(big, []byte("["), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(big, 200<<20); err != nil {
		t.Fatal(err)
	}
	good := `[{"role":"user","content":"x"}]`
	for name, c := range map[string]struct {
		in, file string
		code     int
		texts    []string
		args     []string
	}{
		"binary":         {in: "\x00\xff\x01", code: exitUsage, texts: []string{"standard input: not a conversation history"}},
		"empty":          {code: exitUsage, texts: []string{"nothing in it"}},
		"an object":      {in: `{"a":1}`, code: exitUsage},
		"a number":       {in: `7`, code: exitUsage},
		"wrong types":    {in: `[{"role":"user","content":"x"},{"role":7,"content":{}}]`, code: exitUsage, texts: []string{"item 1"}},
		"no objects":     {in: `[1,2]`, code: exitUsage},
		"cut off":        {in: `[{"role":"user"`, code: exitUsage},
		"deep":           {in: "[" + strings.Repeat(`{"a":[`, 1<<20), code: exitUsage, texts: []string{"nested deeper"}},
		"large":          {file: big, code: exitUsage, texts: []string{"more than 128.0 MiB"}},
		"endless":        {file: "/dev/zero", code: exitUsage, texts: []string{"more than 128.0 MiB"}},
		"another format": {in: good, code: exitUsage, args: []string{"--format", "langchain"}},
		"no such format": {in: good, code: exitUsage, texts: []string{"openai-chat"}, args: []string{"--format", "xml"}},
		"no such mode":   {in: good, code: exitUsage, args: []string{"--mode", "guess"}},
		"both notices":   {in: good, code: exitUsage, args: []string{"--notice", "x", "--no-notice"}},
		"no file":        {file: filepath.Join(dir, "nope"), code: exitPath, texts: []string{"no such file"}},
		"a directory":    {file: dir, code: exitPath, texts: []string{"is a directory"}},
		"not to be mended": {
			in: `[{"role":"wizard","content":"x"}]`, code: exitFailure, args: []string{"--format", "anthropic"},
			texts: []string{"cannot be made valid", "wizard"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			file := c.file
			if file == "" {
				file = "-"
			}
			args := append([]string{"memory", "repair", file}, c.args...)
			if o := rewind(c.in, args...).want(t, c.code, c.texts...); o.out != "" {
				t.Errorf("something came out: %.200s", o.out)
			}
			o := rewind(c.in, append(args, "--json")...).want(t, c.code, c.texts...)
			var f failure
			if err := json.Unmarshal([]byte(o.out), &f); err != nil || f.Success || f.Code != c.code || o.err != "" {
				t.Errorf("%v: %+v", err, o)
			}
			if name == "not to be mended" && (f.Kind != control.CodeUnrepairable || f.Details["rule"] == nil) {
				t.Errorf("%+v", f)
			}
		})
	}
}
