package cluster

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"time"
)

// An AuditLog is kube-apiserver's own record of received requests. It also contains refused writes, which no watch shows.
type AuditLog struct{ policy, file string }

// NewAuditLog makes kube-apiserver record in dir the requests that the rules of an audit policy select.
func NewAuditLog(dir, rules string) (AuditLog, error) {
	a := AuditLog{filepath.Join(dir, "policy.yaml"), filepath.Join(dir, "audit.log")}
	return a, os.WriteFile(a.policy, []byte("apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules:\n"+rules), 0o600)
}

// Flags returns the flags for kube-apiserver. The log is always one file, without rotation.
func (a AuditLog) Flags() []string {
	return []string{"--audit-policy-file=" + a.policy, "--audit-log-path=" + a.file, "--audit-log-maxsize=100000"}
}

// Content returns the log so far, one JSON document per line.
func (a AuditLog) Content() ([]byte, error) { return os.ReadFile(a.file) }

// A Call is a request to kube-apiserver, in the form of an audit.k8s.io/v1 log.
type Call struct {
	Verb, RequestURI, UserAgent string
	RequestReceivedTimestamp    time.Time
	SourceIPs                   []string
	User                        struct{ Username string }
	ObjectRef                   struct{ APIGroup, Resource, Namespace, Name, Subresource string }
	ResponseStatus              struct{ Code int }
}

// Calls yields the recorded requests so far. It ignores an incomplete last line. For an earlier incomplete line, which a
// killed kube-apiserver leaves, it yields an error.
func (a AuditLog) Calls() iter.Seq2[Call, error] {
	return func(yield func(Call, error) bool) {
		file, err := os.Open(a.file)
		if err != nil {
			yield(Call{}, err)
			return
		}
		defer file.Close()
		for lines := bufio.NewReader(file); ; {
			line, err := lines.ReadBytes('\n')
			if err != nil {
				if !errors.Is(err, io.EOF) {
					yield(Call{}, err)
				}
				return
			}
			var c Call
			if err = json.Unmarshal(line, &c); err != nil {
				err = fmt.Errorf("malformed line %q in the audit log: %w", line, err)
			}
			if !yield(c, err) {
				return
			}
		}
	}
}
