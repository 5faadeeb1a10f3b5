package csr

import (
	"github.com/kubejoin/kubejoin/internal/metrics"
	"github.com/prometheus/client_golang/prometheus"
)

// instruments count what the controller does. Only signer names that a rule or the authority knows become
// labels: any client that may create CSRs can invent others.
type instruments struct {
	decisions *prometheus.CounterVec
	signed    *prometheus.CounterVec
	failures  *prometheus.CounterVec
	byOther   *prometheus.CounterVec
	shared    *prometheus.CounterVec
	shadow    *prometheus.CounterVec
	seconds   *prometheus.HistogramVec
}

func newInstruments(reg prometheus.Registerer) instruments {
	return instruments{
		decisions: metrics.Counter(reg, "kubejoin_csr_decisions_total",
			"Decisions of the approval rules about CSRs, counted at every try.", "signer", "verdict", "reason"),
		signed: metrics.Counter(reg, "kubejoin_csr_signed_total",
			"CSRs whose certificate was issued.", "signer"),
		failures: metrics.Counter(reg, "kubejoin_csr_sign_failures_total",
			"Failures to sign a CSR or to write its certificate. Reasons SigningFailed and WriteFailed are retried, others are final.", "signer", "reason"),
		byOther: metrics.Counter(reg, "kubejoin_csr_signed_by_other_total",
			"Certificates that another signer issued while kubejoin was running, for a signer name that kubejoin serves.", "signer"),
		shared: metrics.Counter(reg, "kubejoin_csr_shared_node_names_total",
			"Certificates issued for a node name while another certificate with this name and another key was valid.", "signer"),
		shadow: metrics.Counter(reg, "kubejoin_csr_shadow_total",
			"What kubejoin would have done with CSRs in shadow mode: a verdict of its rules, sign or fail.", "signer", "would", "reason"),
		seconds: metrics.Histogram(reg, "kubejoin_csr_issue_seconds",
			"Seconds from the creation of a CSR, known to a whole second, to its certificate.",
			[]float64{1, 1.5, 2, 3, 5, 10, 30, 60, 300, 900, 3600}, "signer"),
	}
}
