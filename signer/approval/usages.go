package approval

import (
	"crypto/x509"
	"fmt"
	"slices"

	certificates "k8s.io/api/certificates/v1"
)

// The usages of certificates.k8s.io. cfssl has the same names. "cert sign" and "crl sign" are missing, because
// kubejoin issues no CA certificates.
var (
	keyUsages = map[certificates.KeyUsage]x509.KeyUsage{
		certificates.UsageSigning:           x509.KeyUsageDigitalSignature,
		certificates.UsageDigitalSignature:  x509.KeyUsageDigitalSignature,
		certificates.UsageContentCommitment: x509.KeyUsageContentCommitment,
		certificates.UsageKeyEncipherment:   x509.KeyUsageKeyEncipherment,
		certificates.UsageKeyAgreement:      x509.KeyUsageKeyAgreement,
		certificates.UsageDataEncipherment:  x509.KeyUsageDataEncipherment,
		certificates.UsageEncipherOnly:      x509.KeyUsageEncipherOnly,
		certificates.UsageDecipherOnly:      x509.KeyUsageDecipherOnly,
	}
	extKeyUsages = map[certificates.KeyUsage]x509.ExtKeyUsage{
		certificates.UsageAny:             x509.ExtKeyUsageAny,
		certificates.UsageServerAuth:      x509.ExtKeyUsageServerAuth,
		certificates.UsageClientAuth:      x509.ExtKeyUsageClientAuth,
		certificates.UsageCodeSigning:     x509.ExtKeyUsageCodeSigning,
		certificates.UsageEmailProtection: x509.ExtKeyUsageEmailProtection,
		certificates.UsageSMIME:           x509.ExtKeyUsageEmailProtection,
		certificates.UsageIPsecEndSystem:  x509.ExtKeyUsageIPSECEndSystem,
		certificates.UsageIPsecTunnel:     x509.ExtKeyUsageIPSECTunnel,
		certificates.UsageIPsecUser:       x509.ExtKeyUsageIPSECUser,
		certificates.UsageTimestamping:    x509.ExtKeyUsageTimeStamping,
		certificates.UsageOCSPSigning:     x509.ExtKeyUsageOCSPSigning,
		certificates.UsageMicrosoftSGC:    x509.ExtKeyUsageMicrosoftServerGatedCrypto,
		certificates.UsageNetscapeSGC:     x509.ExtKeyUsageNetscapeServerGatedCrypto,
	}
)

// KnownUsage reports whether kubejoin can issue a certificate with the usage.
func KnownUsage(u certificates.KeyUsage) bool {
	_, isBit := keyUsages[u]
	_, isExtended := extKeyUsages[u]
	return isBit || isExtended
}

// X509Usages converts usages to X.509. The extended ones are sorted and without duplicates, as in
// kube-controller-manager.
func X509Usages(usages []certificates.KeyUsage) (x509.KeyUsage, []x509.ExtKeyUsage, error) {
	var bits x509.KeyUsage
	var extended []x509.ExtKeyUsage
	for _, u := range usages {
		if bit, ok := keyUsages[u]; ok {
			bits |= bit
		} else if e, ok := extKeyUsages[u]; ok {
			extended = append(extended, e)
		} else {
			return 0, nil, fmt.Errorf("usage %q is not supported", u)
		}
	}
	slices.Sort(extended)
	return bits, slices.Compact(extended), nil
}
