package main

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"

	"github.com/kubejoin/kubejoin/test/cluster"
)

// cfsslModule is the module that pins cfssl.
const cfsslModule = "test/cfssl"

// buildCFSSL builds the cfssl that test/cfssl pins, unless it exists, and returns its path.
func (b *bench) buildCFSSL(ctx context.Context) (string, error) {
	sum := sha256.New()
	for _, name := range []string{"go.mod", "go.sum"} {
		data, err := os.ReadFile(filepath.Join(cfsslModule, name))
		if err != nil {
			return "", err
		}
		sum.Write(data)
	}
	program, err := filepath.Abs(filepath.Join(cfsslModule, "bin", fmt.Sprintf("cfssl-%x-%s", sum.Sum(nil)[:8], runtime.Version())))
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(program); err == nil {
		return program, nil
	}
	b.say("building cfssl")
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", program, "github.com/cloudflare/cfssl/cmd/cfssl")
	cmd.Dir = cfsslModule
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building cfssl: %w\n%s", err, out)
	}
	return program, nil
}

// startCFSSL starts cfssl as in its documentation, with one profile without authentication, and the same profile
// with an authentication key.
func startCFSSL(_ context.Context, w *signingWorld, dir string, port int) (*cluster.Process, error) {
	profile := map[string]any{"usages": []string{"digital signature", "client auth"}, "expiry": "8760h"}
	withKey := map[string]any{"usages": profile["usages"], "expiry": profile["expiry"], "auth_key": "bench"}
	config, err := json.Marshal(map[string]any{
		"signing":   map[string]any{"default": profile, "profiles": map[string]any{"node": profile, "known": withKey}},
		"auth_keys": map[string]any{"bench": map[string]string{"type": "standard", "key": hex.EncodeToString(w.authKey)}},
	})
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "config.json")
	if err := os.WriteFile(file, config, 0o600); err != nil {
		return nil, err
	}
	return cluster.StartProcess("cfssl", filepath.Join(dir, "log"), exec.Command(w.cfssl, "serve", "-config="+file,
		"-ca="+w.path("ca.crt"), "-ca-key="+w.path("ca.key"), "-tls-cert="+w.path("serving.crt"), "-tls-key="+w.path("serving.key"),
		"-address=127.0.0.1", "-port="+strconv.Itoa(port)))
}

func cfsslSign(w *signingWorld, connection, n int) (*http.Request, error) {
	return cfsslRequest("sign", map[string]string{"certificate_request": string(w.requests[(connection+n)%len(w.requests)]), "profile": "node"})
}

func cfsslAuthSign(w *signingWorld, connection, n int) (*http.Request, error) {
	request, err := json.Marshal(map[string]string{"certificate_request": string(w.requests[(connection+n)%len(w.requests)]), "profile": "known"})
	if err != nil {
		return nil, err
	}
	mac := hmac.New(sha256.New, w.authKey)
	mac.Write(request)
	return cfsslRequest("authsign", map[string][]byte{"token": mac.Sum(nil), "request": request})
}

func cfsslRequest(endpoint string, body any) (*http.Request, error) {
	data, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	return http.NewRequest(http.MethodPost, "/api/v1/cfssl/"+endpoint, bytes.NewReader(data))
}

func cfsslCertificate(body []byte) ([]byte, error) {
	var answer struct {
		Result struct {
			Certificate string `json:"certificate"`
		} `json:"result"`
	}
	err := json.Unmarshal(body, &answer)
	return []byte(answer.Result.Certificate), err
}
