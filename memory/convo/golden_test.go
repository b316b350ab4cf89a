package convo

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

// fixture is one case of CONVERSATIONS section 8.
type fixture struct {
	Name    string
	Format  Format
	Case    string
	Options struct {
		Checkpoint string
		Mode       Mode
		Notice     string
		MidSystem  bool `json:"mid_system"`
		Pending    string
		NewID      string `json:"new_id"`
	}
	History []json.RawMessage
	Cut     *int
	Want    struct {
		Changes []Change
		History []json.RawMessage
	}
}

func (f fixture) options() Options {
	return Options{Checkpoint: f.Options.Checkpoint, Mode: f.Options.Mode, Notice: f.Options.Notice,
		MidSystem: f.Options.MidSystem, Pending: f.Options.Pending, NewID: f.Options.NewID}
}

func (f fixture) input() History {
	items := f.History
	if f.Cut != nil {
		items = items[:*f.Cut]
	}
	return History{Format: f.Format, Items: items}
}

// fixtures reads testdata/fixtures; those of testdata/more are ours, for the cases of
// the table that are not handed out.
func fixtures(t testing.TB) []fixture {
	t.Helper()
	var all []fixture
	for _, dir := range []string{"fixtures", "more"} {
		names, err := filepath.Glob(filepath.Join("testdata", dir, "*.expected.json"))
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range names {
			in := strings.TrimSuffix(want, ".expected.json") + ".json"
			f := fixture{Name: strings.TrimSuffix(filepath.Base(in), ".json")}
			readJSON(t, in, &f)
			readJSON(t, want, &f.Want)
			all = append(all, f)
		}
	}
	return all
}

func readJSON(t testing.TB, path string, into any) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, into); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

// madeID matches the version 5 UUIDs that a repair gives to what it adds. The namespace
// that the fixtures' author used is not in the specification.
var madeID = regexp.MustCompile(`"[0-9a-f]{8}-[0-9a-f]{4}-5[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"`)

// compact writes JSON without white space and with keys in their order, so that the
// order of keys is compared as well; made ids by their shape only.
func compact(t testing.TB, items []json.RawMessage) string {
	t.Helper()
	var out bytes.Buffer
	for _, it := range items {
		if err := json.Compact(&out, it); err != nil {
			t.Fatal(err)
		}
		out.WriteByte('\n')
	}
	return madeID.ReplaceAllString(out.String(), `"made-id"`)
}

func TestGolden(t *testing.T) {
	all := fixtures(t)
	if len(all) != 43 {
		t.Errorf("%d fixtures; the table has 43", len(all))
	}
	for _, f := range all {
		t.Run(f.Name, func(t *testing.T) {
			before := compact(t, f.History)
			got, changes, err := Repair(f.input(), f.options())
			if err != nil {
				t.Fatal(err)
			}
			if g, w := compact(t, got.Items), compact(t, f.Want.History); g != w {
				t.Errorf("history:\n%s\nwant:\n%s", g, w)
			}
			if len(changes)+len(f.Want.Changes) > 0 && !reflect.DeepEqual(changes, f.Want.Changes) {
				t.Errorf("changes:\n%s\nwant:\n%s", asJSON(changes), asJSON(f.Want.Changes))
			}
			if compact(t, f.History) != before {
				t.Error("the input was changed")
			}
		})
	}
}

func asJSON(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

func TestDetectFixtures(t *testing.T) {
	for _, f := range fixtures(t) {
		if got, err := Detect(f.History); err != nil || got != f.Format {
			t.Errorf("%s: taken for %q, %v; want %q", f.Name, got, err, f.Format)
		}
	}
}
