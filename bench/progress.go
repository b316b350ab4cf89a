package bench

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// Progress is told what is going on. It is safe for concurrent use.
type Progress interface {
	// Row says that done rows of all are behind us and that title begins.
	Row(done, all int, title string)
	// Step says what the row is doing now.
	Step(text string)
	// Close leaves the screen clean.
	Close()
}

// NewProgress draws a bar on w when it is a terminal; else it keeps silent.
func NewProgress(w io.Writer, quiet bool) Progress {
	f, ok := w.(*os.File)
	if quiet || !ok {
		return silent{}
	}
	if _, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS); err != nil {
		return silent{}
	}
	return &bar{w: f, width: func() int { return terminalWidth(f) }, now: time.Now, start: time.Now()}
}

type silent struct{}

func (silent) Row(int, int, string) {}
func (silent) Step(string)          {}
func (silent) Close()               {}

// bar is one line that is drawn over and over.
type bar struct {
	w     io.Writer
	width func() int
	now   func() time.Time
	start time.Time

	mu       sync.Mutex // guards all below
	done, of int
	title    string
}

func (b *bar) Row(done, of int, title string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.done, b.of, b.title = done, of, title
	b.draw("")
}

func (b *bar) Step(text string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.draw(text)
}

func (b *bar) Close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	fmt.Fprint(b.w, "\r\x1b[K")
}

// draw writes the line. The caller holds mu.
func (b *bar) draw(step string) {
	const cells = 20
	full := 0
	if b.of > 0 {
		full = cells * b.done / b.of
	}
	line := fmt.Sprintf("%s%s %d/%d  %s  %s", strings.Repeat("█", full), strings.Repeat("░", cells-full),
		b.done, b.of, clock(b.now().Sub(b.start)), b.title)
	if step != "" {
		line += " · " + step
	}
	fmt.Fprint(b.w, "\r\x1b[K"+clip(line, b.width()-1))
}

// clip cuts s to at most n characters.
func clip(s string, n int) string {
	if n < 1 || utf8.RuneCountInString(s) <= n {
		return s
	}
	return string([]rune(s)[:n-1]) + "…"
}

func clock(d time.Duration) string {
	s := int(d.Seconds())
	return fmt.Sprintf("%d:%02d", s/60, s%60)
}

func terminalWidth(f *os.File) int {
	ws, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil || ws.Col == 0 {
		return 80
	}
	return int(ws.Col)
}
