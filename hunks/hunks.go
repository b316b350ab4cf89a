// Package hunks reads patches as rewindfs and git print them, and carries out some of their hunks: those that somebody left in, or chose.
// A hunk applies where it says, and only if what it takes away, and the lines around, are there.
//
// What does not belong here: how a patch is made (packages patch and linediff), and whose files they are.
package hunks

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/rewindfs/rewindfs/linediff"
)

// File is what a patch says of one file. Head is all in front of the hunks, as it was.
type File struct {
	Head     []byte
	Old, New string // paths; "" where there is no file
	Mode     bool   // it changes the mode, too
	Binary   bool   // it has what is no lines
	Text     bool   // it has the lines --- and +++, behind which are hunks
	Hunks    []Hunk
}

// Hunk is a run of changed lines, with some around them. Lines begin with ' ', '-' or '+', and have
// a newline at the end if the file has.
type Hunk struct {
	Line  int // of the old file: where it begins, counted from 0
	Lines []string
}

// Parse reads a patch. What is in front of the first file, and lines that begin with #, are passed over; how many lines a hunk says
// that it has is, too: who edits one does not count.
func Parse(text []byte) ([]*File, error) {
	p := parser{}
	for line := range bytes.Lines(text) {
		p.n++
		if err := p.line(string(line)); err != nil {
			return nil, fmt.Errorf("line %d of the patch: %w", p.n, err)
		}
	}
	for _, f := range p.all {
		if f.Old == "" && f.New == "" {
			return nil, fmt.Errorf("the patch does not say of which file %q is", firstLine(f.Head))
		}
	}
	return p.all, nil
}

func firstLine(p []byte) string {
	line, _, _ := strings.Cut(string(p), "\n")
	return line
}

type parser struct {
	n      int
	all    []*File
	f      *File
	inHunk bool
}

func (p *parser) line(line string) error {
	switch {
	case strings.HasPrefix(line, "diff --git "):
		p.f, p.inHunk = &File{}, false
		p.all = append(p.all, p.f)
		p.f.Old, p.f.New = gitNames(strings.TrimRight(line[len("diff --git "):], "\r\n"))
		p.f.Head = append(p.f.Head, line...)
		return nil
	case p.f == nil, strings.HasPrefix(line, "#"):
		return nil
	case strings.HasPrefix(line, "@@ "):
		at, err := start(line)
		p.f.Hunks, p.inHunk = append(p.f.Hunks, Hunk{Line: at}), true
		return err
	case p.inHunk:
		return p.body(line)
	}
	p.f.Head = append(p.f.Head, line...)
	return p.header(strings.TrimRight(line, "\r\n"))
}

// header reads a line between the name of a file and its hunks.
func (p *parser) header(line string) (err error) {
	f := p.f
	key, rest, _ := strings.Cut(line, " ")
	name := func(prefix string) (string, error) {
		s, err := unquote(strings.TrimSuffix(rest, "\t"))
		if err != nil || s == "/dev/null" {
			return "", err
		}
		return strings.TrimPrefix(s, prefix), nil
	}
	switch key {
	case "---":
		f.Text = true
		f.Old, err = name("a/")
	case "+++":
		f.Text = true
		f.New, err = name("b/")
	case "new":
		f.Mode = f.Mode || strings.HasPrefix(rest, "mode ")
		if strings.HasPrefix(rest, "file mode ") {
			f.Old = ""
		}
	case "deleted":
		f.New = ""
	case "rename":
		way, path, _ := strings.Cut(rest, " ")
		rest = path
		if way == "from" {
			f.Old, err = name("")
		} else {
			f.New, err = name("")
		}
	case "Binary", "GIT":
		f.Binary = true
	}
	return err
}

// body reads a line of a hunk.
func (p *parser) body(line string) error {
	h := &p.f.Hunks[len(p.f.Hunks)-1]
	switch line[0] {
	case ' ', '+', '-':
		h.Lines = append(h.Lines, line)
	case '\n', '\r': // an editor has taken the blank away
		h.Lines = append(h.Lines, " "+line)
	case '\\':
		if len(h.Lines) == 0 {
			return errors.New("no line is in front of it")
		}
		last := &h.Lines[len(h.Lines)-1]
		*last = strings.TrimSuffix(*last, "\n")
	default:
		return fmt.Errorf("%q is no line of a hunk: these begin with a blank, + or -", strings.TrimRight(line, "\n"))
	}
	return nil
}

// start reads where a hunk begins in the old file.
func start(line string) (int, error) {
	fields := strings.Fields(line)
	if len(fields) >= 3 && strings.HasPrefix(fields[1], "-") {
		from, lines, counted := strings.Cut(fields[1][1:], ",")
		n, err := strconv.Atoi(from)
		if err == nil && n >= 0 {
			if counted && lines == "0" { // then it says the line in front
				return n, nil
			}
			return max(n-1, 0), nil
		}
	}
	return 0, fmt.Errorf("%q does not say where the hunk begins, as @@ -1,2 +1,3 @@ does", strings.TrimRight(line, "\n"))
}

// gitNames reads the two names behind "diff --git". Without quotes they can only be told if they are the same.
func gitNames(s string) (old, new string) {
	if strings.HasPrefix(s, `"`) || strings.HasSuffix(s, `"`) {
		cut := strings.Index(s, ` "`)
		if strings.HasPrefix(s, `"`) {
			cut = 1
			for cut < len(s) && s[cut] != '"' {
				if s[cut] == '\\' {
					cut++
				}
				cut++
			}
			cut++
		}
		if cut < 0 || cut >= len(s) {
			return "", ""
		}
		a, err := unquote(s[:cut])
		b, err2 := unquote(s[cut+1:])
		if err != nil || err2 != nil {
			return "", ""
		}
		return strings.TrimPrefix(a, "a/"), strings.TrimPrefix(b, "b/")
	}
	if half := len(s) / 2; len(s) > 4 && len(s)%2 == 1 && s[half] == ' ' && strings.HasPrefix(s, "a/") && s[2:half] == strings.TrimPrefix(s[half+1:], "b/") {
		return s[2:half], s[2:half]
	}
	return "", "" // other lines say it
}

// unquote undoes what git does to paths with odd bytes.
func unquote(s string) (string, error) {
	if !strings.HasPrefix(s, `"`) {
		return s, nil
	}
	if len(s) < 2 || !strings.HasSuffix(s, `"`) {
		return "", fmt.Errorf("the quotes of %s do not end", s)
	}
	var out []byte
	for s = s[1 : len(s)-1]; s != ""; {
		if s[0] != '\\' {
			out, s = append(out, s[0]), s[1:]
			continue
		}
		if len(s) >= 4 && s[1] >= '0' && s[1] <= '3' {
			n, err := strconv.ParseUint(s[1:4], 8, 8)
			if err != nil {
				return "", fmt.Errorf(`\%s is no byte: %w`, s[1:4], err)
			}
			out, s = append(out, byte(n)), s[4:]
			continue
		}
		k := -1
		if len(s) > 1 {
			k = strings.IndexByte(`abtnvfr"\`, s[1])
		}
		if k < 0 {
			return "", fmt.Errorf("%s: what the backslash stands for is not known", s)
		}
		out, s = append(out, "\a\b\t\n\v\f\r\"\\"[k]), s[2:]
	}
	return string(out), nil
}

// Path is what the file is called, after the change if it is there then.
func (f *File) Path() string {
	if f.New != "" {
		return f.New
	}
	return f.Old
}

// Apply makes the new text of the old one.
func (f *File) Apply(old []byte) ([]byte, error) {
	lines := linediff.Split(old)
	out := make([]byte, 0, len(old))
	at := 0
	for i, h := range f.Hunks {
		if h.Line < at || h.Line > len(lines) {
			return nil, fmt.Errorf("hunk %d is about line %d, which is in the hunk before, or not in the file", i+1, h.Line+1)
		}
		for ; at < h.Line; at++ {
			out = append(out, lines[at]...)
		}
		for _, l := range h.Lines {
			mark, text := l[0], l[1:]
			if mark != '+' {
				if at >= len(lines) || lines[at] != text {
					return nil, fmt.Errorf("hunk %d does not fit: line %d of the file is not %q", i+1, at+1, strings.TrimRight(text, "\n"))
				}
				at++
			}
			if mark == '-' {
				continue
			}
			if n := len(out); n > 0 && out[n-1] != '\n' {
				return nil, fmt.Errorf("hunk %d does not fit: the line in front of %q has no newline at its end", i+1, strings.TrimRight(text, "\n"))
			}
			out = append(out, text...)
		}
	}
	for ; at < len(lines); at++ {
		if n := len(out); n > 0 && out[n-1] != '\n' {
			return nil, fmt.Errorf("the line in front of line %d would have no newline at its end", at+1)
		}
		out = append(out, lines[at]...)
	}
	return out, nil
}

// Split takes a hunk apart where lines stay between those that change; one that cannot be is returned alone.
func (h Hunk) Split() (parts []Hunk) {
	at, from := h.Line, 0 // the line of the old file, and where in Lines the part begins that is not out yet
	part := Hunk{Line: h.Line}
	changed := false
	for i, l := range h.Lines {
		if changed && l[0] == ' ' && i+1 < len(h.Lines) && h.Lines[i+1][0] != ' ' { // the last of the lines between
			part.Lines = h.Lines[from : i+1]
			parts = append(parts, part)
			from, changed = i+1, false
			part = Hunk{Line: at + 1}
		}
		if l[0] != '+' {
			at++
		}
		changed = changed || l[0] != ' '
	}
	part.Lines = h.Lines[from:]
	return append(parts, part)
}

// Format appends f to w, with some of its hunks: which of them says use.
func (f *File) Format(w *bytes.Buffer, use []Hunk) {
	w.Write(f.Head)
	shift := 0 // by which lines move
	for _, h := range use {
		h.Format(w, shift)
		old, now := h.count()
		shift += now - old
	}
}

func (h Hunk) count() (old, now int) {
	for _, l := range h.Lines {
		if l[0] != '+' {
			old++
		}
		if l[0] != '-' {
			now++
		}
	}
	return old, now
}

// Format appends h to w. shift is by how many lines the hunks before it move it.
func (h Hunk) Format(w *bytes.Buffer, shift int) {
	old, now := h.count()
	linediff.Head(w, h.Line, old, h.Line+shift, now)
	for _, l := range h.Lines {
		w.WriteString(l)
		if !strings.HasSuffix(l, "\n") {
			w.WriteString("\n\\ No newline at end of file\n")
		}
	}
}

// WithoutMode is f without the change of mode.
func (f *File) WithoutMode() *File {
	g := *f
	g.Mode, g.Head = false, nil
	for l := range bytes.Lines(f.Head) {
		if !bytes.HasPrefix(l, []byte("old mode ")) && !bytes.HasPrefix(l, []byte("new mode ")) {
			g.Head = append(g.Head, l...)
		}
	}
	return &g
}
