package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/signer/issuance"
	"github.com/kubejoin/kubejoin/signer/issuance/rowrecord"
	"github.com/kubejoin/kubejoin/tokens/boltstore"
	"github.com/rogpeppe/go-internal/testscript"
)

// scriptRecord is the command 'record' of scripts. It fills the issuance record in kubejoin-data while no kubejoin
// runs: certificates of token qwertz that expire in 10 and 100 days, a refusal, a failure, and 150 older certificates
// of another signer.
func scriptRecord(ts *testscript.TestScript, negated bool, args []string) {
	if negated || len(args) > 0 {
		ts.Fatalf("usage: record")
	}
	dir := ts.MkAbs("kubejoin-data")
	ts.Check(os.MkdirAll(dir, 0o700))
	store, err := boltstore.Open(filepath.Join(dir, "kubejoin.db"))
	ts.Check(err)
	now := time.Now()
	entry := func(ago time.Duration, e issuance.Entry) {
		e.Time = now.Add(-ago)
		ts.Check(rowrecord.New(store.Issued()).Append(context.Background(), e))
	}
	for i := range 150 {
		entry(48*time.Hour, issuance.Entry{Outcome: issuance.Issued, Signer: "example.com/many", Requester: "jane", Serial: fmt.Sprintf("a%03x", i), NotAfter: now.AddDate(1, 0, 0)})
	}
	for i, days := range []int{10, 100} {
		entry(2*time.Hour-time.Duration(i), issuance.Entry{
			Outcome: issuance.Issued, Signer: "kubernetes.io/kube-apiserver-client-kubelet", Requester: "system:bootstrap:qwertz", TokenID: "qwertz",
			Node: fmt.Sprintf("worker-%d", i+1), Subject: fmt.Sprintf("CN=system:node:worker-%d,O=system:nodes", i+1), Usages: []string{"digital signature", "client auth"},
			SPKI: "sha256:" + strings.Repeat("00", 32), Serial: fmt.Sprintf("%df", i+1), CA: "sha256:" + strings.Repeat(fmt.Sprint(i+1), 64), NotBefore: now, NotAfter: now.AddDate(0, 0, days), Certificate: "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n",
			Approver: "kubejoin", Rule: "nodeclient", Evidence: []string{"it may", "it is\x1b[2J Monday"},
		})
	}
	entry(time.Hour, issuance.Entry{Outcome: issuance.Refused, Signer: "kubernetes.io/kubelet-serving", Requester: "system:node:worker-3", Node: "worker-3", Reason: "NotAddressOfNode", Message: "not today"})
	entry(time.Minute, issuance.Entry{Outcome: issuance.Failed, Signer: "example.com/x", Requester: "jane", Message: "CA key: no such file"})
	ts.Check(store.Close())
}
