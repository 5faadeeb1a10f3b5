package main

import (
	"bytes"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/must"
)

func TestPictureIsUpToDate(t *testing.T) {
	t.Parallel()
	for _, name := range pictures {
		text := must.Value(os.ReadFile("../../" + source(name)))(t)
		want := must.Value(draw(string(text)))(t)
		if got, err := os.ReadFile("../../" + name); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is not the drawing of %s; run: go run ./test/diagram (%v)", name, source(name), err)
		}
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

// A Chinese text has no spaces to break at.
func TestWrapsChineseText(t *testing.T) {
	t.Parallel()
	got := must.Value(wrap("把 worker-7 计入令牌（1/1），占用名称", 14))(t)
	if want := []string{"把 worker-7 计", "入令牌", "（1/1），占用", "名称"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
