package main

import (
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"github.com/kubejoin/kubejoin/internal/codes/codepage"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/tokens"
)

var camelCase = regexp.MustCompile(`^[A-Z][A-Za-z]*$`)

// isCode reports whether an argument is a code because it cannot be the name of a node.
func isCode(argument string) bool {
	return camelCase.MatchString(argument) || strings.HasPrefix(argument, api.ProblemType)
}

// explainCode prints the entries of a code.
func (o *output) explainCode(w io.Writer, code string) error {
	found, err := codepage.Find(code)
	if err != nil {
		return err
	}
	if len(found) == 0 {
		near := "docs/codes.md lists all codes"
		if names := codepage.Nearest(code); len(names) > 0 {
			near = "the nearest: " + strings.Join(names, ", ")
		}
		if camelCase.MatchString(code) {
			near += "; names of nodes are in lower case"
		}
		return usagef("CODE: %.60q is not a code of kubejoin; %s", tokens.Redact(code), near)
	}
	text := ""
	for _, e := range found {
		what := string(e.Kind)
		if e.Class != "" {
			what += ", " + e.Class
		}
		text += fmt.Sprintf("%s (%s): %s\n", e.Code, what, e.Meaning)
		if e.Next != "" {
			text += "  " + e.Next + "\n"
		}
	}
	return o.text(w, struct {
		APIVersion string           `json:"apiVersion"`
		Kind       string           `json:"kind"`
		Items      []codepage.Entry `json:"items"`
	}{api.Version, "CodeList", found}, text)
}

// isUnknown reports whether a word in lower case is not also a code.
func isUnknown(word string) bool {
	found, err := codepage.Find(word)
	return err != nil || len(found) == 0 || found[0].Code != word
}

// codeNames lists the codes that a filter lets through.
func codeNames(filter func(string) bool) (names []string) {
	all, _ := codepage.All()
	for _, e := range all {
		if filter(e.Code) && !slices.Contains(names, e.Code) {
			names = append(names, e.Code)
		}
	}
	return names
}
