package verify

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	for _, c := range []struct {
		name, in string
		want     Verdict // Raw and Extra are compared elsewhere
	}{
		{"bare", `{"status":"pass"}`, Verdict{Status: Pass}},
		{"white space around", " \t\r\n{\"status\": \"fail\"}\n\n", Verdict{Status: Fail}},
		{"unknown is a verdict's word too", `{"status":"unknown","summary":"no network"}`, Verdict{Status: Unknown, Summary: "no network"}},
		{"nulls", `{"status":"pass","summary":null,"errors":null}`, Verdict{Status: Pass}},
		{"unknown fields", `{"n":1e400,"status":"pass","STATUS":"fail","Status":7}`, Verdict{Status: Pass}},
		{"escaped name", `{"\u0073tatus":"pass"}`, Verdict{Status: Pass}},
		{"fields of others twice", `{"x":1,"x":2,"status":"pass"}`, Verdict{Status: Pass}},
		{"nested status", `{"sub":{"status":"fail"},"status":"pass"}`, Verdict{Status: Pass}},
		{"errors", `{"status":"fail","errors":["plain",{"file":"a.go","line":3,"message":"bad"},{"file":"b","line":"4","message":"m"},
			{"message":"only text","code":7},{"file":"c","message":"m","line":null}]}`,
			Verdict{Status: Fail, Errors: []Problem{{Message: "plain"}, {"a.go", 3, "bad"}, {"b", 4, "m"}, {Message: "only text"}, {File: "c", Message: "m"}}}},
		{"errors of unknown shape are kept as text", `{"status":"fail","errors":[{"msg": "x", "at": [1, 2]},{"message":"m","line":-1},{"message":"m","file":3}]}`,
			Verdict{Status: Fail, Errors: []Problem{{Message: `{"msg":"x","at":[1,2]}`}, {Message: `{"message":"m","line":-1}`}, {Message: `{"message":"m","file":3}`}}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := Parse([]byte(c.in))
			if err != nil {
				t.Fatal(err)
			}
			if want := strings.Trim(c.in, " \t\r\n"); string(got.Raw) != want {
				t.Errorf("raw is %s, want %s", got.Raw, want)
			}
			got.Raw, got.Extra = nil, nil
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}

func TestParseKeepsUnknownFields(t *testing.T) {
	v, err := Parse([]byte(`{"big": 12345678901234567890.10, "status":"pass", "o": {"b":1, "a":2}}`))
	if err != nil {
		t.Fatal(err)
	}
	if got := string(v.Extra["big"]); got != "12345678901234567890.10" {
		t.Errorf("the number's spelling became %s", got)
	}
	if got := string(v.Extra["o"]); got != `{"b":1, "a":2}` {
		t.Errorf("the object became %s", got)
	}
}

func TestParseRefuses(t *testing.T) {
	for _, c := range []struct{ name, in, why string }{
		{"nothing", "", "empty"},
		{"blanks", " \n\t ", "empty"},
		{"text", "PASS", "begins with"},
		{"text before", "ok\n{\"status\":\"pass\"}", "begins with"},
		{"text behind", "{\"status\":\"pass\"}\nok", "goes on with"},
		{"two objects", `{"status":"pass"}{"status":"pass"}`, "goes on with"},
		{"two lines of JSON", "{\"status\":\"pass\"}\n{\"status\":\"pass\"}\n", "goes on with"},
		{"list", `[{"status":"pass"}]`, "begins with"},
		{"string", `"pass"`, "begins with"},
		{"cut", `{"status":"pass"`, "not JSON"},
		{"comma at the end", `{"status":"pass",}`, "not JSON"},
		{"single quotes", `{'status':'pass'}`, "not JSON"},
		{"comment", `{"status":"pass" /* x */}`, "not JSON"},
		{"no status", `{"summary":"pass"}`, `no field "status"`},
		{"other case", `{"Status":"pass"}`, `no field "status"`},
		{"loud", `{"status":"PASS"}`, `"status" is`},
		{"blank in status", `{"status":"pass "}`, `"status" is`},
		{"status true", `{"status":true}`, `"status" is`},
		{"status null", `{"status":null}`, `"status" is`},
		{"status list", `{"status":["pass"]}`, `"status" is`},
		{"status twice", `{"status":"fail","status":"pass"}`, "twice"},
		{"status twice, once escaped", `{"status":"fail","st\u0061tus":"pass"}`, "twice"},
		{"errors twice", `{"status":"pass","errors":[],"errors":[]}`, "twice"},
		{"summary number", `{"status":"pass","summary":3}`, `"summary" is`},
		{"errors string", `{"status":"fail","errors":"x"}`, `"errors" is`},
		{"errors object", `{"status":"fail","errors":{}}`, `"errors" is`},
		{"errors with a number", `{"status":"fail","errors":["a",1]}`, "entry 2"},
		{"errors with null", `{"status":"fail","errors":[null]}`, "entry 1"},
		{"not UTF-8", "{\"status\":\"pass\",\"x\":\"\xff\"}", "UTF-8"},
		{"NUL behind", "{\"status\":\"pass\"}\x00", "goes on with"},
		{"byte order mark", "\ufeff{\"status\":\"pass\"}", "begins with"},
		{"white space that is not JSON's", "\u00a0{\"status\":\"pass\"}", "begins with"},
		{"deep", `{"status":"pass","x":` + strings.Repeat("[", 20000) + strings.Repeat("]", 20000) + "}", "not JSON"},
	} {
		t.Run(c.name, func(t *testing.T) {
			v, err := Parse([]byte(c.in))
			if err == nil {
				t.Fatalf("accepted as %+v", v)
			}
			if !strings.Contains(err.Error(), c.why) {
				t.Errorf("the reason is %q, want something with %q", err, c.why)
			}
			if v.Status != "" || v.Raw != nil {
				t.Errorf("a verdict came with the error: %+v", v)
			}
		})
	}
}

func TestProblemJSON(t *testing.T) {
	in := []Problem{{Message: "plain"}, {"a.go", 3, "bad"}, {File: "b", Message: "m"}}
	data, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	if want := `["plain",{"file":"a.go","line":3,"message":"bad"},{"file":"b","message":"m"}]`; string(data) != want {
		t.Errorf("got %s, want %s", data, want)
	}
	var back []Problem
	if err := json.Unmarshal(data, &back); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(back, in) {
		t.Errorf("came back as %+v", back)
	}
	if got := in[1].String(); got != "a.go:3: bad" {
		t.Errorf("as text %q", got)
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{
		`{"status":"pass"}`, ` {"status":"fail","errors":["a",{"file":"f","line":1,"message":"m"}],"x":[1]} `,
		`{"status":"pass"}{`, `{"status":"unknown","summary":"s"}`, `{"st\u0061tus":"pass","errors":null}`, "", "{", `{"status":"fail","status":"pass"}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		v, err := Parse(in)
		if err != nil {
			if v.Status != "" {
				t.Fatalf("status %q with error %v", v.Status, err)
			}
			return
		}
		if v.Status != Pass && v.Status != Fail && v.Status != Unknown {
			t.Fatalf("status %q", v.Status)
		}
		// What another reader of JSON makes of it.
		var plain map[string]any
		dec := json.NewDecoder(bytes.NewReader(in))
		dec.UseNumber()
		if err := dec.Decode(&plain); err != nil {
			t.Fatalf("accepted, but it is not JSON: %v", err)
		}
		if plain["status"] != string(v.Status) {
			t.Fatalf("status %q, but the object says %v", v.Status, plain["status"])
		}
		if _, err := Parse(append(bytes.Clone(in), "\n \t"...)); err != nil {
			t.Fatalf("white space behind it is refused: %v", err)
		}
		for _, tail := range []string{"x", "{}", "\x00", `{"status":"pass"}`} {
			if _, err := Parse(append(bytes.Clone(in), tail...)); err == nil {
				t.Fatalf("accepted with %q behind it", tail)
			}
		}
		if data, err := json.Marshal(v); err != nil {
			t.Fatalf("cannot be written: %v", err)
		} else if err := json.Unmarshal(data, &v); err != nil {
			t.Fatalf("cannot be read again: %v", err)
		}
	})
}
