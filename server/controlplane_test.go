package server_test

import (
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo/joinformat"
	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/auth"
	"github.com/kubejoin/kubejoin/tokens"
)

// uploading returns a site whose uploads return up, and the number of uploads.
func uploading(t *testing.T, up joinformat.Upload, err error) (*site, *int) {
	t.Helper()
	s, n := newSite(t), 0
	s.Minting.UploadCertificates = func(context.Context) (joinformat.Upload, error) {
		n++
		return up, err
	}
	return s, &n
}

func newUpload() joinformat.Upload {
	return joinformat.Upload{Key: joinformat.GenerateCertificateKey(), Expires: time.Now().Add(2 * time.Hour).UTC().Truncate(time.Second), TokenID: "0wn3r0"}
}

const controlPlane = commandPath + "?controlPlane=true"

// Each format but kubeconfig has the key, which must be nowhere else.
func TestControlPlaneJoinCommandHasKey(t *testing.T) {
	up := newUpload()
	s, uploads := uploading(t, up, nil)
	s.start(t)
	for _, format := range []string{api.FormatText, api.FormatJSON, api.FormatYAML, api.FormatScript, api.FormatCloudConfig, api.FormatIgnition} {
		before := s.ids(t)
		got := s.do(t, "POST", controlPlane+"&format="+format, adminBearer, "", "")
		body := got.body
		if format == api.FormatCloudConfig || format == api.FormatIgnition {
			body = scriptIn(t, body)
		}
		if got.status != 200 || !strings.Contains(body, up.Key.Reveal()) || got.header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s: %d %s", format, got.status, got.body)
		}
		if format == api.FormatScript && !strings.Contains(body, "\n    turns='"+s.Minting.Advertise+"'\n") {
			t.Errorf("the script waits for its turn elsewhere than at %s", s.Minting.Advertise)
		}
		if w := got.header.Get("Warning"); !strings.Contains(w, up.Expires.Format(time.RFC3339)) || strings.Contains(w, "no longer work") || strings.Contains(w, up.Key.Reveal()) {
			t.Errorf("%s: got Warning %s", format, w)
		}
		record := s.minted(t, before)
		if l := record.Limits; l.MaxNodes != 1 || l.Role != tokens.RoleControlPlane || !slices.Equal(record.Groups, []string{tokens.DefaultGroup}) {
			t.Errorf("%s: got token %+v, want one for one control plane", format, record)
		}
		if left := time.Until(record.Expires); left < 119*time.Minute || left > 121*time.Minute {
			t.Errorf("%s: the token expires in %s, want 2h", format, left)
		}
	}
	var made api.JoinCommand
	got := s.do(t, "POST", commandPath, adminBearer, "application/json", `{"controlPlane":true,"format":"json","maxNodes":3,"ttl":"1h"}`)
	if err := json.Unmarshal([]byte(got.body), &made); err != nil || made.CertificateKey.Reveal() != up.Key.Reveal() || len(made.Warnings) == 0 ||
		!strings.HasSuffix(made.JoinCommand.Reveal(), " --control-plane --certificate-key "+up.Key.Reveal()) {
		t.Errorf("json: %s, %v", got.body, err)
	}
	if r := s.record(t, made.ID); r.Limits.MaxNodes != 3 || time.Until(r.Expires) > 61*time.Minute {
		t.Errorf("got %+v, want the limits of the request", r)
	}
	if *uploads != 7 {
		t.Errorf("got %d uploads, want 7", *uploads)
	}
	if got := s.do(t, "POST", commandPath+"?maxNodes=1&format=json&controlPlane=false", adminBearer, "", ""); got.status != 200 || strings.Contains(got.body, "certificateKey") || *uploads != 7 {
		t.Errorf("a worker: %d %s, %d uploads", got.status, got.body, *uploads)
	}
	log := s.logs.String()
	if strings.Contains(log, up.Key.Reveal()) {
		t.Error("the log has the certificate key")
	}
	if !regexp.MustCompile(`msg="uploaded the certificates of control planes" user=ada token=[a-z0-9]{6} owner=0wn3r0 expires=\S+ replaced_keys=false shared_key=false`).MatchString(log) {
		t.Errorf("the log has no line about the upload:\n%s", log)
	}
}

// scriptIn returns the compressed script in a document.
func scriptIn(t *testing.T, document string) string {
	t.Helper()
	encoded := regexp.MustCompile("H4sI[0-9A-Za-z+/=]+").FindString(document)
	r, err := gzip.NewReader(base64.NewDecoder(base64.StdEncoding, strings.NewReader(encoded)))
	if err != nil {
		t.Fatalf("%v in %s", err, document)
	}
	script, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(script)
}

func TestControlPlaneJoinCommandWarnsOfReplacedKeys(t *testing.T) {
	up := newUpload()
	up.Replaced = true
	s, _ := uploading(t, up, nil)
	s.start(t)
	if got := s.do(t, "POST", controlPlane, adminBearer, "", ""); got.status != 200 || !strings.Contains(got.header.Get("Warning"), "earlier certificate key no longer work") {
		t.Errorf("%d %v", got.status, got.header)
	}
}

// Catches a missing check, an upload or a token after a refusal, and a refusal without the permission's name.
func TestControlPlaneJoinCommandNeedsItsPermission(t *testing.T) {
	s, uploads := uploading(t, newUpload(), nil)
	needs := []string{"create tokens.kubejoin.io", "create tokens/controlplane.kubejoin.io", "create tokens/roles.kubejoin.io control-plane"}
	var may []string
	s.Callers.Authorize = func(_ *http.Request, _ auth.User, a auth.Access) error {
		if slices.Contains(may, a.String()) {
			return nil
		}
		return auth.ErrForbidden
	}
	s.start(t)
	for i, missing := range needs {
		may = slices.Delete(slices.Clone(needs), i, i+1)
		for _, path := range []string{controlPlane, controlPlane + "&format=kubeconfig", controlPlane + "&ttl=1h"} {
			if got := s.do(t, "POST", path, viewerBearer, "", ""); got.status != 403 && !(i == 2 && got.status == 400) || got.status == 403 && !strings.Contains(got.body, missing) {
				t.Errorf("%s without %s: %d %s", path, missing, got.status, got.body)
			}
		}
	}
	if *uploads > 0 || len(s.ids(t)) > 0 {
		t.Errorf("got %d uploads and tokens %v after refusals, want none", *uploads, s.ids(t))
	}
	may = needs
	if got := s.do(t, "POST", controlPlane, viewerBearer, "", ""); got.status != 200 || *uploads != 1 {
		t.Errorf("%d %s, %d uploads", got.status, got.body, *uploads)
	}
}

func TestControlPlaneJoinCommandRefuses(t *testing.T) {
	s, uploads := uploading(t, newUpload(), nil)
	s.start(t)
	for query, want := range map[string][2]string{
		"&format=kubeconfig":                   {"format", "cannot contain the certificate key"},
		"&groups=":                             {"groups", tokens.DefaultGroup},
		"&groups=system:bootstrappers:a":       {"groups", tokens.DefaultGroup},
		"&role=worker":                         {"role", "control-plane"},
		"&usages=signing":                      {"usages", "signing and authentication"},
		"&controlPlane=true":                   {"controlPlane", "more than once"},
		"&expires=2030-01-01T00:00:00Z&ttl=1h": {"expires", "ttl"},
	} {
		if got := s.do(t, "POST", controlPlane+query, adminBearer, "", ""); got.status != 400 || !strings.Contains(got.body, `"field":"`+want[0]+`"`) || !strings.Contains(got.body, want[1]) {
			t.Errorf("%s: %d %s, want %v", query, got.status, got.body, want)
		}
	}
	if got := s.do(t, "POST", commandPath+"?controlPlane=yes", adminBearer, "", ""); got.status != 400 {
		t.Errorf("yes: %d %s", got.status, got.body)
	}
	if got := s.do(t, "POST", "/v1/token?controlPlane=true", adminBearer, "", ""); got.status != 400 {
		t.Errorf("without a join command: %d %s", got.status, got.body)
	}
	if *uploads > 0 || len(s.ids(t)) > 0 {
		t.Errorf("got %d uploads and tokens %v, want none", *uploads, s.ids(t))
	}
	without := newSite(t)
	without.start(t)
	if got := without.do(t, "POST", controlPlane, adminBearer, "", ""); got.status != 400 || !strings.Contains(got.body, "--pki-dir") {
		t.Errorf("without uploads: %d %s", got.status, got.body)
	}
}

func TestControlPlaneJoinCommandDeletesTokenOfFailedUpload(t *testing.T) {
	s, uploads := uploading(t, joinformat.Upload{}, errors.New("sa.key is missing"))
	s.start(t)
	got := s.do(t, "POST", controlPlane, adminBearer, "", "")
	if got.status != 503 || !strings.Contains(got.body, "certificates-not-uploaded") || strings.Contains(got.body, "sa.key") || got.header.Get("Retry-After") == "" {
		t.Errorf("%d %s", got.status, got.body)
	}
	if *uploads != 1 || len(s.ids(t)) > 0 || !strings.Contains(s.logs.String(), "sa.key is missing") {
		t.Errorf("%d uploads, tokens %v, want the token deleted and the reason in the log:\n%s", *uploads, s.ids(t), s.logs)
	}
}

// The caller must learn when to retry, and the command that helps at once.
func TestControlPlaneJoinCommandWaitsForEndOfKey(t *testing.T) {
	end := time.Now().Add(10 * time.Minute)
	s, _ := uploading(t, joinformat.Upload{}, fmt.Errorf("upload: %w", &joinformat.KeyEndsError{Expires: end}))
	s.start(t)
	got := s.do(t, "POST", controlPlane, adminBearer, "", "")
	seconds, _ := strconv.Atoi(got.header.Get("Retry-After"))
	if got.status != 503 || seconds < 500 || seconds > 601 || !strings.Contains(got.body, end.UTC().Format(time.RFC3339)) || !strings.Contains(got.body, "kubejoin certs delete") {
		t.Errorf("%d %v %s", got.status, got.header, got.body)
	}
	if len(s.ids(t)) > 0 {
		t.Errorf("got tokens %v, want none", s.ids(t))
	}
}

// All users share one rate, whatever their own is.
func TestControlPlaneJoinCommandsHaveRate(t *testing.T) {
	s, uploads := uploading(t, newUpload(), nil)
	s.Limits.UserRate = server.Rate{QPS: 1000, Burst: 1000}
	s.Limits.UserTokens = -1
	s.start(t)
	for range 10 {
		if got := s.do(t, "POST", controlPlane, adminBearer, "", ""); got.status != 200 {
			t.Fatalf("%d %s", got.status, got.body)
		}
	}
	before := s.ids(t)
	got := s.do(t, "POST", controlPlane, adminBearer, "", "")
	if got.status != 429 || got.header.Get("Retry-After") != "30" || *uploads != 10 || len(s.ids(t)) != len(before) {
		t.Errorf("%d %v %s, %d uploads", got.status, got.header, got.body, *uploads)
	}
	if got := s.do(t, "POST", commandPath+"?maxNodes=1", adminBearer, "", ""); got.status != 200 {
		t.Errorf("a worker: %d %s", got.status, got.body)
	}
}
