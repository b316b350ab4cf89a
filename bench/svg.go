package bench

import (
	"encoding/xml"
	"fmt"
	"io"
	"math"
	"strings"
)

const (
	svgWidth  = 960
	svgMargin = 24
	labelCol  = 290 // where the bars begin
	barHeight = 11
	chartTall = 250
)

// systemColor tells the systems apart, also for most colour-blind readers.
func systemColor(name string) string {
	switch name {
	case Rewindfs:
		return "#1f6feb"
	case Writeback:
		return "#79b8ff"
	case Overlayfs:
		return "#8b949e"
	case FuseOverlayfs:
		return "#e08e1b"
	}
	return "#57606a"
}

var lineColors = [...]string{"#1f6feb", "#57606a", "#e08e1b"}

// WriteSVG draws the report: ratios as bars and latencies as curves.
func (r *Report) WriteSVG(w io.Writer) error {
	s := &svg{}
	y := float64(svgMargin)
	s.text(svgMargin, y+14, 18, "start", "bold", "rewindfs bench")
	s.text(svgMargin, y+34, 12, "start", "", fmt.Sprintf("%s · %s · %d cores · Linux %s · %s",
		r.Date.Format("2006-01-02"), r.Machine.CPU, r.Machine.Cores, r.Machine.Kernel, r.Machine.FS))
	y += 60
	y = s.bars(y, r)
	for i := 0; i < len(r.Curves); i += 2 {
		s.curve(svgMargin, y, r.Curves[i])
		if i+1 < len(r.Curves) {
			s.curve(svgWidth/2+svgMargin/2, y, r.Curves[i+1])
		}
		y += chartTall + 70
	}
	head := fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%.0f" viewBox="0 0 %d %.0f" role="img" font-family="system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif">`,
		svgWidth, y, svgWidth, y)
	_, err := fmt.Fprintf(w, "%s\n<title>rewindfs bench</title>\n<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n%s</svg>\n", head, s.b.String())
	return err
}

// svg collects elements. Coordinates are pixels from the upper left corner.
type svg struct{ b strings.Builder }

func (s *svg) text(x, y, size float64, anchor, weight, text string) {
	s.colored(x, y, size, anchor, weight, "#24292f", text)
}

func (s *svg) colored(x, y, size float64, anchor, weight, color, text string) {
	if weight != "" {
		weight = ` font-weight="` + weight + `"`
	}
	fmt.Fprintf(&s.b, `<text x="%s" y="%s" font-size="%s" text-anchor="%s"%s fill="%s">`, px(x), px(y), px(size), anchor, weight, color)
	_ = xml.EscapeText(&s.b, []byte(text)) // a strings.Builder takes everything
	s.b.WriteString("</text>\n")
}

func (s *svg) line(x1, y1, x2, y2, width float64, color string) {
	fmt.Fprintf(&s.b, `<line x1="%s" y1="%s" x2="%s" y2="%s" stroke="%s" stroke-width="%s"/>`+"\n", px(x1), px(y1), px(x2), px(y2), color, px(width))
}

func (s *svg) rect(x, y, w, h float64, color string) {
	fmt.Fprintf(&s.b, `<rect x="%s" y="%s" width="%s" height="%s" fill="%s"/>`+"\n", px(x), px(y), px(w), px(h), color)
}

// px writes a coordinate to a tenth of a pixel.
func px(v float64) string { return trimFloat(math.Round(v*10) / 10) }

// logScale maps [lo, hi] to [from, to], evenly by powers.
type logScale struct{ lo, hi, from, to float64 }

func (l logScale) at(v float64) float64 {
	v = min(max(v, l.lo), l.hi)
	return l.from + (l.to-l.from)*math.Log(v/l.lo)/math.Log(l.hi/l.lo)
}

// bars draws the ratio of every system to native, row by row, and returns the y below.
func (s *svg) bars(y float64, r *Report) float64 {
	names := r.present()
	if len(names) < 2 || len(r.Comparisons) == 0 {
		return y
	}
	names = names[1:] // native is the line at 1
	s.text(svgMargin, y, 14, "start", "bold", "Time of the same work, native = 1 (shorter is better, logarithmic)")
	x := float64(svgMargin)
	for _, n := range names {
		s.rect(x, y+11, 12, 12, systemColor(n))
		s.text(x+17, y+21, 12, "start", "", n)
		x += 34 + 7*float64(len(n))
	}
	s.line(x+6, y+10, x+6, y+24, 2, "#cf222e")
	s.text(x+14, y+21, 12, "start", "", "the bar for rewindfs")
	y += 40
	scale := ratioScale(r, names)
	rowTall := float64(len(names)*barHeight + 8)
	bottom := y + rowTall*float64(len(r.Comparisons))
	for _, t := range []float64{0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000} {
		if t < scale.lo || t > scale.hi {
			continue
		}
		color := "#e6e8eb"
		if t == 1 {
			color = "#57606a"
		}
		s.line(scale.at(t), y-4, scale.at(t), bottom, 1, color)
		s.colored(scale.at(t), bottom+14, 11, "middle", "", "#57606a", trimFloat(t)+"×")
	}
	for _, c := range r.Comparisons {
		s.text(labelCol-10, y+rowTall/2, 12, "end", "", c.Title)
		for i, n := range names {
			s.bar(scale, y+2+float64(i*barHeight), n, c.cell(n))
		}
		for _, l := range c.Limits {
			if l.Over == Native {
				s.line(scale.at(l.Max), y, scale.at(l.Max), y+rowTall-6, 2, "#cf222e")
			}
		}
		y += rowTall
	}
	return bottom + 50
}

// bar draws one ratio, from 1 to where it is.
func (s *svg) bar(scale logScale, y float64, name string, c *Cell) {
	if c == nil || c.Error != "" || math.IsNaN(float64(c.Ratio)) {
		return
	}
	one, end := scale.at(1), scale.at(float64(c.Ratio))
	s.rect(min(one, end), y, max(math.Abs(end-one), 1.5), barHeight-2, systemColor(name))
	s.colored(max(one, end)+4, y+barHeight-3, 9.5, "start", "", "#57606a", formatRatio(float64(c.Ratio)))
}

// ratioScale spans all ratios that are drawn.
func ratioScale(r *Report, names []string) logScale {
	lo, hi := 0.5, 5.0
	for _, c := range r.Comparisons {
		for _, n := range names {
			if cell := c.cell(n); cell != nil && cell.Error == "" && !math.IsNaN(float64(cell.Ratio)) {
				lo, hi = min(lo, float64(cell.Ratio)), max(hi, float64(cell.Ratio))
			}
		}
	}
	return logScale{max(lo*0.9, 0.1), min(hi*1.1, 1000), labelCol, svgWidth - svgMargin - 40}
}

// curve draws one curve with its upper left corner at x, y. The xs of a curve
// rise by powers of ten, so they stand at even distances.
func (s *svg) curve(x, y float64, c Curve) {
	const wide = svgWidth/2 - svgMargin*3/2
	left, right, top, bottom := x+56, x+wide-8, y+48, y+chartTall
	s.text(x, y, 13, "start", "bold", c.Title)
	lo, hi := curveRange(c)
	scale := logScale{lo, hi, bottom, top}
	for t := lo; t <= hi*1.001; t *= 10 {
		s.line(left, scale.at(t), right, scale.at(t), 1, "#e6e8eb")
		s.colored(left-6, scale.at(t)+4, 11, "end", "", "#57606a", powerOfTen(t))
	}
	for i, l := range c.Series {
		color := lineColors[i%len(lineColors)]
		s.rect(left+float64(i)*170, y+14, 12, 12, color)
		s.text(left+float64(i)*170+17, y+24, 11, "start", "", l.Name+", p50")
		s.series(l, color, scale, left, right)
	}
	if len(c.Series) > 0 {
		for i, p := range c.Series[0].Points {
			s.colored(pointX(i, len(c.Series[0].Points), left, right), bottom+16, 11, "middle", "", "#57606a", formatCount(p.X))
		}
	}
	s.colored((left+right)/2, bottom+34, 11, "middle", "", "#57606a", c.XLabel+" (whiskers: p99)")
}

func (s *svg) series(l Line, color string, scale logScale, left, right float64) {
	var path []string
	for i, p := range l.Points {
		px0, py := pointX(i, len(l.Points), left, right), scale.at(float64(p.P50))
		path = append(path, px(px0)+","+px(py))
		s.line(px0, py, px0, scale.at(float64(p.P99)), 1, color)
		fmt.Fprintf(&s.b, `<circle cx="%s" cy="%s" r="3.5" fill="%s"/>`+"\n", px(px0), px(py), color)
	}
	fmt.Fprintf(&s.b, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2"/>`+"\n", strings.Join(path, " "), color)
}

// pointX is where point i of n stands.
func pointX(i, n int, left, right float64) float64 {
	if n < 2 {
		return (left + right) / 2
	}
	const inset = 24
	return left + inset + (right-left-2*inset)*float64(i)/float64(n-1)
}

// curveRange is the range of whole powers of ten that holds all of c, in seconds.
func curveRange(c Curve) (lo, hi float64) {
	lo, hi = 1e-4, 1e-2
	for _, l := range c.Series {
		for _, p := range l.Points {
			if v := float64(p.P50); v > 0 {
				lo = min(lo, v)
			}
			hi = max(hi, float64(p.P99))
		}
	}
	return math.Pow(10, math.Floor(math.Log10(lo))), math.Pow(10, math.Ceil(math.Log10(hi)))
}

// powerOfTen writes 0.001 as "1 ms".
func powerOfTen(s float64) string {
	switch {
	case s > 0.5:
		return trimFloat(s) + " s"
	case s > 0.5e-3:
		return trimFloat(s*1e3) + " ms"
	}
	return trimFloat(s*1e6) + " µs"
}
