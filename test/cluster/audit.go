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

// An AuditLog is kube-apiserver's own record of the requests that reached it. It also has refused writes, which no watch
// shows.
type AuditLog struct{ policy, file string }

// NewAuditLog makes kube-apiserver record in dir what the rules of an audit policy select.
func NewAuditLog(dir, rules string) (AuditLog, error) {
	a := AuditLog{filepath.Join(dir, "policy.yaml"), filepath.Join(dir, "audit.log")}
	return a, os.WriteFile(a.policy, []byte("apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules:\n"+rules), 0o600)
}

// Flags are the flags of kube-apiserver. The log stays one file.
func (a AuditLog) Flags() []string {
	return []string{"--audit-policy-file=" + a.policy, "--audit-log-path=" + a.file, "--audit-log-maxsize=100000"}
}

// Content is what kube-apiserver recorded so far, one JSON document a line.
func (a AuditLog) Content() ([]byte, error) { return os.ReadFile(a.file) }

// A Call is a request to kube-apiserver, as an audit.k8s.io/v1 log has it.
type Call struct {
	Verb, RequestURI, UserAgent string
	RequestReceivedTimestamp    time.Time
	SourceIPs                   []string
	User                        struct{ Username string }
	ObjectRef                   struct{ APIGroup, Resource, Namespace, Name, Subresource string }
	ResponseStatus              struct{ Code int }
}

// Calls yields what kube-apiserver recorded so far, without a last line that is not complete yet. A line that a killed
// kube-apiserver has cut off yields an error.
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
