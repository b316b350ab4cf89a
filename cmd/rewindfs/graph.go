package main

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/rewindfs/rewindfs/control"
)

// graphColumns draws lines from the newest states to the base. Every state has one below it, so lines
// only ever join.
type graphColumns struct {
	wait []uint64 // of each column, the layer that its line leads down to
}

// place draws what joins above the state of layer l, and returns its row.
func (g *graphColumns) place(l, below uint64) (joins []string, row string) {
	at := slices.Index(g.wait, l)
	if at < 0 {
		at = len(g.wait)
		g.wait = append(g.wait, l)
	}
	for {
		from := at + 1 + slices.Index(g.wait[at+1:], l)
		if from == at {
			break
		}
		joins = append(joins, g.join(at, from))
	}
	line := g.bars()
	line[2*at] = '*'
	g.wait[at] = below
	return joins, strings.TrimRight(string(line), " ")
}

func (g *graphColumns) bars() []byte {
	line := bytes.Repeat([]byte("| "), len(g.wait))
	return line
}

// join draws column from joining column at, those to its right moving up.
func (g *graphColumns) join(at, from int) string {
	line := bytes.Repeat([]byte(" "), 2*len(g.wait))
	for i := range g.wait {
		switch {
		case i < from:
			line[2*i] = '|'
		default:
			line[2*i-1] = '/'
		}
		if i > at && i < from {
			line[2*i-1] = '_'
		}
	}
	g.wait = slices.Delete(g.wait, from, from+1)
	return strings.TrimRight(string(line), " ")
}

// printGraph draws states, newest first, as git log --graph does commits.
func printGraph(w io.Writer, nodes []control.GraphNode) {
	g := &graphColumns{}
	for i := range nodes {
		n := &nodes[i]
		joins, row := g.place(n.Layer, n.Parent)
		for _, j := range joins {
			fmt.Fprintln(w, j)
		}
		texts := describeNode(n)
		fmt.Fprintf(w, "%s  %s\n", row, texts[0])
		for _, t := range texts[1:] {
			fmt.Fprintf(w, "%s  %s\n", strings.ReplaceAll(row, "*", "|"), t)
		}
	}
}

// describeNode is what stands beside a state, a line for each checkpoint of it.
func describeNode(n *control.GraphNode) []string {
	var out []string
	for i := range n.Checkpoints {
		c := &n.Checkpoints[i]
		text := refOf(c)
		if c.Label != "" {
			text = fmt.Sprintf("%s  %s", show(c.Label), c.ID)
		}
		text += fmt.Sprintf("  %s  %s", when(c.CreatedAt), count(c.ChangedPaths, "path"))
		if n.Dropped {
			text += "  (dropped)"
		}
		if message, _, _ := strings.Cut(c.Message, "\n"); message != "" {
			text += "  " + show(message)
		}
		out = append(out, text)
	}
	for _, h := range n.Heads {
		switch {
		case h.ChangedPaths == nil:
			out = append(out, fmt.Sprintf("[%s]  not mounted", show(h.Branch)))
		case *h.ChangedPaths == 0:
			out = append(out, fmt.Sprintf("[%s]  nothing changed", show(h.Branch)))
		default:
			out = append(out, fmt.Sprintf("[%s]  %s changed", show(h.Branch), count(*h.ChangedPaths, "path")))
		}
	}
	switch {
	case n.Left != nil && n.Left.Kind == "restore":
		out = append(out, fmt.Sprintf("before the restore from '%s'  %s", show(n.Left.Label), when(n.Left.At)))
	case n.Left != nil && n.Left.Kind == "merge":
		out = append(out, fmt.Sprintf("before the merge of branch '%s'  %s", show(n.Left.Label), when(n.Left.At)))
	case n.Left != nil && n.Left.Kind == "rollback" && n.Left.Label != "":
		out = append(out, fmt.Sprintf("left by the %s to '%s'  %s", n.Left.Kind, show(n.Left.Label), when(n.Left.At)))
	case n.Left != nil:
		out = append(out, fmt.Sprintf("left by the %s  %s", n.Left.Kind, when(n.Left.At)))
	case n.Layer == 0:
		out = append(out, "base")
	}
	return append(out, "")[:max(len(out), 1)]
}
