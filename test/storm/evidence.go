package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kubejoin/kubejoin/tokens/secretstore"
	certificates "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/cert"
)

// evidence is read from the API server after a storm. Only machines and senders come from the simulator.
type evidence struct {
	machines, senders map[string]string // machine ID by node name, and by certificate request
	ready             map[string]string // machine ID in each ready Node, by node name

	limits          map[string]int      // by token ID
	claims, counted map[string][]string // node names in Leases and in Secrets, by token ID

	issued []issued // certificates from CSR objects
	denied int      // number of denied CSR objects
}

// issued is a certificate. Without token, a node requested it.
type issued struct{ token, node, request string }

// evidence reads everything from the API server.
func (w *world) evidence(ctx context.Context) (evidence, error) {
	e := evidence{
		machines: map[string]string{}, senders: w.senders, limits: map[string]int{}, ready: map[string]string{},
		claims: map[string][]string{}, counted: map[string][]string{},
	}
	for _, m := range w.machines {
		e.machines[m.node] = m.id
	}
	for _, t := range w.tokens {
		e.limits[t.ID()] = t.limit
	}
	core, all := w.Client().CoreV1(), metav1.ListOptions{}
	nodes, err1 := core.Nodes().List(ctx, all)
	requests, err2 := w.Client().CertificatesV1().CertificateSigningRequests().List(ctx, all)
	secrets, err3 := core.Secrets(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{FieldSelector: "type=" + string(corev1.SecretTypeBootstrapToken)})
	leases, err4 := w.Client().CoordinationV1().Leases(secretstore.ClaimNamespace).List(ctx, metav1.ListOptions{LabelSelector: "kubejoin.io/claim=true"})
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return e, err
	}
	for _, n := range nodes.Items {
		for _, c := range n.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
				e.ready[n.Name] = n.Status.NodeInfo.MachineID
			}
		}
	}
	for _, r := range requests.Items {
		for _, c := range r.Status.Conditions {
			if c.Type == certificates.CertificateDenied {
				e.denied++
			}
		}
		if len(r.Status.Certificate) == 0 {
			continue
		}
		chain, err := cert.ParseCertsPEM(r.Status.Certificate)
		if err != nil {
			return e, fmt.Errorf("CSR %s: %w", r.Name, err)
		}
		token, byToken := strings.CutPrefix(r.Spec.Username, "system:bootstrap:")
		if !byToken {
			token = ""
		}
		e.issued = append(e.issued, issued{token, strings.TrimPrefix(chain[0].Subject.CommonName, "system:node:"), string(r.Spec.Request)})
	}
	for i := range secrets.Items {
		record, err := secretstore.Decode(&secrets.Items[i])
		if err != nil {
			return e, err
		}
		e.counted[record.Token.ID()] = record.Nodes
	}
	for _, l := range leases.Items {
		e.claims[*l.Spec.HolderIdentity] = append(e.claims[*l.Spec.HolderIdentity], l.Name)
	}
	return e, nil
}

// judge returns the lost machines, the machines with the node name of another machine, and the nodes over the limit of
// their token. again is the number of certificates that machines got in addition to the first of each kind.
func (e evidence) judge() (lost, double, over []string, again int) {
	for _, node := range slices.Sorted(maps.Keys(e.machines)) {
		if id := e.machines[node]; e.ready[node] != id {
			lost = append(lost, fmt.Sprintf("%s is not a Ready Node of %s (machine ID of the Node: %q)", node, id, e.ready[node]))
		}
	}
	owner, names, seen := map[string]string{}, map[string][]string{}, map[string]bool{}
	for _, c := range e.issued {
		id, slot := e.senders[c.request], c.token+"/"+c.node
		switch first, taken := owner[c.node]; {
		case id == "":
			double = append(double, fmt.Sprintf("%s: no machine requested a certificate", c.node))
		case taken && first != id:
			double = append(double, fmt.Sprintf("%s: %s and %s have certificates", c.node, first, id))
		case seen[slot]:
			again++
		}
		owner[c.node], seen[slot] = id, true
		if c.token != "" && !slices.Contains(names[c.token], c.node) {
			names[c.token] = append(names[c.token], c.node)
		}
	}
	for _, token := range slices.Sorted(maps.Keys(e.limits)) {
		limit := e.limits[token]
		joined, claims, counted := len(names[token]), len(e.claims[token]), len(e.counted[token])
		for range max(joined, claims, counted) - limit {
			over = append(over, fmt.Sprintf("token %s: %d nodes with certificates, %d claims, %d nodes counted, limit %d", token, joined, claims, counted, limit))
		}
		// If a node with a certificate has no slot, another machine can take the slot.
		for _, node := range names[token] {
			if !slices.Contains(e.claims[token], node) || !slices.Contains(e.counted[token], node) {
				over = append(over, fmt.Sprintf("token %s: %s has a certificate and no slot", token, node))
			}
		}
	}
	return lost, double, over, again
}
