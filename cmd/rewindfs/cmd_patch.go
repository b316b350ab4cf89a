package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/control"
)

// patchResult is what diff --patch and diff --stat print as JSON, beside what diff always does.
type patchResult struct {
	Files []control.FilePatch `json:"files"`
	diffResult
}

func (a *app) runPatch(ctx context.Context, o *diffOptions) error {
	c, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	c.Timeout = moveTime
	r := control.PatchRequest{DiffRequest: o.req, Binary: o.binary, Stat: o.stat}
	res := patchResult{Files: []control.FilePatch{}}
	if a.json {
		if res.diffResult, err = listChanges(ctx, c, o.req); err != nil {
			return err
		}
	}
	w := bufio.NewWriter(a.out)
	colour := isTerminal(a.out)
	_, err = c.Patch(ctx, r, func(f control.FilePatch) error {
		if o.stat && f.Note {
			return nil
		}
		if a.json || o.stat {
			res.Files = append(res.Files, f)
			return nil
		}
		text, err := f.Text()
		if err != nil {
			return fmt.Errorf("read the patch of %s: %w", showName(f.PathName), err)
		}
		if colour {
			text = coloured(text)
		}
		_, err = w.Write(text)
		return err
	})
	switch {
	case err != nil:
		return err
	case a.json:
		return a.result(res, nil)
	case o.stat:
		printStat(w, res.Files, columns(a.out))
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("print the result: %w", err)
	}
	return nil
}

// coloured makes a patch readable on a terminal, and harmless: what would steer it is shown as git's pager does.
func coloured(text []byte) []byte {
	var out bytes.Buffer
	body := false // behind the first @@ of a file: what begins with --- is content
	for line := range bytes.Lines(text) {
		line = bytes.TrimSuffix(line, []byte("\n"))
		colour := ""
		switch {
		case bytes.HasPrefix(line, []byte("diff --git ")):
			body, colour = false, "\x1b[1m"
		case bytes.HasPrefix(line, []byte("@@ ")):
			body, colour = true, "\x1b[36m"
		case !body:
			colour = "\x1b[1m"
		case line[0] == '+':
			colour = "\x1b[32m"
		case line[0] == '-':
			colour = "\x1b[31m"
		}
		out.WriteString(colour)
		for i, b := range line {
			switch {
			case b < 0x20 && b != '\t' || b == 0x7f:
				out.WriteString("^" + string(rune(b^0x40)))
			case b == 0xc2 && i+1 < len(line) && line[i+1] < 0xa0: // the same controls, of 8 bits
				out.WriteByte('?')
			case i > 0 && line[i-1] == 0xc2 && b < 0xa0 && b >= 0x80:
			default:
				out.WriteByte(b)
			}
		}
		if colour != "" {
			out.WriteString("\x1b[m")
		}
		out.WriteByte('\n')
	}
	return out.Bytes()
}

// columns is the width of a terminal, 80 of anything else.
func columns(out any) int {
	if f, ok := out.(*os.File); ok && isTerminal(out) {
		if ws, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ); err == nil && ws.Col > 20 {
			return int(ws.Col)
		}
	}
	return 80
}

// printStat prints numbers of lines and a bar for each file, as git diff --stat does, in so many columns.
func printStat(w io.Writer, files []control.FilePatch, width int) {
	var names []string
	longest, most, binary := 0, 0, false
	added, removed := 0, 0
	for i := range files {
		f := &files[i]
		names = append(names, statName(f))
		longest = max(longest, len([]rune(names[i])))
		if binary = binary || f.Binary; !f.Binary {
			most = max(most, f.Added+f.Removed)
		}
		added, removed = added+f.Added, removed+f.Removed
	}
	number := len(fmt.Sprint(most))
	if binary {
		number = max(number, 3)
	}
	bar := most
	if longest+number+6+bar > width {
		if limit := width*3/8 - number - 6; bar > limit {
			bar = max(limit, 6)
		}
		if rest := width - number - 6 - bar; longest > rest {
			longest = rest
		} else {
			bar = width - number - 6 - longest
		}
	}
	for i := range files {
		printStatLine(w, &files[i], shortName(names[i], longest), longest, number, bar, most)
	}
	if len(files) == 0 {
		return
	}
	fmt.Fprintf(w, " %s changed", count(int64(len(files)), "file"))
	if added > 0 || removed == 0 {
		fmt.Fprintf(w, ", %s(+)", count(int64(added), "insertion"))
	}
	if removed > 0 || added == 0 {
		fmt.Fprintf(w, ", %s(-)", count(int64(removed), "deletion"))
	}
	fmt.Fprintln(w)
}

func printStatLine(w io.Writer, f *control.FilePatch, name string, longest, number, bar, most int) {
	name += strings.Repeat(" ", longest-len([]rune(name)))
	if f.Binary {
		fmt.Fprintf(w, " %s | %*s %d -> %d bytes\n", name, number, "Bin", f.OldSize, f.NewSize)
		return
	}
	plus, minus := f.Added, f.Removed
	if bar <= most {
		scale := func(n int) int {
			if n == 0 {
				return 0
			}
			return 1 + n*(bar-1)/most
		}
		total := scale(plus + minus)
		if total < 2 && plus > 0 && minus > 0 {
			total = 2
		}
		if plus < minus {
			plus = scale(plus)
			minus = total - plus
		} else {
			minus = scale(minus)
			plus = total - minus
		}
	}
	line := fmt.Sprintf(" %s | %*d %s%s", name, number, f.Added+f.Removed, strings.Repeat("+", plus), strings.Repeat("-", minus))
	fmt.Fprintln(w, strings.TrimRight(line, " "))
}

// statName is how git names a file in a stat: of a rename, what both names share stands once.
func statName(f *control.FilePatch) string {
	name := showName(f.PathName)
	if f.OldPath == "" {
		return name
	}
	old := showName(control.PathName{Path: f.OldPath, PathB64: f.OldPathB64})
	if strings.HasPrefix(old, `"`) || strings.HasPrefix(name, `"`) {
		return old + " => " + name
	}
	head := 0
	for i := 0; i < min(len(old), len(name)) && old[i] == name[i]; i++ {
		if old[i] == '/' {
			head = i + 1
		}
	}
	tail := 0
	for i := 1; i <= min(len(old), len(name))-head+min(head, 1) && old[len(old)-i] == name[len(name)-i]; i++ {
		if old[len(old)-i] == '/' {
			tail = i
		}
	}
	if head == 0 && tail == 0 {
		return old + " => " + name
	}
	middle := func(s string) string { return s[head:max(head, len(s)-tail)] }
	return old[:head] + "{" + middle(old) + " => " + middle(name) + "}" + old[len(old)-tail:]
}

// shortName leaves out the beginning of a name that is too long.
func shortName(name string, n int) string {
	r := []rune(name)
	if len(r) <= n {
		return name
	}
	cut := string(r[len(r)-max(n-3, 0):])
	if i := strings.IndexByte(cut, '/'); i >= 0 {
		cut = cut[i:]
	}
	return "..." + cut
}
