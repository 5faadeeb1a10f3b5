package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/certlint"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/need"
	"github.com/kubejoin/kubejoin/internal/testing/openapicheck"
	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"kubejoin": func() {
		completeTimeout = patience
		main()
	}})
}

// TestScripts runs the program with the scripts in testdata/script, one file for each subject.
func TestScripts(t *testing.T) {
	records := certlint.Records(t.TempDir())
	t.Cleanup(func() { // when all scripts have ended
		issued, findings, err := records.Check(context.Background())
		if err != nil || len(findings) > 0 {
			t.Errorf("%d certificates were issued: %v\n%s", issued, err, certlint.Summary(findings))
		}
		t.Logf("%d certificates were issued", issued)
	})
	answers := filepath.Join(t.TempDir(), "answers")
	t.Cleanup(func() { checkResponses(t, answers) })
	examples := must.Value(filepath.Abs("../../examples/curl"))(t)
	serve := func(ts *testscript.TestScript, negated bool, args []string) { scriptServe(ts, records, negated, args) }
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script", RequireExplicitExec: true, RequireUniqueNames: true,
		Setup: func(e *testscript.Env) error {
			script := must.Value(os.ReadFile(filepath.Join("testdata/script", strings.TrimPrefix(filepath.Base(e.WorkDir), "script-")+".txtar")))(t)
			for _, program := range []string{"curl", "openssl", "prlimit"} {
				if bytes.Contains(script, []byte(program+" ")) {
					need.Skip(e.T(), need.Missing(program))
				}
			}
			e.Setenv("EXAMPLES", examples)
			e.Setenv("REJOIN", filepath.Join(examples, "../../deploy/systemd/rejoin.sh"))
			e.Setenv(openapicheck.Environment, answers)
			e.Setenv("GOGC", "off") // saves a quarter of the CPU time of short programs
			return nil
		},
		Condition: func(name string) (bool, error) {
			switch {
			case name != "root":
				return false, fmt.Errorf("unknown condition %q", name)
			case os.Geteuid() != 0 && os.Getenv("CI") != "":
				return false, errors.New("this script needs root, and in CI no test is skipped")
			}
			return os.Geteuid() == 0, nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"serve": serve, "record": scriptRecord, "await": scriptAwait, "expire": scriptExpire},
	})
}

// scriptExpire replaces the certificate in a PEM file by an expired certificate of the same key.
func scriptExpire(ts *testscript.TestScript, negated bool, args []string) {
	if negated || len(args) != 1 {
		ts.Fatalf("usage: expire FILE")
	}
	file := ts.MkAbs(args[0])
	pair, err := tls.LoadX509KeyPair(file, file)
	ts.Check(err)
	ca, err := tls.LoadX509KeyPair(ts.MkAbs("kubejoin-data/ca.pem"), ts.MkAbs("kubejoin-data/ca.pem"))
	ts.Check(err)
	pair.Leaf.NotBefore, pair.Leaf.NotAfter = ca.Leaf.NotBefore, ca.Leaf.NotBefore.Add(time.Second)
	der, err := x509.CreateCertificate(rand.Reader, pair.Leaf, ca.Leaf, pair.Leaf.PublicKey, ca.PrivateKey)
	ts.Check(err)
	content, err := os.ReadFile(file)
	ts.Check(err)
	_, key := pem.Decode(content)
	ts.Check(os.WriteFile(file, append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), key...), 0o600))
}
