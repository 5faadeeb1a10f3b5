// Command write generates reference.html and reference.txt from openapi.yaml, all in the working directory.
package main

import (
	"fmt"
	"os"

	"github.com/kubejoin/kubejoin/internal/reference"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	document, err := os.ReadFile("openapi.yaml")
	if err != nil {
		return err
	}
	style, err := os.ReadFile("console/page.css")
	if err != nil {
		return err
	}
	page, text, err := reference.Page(document, style)
	if err != nil {
		return err
	}
	if err := os.WriteFile("reference.html", page, 0o644); err != nil {
		return err
	}
	return os.WriteFile("reference.txt", text, 0o644)
}
