package secretstore

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/tokens"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cluster-bootstrap/token/api"
	"k8s.io/cluster-bootstrap/token/util"
)

// decode reads a Secret like the authenticator of kube-apiserver and the bootstrapsigner of
// kube-controller-manager do. It returns an error if the Secret is not a bootstrap token. If the token is
// invalid, decode sets Record.Problem. If only its limits are invalid, which Kubernetes does not know,
// decode sets Record.Limits.Problem. None of these errors contains a value that may be a misplaced secret.
func decode(secret *corev1.Secret) (tokens.Record, error) {
	if secret.Type != api.SecretTypeBootstrapToken {
		return tokens.Record{}, fmt.Errorf("kube-system/%s is a Secret of type %q, want %q", secret.Name, secret.Type, api.SecretTypeBootstrapToken)
	}
	id, found := strings.CutPrefix(secret.Name, api.BootstrapTokenSecretPrefix)
	onlyID, err := tokens.OnlyID(id)
	if !found || err != nil {
		return tokens.Record{}, fmt.Errorf("kube-system/%s: want the name %s and 6 characters of [a-z0-9]", secret.Name, api.BootstrapTokenSecretPrefix)
	}
	data := func(key string) string { return string(secret.Data[key]) }
	var problems []error
	r := tokens.Record{
		Signing:        data(api.BootstrapTokenUsageSigningKey) == "true",
		Authentication: data(api.BootstrapTokenUsageAuthentication) == "true",
		Description:    data(api.BootstrapTokenDescriptionKey),
		Created:        secret.CreationTimestamp.UTC(),
		UID:            string(secret.UID),
		Version:        secret.ResourceVersion,
	}

	if r.Token, err = decodeToken(secret, id); err != nil {
		problems = append(problems, err)
		if r.Token.IsZero() {
			r.Token = onlyID
		}
	}

	if s := data(api.BootstrapTokenExpirationKey); s != "" {
		expires, err := time.Parse(time.RFC3339, s)
		if err != nil {
			problems = append(problems, fmt.Errorf("%s is not an RFC 3339 time, so the token counts as expired", api.BootstrapTokenExpirationKey))
		}
		if err != nil || expires.IsZero() { // a zero Record.Expires means never
			expires = time.Unix(0, 0)
		}
		r.Expires = expires.UTC()
	}

	if s := data(api.BootstrapTokenExtraGroupsKey); s != "" {
		for group := range strings.SplitSeq(s, ",") {
			if err := util.ValidateBootstrapGroupName(group); err != nil {
				problems = append(problems, fmt.Errorf("%s: %w", api.BootstrapTokenExtraGroupsKey, err))
			}
			if !slices.Contains(r.Groups, group) { // kube-apiserver ignores duplicates too
				r.Groups = append(r.Groups, group)
			}
		}
	}
	r.Problem = errors.Join(problems...)
	for _, ref := range secret.OwnerReferences {
		owner := tokens.Owner{APIVersion: ref.APIVersion, Kind: ref.Kind, Name: ref.Name, UID: string(ref.UID)}
		if owner.Check() == nil {
			r.Owner = owner
			break
		}
	}

	if creator := secret.Annotations[creatorAnnotation]; len(creator) <= maxCreator {
		r.Creator = creator
	}
	r.Limits = readLimits(secret.Annotations, nodesAnnotation)
	// If a name is lost, kubejoin cannot tell whether the token is spent.
	if value, given := secret.Annotations[annotationPrefix+nodesAnnotation]; given {
		if err := readNodes(&r, value); err != nil {
			r.Limits.Problem = errors.Join(r.Limits.Problem, annotationError(nodesAnnotation, err))
		}
	}
	return r, nil
}

// decodeToken returns the token with its secret. It returns an error for everything in the Secret that makes
// kube-apiserver refuse the token permanently. It also refuses published examples, which kube-apiserver accepts.
// With an error it still returns a malformed secret if kube-controller-manager signs with it.
func decodeToken(secret *corev1.Secret, id string) (tokens.Token, error) {
	if at := secret.DeletionTimestamp; at != nil {
		return tokens.Token{}, fmt.Errorf("%w since %s, finalizers: %s", tokens.ErrDeleting, at.UTC().Format(time.RFC3339), strings.Join(secret.Finalizers, ", "))
	}
	switch string(secret.Data[api.BootstrapTokenIDKey]) {
	case id:
	case "":
		return tokens.Token{}, fmt.Errorf("%s is missing", api.BootstrapTokenIDKey)
	default:
		return tokens.Token{}, fmt.Errorf("%s is not the ID in the name of the Secret, %s", api.BootstrapTokenIDKey, id)
	}
	value := string(secret.Data[api.BootstrapTokenSecretKey])
	if value == "" {
		return tokens.Token{}, fmt.Errorf("%s is missing", api.BootstrapTokenSecretKey)
	}
	t, err := tokens.New(id, value)
	if errors.Is(err, tokens.ErrMalformed) {
		t, _ = tokens.ForSigning(id, value) // the ID and the value are valid for it
	}
	return t, err
}

// encode returns a new Secret for a record. Like kubeadm, it omits the keys of zero fields.
func encode(r tokens.Record) *corev1.Secret {
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: util.BootstrapTokenSecretName(r.Token.ID())},
		Type:       api.SecretTypeBootstrapToken,
		Data: map[string][]byte{
			api.BootstrapTokenIDKey:     []byte(r.Token.ID()),
			api.BootstrapTokenSecretKey: []byte(r.Token.RevealSecret()),
		},
	}
	apply(secret, tokens.Record{}, r)
	return secret
}

// apply writes the differences between before and after to the Secret. It changes nothing else, so values
// that another tool wrote in another format stay the same.
func apply(secret *corev1.Secret, before, after tokens.Record) {
	set := func(changed bool, key, value string) {
		switch {
		case !changed:
		case value == "":
			delete(secret.Data, key)
		default:
			secret.Data[key] = []byte(value)
		}
	}
	usage := map[bool]string{true: "true"}
	var expires string
	if !after.Expires.IsZero() {
		expires = after.Expires.UTC().Format(time.RFC3339) // truncates to seconds
	}
	set(!after.Expires.Equal(before.Expires), api.BootstrapTokenExpirationKey, expires)
	set(after.Signing != before.Signing, api.BootstrapTokenUsageSigningKey, usage[after.Signing])
	set(after.Authentication != before.Authentication, api.BootstrapTokenUsageAuthentication, usage[after.Authentication])
	set(!slices.Equal(after.Groups, before.Groups), api.BootstrapTokenExtraGroupsKey, strings.Join(after.Groups, ","))
	set(after.Description != before.Description, api.BootstrapTokenDescriptionKey, after.Description)

	if o := after.Owner; o != before.Owner {
		secret.OwnerReferences = slices.DeleteFunc(secret.OwnerReferences, func(ref metav1.OwnerReference) bool { return string(ref.UID) == before.Owner.UID })
		if o != (tokens.Owner{}) {
			secret.OwnerReferences = append(secret.OwnerReferences, metav1.OwnerReference{APIVersion: o.APIVersion, Kind: o.Kind, Name: o.Name, UID: types.UID(o.UID)})
		}
	}
	if after.Creator != before.Creator {
		annotateKey(secret, creatorAnnotation, after.Creator)
	}
	applyLimits(secret, before.Limits, after.Limits, nodesAnnotation)
	// Compare with the annotations: decode may have dropped names from before.
	annotate(secret, nodesAnnotation, writeNodes(after))
	if len(after.Nodes) > 0 {
		if secret.Labels == nil {
			secret.Labels = map[string]string{}
		}
		secret.Labels[tokenIDLabel] = after.Token.ID()
	}
}
