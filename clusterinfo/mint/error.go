package mint

import (
	"errors"
	"fmt"
	"strings"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/tokens"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Reasons of an [Error].
const (
	// Exists: the token ID is taken, by a token that differs from the request or by claims of a deleted token.
	Exists = "token-exists"
	// Full: cluster-info has no space for the signature.
	Full = "cluster-info-full"
	// TooManyTokens: the creator is at the limit of [Minter.UserTokens].
	TooManyTokens = "too-many-tokens"
	// NotStored: the store did not confirm that it has the token.
	NotStored = "token-not-stored"
	// NotSigned: cluster-info was not signed with the token in time.
	NotSigned = "token-not-signed"
	// Malformed: no machine can join with the kubeconfig in cluster-info.
	Malformed = "malformed-cluster-info"
	// NoToken: there is no token with this ID.
	NoToken = "no-token"
	// Spent: the node limit of the token is used up, so a renewal would have no effect.
	Spent = "token-spent"
	// Invalid: the stored token is malformed, and a renewal would not help.
	Invalid = "token-invalid"
	// WouldShorten: the token would expire sooner, which needs [Renewal.Shorten].
	WouldShorten = "would-shorten"
	// NotExpired: [Deletion.OnlyExpired] is set, and the token has not expired.
	NotExpired = "token-not-expired"
	// Replaced: the token was deleted and created again during the call.
	Replaced = "token-replaced"
	// OwnsUpload: the token only decides when an upload of certificates expires.
	OwnsUpload = "token-owns-upload"
	// Unavailable: the store cannot be read now.
	Unavailable = "store-unavailable"
	// Refused: the store refused the request, and would refuse a retry.
	Refused = "store-refuses"
	// Failed: any other failure; Err has it.
	Failed = "internal"
)

// An Error is the error of a [Minter], except for an invalid record. Its text contains no secret: Error redacts the
// text of the causes.
type Error struct {
	tokens.Refusal
	// Fate says what happened to the token, if that is not obvious.
	Fate string
	// TokenID is the ID of a token that the store has, or may have, in spite of the error. Only Create sets it.
	TokenID string
	// NotDeleted is why the token could not be deleted.
	NotDeleted error
}

// Detail returns the error without its causes.
func (e *Error) Detail() string {
	if e.Fate == "" {
		return e.Message
	}
	return e.Message + ". " + e.Fate
}

func (e *Error) Error() string {
	if cause := errors.Join(e.Err, e.NotDeleted); cause != nil {
		return e.Detail() + ": " + safetext.Redact(cause.Error())
	}
	return e.Detail()
}

// Unwrap returns the [tokens.Refusal], and the causes.
func (e *Error) Unwrap() []error { return []error{&e.Refusal, e.NotDeleted} }

// Failure returns the Error for a failure that is not a refusal, for example of the store.
func Failure(message string, err error) *Error {
	return &Error{Refusal: tokens.Refusal{Reason: Failed, Message: message, Err: err}}
}

func errorf(reason, format string, args ...any) *Error {
	safetext.Args(args) // redacts secrets before a verb truncates them
	return &Error{Refusal: tokens.Refusal{Reason: reason, Message: fmt.Sprintf(format, args...)}}
}

// StoreError returns the Error of a failed read of a store, which is Unavailable or Refused.
func StoreError(err error) *Error {
	if refused(err) {
		return &Error{Refusal: tokens.Refusal{Reason: Refused, Message: "the token store refused this request", Err: err}}
	}
	return &Error{Refusal: tokens.Refusal{Reason: Unavailable, Message: "the token store is unavailable now; retry", Err: err, Retry: true}}
}

// refused reports whether an error of a store is a definite refusal, for example of kube-apiserver: the write has no
// effect, and a retry would fail again.
func refused(err error) bool {
	if errors.Is(err, tokens.ErrRefused) {
		return true
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	switch code := status.Status().Code; code {
	case 408, 409, 429: // timeout, conflict, too many requests
		return false
	default:
		return code >= 400 && code < 500
	}
}

// MalformedError returns the Error of a kubeconfig that joining nodes cannot use, for example because someone edited
// cluster-info and added a credential.
func MalformedError(err error) *Error {
	return errorf(Malformed, "joining nodes cannot use the kubeconfig in cluster-info: %v. Correct it with: kubectl -n %s edit configmap %s", err, clusterinfo.Namespace, clusterinfo.Name)
}

// existsError returns the Error of an existing token.
func existsError(t tokens.Token) *Error { return takenError(t, "") }

// differsError returns the Error of an existing token that does not match the request. It names the given fields.
// fields is empty if the caller may not know which of them differ.
func differsError(t tokens.Token, fields ...string) *Error {
	differs := " and does not match the request"
	if len(fields) > 0 {
		differs += "; it differs in " + strings.Join(fields, ", ")
	}
	return takenError(t, differs)
}

func takenError(t tokens.Token, differs string) *Error {
	return errorf(Exists, "token %s already exists%s. Choose another token, or if no machine still joins with the existing one: kubejoin token delete %s", t.ID(), differs, t.ID())
}

func fullError(signatures int) *Error {
	return errorf(Full, "cluster-info is full: the ConfigMap holds the signatures of %d tokens and has no space for another one. "+
		"Delete tokens that no machine joins with, wait until some expire, or start kubejoin with --advertise HOST:PORT: machines then join through kubejoin, whose cluster-info has no such limit", signatures)
}
