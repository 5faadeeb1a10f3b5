package approval

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// MaySign approves every request of a requester that may sign for its signer. This needs RBAC verb sign on the
// resource signers in certificates.k8s.io, for the signer's name or, as DOMAIN/*, for its whole domain. A subject
// with a [SystemName] also needs the verb approve.
type MaySign struct{}

// Name returns "may-sign".
func (MaySign) Name() string { return "may-sign" }

// Decide never denies: if the permission is missing, people may still approve by hand.
func (MaySign) Decide(ctx context.Context, r Request, f Facts) (Decision, error) {
	domain, _, ok := strings.Cut(r.SignerName, "/")
	if r.CSR == nil || !ok {
		return Decision{}, nil
	}
	if f == nil {
		return Decision{}, errors.New("cannot check permissions: want Facts")
	}
	verbs := []string{"sign"}
	if SystemName(r.CSR) != "" {
		verbs = append(verbs, "approve")
	}
	var may Permission
	for _, verb := range verbs {
		allowed := false
		// Check in the order of kube-apiserver's CertificateSigning admission.
		for _, name := range []string{r.SignerName, domain + "/*"} {
			permission := Permission{Verb: verb, Resource: "signers", Name: name}
			var err error
			if allowed, err = f.Allowed(ctx, r, permission); err != nil {
				return Decision{}, fmt.Errorf("check whether %q may %s: %w", userName(r), permission, err)
			}
			if allowed {
				may = permission
				break
			}
		}
		if !allowed {
			return notPermitted(r, verb+" signers "+r.SignerName), nil
		}
	}
	return Decision{
		Verdict: Approve, Reason: ReasonAutoApproved,
		Message:  fmt.Sprintf("Auto approving request after SubjectAccessReview: %q may %s.", userName(r), may),
		Evidence: []string{fmt.Sprintf("%q may %s", userName(r), may)},
	}, nil
}
