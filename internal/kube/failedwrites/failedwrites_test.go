package failedwrites_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/kube/failedwrites"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"
)

type transport func(*http.Request) (*http.Response, error)

func (f transport) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// send sends a request through the log to an API server that returns this status.
func send(t *testing.T, l *failedwrites.Log, method, path string, code int, body string) {
	t.Helper()
	r := must.Value(http.NewRequest(method, "https://api"+path, nil))(t)
	response, err := l.Watch(transport(func(*http.Request) (*http.Response, error) {
		if code == 0 {
			return nil, errors.New("connection refused")
		}
		return &http.Response{StatusCode: code, Status: fmt.Sprint(code), Body: io.NopCloser(strings.NewReader(body))}, nil
	})).RoundTrip(r)
	if code == 0 {
		return
	}
	if got := must.Value(io.ReadAll(response.Body))(t); err != nil || string(got) != body {
		t.Errorf("%s %s: got %q, %v, want the response unchanged", method, path, got, err)
	}
}

func words(all []failedwrites.Write) string {
	var list []string
	for _, w := range all {
		list = append(list, w.String()+" "+w.Request+": "+w.Message)
	}
	return strings.Join(list, "; ")
}

const secret = "/api/v1/namespaces/kube-system/secrets/bootstrap-token-abcdef"

// Catches a failure that is lost or stays after a success, and a result of another kind of request that is recorded as
// a failed write.
func TestKeepsLastFailedWriteOfEachKind(t *testing.T) {
	var binary bytes.Buffer
	must.OK(t, protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Encode(&metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: "Failure", Message: `failed calling webhook "x"`,
	}, &binary))
	const down = `{"apiVersion":"v1","kind":"Status","status":"Failure","message":"failed calling webhook \"x\""}`
	const csr = "/apis/certificates.k8s.io/v1/certificatesigningrequests/csr-1/approval"
	for name, test := range map[string]struct {
		send func(*failedwrites.Log)
		want string
	}{
		"in JSON":         {func(l *failedwrites.Log) { send(t, l, "PUT", secret, 500, down) }, `update secrets in kube-system : failed calling webhook "x"`},
		"in protobuf":     {func(l *failedwrites.Log) { send(t, l, "PUT", secret, 500, binary.String()) }, `update secrets in kube-system : failed calling webhook "x"`},
		"of a proxy":      {func(l *failedwrites.Log) { send(t, l, "PUT", "/k8s/cluster"+secret, 502, "<html>") }, `update secrets in kube-system : 502`},
		"for a request":   {func(l *failedwrites.Log) { send(t, l, "PUT", csr, 403, down) }, `update certificatesigningrequests csr-1: failed calling webhook "x"`},
		"then success":    {func(l *failedwrites.Log) { send(t, l, "PUT", secret, 500, down); send(t, l, "PUT", secret, 200, "") }, ""},
		"then another":    {func(l *failedwrites.Log) { send(t, l, "PUT", secret, 500, down); send(t, l, "POST", secret, 201, "") }, `update secrets in kube-system : failed calling webhook "x"`},
		"then a conflict": {func(l *failedwrites.Log) { send(t, l, "PUT", secret, 500, down); send(t, l, "PUT", secret, 409, down) }, `update secrets in kube-system : failed calling webhook "x"`},
		"a read":          {func(l *failedwrites.Log) { send(t, l, "GET", secret, 500, down) }, ""},
		"a dry run":       {func(l *failedwrites.Log) { send(t, l, "PUT", secret+"?dryRun=All", 500, down) }, ""},
		"a review": {func(l *failedwrites.Log) {
			send(t, l, "POST", "/apis/authentication.k8s.io/v1/tokenreviews", 500, down)
		}, ""},
		"an Event":            {func(l *failedwrites.Log) { send(t, l, "POST", "/api/v1/namespaces/default/events", 500, down) }, ""},
		"missing object":      {func(l *failedwrites.Log) { send(t, l, "DELETE", secret, 404, down) }, ""},
		"no response":         {func(l *failedwrites.Log) { send(t, l, "PUT", secret, 0, "") }, ""},
		"not of a Kubernetes": {func(l *failedwrites.Log) { send(t, l, "PUT", "/x", 500, down) }, ""},
	} {
		var l failedwrites.Log
		test.send(&l)
		now := time.Now()
		if got := words(l.Failing(now)); got != test.want {
			t.Errorf("%s: got %q, want %q", name, got, test.want)
		}
		lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{failedwrites.Annotation: l.Encode(now)}}}
		if got := words(failedwrites.Of(lease, now)); got != test.want {
			t.Errorf("%s: the Lease has %q, want %q", name, got, test.want)
		}
		if got := failedwrites.Of(lease, now.Add(time.Hour)); len(got) > 0 {
			t.Errorf("%s: got %v after an hour, want nothing", name, got)
		}
	}
}

// Many requests fail. Catches memory and a Lease that grow with their number.
func TestKeepsFewFailures(t *testing.T) {
	var l failedwrites.Log
	for i := range 100 {
		send(t, &l, "PUT", fmt.Sprintf("/apis/certificates.k8s.io/v1/certificatesigningrequests/csr-%d/status", i), 500, "x")
	}
	if got := l.Failing(time.Now()); len(got) == 0 || len(got) > 10 {
		t.Errorf("got %d failures, want 1 to 10", len(got))
	}
}
