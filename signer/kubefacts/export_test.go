package kubefacts

// Asking returns the number of lookups in progress.
func (n *NodeCache) Asking() int { return int(n.inFlight.Load()) }

// FewLookups is the number of concurrent lookups up to which each reads one Node.
const FewLookups = fewLookups
