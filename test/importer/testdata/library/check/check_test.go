package check

import (
	"crypto/x509"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/rowstore/memdb"
)

func TestDiscoverAndVerify(t *testing.T) {
	store := memdb.Open()
	record, err := store.Create(t.Context(), tokens.NewRecord(tokens.Generate(), time.Hour, time.Now()))
	if err != nil {
		t.Fatal(err)
	}
	info := &clusterinfo.Computed{Tokens: store}
	web := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		server.Server{Tokens: store, ClusterInfo: info}.Handler().ServeHTTP(w, r)
	}))
	defer web.Close()
	if info.Kubeconfig, err = clusterinfo.Kubeconfig(web.URL, []*x509.Certificate{web.Certificate()}); err != nil {
		t.Fatal(err)
	}
	line := func(pin string) string {
		return "kubeadm join " + strings.TrimPrefix(web.URL, "https://") + " --token " + record.Token.Reveal() + " --discovery-token-ca-cert-hash " + pin
	}
	if found, err := discover(t.Context(), line(clusterinfo.Pin(web.Certificate()))); err != nil || found.Server != web.URL {
		t.Errorf("got %+v, %v", found, err)
	}
	if _, err := discover(t.Context(), line("sha256:"+strings.Repeat("0", 64))); !errors.Is(err, clusterinfo.ErrUntrusted) {
		t.Errorf("another pin: got %v", err)
	}
	data, err := info.Data(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := verify(data, record.Token); err != nil {
		t.Error(err)
	}
	if err := verify(data, tokens.Generate()); err == nil {
		t.Error("verified another token")
	}
}
