package main

import (
	"bytes"
	"testing"
	"time"

	"github.com/rewindfs/rewindfs/control"
)

// Lines join where branches part, also those that are not neighbours.
func TestGraph(t *testing.T) {
	at := time.Date(2001, 2, 3, 4, 5, 6, 0, time.Local)
	cp := func(label string) []control.Checkpoint {
		return []control.Checkpoint{{Label: label, ID: "01", CreatedAt: at, ChangedPaths: 2}}
	}
	three := int64(3)
	nodes := []control.GraphNode{
		{Layer: 9, Parent: 5, Heads: []control.GraphHead{{Branch: "main", ChangedPaths: &three}}},
		{Layer: 8, Parent: 2, Heads: []control.GraphHead{{Branch: "try"}}},
		{Layer: 7, Parent: 5, Dropped: true, Left: &control.Left{Kind: "rollback", Label: "b", At: at}},
		{Layer: 6, Parent: 2, Dropped: true, Checkpoints: cp("lost")},
		{Layer: 5, Parent: 2, Checkpoints: cp("b")},
		{Layer: 2, Parent: 0, Checkpoints: append(cp("a"), cp("same")...)},
		{Layer: 0},
	}
	var out bytes.Buffer
	printGraph(&out, nodes)
	want := `*  [main]  3 paths changed
| *  [try]  not mounted
| | *  left by the rollback to 'b'  2001-02-03 04:05:06
| | | *  lost  01  2001-02-03 04:05:06  2 paths  (dropped)
|_|/ /
* | |  b  01  2001-02-03 04:05:06  2 paths
|/ /
|/
*  a  01  2001-02-03 04:05:06  2 paths
|  same  01  2001-02-03 04:05:06  2 paths
*  base
`
	if out.String() != want {
		t.Errorf("\n%s\nwant\n%s", out.String(), want)
	}
}

// What a movement left is said from where it stands: a merge and a restore go on above it, an undo went away from it.
func TestGraphLeft(t *testing.T) {
	at := time.Date(2001, 2, 3, 4, 5, 6, 0, time.Local)
	for kind, want := range map[string]string{
		"merge": "before the merge of branch 'x'", "restore": "before the restore from 'x'", "undo": "left by the undo", "redo": "left by the redo", "rollback": "left by the rollback to 'x'",
	} {
		got := describeNode(&control.GraphNode{Layer: 1, Left: &control.Left{Kind: kind, Label: "x", At: at}})
		if got[0] != want+"  2001-02-03 04:05:06" {
			t.Errorf("%s: %q", kind, got)
		}
	}
}
