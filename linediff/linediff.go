// Package linediff compares two texts line by line, in bounded time whatever they hold, and writes what differs as
// unified hunks. A line is its bytes with the newline behind it: CRLF, no newline at the end, and what is not UTF-8 stay.
//
// What does not belong here: the headers of a patch (package patch), and merging (package merge3).
package linediff

import (
	"slices"
	"sort"
	"strings"

	"github.com/aymanbagabas/go-udiff/lcs"
)

// Hunk says that lines [Lo, Hi) of one text became lines [From, To) of another.
type Hunk struct{ Lo, Hi, From, To int }

// Split splits a text behind each newline.
func Split(p []byte) []string {
	if len(p) == 0 {
		return nil
	}
	l := strings.SplitAfter(string(p), "\n")
	if l[len(l)-1] == "" {
		l = l[:len(l)-1]
	}
	return l
}

// Diff lists, in order, what makes b out of a; between two hunks there is a line that stays.
//
// Lines that both texts have once only, in the same order, are taken to be the same (as in a patience
// diff). Between those the library looks for the shortest way, up to about 100 lines apart, which bounds its time;
// beyond, hunks get larger than they need be, which makes conflicts, never a wrong merge.
func Diff(a, b []string) []Hunk {
	var out []Hunk
	add := func(h Hunk) {
		if n := len(out); n > 0 && out[n-1].Hi == h.Lo && out[n-1].To == h.From {
			out[n-1].Hi, out[n-1].To = h.Hi, h.To
		} else {
			out = append(out, h)
		}
	}
	x, y := 0, 0 // done in a and b
	for _, m := range append(anchors(a, b), [2]int{len(a), len(b)}) {
		x2, y2 := m[0], m[1]
		if x2 < x { // an earlier gap ended with it
			continue
		}
		for x < x2 && y < y2 && a[x] == b[y] {
			x, y = x+1, y+1
		}
		tail := 0
		for x2-tail > x && y2-tail > y && a[x2-tail-1] == b[y2-tail-1] {
			tail++
		}
		for _, d := range lcs.DiffLines(a[x:x2-tail], b[y:y2-tail]) {
			add(Hunk{x + d.Start, x + d.End, y + d.ReplStart, y + d.ReplEnd})
		}
		x, y = x2, y2
	}
	return out
}

// anchors pairs the lines that a and b have once each, as far as they are in the same order.
func anchors(a, b []string) [][2]int {
	type seen struct{ inA, inB, at int }
	count := make(map[string]*seen, len(a))
	for _, l := range a {
		if s := count[l]; s != nil {
			s.inA++
		} else {
			count[l] = &seen{inA: 1}
		}
	}
	for i, l := range b {
		if s := count[l]; s != nil {
			s.inB, s.at = s.inB+1, i
		}
	}
	var pairs [][2]int
	for i, l := range a {
		if s := count[l]; s.inA == 1 && s.inB == 1 {
			pairs = append(pairs, [2]int{i, s.at})
		}
	}
	return rising(pairs)
}

// rising returns a longest part of pairs in which the second numbers rise, too.
func rising(pairs [][2]int) [][2]int {
	var ends []int // ends[n] is the pair that the best row of n+1 pairs ends with
	before := make([]int, len(pairs))
	for i, p := range pairs {
		n := sort.Search(len(ends), func(n int) bool { return pairs[ends[n]][1] >= p[1] })
		before[i] = -1
		if n > 0 {
			before[i] = ends[n-1]
		}
		if n == len(ends) {
			ends = append(ends, i)
		} else {
			ends[n] = i
		}
	}
	var out [][2]int
	if len(ends) > 0 {
		for i := ends[len(ends)-1]; i >= 0; i = before[i] {
			out = append(out, pairs[i])
		}
	}
	slices.Reverse(out)
	return out
}
