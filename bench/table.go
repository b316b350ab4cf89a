package bench

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"
)

// Style is how tables are written.
type Style int

// The styles: for the eye, and for a Markdown file.
const (
	Text Style = iota
	Markdown
)

// Write writes the whole report for people.
func (r *Report) Write(w io.Writer, style Style) error {
	p := &printer{w: w, style: style}
	p.machine(r)
	p.comparisons(r)
	p.rivals(r)
	p.values(r)
	p.curves(r)
	p.list("Not measured", r.Skipped)
	return p.err
}

// printer writes parts of a report and remembers the first error.
type printer struct {
	w     io.Writer
	style Style
	err   error
}

func (p *printer) printf(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format, args...)
	}
}

func (p *printer) heading(s string) {
	if p.style == Markdown {
		p.printf("\n## %s\n\n", s)
	} else {
		p.printf("\n%s\n\n", s)
	}
}

func (p *printer) list(heading string, items []string) {
	if len(items) == 0 {
		return
	}
	p.heading(heading)
	for _, s := range items {
		p.printf("- %s\n", s)
	}
}

func (p *printer) machine(r *Report) {
	m := r.Machine
	virt := "virtual machine: " + m.Virtualization
	if m.Virtualization == "none seen" {
		virt = "no virtual machine that shows"
	}
	kind := "full"
	if r.Quick {
		kind = "quick"
	}
	who := "as root"
	if !m.Root {
		who = "not as root"
	}
	lines := []string{
		fmt.Sprintf("%s, %s run of %d:%02d min, %d rounds, %s", r.Date.Format("2006-01-02 15:04 MST"), kind, int(r.Seconds)/60, int(r.Seconds)%60, r.Runs, r.Version),
		fmt.Sprintf("%s, %d cores, %s, %s", m.CPU, m.Cores, formatBytes(float64(m.MemoryBytes)), virt),
		fmt.Sprintf("Linux %s, %s, %s on %s, %s", m.Kernel, m.OS, m.FS, m.Disk, who),
		fmt.Sprintf("load average %s before, %s after", m.LoadBefore, m.LoadAfter),
	}
	if r.Tree != "" {
		lines = append(lines, r.Tree)
	}
	if m.Busy() {
		lines = append(lines, "The machine was busy with other work: take these figures for rough ones.")
	}
	for _, l := range lines {
		if p.style == Markdown {
			l = "- " + l
		}
		p.printf("%s\n", l)
	}
}

func (p *printer) comparisons(r *Report) {
	if len(r.Comparisons) == 0 {
		return
	}
	p.heading("Work, side by side: median time, and the ratio to the native directory")
	names := r.present()
	rows := [][]string{append(append([]string{"workload"}, names...), "bar", "met?")}
	var notes []string
	for _, c := range r.Comparisons {
		row := []string{c.Title}
		for _, n := range names {
			row = append(row, cellText(c.cell(n)))
			if cell := c.cell(n); cell != nil && cell.Note != "" {
				notes = append(notes, fmt.Sprintf("%s, %s: %s.", c.Title, n, cell.Note))
			}
		}
		if c.Note != "" {
			notes = append(notes, c.Title+": "+c.Note)
		}
		rows = append(rows, append(row, limitText(c.Limits), string(c.Met)))
	}
	p.table(rows)
	if len(notes) > 0 {
		p.printf("\n")
	}
	for _, n := range notes {
		p.printf("- %s\n", n)
	}
}

// present are the systems that measured anything.
func (r *Report) present() []string {
	return slices.DeleteFunc(slices.Clone(r.Systems), func(name string) bool {
		return !slices.ContainsFunc(r.Comparisons, func(c Comparison) bool {
			cell := c.cell(name)
			return cell != nil && cell.Error != "skipped"
		})
	})
}

func cellText(c *Cell) string {
	switch {
	case c == nil || c.Error == "skipped":
		return "–"
	case c.Error != "":
		return "failed"
	}
	s := formatSeconds(float64(c.Median))
	if c.System != Native {
		s += " (" + formatRatio(float64(c.Ratio)) + ")"
	}
	if c.Stored != nil {
		s += ", " + formatBytes(float64(*c.Stored))
	}
	return s
}

func (p *printer) rivals(r *Report) {
	if len(r.Rivals) == 0 {
		return
	}
	p.heading(fmt.Sprintf("One checkpoint of the tree, %d files changed since the last", changedPerCheckpoint))
	rows := [][]string{{"by", "median", "to rewindfs", "stored by one", "what was timed"}}
	for _, v := range r.Rivals {
		rows = append(rows, []string{v.Name, formatSeconds(float64(v.P50)), formatRatio(float64(v.Ratio)), formatBytes(float64(v.Stored)), v.How})
	}
	p.table(rows)
}

func (p *printer) values(r *Report) {
	if len(r.Values) == 0 {
		return
	}
	p.heading("Figures of rewindfs")
	rows := [][]string{{"what", "measured", "bar", "met?"}}
	var notes []string
	for _, v := range r.Values {
		bar := ""
		if v.Max > 0 {
			bar = v.limit()
		}
		rows = append(rows, []string{v.Title, v.text(), bar, string(v.Met)})
		if v.Note != "" {
			notes = append(notes, v.Title+": "+v.Note)
		}
	}
	p.table(rows)
	if len(notes) > 0 {
		p.printf("\n")
	}
	for _, n := range notes {
		p.printf("- %s\n", n)
	}
}

func (p *printer) curves(r *Report) {
	for _, c := range r.Curves {
		p.heading(c.Title)
		rows := [][]string{{c.XLabel}}
		for _, l := range c.Series {
			rows[0] = append(rows[0], l.Name+", p50", "p99")
			for i, pt := range l.Points {
				if i+1 >= len(rows) {
					rows = append(rows, []string{formatCount(pt.X)})
				}
				rows[i+1] = append(rows[i+1], formatSeconds(float64(pt.P50)), formatSeconds(float64(pt.P99)))
			}
		}
		p.table(rows)
		if c.Bar != "" {
			p.printf("\nBar: %s. Met: %s.\n", c.Bar, c.Met)
		}
	}
}

// table writes rows of cells, the first of which is the header.
func (p *printer) table(rows [][]string) {
	width := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			width[i] = max(width[i], utf8.RuneCountInString(cell))
		}
	}
	for n, row := range rows {
		cells := make([]string, len(row))
		for i, cell := range row {
			cells[i] = cell + strings.Repeat(" ", width[i]-utf8.RuneCountInString(cell))
		}
		if p.style == Markdown {
			p.printf("| %s |\n", strings.Join(cells, " | "))
		} else {
			p.printf("%s\n", strings.TrimRight(strings.Join(cells, "  "), " "))
		}
		if n == 0 {
			p.rule(width)
		}
	}
}

// rule is the line under a header.
func (p *printer) rule(width []int) {
	parts := make([]string, len(width))
	for i, w := range width {
		mark := "─"
		if p.style == Markdown {
			mark = "-"
		}
		parts[i] = strings.Repeat(mark, w)
	}
	if p.style == Markdown {
		p.printf("| %s |\n", strings.Join(parts, " | "))
	} else {
		p.printf("%s\n", strings.Join(parts, "──"))
	}
}
