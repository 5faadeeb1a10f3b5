package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/codes/codepage"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/need"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"
)

var namedFlag = regexp.MustCompile("[` ]--([a-z0-9-]+)")

// TestConfigurationPageNamesFlagsThatExist catches a flag that docs/configuration.md still has under its old name.
func TestConfigurationPageNamesFlagsThatExist(t *testing.T) {
	page := must.Value(os.ReadFile("../../docs/configuration.md"))(t)
	known := map[string]bool{}
	eachFlag(rootCommand(), func(_ *cobra.Command, f *pflag.Flag) { known[f.Name] = true })
	named := namedFlag.FindAllSubmatch(page, -1)
	if len(named) < 20 {
		t.Fatalf("%d flags found: docs/configuration.md has more", len(named))
	}
	for _, m := range named {
		if !known[string(m[1])] {
			t.Errorf("docs/configuration.md names --%s, which does not exist", m[1])
		}
	}
}

// docs/codes.md must list exit codes only for existing commands, and the help of each command must list the same codes.
func TestExitCodesAreThoseOfCommands(t *testing.T) {
	all := must.Value(codepage.All())(t)
	explained := map[string]bool{} // by command
	for _, e := range all {
		if e.Kind != codepage.Exit {
			continue
		}
		for path := range strings.SplitSeq(e.Class, ", ") {
			if strings.HasPrefix(path, "all ") || strings.Contains(path, ".sh") {
				continue
			}
			cmd, rest, err := rootCommand().Find(strings.Fields(path))
			if err != nil || len(rest) > 0 {
				t.Errorf("exit code %s: there is no command %q", e.Code, path)
			} else if !regexp.MustCompile(`(?s)exit code is.*\b` + e.Code + `\b`).MatchString(cmd.Long) {
				t.Errorf("the help of %s does not name exit code %s", path, e.Code)
			}
			explained[path+" "+e.Code] = true
		}
	}
	if len(explained) == 0 {
		t.Error("no command has an exit code of its own: this test could not fail")
	}
}

// A documentedRequest is the request of a block in docs/pipelines.md, in the fields of Ansible's uri module.
type documentedRequest struct {
	URL, Method string
	Headers     map[string]string
	Body        map[string]any
	BodyFormat  string `json:"body_format"` // "json" sets the content type
	StatusCode  []int  `json:"status_code"`
}

// hclSigns converts HCL in the layout of terraform fmt to YAML.
var hclSigns = strings.NewReplacer(" = jsonencode({\n", ":\n", " = {\n", ":\n", "  })\n", "", "  }\n", "",
	"request_headers", "headers", "request_body", "body", "= contains([200, 201], self.status_code)", "= [200, 201] #")

// terraformRequest returns the request of a data source http. The caller has already replaced references by values.
func terraformRequest(t *testing.T, block string) (r documentedRequest) {
	t.Helper()
	_, source, _ := strings.Cut(block, "\ndata \"http\" \"join\" {\n")
	source, rest, _ := strings.Cut(source, "  retry {\n")
	_, condition, _ := strings.Cut(rest, "      condition ")
	source += "  status_code " + condition[:strings.Index(condition, "\n")+1]
	text := regexp.MustCompile(`(?m)^( *\S+) += `).ReplaceAllString(hclSigns.Replace(source), "$1: ")
	must.OK(t, yaml.Unmarshal([]byte(text), &r))
	return r
}

// TestPipelinesGetOneToken catches an example in docs/pipelines.md that gets no join command, or that gets another token
// when it repeats its request. For Terraform and Ansible, the test takes the request from the text.
func TestPipelinesGetOneToken(t *testing.T) {
	need.Programs(t, "curl", "openssl")
	page := string(must.Value(os.ReadFile("../../docs/pipelines.md"))(t))
	w := newWebServer(t, func(h http.Handler) http.Handler { return h })
	bearer := string(must.Value(os.ReadFile(filepath.Join(w.dir, "bearer")))(t))
	must.OK(t, os.WriteFile(filepath.Join(w.dir, "installer.curlrc"), []byte(`header = "Authorization: Bearer `+bearer+`"`), 0o600))
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(must.Value(os.ReadFile(filepath.Join(w.dir, "ca")))(t))
	client := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}}
	defer client.CloseIdleConnections()
	values := strings.NewReplacer("https://join.example.com:9443", w.url, "kubejoin-ca.crt", "ca",
		"${var.kubejoin_bearer}", bearer, "{{ kubejoin_bearer }}", bearer, "{{ inventory_hostname }}", "worker-7",
		`replace(random_password.join.result, "/^.{6}/", "$0.")`, `"terraf.0123456789abcdef"`,
		"= time_offset.join.rfc3339", "= "+time.Now().Add(time.Hour).UTC().Format(`"`+time.RFC3339+`"`),
		"{{ lookup('password', file + '.id length=6 ' + chars) }}.{{ lookup('password', file + '.secret length=16 ' + chars) }}", "ansibl.0123456789abcdef")
	block := func(language string) string {
		m := regexp.MustCompile("(?s)\n```" + language + "\n(.*?)```").FindStringSubmatch(page)
		if m == nil {
			t.Fatalf("docs/pipelines.md has no block of %s", language)
		}
		return values.Replace(m[1])
	}
	send := func(r documentedRequest) func() string {
		return func() string {
			body := must.Value(json.Marshal(r.Body))(t)
			request := must.Value(http.NewRequestWithContext(t.Context(), r.Method, r.URL, strings.NewReader(string(body))))(t)
			for name, value := range r.Headers {
				request.Header.Set(name, value)
			}
			if r.BodyFormat == "json" {
				request.Header.Set("Content-Type", "application/json")
			}
			response := must.Value(client.Do(request))(t)
			defer func() { _ = response.Body.Close() }()
			var token struct{ JoinCommand string }
			must.OK(t, json.NewDecoder(response.Body).Decode(&token))
			if !slices.Contains(r.StatusCode, response.StatusCode) {
				t.Errorf("%s: got %s for %s, want a status of %v", r.URL, response.Status, body, r.StatusCode)
			}
			return token.JoinCommand
		}
	}
	var tasks []struct {
		URI   documentedRequest `json:"ansible.builtin.uri"`
		NoLog bool              `json:"no_log"`
	}
	must.OK(t, yaml.Unmarshal([]byte(block("yaml")), &tasks))
	if len(tasks) != 3 || !tasks[1].NoLog || !tasks[2].NoLog {
		t.Fatalf("tasks %+v, want three, the last two with no_log", tasks)
	}
	curl := func() (string, error) { // without -e, as a person pastes the block
		c := exec.CommandContext(t.Context(), "sh", "-c", block("sh"))
		c.Dir = w.dir
		output, err := c.CombinedOutput()
		return string(output), err
	}
	for name, form := range map[string]func() string{
		"curl": func() string {
			if output, err := curl(); err != nil {
				t.Fatalf("%v\n%s", err, output)
			}
			return string(must.Value(os.ReadFile(filepath.Join(w.dir, "join-command")))(t))
		},
		"Terraform": send(terraformRequest(t, block("hcl"))),
		"Ansible":   send(tasks[1].URI),
	} {
		if first, second := form(), form(); first != second || !strings.HasPrefix(first, "kubeadm join ") {
			t.Errorf("%s: the first request gives %q, and the second %q, want one join command", name, first, second)
		}
	}
	all := must.Value(w.store.List(t.Context()))(t)
	if len(all) != 3 {
		t.Errorf("%d tokens after two requests of each form, want 3", len(all))
	}
	for _, r := range all {
		if r.Limits.MaxNodes != 1 || !slices.Equal(r.Limits.NodeNames, []string{"worker-7"}) {
			t.Errorf("token %s has limits %+v, want one node worker-7", r.Token.ID(), r.Limits)
		}
	}
	// A refused request is no join command.
	must.OK(t, os.Remove(filepath.Join(w.dir, "join-command")))
	must.OK(t, os.WriteFile(filepath.Join(w.dir, "installer.curlrc"), []byte(`header = "Authorization: Bearer wrong"`), 0o600))
	if output, err := curl(); err == nil || !strings.Contains(output, "401") {
		t.Errorf("curl with a wrong bearer token: got %v\n%s, want an error with 401", err, output)
	}
	if content, err := os.ReadFile(filepath.Join(w.dir, "join-command")); err == nil {
		t.Errorf("a refused request writes join-command: %s", content)
	}
}
