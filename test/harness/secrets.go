package harness

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/boltstore"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
)

// Secrets are values that must not occur in kubejoin's logs and other output.
type Secrets struct {
	mu   sync.Mutex
	list map[string]string // by description
}

// NewSecrets returns an empty list.
func NewSecrets() *Secrets { return &Secrets{list: map[string]string{}} }

// Add adds a secret. what describes it in errors.
func (s *Secrets) Add(what, secret string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list[what] = secret
}

func (s *Secrets) none() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.list) == 0
}

// CheckAbsent fails the test if a text contains one of the secrets, or anything that looks like a secret.
func (s *Secrets) CheckAbsent(t *testing.T, where, text string) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.list) == 0 {
		t.Errorf("no secret to look for in %s: the check could not fail", where)
	}
	for what, secret := range s.list {
		if strings.Contains(text, secret) {
			t.Errorf("%s holds the secret of %s", where, what)
		}
	}
	noForms(t, where, text)
}

// noForms fails the test if a text contains anything that looks like a secret.
func noForms(t *testing.T, where, text string) {
	t.Helper()
	lookedAt.add(where, len(text))
	for _, found := range formsOfSecrets(text) {
		t.Errorf("%s holds a text in the form of a secret: %s", where, found)
	}
}

// secretForms matches private keys, tokens of service accounts and Authorization headers.
var secretForms = regexp.MustCompile(`-----BEGIN [A-Z ]*PRIVATE KEY|\beyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]{8,}|\b[Bb]earer [\w.~+/-]{16,}`)

// tokenForm matches a bootstrap token that is a whole word. tokens.Redact also finds tokens in longer words, such as the
// name of an Event: kubejoin.18ea578cf48348ac.
var tokenForm = regexp.MustCompile(`\b[a-z0-9]{6}\.[a-z0-9]{16}\b`)

// formsOfSecrets returns the parts of a text that look like secrets, redacted.
func formsOfSecrets(text string) []string {
	found := secretForms.FindAllString(text, -1)
	for i := range found {
		found[i] = fmt.Sprintf("%.20q…", found[i])
	}
	if tokenForm.MatchString(text) {
		for line := range strings.Lines(text) {
			if tokenForm.MatchString(line) {
				found = append(found, fmt.Sprintf("%.300q", tokens.Redact(line)))
			}
		}
	}
	return found
}

// lookedAt counts the places where the tests of this package looked for secrets.
var lookedAt = looked{places: map[string]int{}, bytes: map[string]int{}}

type looked struct {
	sync.Mutex
	places, bytes map[string]int
}

func (l *looked) add(where string, bytes int) {
	l.Lock()
	defer l.Unlock()
	l.places[where]++
	l.bytes[where] += bytes
}

// places are where the tests look for secrets.
var places = []string{"the log", "the metrics", "the issuance record", "an Event", "a CertificateSigningRequest", "the URLs that kube-apiserver saw"}

// String returns how often the tests looked into each place, and at how much text.
func (l *looked) String() string {
	l.Lock()
	defer l.Unlock()
	var all []string
	for _, where := range places {
		all = append(all, fmt.Sprintf("%s %d times (%d kB)", where, l.places[where], l.bytes[where]>>10))
	}
	return "looked for secrets in " + strings.Join(all, ", ")
}

// SecretsLookedFor fails if the tests did not look for secrets in each of the places.
func SecretsLookedFor() error {
	lookedAt.Lock()
	defer lookedAt.Unlock()
	for _, where := range places {
		if lookedAt.places[where] == 0 {
			return fmt.Errorf("no test looked for secrets in %s: the check could not fail", where)
		}
	}
	return nil
}

// follow adds the secret of every bootstrap token in the cluster until the test ends.
func (s *Secrets) follow(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	factory := informers.NewSharedInformerFactoryWithOptions(c.Client(), 0, informers.WithNamespace(metav1.NamespaceSystem),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector("type", string(corev1.SecretTypeBootstrapToken)).String()
		}))
	informer := factory.Core().V1().Secrets().Informer()
	must.Value(informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(o any) {
		secret := o.(*corev1.Secret)
		if value := string(secret.Data["token-secret"]); value != "" {
			s.Add(secret.Name, value)
		}
	}}))(t)
	factory.Start(t.Context().Done())
	t.Cleanup(factory.Shutdown)
}

// learn adds the secrets in the files of a stopped program: the bearer token in its curlrc, and the tokens in its data folder.
func (s *Secrets) learn(t *testing.T, curlrc, dataDir string) {
	t.Helper()
	content, err := os.ReadFile(curlrc)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if found := bearerLine.FindSubmatch(content); found != nil {
		s.Add("the operator", string(found[1]))
	}
	if dataDir == "" {
		return
	}
	files, err := filepath.Glob(filepath.Join(dataDir, "*.db"))
	if err != nil {
		t.Error(err)
	}
	for _, file := range files {
		store, err := boltstore.Open(file)
		if err != nil {
			t.Logf("tokens of %s: %v", file, err) // no failure: a test may have damaged the file or still have it open
			continue
		}
		records, err := store.List(context.Background()) // the test's context has ended
		if err != nil {
			t.Error(err)
		}
		for _, r := range records {
			s.Add("token "+r.Token.ID(), r.Token.RevealSecret())
		}
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	}
}
