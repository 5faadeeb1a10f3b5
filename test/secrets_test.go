package test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/boltstore"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
)

// secrets is everything that must not be seen in what kubejoin says of itself.
type secrets struct {
	sync.Mutex
	list map[string]string // by what it is
}

func (s *secrets) add(what, secret string) {
	s.Lock()
	defer s.Unlock()
	s.list[what] = secret
}

// absent looks for the secrets that are known, and for whatever has the form of one.
func (s *secrets) absent(t *testing.T, where, text string) {
	t.Helper()
	s.Lock()
	defer s.Unlock()
	if len(s.list) == 0 {
		t.Errorf("no secret is known that could be in %s: this check could not fail", where)
	}
	for what, secret := range s.list {
		if strings.Contains(text, secret) {
			t.Errorf("%s holds the secret of %s", where, what)
		}
	}
	noForms(t, where, text)
}

// noForms looks for whatever has the form of a secret.
func noForms(t *testing.T, where, text string) {
	t.Helper()
	lookedAt.add(where, len(text))
	for _, found := range formsOfSecrets(text) {
		t.Errorf("%s holds what has the form of a secret: %s", where, found)
	}
}

// secretForms are a private key, a service account's token and an Authorization header.
var secretForms = regexp.MustCompile(`-----BEGIN [A-Z ]*PRIVATE KEY|\beyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]{8,}|\b[Bb]earer [\w.~+/-]{16,}`)

// tokenForm is a bootstrap token that stands alone. tokens.Redact finds one also as a part of a longer word, such as
// the name of an Event: kubejoin.18ea578cf48348ac.
var tokenForm = regexp.MustCompile(`\b[a-z0-9]{6}\.[a-z0-9]{16}\b`)

// formsOfSecrets gives what looks like a secret in a text, without the most of it.
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

// lookedAt counts, for the whole run, where secrets were looked for.
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

// placesOfSecrets are where the whole run has to have looked.
var placesOfSecrets = []string{"the log", "the metrics", "the issuance record", "an Event", "a CertificateSigningRequest", "the URLs that kube-apiserver saw"}

// report says how much was looked at, and what was not.
func (l *looked) report() error {
	l.Lock()
	defer l.Unlock()
	var said []string
	for _, where := range placesOfSecrets {
		said = append(said, fmt.Sprintf("%s %d times (%d kB)", where, l.places[where], l.bytes[where]>>10))
		if l.places[where] == 0 && flag.Lookup("test.run").Value.String() == "" {
			return fmt.Errorf("in %s no secret was looked for in all the tests: this check could not fail", where)
		}
	}
	fmt.Println("secrets were looked for in", strings.Join(said, ", "))
	return nil
}

// follow learns the secret of each bootstrap token that is ever in the cluster.
func (s *secrets) follow(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	factory := informers.NewSharedInformerFactoryWithOptions(c.Client(), 0, informers.WithNamespace(metav1.NamespaceSystem),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector("type", string(corev1.SecretTypeBootstrapToken)).String()
		}))
	informer := factory.Core().V1().Secrets().Informer()
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(o any) {
		secret := o.(*corev1.Secret)
		if value := string(secret.Data["token-secret"]); value != "" {
			s.add(secret.Name, value)
		}
	}}); err != nil {
		t.Fatal(err)
	}
	factory.Start(t.Context().Done())
	t.Cleanup(factory.Shutdown)
}

// learn adds what a program that has ended keeps: the bearers in its curlrc, and the tokens in the
// file of its data folder.
func (s *secrets) learn(t *testing.T, curlrc, dataDir string) {
	t.Helper()
	content, err := os.ReadFile(curlrc)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if found := bearerLine.FindSubmatch(content); found != nil {
		s.add("the operator", string(found[1]))
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
			t.Logf("tokens of %s: %v", file, err) // a test may have broken it, or hold it
			continue
		}
		records, err := store.List(context.Background()) // the test's has ended
		if err != nil {
			t.Error(err)
		}
		for _, r := range records {
			s.add("token "+r.Token.ID(), r.Token.RevealSecret())
		}
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	}
}

// What has the form of a secret is found, and what has not is not.
func TestFormsOfSecrets(t *testing.T) {
	for text, want := range map[string]int{
		"":                            0,
		"token abcdef was made":       0,
		"abcdef.<redacted>":           0,
		"kubejoin.18ea578cf48348ac":   0,
		"say abcdef.0123456789abcdef": 1,
		"a\nabcdef.0123456789abcdef\nb 012345.0123456789abcdef":    2,
		"-----BEGIN CERTIFICATE-----":                              0,
		"-----BEGIN EC PRIVATE KEY-----":                           1,
		"-----BEGIN PRIVATE KEY-----":                              1,
		"eyJhbGciOiJSUzI1NiJ9.eyJhdWQiOlsia3ViZSJdfQ.c2lnbmF0dXJl": 1,
		"Authorization: Bearer 0123456789abcdefgh":                 1,
		"the header 'Authorization: Bearer TOKEN'":                 0,
	} {
		if got := formsOfSecrets(text); len(got) != want {
			t.Errorf("%q: %q", text, got)
		}
	}
}
