// Command kubejoin-pkcs11 is 'kubejoin signer' for a CA key on a PKCS#11 token, for example in a hardware security module.
// It is a separate module, because PKCS#11 needs cgo, which kubejoin does not use.
package main

import (
	"context"
	"crypto"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/kubejoin/kubejoin/cmd/kubejoin-pkcs11/token"
	"github.com/kubejoin/kubejoin/internal/logging"
	"github.com/kubejoin/kubejoin/internal/signerd"
)

const usage = `kubejoin-pkcs11 is 'kubejoin signer' with a CA key on a PKCS#11 token. Its flags are the same, but
--cluster-signing-key-file is a URI of RFC 7512. The PIN comes from a file of mode 0600:

  kubejoin-pkcs11 --listen unix:///run/kubejoin-signer/sock --policy policy.yaml \
    --issuance-record record.jsonl --cluster-signing-cert-file ca.crt \
    --cluster-signing-key-file 'pkcs11:token=ca;object=kubernetes-ca?module-path=/usr/lib/softhsm/libsofthsm2.so&pin-source=file:/etc/kubejoin/pin'

The URI has token or serial, object or id, module-path and pin-source. kubejoin-pkcs11 tries a PIN
once. While the token is away, requests wait.

`

// errUsage is the hint that errors about flags wrap.
var errUsage = errors.New("hint: kubejoin-pkcs11 --help")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	switch err := run(ctx, os.Args[1:], os.Stderr); {
	case err == nil || errors.Is(err, flag.ErrHelp):
	case errors.Is(err, errUsage):
		fmt.Fprintln(os.Stderr, "kubejoin-pkcs11:", err)
		os.Exit(2)
	default:
		fmt.Fprintln(os.Stderr, "kubejoin-pkcs11:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stderr io.Writer) error {
	o := signerd.Options{OpenKey: openKey}
	f := flag.NewFlagSet("kubejoin-pkcs11", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.Usage = func() {
		_, _ = io.WriteString(stderr, usage) // to stderr, like package flag
		f.PrintDefaults()
	}
	for _, one := range o.Flags() {
		f.StringVar(one.Value, one.Name, "", one.Help)
	}
	format := f.String("log-format", "text", "log format: text or json")
	if err := f.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return err
		}
		return fmt.Errorf("%w\n%w", err, errUsage)
	}
	if f.NArg() > 0 {
		return fmt.Errorf("%d arguments given, want only flags\n%w", f.NArg(), errUsage)
	}
	log, err := logging.New(stderr, *format, 0)
	if err := errors.Join(o.Check(), err); err != nil {
		return fmt.Errorf("%w\n%w", err, errUsage)
	}
	return signerd.Run(ctx, o, log)
}

func openKey(uri string) (crypto.Signer, error) {
	parsed, err := token.ParseURI(uri)
	if err != nil {
		return nil, fmt.Errorf("--cluster-signing-key-file: %w", err)
	}
	return token.Open(parsed)
}
