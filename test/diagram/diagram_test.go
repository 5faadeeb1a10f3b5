package main

import (
	"bytes"
	"os"
	"strings"
	"testing"
)

func TestPictureIsUpToDate(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/join.txt")
	if err != nil {
		t.Fatal(err)
	}
	want, err := draw(string(text))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile("../../docs/join.svg"); err != nil || !bytes.Equal(got, want) {
		t.Errorf("docs/join.svg is not the drawing of docs/join.txt; run: go run ./test/diagram (%v)", err)
	}
}

func TestRejectsInvalidText(t *testing.T) {
	t.Parallel()
	const start = "title: T\nactor a: A\nactor b: B\n"
	if _, err := draw(start + "a -> b: <text>\n"); err != nil {
		t.Fatal(err)
	}
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
