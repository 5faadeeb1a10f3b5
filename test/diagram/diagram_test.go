package main

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/must"
)

func TestPictureIsUpToDate(t *testing.T) {
	t.Parallel()
	text := must.Value(os.ReadFile("../../docs/join.txt"))(t)
	want := must.Value(draw(string(text)))(t)
	if got, err := os.ReadFile("../../docs/join.svg"); err != nil || !bytes.Equal(got, want) {
		t.Errorf("docs/join.svg is not the drawing of docs/join.txt; run: go run ./test/diagram (%v)", err)
	}
}

func TestRejectsInvalidText(t *testing.T) {
	t.Parallel()
	const start = "title: T\nactor a: A\nactor b: B\n"
	must.Value(draw(start + "a -> b: <text>\n"))(t)
	for _, text := range []string{
		"", start, "actor a: A\na -> a: no title\n",
		start + "no colon", start + "a -> c: unknown actor", start + "a => b: unknown arrow",
		start + "a -> b: " + strings.Repeat("x", 200),
	} {
		if svg, err := draw(text); err == nil {
			t.Errorf("%q is drawn as %s", text, svg)
		}
	}
}
