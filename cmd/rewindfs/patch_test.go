package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/rewindfs/rewindfs/control"
)

// A patch on a terminal has colours, and nothing in a file can steer the terminal.
func TestColouredPatch(t *testing.T) {
	in := "diff --git a/f b/f\n--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n x\n--- a\n+\x1b]0;evil\x07\xc2\x9b31m é\n"
	want := "\x1b[1mdiff --git a/f b/f\x1b[m\n\x1b[1m--- a/f\x1b[m\n\x1b[1m+++ b/f\x1b[m\n\x1b[36m@@ -1,2 +1,2 @@\x1b[m\n x\n\x1b[31m--- a\x1b[m\n\x1b[32m+^[]0;evil^G?31m é\x1b[m\n"
	if got := string(coloured([]byte(in))); got != want {
		t.Errorf("%q\nwant\n%q", got, want)
	}
}

// Long names and long bars share the line as git has them share it.
func TestStatWidth(t *testing.T) {
	files := []control.FilePatch{
		{PathName: control.NameOf(strings.Repeat("long/", 20) + "name"), Added: 500, Removed: 1},
		{PathName: control.NameOf("b/c/new"), OldPath: "b/d/new", Added: 1},
		{PathName: control.NameOf("sub/x"), OldPath: "x"},
	}
	var out bytes.Buffer
	printStat(&out, files, 60)
	for line := range strings.Lines(out.String()) {
		if len(line) > 61 {
			t.Errorf("%d columns: %s", len(line)-1, line)
		}
	}
	for _, want := range []string{" .../long/", "b/{d => c}/new", "x => sub/x", " 3 files changed, 501 insertions(+), 1 deletion(-)\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in\n%s", want, out.String())
		}
	}
}
