package kube_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/doctor"
	"github.com/kubejoin/kubejoin/internal/kube/failedwrites"
	"github.com/kubejoin/kubejoin/internal/kube/leader"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/server/explain"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/admission"
	"github.com/kubejoin/kubejoin/signer/csr"
	"github.com/kubejoin/kubejoin/signer/kubefacts"
	"github.com/kubejoin/kubejoin/tokens"
	admissionregistration "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A webhook for Secrets is down and fails closed. Catches an explanation that advises approval by hand, and a doctor that finds
// nothing, although kubejoin knows the reason.
func TestExplainsWebhookThatIsDown(t *testing.T) {
	w := newWorld(t)
	must.OK(t, w.admin.CertificatesV1().CertificateSigningRequests().DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}))
	one := w.token(func(r *tokens.Record) { r.Limits.MaxNodes = 1 })

	// Build kubejoin as its daemon does.
	var failed failedwrites.Log
	config := w.cluster.AdminConfig()
	config.Wrap(failed.Watch)
	reader := w.readerOf(w.client(config))
	nodes := kubefacts.OpenNodes(t.Context(), reader.Client)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		election := leader.Election{
			Client: reader.Client, Namespace: "kubejoin-system", Name: "kubejoin", Logger: slog.New(slog.DiscardHandler),
			Annotations: func() map[string]string { return map[string]string{failedwrites.Annotation: failed.Encode(time.Now())} },
		}
		done <- election.Run(ctx, csr.Controller{Client: reader.Client, Approve: true, Sign: true, Authority: &signer.Authority{
			Facts:   &kubefacts.Facts{Client: reader.Client},
			Nodes:   &admission.Nodes{Tokens: reader.Tokens, Claims: reader.Claims, Node: nodes.Node},
			Signers: signer.FixedSigners(must.Get(signer.KubernetesSigners(signer.Fixed(w.clusterCA()), 24*time.Hour))),
		}}.Run)
	}()
	defer func() {
		stop()
		must.OK(t, <-done)
		_ = w.admin.CoordinationV1().Leases("kubejoin-system").Delete(context.Background(), "kubejoin", metav1.DeleteOptions{}) // other tests make their own
	}()

	const name, webhook = "explain-down", "down.example.com"
	url, fail, none := "https://127.0.0.1:1/", admissionregistration.Fail, admissionregistration.SideEffectClassNone
	hooks := w.admin.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	must.Value(hooks.Create(t.Context(), &admissionregistration.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Webhooks: []admissionregistration.ValidatingWebhook{{
			Name: webhook, ClientConfig: admissionregistration.WebhookClientConfig{URL: &url}, FailurePolicy: &fail, SideEffects: &none, AdmissionReviewVersions: []string{"v1"},
			Rules: []admissionregistration.RuleWithOperations{{
				Operations: []admissionregistration.OperationType{admissionregistration.Create, admissionregistration.Update},
				Rule:       admissionregistration.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"secrets"}},
			}},
		}},
	}, metav1.CreateOptions{}))(t)
	up := func() {
		_ = hooks.Delete(context.Background(), name, metav1.DeleteOptions{}) // not found the second time
	}
	defer up()
	findings := func() string {
		facts := must.Value(doctor.Read(t.Context(), doctor.Options{Cluster: w.cluster.AdminConfig()}))(t)
		var all []string
		for _, f := range doctor.Diagnose(facts).Findings {
			if f.ID == "writes-fail" {
				all = append(all, f.Message)
			}
		}
		return strings.Join(all, "\n")
	}
	w.await("the webhook", func(context.Context) error {
		if !strings.Contains(findings(), `kubejoin cannot create secrets in kube-system, as a dry run shows: Internal error occurred: failed calling webhook "`+webhook+`"`) {
			return errors.New("the dry run succeeds")
		}
		return nil
	})

	w.ask(w.holder(one), kubelet, "hooked-1")
	w.await("the reason", func(ctx context.Context) error {
		e, err := w.reader.Explain(ctx, "hooked-1")
		if err == nil && !strings.Contains(e.Sentence, "kubejoin could not update secrets in kube-system") {
			err = fmt.Errorf("got %s, want the failed write", e.Sentence)
		}
		return err
	})
	e := w.explain("hooked-1", explain.NotApproved, `failed calling webhook "`+webhook+`"`, "kubejoin doctor")
	if strings.Contains(e.Text(), "kubectl certificate approve") {
		t.Errorf("got %s, want no approval by hand: kubejoin could not sign it either", e.Text())
	}
	if got := findings(); !strings.Contains(got, "kubejoin could not update secrets in kube-system, last at ") {
		t.Errorf("doctor finds %q, want the failed write of kubejoin", got)
	}

	up()
	w.await("the certificate", func(ctx context.Context) error {
		e, err := w.reader.Explain(ctx, "hooked-1")
		if err == nil && e.State != explain.CertificateIssued {
			err = errors.New(e.Sentence)
		}
		return err
	})
	w.await("the end of the finding", func(context.Context) error {
		if got := findings(); got != "" {
			return errors.New(got)
		}
		return nil
	})
}
