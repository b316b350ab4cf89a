package journal

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"
)

// indexOf makes a journal with one entry per label at layers 1, 2, … in memory only.
func indexOf(t *testing.T, labels ...string) *Journal {
	t.Helper()
	j := newJournal(nil)
	for i, l := range labels {
		at := time.UnixMilli(1_700_000_000_000 + int64(i))
		id, err := j.newID(at)
		if err != nil {
			t.Fatal(err)
		}
		j.Commit(&Entry{ID: id, Layer: uint64(i + 1), Label: l, CreatedAt: at}, nil)
	}
	return j
}

func all(uint64) bool { return true }

// upTo is the line after a rollback to layer l from which nothing was added.
func upTo(l uint64) Line { return func(x uint64) bool { return x <= l } }

func TestResolve(t *testing.T) {
	j := indexOf(t, "one", "", "three", "two words", "ünï/cødé:1.2")
	id2 := j.byLayer[2].ID
	for _, c := range []struct {
		ref   string
		line  Line
		layer uint64
		err   error
	}{
		{"base", all, 0, nil},
		{"latest", all, 5, nil},
		{"latest", upTo(3), 3, nil},
		{"@{0}", all, 5, nil},
		{"@{1}", all, 4, nil},
		{"@{4}", all, 1, nil},
		{"@{5}", all, 0, ErrUnknownRef},
		{"@{x}", all, 0, ErrUnknownRef},
		{"@{-1}", all, 0, ErrUnknownRef},
		{"@{1}", upTo(3), 2, nil},
		{"one", all, 1, nil},
		{"two words", all, 4, nil},
		{"ünï/cødé:1.2", all, 5, nil},
		{"ünï/cødé:1.2", upTo(4), 0, ErrUnknownRef},
		{id2, all, 2, nil},
		{strings.ToLower(id2), all, 2, nil},
		{id2, upTo(1), 2, nil}, // dropped, still named by its id
		{id2[:6], all, 0, ErrAmbiguousRef},
		{id2[:5], all, 0, ErrUnknownRef},
		{id2[:25], all, 2, nil},
		{id2 + "0", all, 0, ErrUnknownRef},
		{"", all, 0, ErrUnknownRef},
		{"nowhere", all, 0, ErrUnknownRef},
		{"latest", func(uint64) bool { return false }, 0, ErrUnknownRef},
	} {
		got, err := j.Resolve(c.ref, c.line)
		if !errors.Is(err, c.err) || got.Layer != c.layer {
			t.Errorf("Resolve(%q) = layer %d, %v; want %d, %v", c.ref, got.Layer, err, c.layer, c.err)
		}
	}
}

func TestResolveSaysWhatToDo(t *testing.T) {
	j := indexOf(t, "alpha", "beta")
	for _, c := range []struct {
		ref, want string
		line      Line
	}{
		{"alhpa", "beta, alpha", all},
		{"beta", j.byLayer[2].ID, upTo(1)},
		{"x", "rewindfs log", func(uint64) bool { return false }},
	} {
		if _, err := j.Resolve(c.ref, c.line); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("Resolve(%q): %v; want it to mention %q", c.ref, err, c.want)
		}
	}
}

func TestLabelIsFreeAgainAfterRollback(t *testing.T) {
	j := indexOf(t, "a", "b")
	if err := j.LabelFree("b", all); !errors.Is(err, ErrDuplicateLabel) {
		t.Fatalf("LabelFree in its line: %v", err)
	}
	if err := j.LabelFree("b", upTo(1)); err != nil {
		t.Fatalf("LabelFree after it was dropped: %v", err)
	}
	j.Commit(&Entry{ID: ulid.MustNew(ulid.Now(), nil).String(), Layer: 7, Label: "b"}, nil)
	line := func(l uint64) bool { return l == 1 || l == 7 }
	if got, err := j.Resolve("b", line); err != nil || got.Layer != 7 {
		t.Fatalf("the label given again resolves to %d, %v", got.Layer, err)
	}
	if got, err := j.Resolve("b", upTo(2)); err != nil || got.Layer != 2 {
		t.Fatalf("the label in its old line resolves to %d, %v", got.Layer, err)
	}
}

// A label never hides a checkpoint behind what already names it.
func TestLabelIsNoID(t *testing.T) {
	j := indexOf(t, "a", "", "c")
	id := j.byLayer[2].ID
	for _, label := range []string{id, strings.ToLower(id), id[:25], id[:6], strings.ToLower(id[:10])} {
		if err := j.LabelFree(label, upTo(1)); !errors.Is(err, ErrDuplicateLabel) || !strings.Contains(err.Error(), "with the id 0") {
			t.Errorf("LabelFree(%q): %v", label, err)
		}
	}
	// What names no checkpoint is free.
	for _, label := range []string{id[:5], id + "0", "x" + id[1:], id[:24] + "/x", id[1:8]} {
		if err := j.LabelFree(label, all); err != nil {
			t.Errorf("LabelFree(%q): %v", label, err)
		}
	}
}

func TestAutoEntriesAreNotLatest(t *testing.T) {
	j := indexOf(t, "a")
	id, err := j.newID(time.UnixMilli(1_800_000_000_000))
	if err != nil {
		t.Fatal(err)
	}
	j.Commit(&Entry{ID: id, Layer: 2, Auto: true}, nil)
	if got, err := j.Resolve("latest", all); err != nil || got.Layer != 1 {
		t.Fatalf("latest is layer %d, %v", got.Layer, err)
	}
	if got, err := j.Resolve(id, all); err != nil || got.Layer != 2 {
		t.Fatalf("its id finds layer %d, %v", got.Layer, err)
	}
}

func TestAbove(t *testing.T) {
	j := indexOf(t, "a", "b", "c", "d")
	line := func(l uint64) bool { return l != 3 }
	var got []string
	for _, e := range j.Above(line, 1) {
		got = append(got, e.Label)
	}
	if fmt.Sprint(got) != "[d b]" {
		t.Fatalf("Above = %v", got)
	}
	if n := j.Count(line); n != 3 {
		t.Fatalf("Count = %d", n)
	}
}

func TestMadeSince(t *testing.T) {
	j := indexOf(t, "a", "b", "c", "d") // a millisecond each
	for ms, want := range map[int64]int{-1: 4, 0: 4, 1: 3, 3: 1, 4: 0} {
		if n := j.MadeSince(time.UnixMilli(1_700_000_000_000 + ms)); n != want {
			t.Errorf("%d ms on: %d, want %d", ms, n, want)
		}
	}
	if n := j.MadeSince(time.Time{}); n != 4 {
		t.Errorf("ever: %d", n)
	}
}

func TestIDsRiseWhateverTheClockDoes(t *testing.T) {
	j := newJournal(nil)
	last := ""
	for i, ms := range []int64{5000, 5000, 4000, 0, -7, 6000, 6000} {
		id, err := j.newID(time.UnixMilli(ms))
		if err != nil {
			t.Fatal(err)
		}
		if id <= last {
			t.Fatalf("id %d: %s is not above %s", i, id, last)
		}
		last = id
		// What a restart knows: the entries, not the entropy.
		fresh := newJournal(nil)
		for l := range j.byLayer {
			fresh.addEntry(j.byLayer[l])
		}
		fresh.addEntry(&Entry{ID: id, Layer: uint64(i + 1)})
		j = fresh
	}
}

func TestCheckLabel(t *testing.T) {
	for _, s := range []string{"a", "stable", "v1.2.3", "fix/login", "a b", "12:30", "x_-.y", "été", "日本", "a  b", ".hidden", "...", "a..b", strings.Repeat("x", 200), "ABCDEFGHIJ"} {
		if err := CheckLabel(s); err != nil {
			t.Errorf("CheckLabel(%q): %v", s, err)
		}
	}
	for _, s := range []string{"", " a", "a ", "-x", "@", "@x", "@{1}", "@-1", "@1", "base", "latest", ".", "..", "a/../b", "../x", "/etc/passwd", "a//b", "a/", "a\nb", "a\x00b", "a\x1bb", "a\tb", "a*b", "a\\b", "a'b", "\xff", "a\u202eb", "a\u00a0b", strings.Repeat("x", 201)} {
		if err := CheckLabel(s); !errors.Is(err, ErrBadLabel) {
			t.Errorf("CheckLabel(%q) = %v, want ErrBadLabel", s, err)
		}
	}
}

func FuzzCheckLabel(f *testing.F) {
	for _, s := range []string{"a/b", "..", "@{0}", "a b", "\x1b[31m"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if CheckLabel(s) != nil {
			return
		}
		for part := range strings.SplitSeq(s, "/") {
			if part == "" || part == "." || part == ".." {
				t.Fatalf("%q was accepted with the part %q", s, part)
			}
		}
		if len(s) > MaxLabel || strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			t.Fatalf("%q was accepted", s)
		}
	})
}
