// Package failedwrites keeps the last failed write of each kind that kubejoin sent to the API server. A write fails, for
// example, if a webhook is down. The leader publishes failed writes in an annotation of its Lease, which only kubejoin and
// administrators can write. Events would prove nothing, because any node can create them.
package failedwrites

import (
	"bytes"
	"cmp"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kubejoin/kubejoin/internal/safetext"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
)

// Annotation is the name of the annotation with the failed writes of the Lease's holder, in JSON.
const Annotation = "kubejoin.io/failed-writes"

const (
	// forget is the age at which a Log drops a failed write. kubejoin repeats a write within 1000 s, if it still needs it.
	forget = 20 * time.Minute
	// most limits how many kinds a Log keeps.
	most = 10
	// maxStatus limits how much of a response message reads, in bytes.
	maxStatus = 64 << 10
)

// A Write is a failed write.
type Write struct {
	Verb      string `json:"verb"` // as in RBAC
	Resource  string `json:"resource"`
	Namespace string `json:"namespace,omitempty"`
	// Request is the name of the CertificateSigningRequest; empty for other resources.
	Request string    `json:"request,omitempty"`
	At      time.Time `json:"at"`
	Message string    `json:"message"`
}

// String names the kind: "update secrets in kube-system".
func (w Write) String() string {
	s := w.Verb + " " + w.Resource
	if w.Namespace != "" {
		s += " in " + w.Namespace
	}
	return s
}

// Log keeps the failed writes of a process. The zero Log is empty.
type Log struct {
	mu   sync.Mutex
	last map[Write]Write // the key is a kind: a Write without At and Message
}

// Failing returns the last failed write of each kind that has not succeeded since, the newest first.
func (l *Log) Failing(now time.Time) []Write {
	l.mu.Lock()
	defer l.mu.Unlock()
	return current(slices.Collect(maps.Values(l.last)), now)
}

func current(all []Write, now time.Time) []Write {
	all = slices.DeleteFunc(all, func(w Write) bool { return now.Sub(w.At) > forget })
	slices.SortFunc(all, func(a, b Write) int { return cmp.Or(b.At.Compare(a.At), cmp.Compare(a.String(), b.String())) })
	return all
}

// Encode returns the value of the Annotation; empty if no write fails.
func (l *Log) Encode(now time.Time) string {
	text, err := json.Marshal(l.Failing(now))
	if err != nil || len(text) < len("[{}]") {
		return ""
	}
	return string(text)
}

// Of returns the failed writes that a Lease publishes.
func Of(lease *coordinationv1.Lease, now time.Time) []Write {
	var all []Write
	if lease == nil || json.Unmarshal([]byte(lease.Annotations[Annotation]), &all) != nil {
		return nil
	}
	return current(all, now)
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// Watch keeps the results of all writes that pass through a transport of client-go.
func (l *Log) Watch(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		response, err := next.RoundTrip(r)
		if w := kindOf(r); w.Resource != "" && err == nil {
			l.note(w, response)
		}
		return response, err
	})
}

var verbs = map[string]string{http.MethodPost: "create", http.MethodPut: "update", http.MethodPatch: "patch", http.MethodDelete: "delete"}

// path matches the path of an object or of a list of objects, even behind a proxy's path. Its groups are namespace,
// resource and name.
var path = regexp.MustCompile(`/apis?(?:/[a-z0-9.]+\.[a-z0-9.]+)?/v[a-z0-9]+(?:/namespaces/([^/]+))?/([a-z]+)(?:/([^/]+))?`)

// kindOf returns the kind of a write. It returns the zero Write for reads, reviews and dry runs, which write nothing,
// and for Events, because a failed Event does no harm.
func kindOf(r *http.Request) Write {
	parts := path.FindStringSubmatch(r.URL.Path)
	if parts == nil || verbs[r.Method] == "" || r.URL.Query().Has("dryRun") || parts[2] == "events" || strings.HasSuffix(parts[2], "reviews") {
		return Write{}
	}
	w := Write{Verb: verbs[r.Method], Namespace: parts[1], Resource: parts[2]}
	if w.Resource == "certificatesigningrequests" {
		w.Request = parts[3]
	}
	return w
}

// note records the result of a write. It ignores conflicts, missing objects and a busy API server, because they are normal.
func (l *Log) note(w Write, response *http.Response) {
	l.mu.Lock()
	defer l.mu.Unlock()
	kind := w
	switch code := response.StatusCode; {
	case code < 300:
		delete(l.last, kind)
	case code >= 400 && code != http.StatusConflict && code != http.StatusNotFound && code != http.StatusTooManyRequests:
		w.At, w.Message = time.Now().UTC().Truncate(time.Second), message(response)
		if len(l.last) >= most || l.last == nil { // start again: a write that still fails is soon recorded again
			l.last = map[Write]Write{}
		}
		l.last[kind] = w
	}
}

// statuses decodes the Status that the API server returns for a failure, in JSON or protobuf.
var statuses = func() runtime.Decoder {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, metav1.Unversioned)
	return serializer.NewCodecFactory(scheme).UniversalDeserializer()
}()

// message returns why a write failed. Afterwards, the caller can still read the response.
func message(response *http.Response) string {
	body, _ := io.ReadAll(io.LimitReader(response.Body, maxStatus)) // a truncated body yields no message
	response.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(body), response.Body), response.Body}
	object, _, _ := statuses.Decode(body, nil, nil)
	if status, ok := object.(*metav1.Status); ok && status.Message != "" {
		return safetext.Text(status.Message, safetext.MaxMessage)
	}
	return response.Status
}
