package monitoring

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/need"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/test/harness"
	certificates "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/util/sets"
)

// rare are metrics that this test does not produce: their labels are compared with docs/metrics.md.
var rare = map[string]string{
	"kubejoin_csr_cleaned_total":                     "kubejoin deletes a denied request after five minutes",
	"kubejoin_csr_sign_failures_total":               "signing works",
	hostCertificates:                                 "node-exporter has the metrics of hosts",
	"kubejoin_rejoins_total":                         "no node rejoins",
	"kubejoin_machine_proofs_total":                  "no machine has a key of its own",
	"kubejoin_authorization_reviews_total":           "kube-apiserver does not ask about nodes",
	"kubejoin_csr_signed_by_other_total":             "no other signer runs",
	"kubejoin_csr_shared_node_names_total":           "each node name has one key",
	"kubejoin_issuance_record_failures_total":        "the disk works",
	"kubejoin_node_waits_since_timestamp_seconds":    "no Node waits",
	"kubejoin_signer_ca_not_after_timestamp_seconds": "needs a signer with a CA of its own",
	"kubejoin_ca_rotation_stage_timestamp_seconds":   "no CA rotation is in progress",
	"kubejoin_ca_rotation_behind":                    "no CA rotation is in progress",
	"kubejoin_ca_rotation_certificates":              "no CA rotation is in progress",
}

// hostCertificates is a metric with the job and instance of node-exporter.
const hostCertificates = "kubejoin_host_certificate_expiration_timestamp_seconds"

// TestPrometheusScrapesAsTheDocsSay scrapes kubejoin with the settings of the chart's ServiceMonitor and the token that
// docs/metrics.md creates. It catches a query of the dashboard without a result, and a rule that fires without cause. It
// also catches a query or rule that names a metric, label or value that kubejoin does not have. The types and labels of all
// metrics must match docs/metrics.md.
func TestPrometheusScrapesAsTheDocsSay(t *testing.T) {
	harness.Parallel(t)
	need.Programs(t, "prometheus")
	s := harness.NewSite(t, cluster.Options{}, "--tls-san=kubejoin.kubejoin-system.svc", "--issuance-record="+filepath.Join(t.TempDir(), "record"))
	s.WaitLeader(t)
	use(t, s)
	p := startPrometheus(t, s)

	dashboard := targets(t)
	harness.Wait(t, "results of all queries", func() error {
		for _, q := range dashboard {
			found, err := p.query(t.Context(), q.expr())
			if err != nil {
				return err
			}
			if len(found) == 0 && !slices.ContainsFunc(metricsIn(q.Expr), func(m string) bool { return rare[m] != "" }) {
				return fmt.Errorf("panel %q has no result for %s", q.panel, q.expr())
			}
			for _, series := range found {
				for _, m := range legendLabel.FindAllStringSubmatch(q.LegendFormat, -1) {
					if series[m[1]] == "" {
						return fmt.Errorf("panel %q: no label %s in %v of %s", q.panel, m[1], series, q.expr())
					}
				}
			}
		}
		return nil
	})

	page := string(harness.ReadFile(t, harness.RepositoryFile(t, "docs/metrics.md")))
	documented := documentedMetrics(page)
	live := p.series(t)
	for name, series := range live {
		if !strings.HasPrefix(name, "kubejoin_") {
			continue
		}
		got := fmt.Sprint(p.types(t)[name], " ", sets.List(sets.KeySet(series)))
		if want := fmt.Sprint(documented[name].kind, " ", sets.List(documented[name].labels)); got != want {
			t.Errorf("%s is %s, and in docs/metrics.md %s", name, got, want)
		}
	}
	for name, reason := range rare {
		if live[name] != nil {
			t.Errorf("%s is there, although: %s", name, reason)
		}
	}
	check := func(where, expr string) {
		for _, problem := range problems(expr, page, documented, live) {
			t.Errorf("%s: %s in %s", where, problem, expr)
		}
	}
	for _, q := range dashboard {
		check(q.panel, q.Expr)
	}
	for _, r := range rules(t) {
		check(r.Alert, r.Expr)
	}
	// Check that problems can find a mistake.
	for _, wrong := range []string{
		"kubejoin_unknown", `kubejoin_leader{loop="ca"}`, `kubejoin_loop_steps_total{result="errors"}`,
		"sum by (route) (kubejoin_leader)", `kubejoin_csr_sign_failures_total{reason=~"SigningFailed|Signing"}`,
	} {
		if len(problems(wrong, page, documented, live)) == 0 {
			t.Errorf("%s has no problem: this test cannot fail", wrong)
		}
	}
	p.checkRules(t)
}

// use makes kubejoin do everything that the dashboard shows.
func use(t *testing.T, s *harness.Site) {
	t.Helper()
	_, token := s.JoinArgs(t, "?ttl=1h&maxNodes=1")
	machine := harness.AsToken(t, s.Cluster, token.ID())
	for _, node := range []string{"worker-1", "worker-2"} { // kubejoin refuses worker-2
		must.OK(t, harness.CreateRequest(t.Context(), machine, node, certificates.KubeAPIServerClientKubeletSignerName, node))
		if node == "worker-1" {
			s.WaitIssued(t, node)
		}
	}
	// Without flags about serving certificates, this request waits.
	must.OK(t, harness.CreateRequest(t.Context(), s.As(t, "system:node:worker-1", "system:nodes"), "serving", certificates.KubeletServingSignerName, "worker-1"))
	key := must.Value(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	der := must.Value(x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:worker-3", Organization: []string{"system:nodes"}}}, key))(t)
	r := must.Value(http.NewRequestWithContext(t.Context(), "POST", "https://"+s.Endpoint+"/v1/certificate", bytes.NewReader(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))))(t)
	r.Header.Set("Authorization", "Bearer "+token.ID()+"."+token.RevealSecret())
	response := must.Value(s.HTTP.Do(r))(t)
	_ = response.Body.Close()
	if response.StatusCode != http.StatusForbidden {
		t.Errorf("got %s for a certificate with a spent token, want 403", response.Status)
	}
}

var docsBlock = regexp.MustCompile("(?s)<!-- run by TestPrometheusScrapesAsTheDocsSay -->\n```sh\n(.*?)```")

// A prometheus scrapes kubejoin and evaluates the rules each second.
type prometheus struct{ url string }

func startPrometheus(t *testing.T, s *harness.Site) prometheus {
	t.Helper()
	dir := t.TempDir()
	block := docsBlock.FindSubmatch(harness.ReadFile(t, harness.RepositoryFile(t, "docs/metrics.md")))
	if block == nil {
		t.Fatal("docs/metrics.md has no commands for this test")
	}
	cmd := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", string(block[1]))
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PATH="+s.Bin+":"+os.Getenv("PATH"), "KUBECONFIG="+s.Kubeconfig())
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("commands of docs/metrics.md: %v\n%s", err, out)
	}
	token := must.Value(base64.StdEncoding.DecodeString(s.RunKubectl(t, "-n", "kubejoin-system", "get", "secret", "kubejoin-metrics", "-o", "jsonpath={.data.token}")))(t)
	s.Secrets.Add("Prometheus", string(token))
	address := harness.FreeAddress(t)
	for name, content := range map[string]string{
		"token":      string(token),
		"rules.yaml": string(harness.ReadFile(t, harness.RepositoryFile(t, rulesFile))),
		"prometheus.yaml": fmt.Sprintf(`
global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [rules.yaml]
scrape_configs:
- job_name: kubejoin
  scheme: https
  authorization: {credentials_file: token}
  tls_config: {ca_file: %q, server_name: kubejoin.kubejoin-system.svc}
  static_configs:
  - targets: [%q]
`, s.CAFile(), s.Endpoint),
	} {
		harness.ReplaceFile(t, filepath.Join(dir, name), []byte(content))
	}
	must.Value(s.StartProcess("prometheus", exec.Command("prometheus", "--config.file="+filepath.Join(dir, "prometheus.yaml"),
		"--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+address)))(t)
	return prometheus{"http://" + address}
}

// get decodes the data of a response.
func (p prometheus) get(ctx context.Context, path string, data any) error {
	r, err := http.NewRequestWithContext(ctx, "GET", p.url+path, nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	answer := struct {
		Error string
		Data  any
	}{Data: data}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		return fmt.Errorf("%s: %s: %w", path, response.Status, err)
	}
	if answer.Error != "" {
		return fmt.Errorf("%s: %s", path, answer.Error)
	}
	return nil
}

// query returns the labels of each series of the result.
func (p prometheus) query(ctx context.Context, expr string) (found []map[string]string, err error) {
	var data struct {
		Result []struct{ Metric map[string]string }
	}
	err = p.get(ctx, "/api/v1/query?query="+url.QueryEscape(expr), &data)
	for _, series := range data.Result {
		found = append(found, series.Metric)
	}
	return found, err
}

var ofHistogram = regexp.MustCompile(`_(bucket|sum|count)$`)

// series returns each scraped metric with its labels and their values. A histogram is one metric.
func (p prometheus) series(t *testing.T) map[string]map[string]sets.Set[string] {
	t.Helper()
	var data []map[string]string
	must.OK(t, p.get(t.Context(), "/api/v1/series?match[]="+url.QueryEscape(`{job="kubejoin"}`), &data))
	all := map[string]map[string]sets.Set[string]{}
	for _, labels := range data {
		name := ofHistogram.ReplaceAllString(labels["__name__"], "")
		if all[name] == nil {
			all[name] = map[string]sets.Set[string]{}
		}
		for label, value := range labels {
			if added.Has(label) {
				continue
			}
			if all[name][label] == nil {
				all[name][label] = sets.New[string]()
			}
			all[name][label].Insert(value)
		}
	}
	return all
}

// added are the labels that Prometheus adds, and the labels of all histograms and alerts.
var added = sets.New("__name__", "job", "instance", "le")

// types are the types of all metrics.
func (p prometheus) types(t *testing.T) map[string]string {
	t.Helper()
	var data map[string][]struct{ Type string }
	must.OK(t, p.get(t.Context(), "/api/v1/metadata", &data))
	all := map[string]string{}
	for name, meta := range data {
		all[name] = meta[0].Type
	}
	return all
}

// checkRules waits until Prometheus has evaluated each rule. None may fire.
func (p prometheus) checkRules(t *testing.T) {
	t.Helper()
	harness.Wait(t, "evaluation of the rules", func() error {
		var data struct {
			Groups []struct {
				Rules []struct{ Name, Health, LastError, State string }
			}
		}
		if err := p.get(t.Context(), "/api/v1/rules", &data); err != nil {
			return err
		}
		if len(data.Groups) != 1 || len(data.Groups[0].Rules) != len(rules(t)) {
			return fmt.Errorf("got %v, want one group of all rules", data)
		}
		for _, r := range data.Groups[0].Rules {
			if r.Health != "ok" || r.State == "firing" {
				return fmt.Errorf("rule %s is %s %s %s", r.Name, r.Health, r.State, r.LastError)
			}
		}
		return nil
	})
}

// A target is a query of the dashboard.
type target struct {
	panel, Expr, LegendFormat string
}

// expr returns the query with values for the variables, as Grafana replaces them.
func (q target) expr() string {
	return strings.NewReplacer("$job", "kubejoin", "$instance", ".*", "$__rate_interval", "1m").Replace(q.Expr)
}

// targets are all queries of the dashboard.
func targets(t *testing.T) (all []target) {
	t.Helper()
	var dashboard struct {
		UID           string
		SchemaVersion int
		Panels        []struct {
			ID          int
			Type, Title string
			Targets     []target
			Datasource  struct{ UID string }
		}
	}
	must.OK(t, json.Unmarshal(harness.ReadFile(t, harness.RepositoryFile(t, "deploy/chart/kubejoin/files/dashboard.json")), &dashboard))
	if dashboard.UID != "kubejoin" || dashboard.SchemaVersion < 39 {
		t.Errorf("got uid %q and schema %d, want kubejoin and at least 39", dashboard.UID, dashboard.SchemaVersion)
	}
	ids := sets.New[int]()
	for _, panel := range dashboard.Panels {
		if ids.Has(panel.ID) {
			t.Errorf("panel %q has the ID of another one", panel.Title)
		}
		ids.Insert(panel.ID)
		if panel.Type == "row" {
			continue
		}
		if panel.Datasource.UID != "${datasource}" || len(panel.Targets) == 0 {
			t.Errorf("panel %q has data source %q and %d queries", panel.Title, panel.Datasource.UID, len(panel.Targets))
		}
		for _, q := range panel.Targets {
			q.panel = panel.Title
			all = append(all, q)
			for _, selector := range selectors.FindAllStringSubmatch(q.Expr, -1) {
				if selector[1] != hostCertificates && !strings.Contains(selector[2], `job="$job",instance=~"$instance"`) {
					t.Errorf("panel %q: %s does not select job and instance", panel.Title, selector[0])
				}
			}
		}
	}
	for _, title := range []string{"Joins a minute", "Waiting by reason", "Certificates by end"} {
		if !slices.ContainsFunc(all, func(q target) bool { return q.panel == title }) {
			t.Errorf("no panel %q", title)
		}
	}
	if len(all) < 30 {
		t.Fatalf("found %d queries, want more", len(all))
	}
	return all
}

var (
	// selectors matches a metric name and its matchers. No function of PromQL has such a name.
	selectors   = regexp.MustCompile(`\b((?:kubejoin|process|go)_\w+|up)\b(?:\{([^}]*)\})?`)
	matchers    = regexp.MustCompile(`(\w+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"`)
	groupings   = regexp.MustCompile(`\b(?:by|on) \(([^)]*)\)`)
	legendLabel = regexp.MustCompile(`\{\{(\w+)\}\}`)
)

// metricsIn returns the metrics in a query. A histogram is one metric.
func metricsIn(expr string) (all []string) {
	for _, m := range selectors.FindAllStringSubmatch(expr, -1) {
		all = append(all, ofHistogram.ReplaceAllString(m[1], ""))
	}
	return all
}

// problems returns each metric, label or value in a query that kubejoin does not have.
func problems(expr, page string, documented map[string]metric, live map[string]map[string]sets.Set[string]) (found []string) {
	all := sets.New[string]() // labels of all metrics in the query
	for _, m := range selectors.FindAllStringSubmatch(expr, -1) {
		name := ofHistogram.ReplaceAllString(m[1], "")
		if live[name] == nil && rare[name] == "" {
			found = append(found, "unknown metric "+name)
			continue
		}
		labels := sets.KeySet(live[name]).Union(documented[name].labels)
		all = all.Union(labels)
		for _, matcher := range matchers.FindAllStringSubmatch(m[2], -1) {
			label, values := matcher[1], matcher[2]
			if added.Has(label) {
				continue
			}
			if !labels.Has(label) {
				found = append(found, name+" has no label "+label)
				continue
			}
			for value := range strings.SplitSeq(values, "|") {
				exact := regexp.MustCompile("^(?:" + value + ")$")
				if !slices.ContainsFunc(sets.List(live[name][label]), exact.MatchString) && !regexp.MustCompile("`"+value+"`").MatchString(page) {
					found = append(found, fmt.Sprintf("label %s of %s has no value %s", label, name, value))
				}
			}
		}
	}
	for _, m := range groupings.FindAllStringSubmatch(expr, -1) {
		for label := range strings.SplitSeq(m[1], ", ") {
			if !added.Has(label) && !all.Has(label) {
				found = append(found, "no metric has the label "+label)
			}
		}
	}
	return found
}

// A metric is a row of docs/metrics.md.
type metric struct {
	kind   string
	labels sets.Set[string]
}

var (
	metricRow = regexp.MustCompile("(?m)^\\| `(kubejoin_\\w+)` \\| (\\w+) \\| ([^|]*)\\|")
	codeSpan  = regexp.MustCompile("`([^`]+)`")
)

func documentedMetrics(page string) map[string]metric {
	all := map[string]metric{}
	for _, m := range metricRow.FindAllStringSubmatch(page, -1) {
		labels := sets.New[string]()
		for _, span := range codeSpan.FindAllStringSubmatch(m[3], -1) {
			labels.Insert(span[1])
		}
		all[m[1]] = metric{m[2], labels}
	}
	return all
}
