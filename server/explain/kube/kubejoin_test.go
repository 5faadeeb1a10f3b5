package kube_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/explain"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/admission"
	"github.com/kubejoin/kubejoin/signer/csr"
	"github.com/kubejoin/kubejoin/signer/kubefacts"
	"github.com/kubejoin/kubejoin/tokens"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Catches a refusal of the real controllers that is not explained by the controllers' own reason.
func TestExplainsRefusalsOfKubejoin(t *testing.T) {
	w := newWorld(t)
	// The controllers would decide the requests of other tests.
	must.OK(t, w.admin.CertificatesV1().CertificateSigningRequests().DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}))
	nodes := kubefacts.OpenNodes(t.Context(), w.admin)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- csr.Controller{Client: w.admin, Approve: true, Sign: true, Authority: &signer.Authority{
			Facts:   &kubefacts.Facts{Client: w.admin},
			Nodes:   &admission.Nodes{Tokens: w.tokens, Claims: w.claims, Node: nodes.Node, Reserved: []string{"real-cp-*"}},
			Signers: signer.FixedSigners(must.Get(signer.KubernetesSigners(signer.Fixed(w.clusterCA()), 24*time.Hour))),
		}}.Run(ctx)
	}()
	defer func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	await := func(node string, state api.NodeState, words ...string) {
		t.Helper()
		w.await("state of "+node, func(ctx context.Context) error {
			e, err := w.reader.Explain(ctx, node)
			if err == nil && e.State != state {
				err = fmt.Errorf("%s, want %s: %s", e.State, state, e.Sentence)
			}
			// An undecided request can have the same state, but its sentence differs.
			for _, word := range words {
				if err == nil && !strings.Contains(e.Sentence, word) {
					err = fmt.Errorf("no %q yet: %s", word, e.Sentence)
				}
			}
			return err
		})
		w.explain(node, state, words...)
	}

	one := w.token(func(r *tokens.Record) { r.Limits.MaxNodes = 1 })
	first := w.ask(w.holder(one), kubelet, "real-1")
	await("real-1", explain.CertificateIssued, "and there is no Node")
	w.ask(w.holder(one), kubelet, "real-2")
	await("real-2", explain.TokenSpent, "token "+one.Token.ID()+" is spent: it allows 1 node, and real-1 has joined with it", "kubejoin token create --max-nodes 1 --node-name real-2")
	w.older(first)
	w.ask(w.holder(w.token()), kubelet, "real-1")
	await("real-1", explain.NodeNameClaimed, "kubejoin claim release real-1", "an earlier request for the name was signed ")

	named := w.token(func(r *tokens.Record) { r.Limits.NodeNames = []string{"real-3"} })
	w.ask(w.holder(named), kubelet, "real-4")
	await("real-4", explain.NodeNameNotAllowed, "kubejoin token create --max-nodes 1 --node-name real-4")
	w.ask(w.holder(w.token()), kubelet, "real-cp-1")
	await("real-cp-1", explain.NodeNameReserved, "--role control-plane")

	n := w.node("real-5", corev1.ConditionTrue, "")
	w.older(n)
	w.ask(w.holder(w.token()), kubelet, n.Name)
	await(n.Name, explain.NodeExists, "kubejoin token create --replace-node real-5", "is Ready since ")
}
