package convo

import (
	"strings"
	"testing"
)

// claudeRow writes a row: kind is user or assistant, block the one block of its content.
func claudeRow(uuid, parent, kind, group, block string) string {
	up := "null"
	if parent != "" {
		up = "'" + parent + "'"
	}
	return `{'parentUuid':` + up + `,'isSidechain':false,'timestamp':'T','sessionId':'old','type':'` + kind + `','message':{'id':'` + group + `','role':'` + kind + `','content':[` + block + `]},'uuid':'` + uuid + `'}`
}

func use(id string) string { return `{'type':'tool_use','id':'` + id + `','name':'Bash','input':{}}` }
func result(id string) string {
	return `{'type':'tool_result','tool_use_id':'` + id + `','content':'R-` + id + `'}`
}

const userBlock = `{'type':'text','text':'do it'}`

func repairLines(t *testing.T, f Format, o Options, in ...string) (string, []Change) {
	t.Helper()
	o.Checkpoint = "c1"
	h, changes, err := Repair(History{Format: f, Items: items(t, in...)}, o)
	if err != nil {
		t.Fatal(err)
	}
	again, more, err := Repair(h, o)
	if err != nil || !same(again.Items, h.Items) || len(more) > 0 {
		t.Errorf("repaired twice: %s %v\n%s", actions(more), err, lines(again.Items))
	}
	return lines(h.Items), changes
}

// A client that runs calls while the response still comes writes results between the
// rows of one response.
func TestClaudeResultsBetweenRows(t *testing.T) {
	all, changes := repairLines(t, ClaudeCode, Options{},
		claudeRow("1", "", "user", "", userBlock),
		claudeRow("2", "1", "assistant", "m", use("a")),
		claudeRow("3", "2", "user", "", result("a")),
		claudeRow("4", "2", "assistant", "m", use("b")))
	if got := actions(changes); got != "synthesize_result b" || changes[0].At != 3 {
		t.Errorf("did %q\n%s", got, all)
	}
	if !strings.Contains(all, "R-a") || !strings.Contains(all, `"parentUuid":"4"`) {
		t.Error(all)
	}
}

func TestClaudeBookkeeping(t *testing.T) {
	in := []string{
		`{'type':'summary','summary':'s','leafUuid':'1'}`,
		claudeRow("1", "", "user", "", userBlock),
		`{'parentUuid':'1','type':'attachment','uuid':'2','sessionId':'old'}`,
		`{'parentUuid':null,'isSidechain':true,'type':'assistant','message':{'content':'side'},'uuid':'s1','sessionId':'old'}`,
		claudeRow("3", "2", "assistant", "m", use("a")),
		`{'parentUuid':'3','type':'attachment','uuid':'4','sessionId':'old'}`,
		`{'type':'last-prompt','leafUuid':'4','sessionId':'old'}`,
		`{'type':'file-history-snapshot','messageId':'1','snapshot':{}}`,
		`{'type':'something-new','x':1.0}`,
	}
	all, changes := repairLines(t, ClaudeCode, Options{Notice: "<n>x</n>"}, in...)
	if got := actions(changes); got != "drop_step a; append_notice" {
		t.Errorf("did %q\n%s", got, all)
	}
	for _, s := range []string{"side", "summary", "something-new", "file-history-snapshot", `"uuid":"2"`, `"parentUuid":"2"`} {
		if !strings.Contains(all, s) {
			t.Errorf("%s is gone\n%s", s, all)
		}
	}
	for _, s := range []string{`"uuid":"4"`, "last-prompt"} { // they hang on what is dropped
		if strings.Contains(all, s) {
			t.Errorf("%s is still there\n%s", s, all)
		}
	}
	all, _ = repairLines(t, ClaudeCode, Options{NewID: "new"}, in...)
	for _, s := range []string{"side", `"sessionId":"old"`, "file-history-snapshot"} {
		if strings.Contains(all, s) {
			t.Errorf("%s is still there in the new session\n%s", s, all)
		}
	}
	if !strings.Contains(all, "something-new") || !strings.Contains(all, `"sessionId":"new"`) {
		t.Errorf("the new session lacks something\n%s", all)
	}
}

// Rows that hung on a dropped one hang on what that one hung on.
func TestClaudeChainIsMended(t *testing.T) {
	all, changes := repairLines(t, ClaudeCode, Options{},
		claudeRow("1", "", "user", "", userBlock),
		claudeRow("2", "1", "user", "", result("nobody")),
		claudeRow("3", "2", "assistant", "m", `{'type':'text','text':'ok'}`))
	if got := actions(changes); got != "drop_orphan_result nobody" || !strings.Contains(all, `"parentUuid":"1","isSidechain":false,"timestamp":"T","sessionId":"old","type":"assistant"`) {
		t.Errorf("did %q\n%s", got, all)
	}
	all, _ = repairLines(t, ClaudeCode, Options{},
		claudeRow("1", "", "user", "", userBlock),
		claudeRow("2", "1", "assistant", "m", use("a")),
		claudeRow("3", "2", "user", "", userBlock))
	made := madeID.FindString(all)
	if made == "" || !strings.Contains(all, `"parentUuid":`+made+`,"isSidechain":false,"timestamp":"T","sessionId":"old","type":"user"`) {
		t.Errorf("the chain does not lead through the invented result\n%s", all)
	}
}

// A notice of an earlier rollback to a checkpoint of the same name has the id already.
func TestNewIDsAreNew(t *testing.T) {
	o := Options{Checkpoint: "c1", Notice: "<n>one</n>"}
	h, _, err := Repair(History{Format: ClaudeCode, Items: items(t, claudeRow("1", "", "user", "", userBlock))}, o)
	if err != nil {
		t.Fatal(err)
	}
	o.Notice = "<n>two</n>"
	if h, _, err = Repair(h, o); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, it := range h.Items {
		o, _ := asObject(it)
		if id := o.str("uuid"); seen[id] {
			t.Errorf("%s is there twice\n%s", id, lines(h.Items))
		} else {
			seen[id] = true
		}
	}
}

func codexRow(item string) string {
	return `{'timestamp':'T','type':'response_item','payload':` + item + `}`
}

func TestCodexCompacted(t *testing.T) {
	fc := func(id string) string {
		return `{'type':'function_call','call_id':'` + id + `','name':'x','arguments':'{}'}`
	}
	fco := func(id string) string {
		return `{'type':'function_call_output','call_id':'` + id + `','output':'R-` + id + `'}`
	}
	meta := `{'timestamp':'T','type':'session_meta','payload':{'id':'old','x':1.0,'session_id':'old'}}`
	all, changes := repairLines(t, Codex, Options{NewID: "new"}, meta,
		`{'timestamp':'T','type':'session_meta','payload':{'id':'of the parent'}}`,
		`{'timestamp':'T','type':'compacted','payload':{'message':'m','replacement_history':[`+fc("a")+`,`+fc("b")+`,`+fco("b")+`]}}`,
		`{'timestamp':'T','type':'turn_context','payload':{}}`,
		codexRow(fco("a")), codexRow(fco("b")), codexRow(fc("c")))
	if got := actions(changes); got != "drop_orphan_result b; drop_step c" {
		t.Errorf("did %q\n%s", got, all)
	}
	for _, s := range []string{"R-a", "turn_context", `{"id":"new","x":1.0,"session_id":"new","forked_from_id":"old"}`, "of the parent"} {
		if !strings.Contains(all, s) {
			t.Errorf("%s is not there\n%s", s, all)
		}
	}
}

func TestCodexLocalShell(t *testing.T) {
	all, _ := repairLines(t, Codex, Options{Mode: Synthesize},
		`{'timestamp':'T','type':'session_meta','payload':{'id':'old'}}`,
		codexRow(`{'type':'local_shell_call','id':'l','call_id':'c','action':{}}`))
	if !strings.Contains(all, `{"timestamp":"T","type":"response_item","payload":{"type":"function_call_output","call_id":"c","output":"[rewindfs]`) {
		t.Error(all)
	}
}

func TestCodexEmpty(t *testing.T) {
	if all, changes := repairLines(t, Codex, Options{Notice: "<n>x</n>"}); all != "" || len(changes) > 0 {
		t.Errorf("an empty rollout became %s", all)
	}
}
