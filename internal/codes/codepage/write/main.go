// Command write generates docs/codes.md, whose path is its argument.
package main

import (
	"fmt"
	"os"

	"github.com/kubejoin/kubejoin/internal/codes/codepage"
)

func main() {
	page, err := codepage.Page()
	if err == nil {
		err = os.WriteFile(os.Args[1], []byte(page), 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
