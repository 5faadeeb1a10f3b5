package approval

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// MaySign approves every request of somebody who may sign for its signer himself: RBAC verb sign
// on the resource signers in certificates.k8s.io, for the signer's name or, as DOMAIN/*, for all
// of its domain. A subject with a [ReservedName] takes the verb approve as well.
type MaySign struct{}

// Name is "may-sign".
func (MaySign) Name() string { return "may-sign" }

// Decide never denies: without the permission people may still approve by hand.
func (MaySign) Decide(ctx context.Context, r Request, f Facts) (Decision, error) {
	domain, _, ok := strings.Cut(r.SignerName, "/")
	if r.CSR == nil || !ok {
		return Decision{}, nil
	}
	if f == nil {
		return Decision{}, errors.New("no facts to ask for permissions")
	}
	verbs := []string{"sign"}
	if ReservedName(r.CSR) != "" {
		verbs = append(verbs, "approve")
	}
	var may Permission
	for _, verb := range verbs {
		allowed := false
		// The order of kube-apiserver's CertificateSigning admission.
		for _, name := range []string{r.SignerName, domain + "/*"} {
			permission := Permission{Verb: verb, Resource: "signers", Name: name}
			var err error
			if allowed, err = f.Allowed(ctx, r, permission); err != nil {
				return Decision{}, fmt.Errorf("may %q %s: %w", userName(r), permission, err)
			}
			if allowed {
				may = permission
				break
			}
		}
		if !allowed {
			return Decision{
				Reason:   ReasonNotPermitted,
				Message:  fmt.Sprintf("%q may not %s signers %s in certificates.k8s.io, so that automatic approval does not apply; 'kubectl certificate approve' does", userName(r), verb, r.SignerName),
				Evidence: []string{fmt.Sprintf("%q may not %s signers %s", userName(r), verb, r.SignerName)},
			}, nil
		}
	}
	return Decision{
		Verdict: Approve, Reason: ReasonAutoApproved,
		Message:  fmt.Sprintf("Auto approving the request of %q, who may %s, after SubjectAccessReview.", userName(r), may),
		Evidence: []string{fmt.Sprintf("%q may %s", userName(r), may)},
	}, nil
}
