package boltstore_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/boltstore"
)

func ExampleOpen() {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)

	store, err := boltstore.Open(filepath.Join(dir, "tokens.db"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close()

	record, err := store.Create(context.Background(), tokens.Record{
		Token:          tokens.Generate(),
		Expires:        time.Now().Add(tokens.DefaultTTL),
		Signing:        true,
		Authentication: true,
		Groups:         []string{tokens.DefaultGroup},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(len(record.Token.Reveal()), record.Signs(time.Now()))
	// Output: 23 true
}
