package csr

import (
	"github.com/kubejoin/kubejoin/internal/metrics"
	"github.com/prometheus/client_golang/prometheus"
)

// instruments count what the controller does. Only signer names that a rule or the authority
// knows become labels: anybody who may create CSRs can make up others.
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
			"Decisions of the approval rules about CSRs, each time they were asked.", "signer", "verdict", "reason"),
		signed: metrics.Counter(reg, "kubejoin_csr_signed_total",
			"CSRs whose certificate was issued.", "signer"),
		failures: metrics.Counter(reg, "kubejoin_csr_sign_failures_total",
			"Failures to sign a CSR or to write its certificate. Those of reason SignerValidationFailure are final, the others are tried again.", "signer", "reason"),
		byOther: metrics.Counter(reg, "kubejoin_csr_signed_by_other_total",
			"CSRs of a signer that kubejoin serves whose certificate another signer wrote while kubejoin was running.", "signer"),
		shared: metrics.Counter(reg, "kubejoin_csr_shared_node_names_total",
			"CSRs that were issued for a node while another certificate of the same name and another key was valid.", "signer"),
		shadow: metrics.Counter(reg, "kubejoin_csr_shadow_total",
			"What would have been done about CSRs if kubejoin did not only look on: the verdicts of its rules, sign and fail.", "signer", "would", "reason"),
		seconds: metrics.Histogram(reg, "kubejoin_csr_issue_seconds",
			"Time from the creation of a CSR, of which whole seconds are known, to its certificate.",
			[]float64{1, 1.5, 2, 3, 5, 10, 30, 60, 300, 900, 3600}, "signer"),
	}
}
