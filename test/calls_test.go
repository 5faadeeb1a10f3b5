package test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// kubejoinUser is kubejoin as the manifests make it.
const kubejoinUser = "system:serviceaccount:kubejoin-system:kubejoin"

// A call is a request to kube-apiserver as audit.k8s.io/v1 has it.
type call struct {
	Verb           string
	RequestURI     string
	ObjectRef      struct{ APIGroup, Resource, Namespace, Name, Subresource string }
	ResponseStatus struct{ Code int }
}

func (c call) String() string { return c.Verb + " " + c.RequestURI }

// newCallLog has kube-apiserver note all that kubejoin asks of it.
func newCallLog(t *testing.T) auditLog {
	t.Helper()
	dir := t.TempDir()
	a := auditLog{filepath.Join(dir, "policy.yaml"), filepath.Join(dir, "audit.log")}
	policy := "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules:\n" +
		"- {level: Metadata, users: [\"" + kubejoinUser + "\"]}\n- level: None\n"
	if err := os.WriteFile(a.policy, []byte(policy), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		content, err := os.ReadFile(a.file)
		if err != nil {
			t.Error(err)
		}
		noForms(t, "the URLs that kube-apiserver saw", string(content))
	})
	return a
}

// calls are those about objects, each kind once. kube-apiserver may be writing the last line.
func (a auditLog) calls(t *testing.T) []call {
	t.Helper()
	var all []call
	for line := range bytes.Lines(readFile(t, a.file)) {
		var c call
		if !bytes.HasSuffix(line, []byte("\n")) {
			continue
		}
		if err := json.Unmarshal(line, &c); err != nil {
			t.Fatal(err)
		}
		if c.ObjectRef.Resource != "" && !slices.Contains(all, c) {
			all = append(all, c)
		}
	}
	return all
}
