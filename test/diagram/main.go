// Command diagram draws the sequence diagram docs/join.svg from docs/join.txt, and the same in docs/zh-CN. Run it in the
// root of the repository:
//
//	go run ./test/diagram
//
// A line of the text is one of
//
//	title: TEXT         what screen readers say
//	actor ID: TEXT      the next column; all actors come before the messages
//	== TEXT             a heading between messages
//	ID -> ID: TEXT      a message; --> is dashed, for a response; both IDs may be the same
//	# TEXT              a comment
//
// The text of a message is wrapped and stays between the column of its sender and the next column.
package main

import (
	"errors"
	"fmt"
	"html"
	"os"
	"regexp"
	"slices"
	"strings"
)

// pictures are the files to draw. The text for each is in the same folder, with the suffix .txt.
var pictures = []string{"docs/join.svg", "docs/zh-CN/join.svg"}

func main() {
	for _, name := range pictures {
		text, err := os.ReadFile(source(name))
		if err == nil {
			text, err = draw(string(text))
		}
		if err == nil {
			err = os.WriteFile(name, text, 0o644)
		}
		if err != nil {
			fmt.Fprintf(os.Stderr, "diagram: %s: %v\n", name, err)
			os.Exit(1)
		}
	}
}

func source(picture string) string { return strings.TrimSuffix(picture, "svg") + "txt" }

// Sizes in pixels. charWidth is the width in a wide sans-serif font, so that text fits in every font.
const (
	width      = 900
	margin     = 12
	boxHeight  = 34
	lineHeight = 17
	charWidth  = 7.0
	loopWidth  = 22
)

// The background is transparent. An SVG in an <img> inherits no colors, so the style has its own query for the color scheme.
const style = `<style>
text { font: 13px Helvetica, Arial, sans-serif }
text, .tip { fill: #1f2328 }
.actor { font-size: 14px; font-weight: bold; text-anchor: middle }
.heading { font-weight: bold; fill: #0550ae }
.box { fill: #ddf4ff; stroke: #0969da }
.line { stroke: #8c959f }
.dotted { stroke-dasharray: 2 4 }
.message { fill: none; stroke: #1f2328; stroke-width: 1.4 }
.response { stroke-dasharray: 6 4 }
@media (prefers-color-scheme: dark) {
text, .tip { fill: #e6edf3 }
.heading { fill: #79c0ff }
.box { fill: #12263f; stroke: #4493f8 }
.line { stroke: #6e7681 }
.message { stroke: #e6edf3 }
}
</style>
`

// A diagram holds the shapes that are drawn so far.
type diagram struct {
	title    string
	actors   []string // their IDs
	labels   []string
	messages int
	y        int
	body     strings.Builder
}

// draw returns the SVG of a text.
func draw(text string) ([]byte, error) {
	d := &diagram{y: margin + boxHeight}
	for i, line := range strings.Split(text, "\n") {
		if err := d.line(line); err != nil {
			return nil, fmt.Errorf("line %d: %w", i+1, err)
		}
	}
	if d.title == "" || d.messages == 0 {
		return nil, errors.New("a title or the messages are missing")
	}
	end, svg := d.y+20, &strings.Builder{}
	fmt.Fprintf(svg, `<svg xmlns="http://www.w3.org/2000/svg" width="%[1]d" height="%[2]d" viewBox="0 0 %[1]d %[2]d" role="img">
<title>%[3]s</title>
%[4]s`, width, end+margin, html.EscapeString(d.title), style)
	for i, label := range d.labels {
		fmt.Fprintf(svg, `<line class="line" x1="%[1]d" y1="%[2]d" x2="%[1]d" y2="%[3]d"/>
<rect class="box" x="%[4]d" y="%[5]d" width="%[6]d" height="%[7]d" rx="6"/>
<text class="actor" x="%[1]d" y="%[8]d">%[9]s</text>
`, d.x(i), margin+boxHeight, end, d.x(i)-d.gap()*7/16, margin, d.gap()*7/8, boxHeight, margin+22, html.EscapeString(label))
	}
	return []byte(svg.String() + d.body.String() + "</svg>\n"), nil
}

func (d *diagram) line(line string) error {
	what, text, colon := strings.Cut(line, ": ")
	heading, isHeading := strings.CutPrefix(line, "== ")
	id, isActor := strings.CutPrefix(what, "actor ")
	switch {
	case line == "", strings.HasPrefix(line, "#"):
		return nil
	case isHeading:
		d.heading(heading)
		return nil
	case !colon:
		return fmt.Errorf("no colon in %q", line)
	case what == "title":
		d.title = text
		return nil
	case isActor:
		d.actors, d.labels = append(d.actors, id), append(d.labels, text)
		return nil
	}
	class := "message response"
	from, to, ok := strings.Cut(what, " --> ")
	if !ok {
		class = "message"
		from, to, _ = strings.Cut(what, " -> ")
	}
	a, b := slices.Index(d.actors, from), slices.Index(d.actors, to)
	if a < 0 || b < 0 {
		return fmt.Errorf("want title, actor ID, or two IDs of actors and an arrow, not %q", what)
	}
	return d.message(a, b, class, text)
}

// gap returns the distance between two columns, and x the middle of a column.
func (d *diagram) gap() int         { return (width - 2*margin) / len(d.actors) }
func (d *diagram) x(column int) int { return margin + d.gap()/2 + column*d.gap() }

func (d *diagram) heading(text string) {
	d.y += 34
	fmt.Fprintf(&d.body, `<text class="heading" x="%[1]d" y="%[2]d">%[3]s</text>
<line class="line dotted" x1="%[1]d" y1="%[4]d" x2="%[5]d" y2="%[4]d"/>
`, margin, d.y, html.EscapeString(text), d.y+7, width-margin)
	d.y += 8
}

// message draws the text and below it the arrow. The text of a message to itself is beside the loop.
func (d *diagram) message(from, to int, class, text string) error {
	d.messages++
	side, loop := 1, 0 // the text is on the right of its sender
	if from == to {
		loop = loopWidth
	}
	if to < from || from == to && from == len(d.actors)-1 {
		side = -1
	}
	lines, err := wrap(fmt.Sprintf("%d. %s", d.messages, text), int(float64(d.gap()-loop-12)/charWidth))
	if err != nil {
		return err
	}
	left := d.x(from) + loop + 6
	if side < 0 {
		left = d.x(from) - d.gap() + 6
	}
	top := d.y + 18
	d.y += 10
	for _, line := range lines {
		d.y += lineHeight
		fmt.Fprintf(&d.body, "<text x=\"%d\" y=\"%d\">%s</text>\n", left, d.y, html.EscapeString(line))
	}
	d.y += 8
	end := d.x(to)
	if from == to {
		fmt.Fprintf(&d.body, "<path class=\"%s\" d=\"M%d %dh%dV%dh%d\"/>\n", class, end, top, side*(loop-4), d.y, side*(10-loop))
		side = -side
	} else {
		fmt.Fprintf(&d.body, "<path class=\"%s\" d=\"M%d %dH%d\"/>\n", class, d.x(from), d.y, end-side*6)
	}
	fmt.Fprintf(&d.body, "<path class=\"tip\" d=\"M%d %dl%d -4v8z\"/>\n", end, d.y, -side*9)
	return nil
}

// wrap breaks a text into lines. The parameter most is the maximum width, in Latin letters. A Chinese character is as wide
// as two letters, and a line may break before it.
func wrap(text string, most int) (lines []string, err error) {
	last := ""
	for _, word := range words.FindAllString(text, -1) {
		switch joined := strings.TrimLeft(last+word, " "); {
		case size(strings.TrimSpace(word)) > most:
			return nil, fmt.Errorf("%q is wider than %d characters", word, most)
		case size(joined) > most:
			lines = append(lines, strings.TrimSpace(last))
			last = word
		default:
			last = joined
		}
	}
	return append(lines, strings.TrimSpace(last)), nil
}

// words matches a Latin word, or a single Chinese character with the punctuation after it. Both include the space before.
var words = regexp.MustCompile(` *（?(?:[^\x{2e80}-\x{ffff} ]+|.)[，。：；、？）]*`)

func size(text string) (columns int) {
	for _, r := range text {
		columns++
		if r >= 0x2e80 {
			columns++
		}
	}
	return columns
}
