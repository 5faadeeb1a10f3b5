package operations

// FactsUnread says that a request cannot be explained.
const FactsUnread = "the facts about the request cannot be read from the cluster now; retry"

// StateUnread says that a node cannot be explained.
func StateUnread(node string) string {
	return "the state of node " + node + " cannot be read from the cluster now; retry"
}

// NoRequest says that a certificate request does not exist.
func NoRequest(name string) string { return "there is no CertificateSigningRequest " + name }
