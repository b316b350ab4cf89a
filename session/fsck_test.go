package session

import (
	"strings"
	"testing"

	"github.com/rewindfs/rewindfs/control"
	"github.com/rewindfs/rewindfs/kv"
)

func (r *rig) fsck(t *testing.T) (*control.Fsck, []control.Finding) {
	t.Helper()
	var all []control.Finding
	res, err := r.Fsck(t.Context(), control.FsckRequest{}, func(f control.Finding) error { all = append(all, f); return nil }, nil)
	if err != nil {
		t.Fatalf("fsck: %v", err)
	}
	if res.Findings != int64(len(all)) || res.Clean != (len(all) == 0) {
		t.Fatalf("%d findings, of which %d came: %+v", res.Findings, len(all), res)
	}
	return res, all
}

// busyRig has branches, tool calls, conversations, ways back, and has collected garbage.
func busyRig(t *testing.T) *rig {
	t.Helper()
	r := start(t, options(t))
	r.write(t, "f", "one")
	r.sync(t, "", `[{"role":"user","content":"hi"},{"role":"assistant","content":"yes"}]`)
	r.checkpoint(t, "one")
	r.begin(t, control.ToolBegin{Name: "edit", Call: "c"})
	r.write(t, "f", "two")
	r.end(t, control.ToolEnd{Call: "c"})
	r.checkpoint(t, "two")
	r.fork(t, "two", "try")
	r.write(t, "f", "three")
	r.rollback(t, "one")
	r.on("try").write(t, "g", randomText(1, 200_000))
	r.on("try").checkpoint(t, "tried")
	r.gc(t, control.GCRequest{GCRules: keep(2)})
	return r
}

func TestFsckOnline(t *testing.T) {
	r := busyRig(t)
	if _, all := r.fsck(t); len(all) > 0 {
		t.Fatalf("a store that nobody damaged: %+v", all)
	}
}

// TestFsckFindsWhatTheJournalAndConversationsLost damages records of the agent's side: a store that cannot be mounted
// any more is repaired, and what is lost is said.
func TestFsckFindsWhatTheJournalAndConversationsLost(t *testing.T) {
	for _, d := range []struct {
		class, kind, where string
		remove, stays      bool // stays: it is listed after a repair, too
	}{
		{class: "j/", kind: "journal", where: "layer 1"},
		{class: "p/", kind: "journal"},
		{class: "t/", kind: "conversation", where: "the head of main"},
		{class: "v/m/", kind: "conversation", remove: true, stays: true},
		{class: "v/c/", kind: "conversation", stays: true},
		{class: "l/", kind: "layer"},
		{class: "l/", kind: "layer", remove: true},
		{class: "h/", kind: "head"},
		{class: "h/", kind: "head", remove: true},
	} {
		t.Run(d.class+d.kind, func(t *testing.T) {
			r := busyRig(t)
			o := r.o
			if err := r.stop(); err != nil {
				t.Fatal(err)
			}
			damageFirst(t, o, d.class, d.remove)
			check := func(repair bool) (*control.Fsck, []control.Finding) {
				t.Helper()
				var all []control.Finding
				res, err := CheckStore(t.Context(), o, &control.FsckRequest{Repair: repair}, func(f control.Finding) { all = append(all, f) }, nil)
				if err != nil {
					t.Fatalf("fsck: %v", err)
				}
				return res, all
			}
			_, all := check(false)
			said := false
			for _, f := range all {
				said = said || f.Kind == d.kind && strings.Contains(strings.Join(f.Checkpoints, ","), d.where)
			}
			if !said {
				t.Fatalf("no finding about %s in %q: %+v", d.kind, d.where, all)
			}
			check(true)
			if res, all := check(false); res.Clean == d.stays {
				t.Fatalf("after the repair: %+v", all)
			}
			o.Mount = nil
			r, err := tryStart(t, o)
			if err != nil {
				t.Fatalf("after the repair: %v", err)
			}
			r.want(t, "", "f", "one")
			r.on("try").want(t, "two", "f", "two")
			if d.class != "j/" {
				r.want(t, "one", "f", "one")
			}
		})
	}
}

// damageFirst garbles, or removes, the first record of a class in a store that nobody has open.
func damageFirst(t *testing.T, o Options, class string, remove bool) {
	t.Helper()
	db, err := kv.Open(o.Store+"/"+kvName, kv.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var b kv.Batch
	err = db.Scan([]byte(class), nil, func(k, _ []byte) bool {
		if remove {
			b.Delete(append([]byte(nil), k...))
		} else {
			b.Put(append([]byte(nil), k...), []byte{0xff})
		}
		return false
	})
	if err == nil && b.Len() == 1 {
		err = db.Apply(&b)
	}
	if err := firstOf(err, db.Close()); err != nil || b.Len() != 1 {
		t.Fatal(err)
	}
}
