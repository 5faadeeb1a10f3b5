package mint

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/tokens"
)

// Get reads a token. The error is an [Error].
func (m *Minter) Get(ctx context.Context, id string) (tokens.Record, error) {
	record, err := m.Tokens.Get(ctx, id, tokens.Live)
	return record, changeError(id, err)
}

// A Renewal is a new expiration of a token.
type Renewal struct {
	// Expires is when the token expires; the zero time is never.
	Expires time.Time
	// Shorten allows an earlier expiration than the current one.
	Shorten bool
	// DryRun makes Renew store nothing, and return the result that it would have.
	DryRun bool
}

// Renew changes when a token expires. The check and the change are one atomic update. The error is an [Error].
func (m *Minter) Renew(ctx context.Context, id string, r Renewal) (tokens.Record, error) {
	change := func(record *tokens.Record) error {
		if err := r.allowed(*record); err != nil {
			return err
		}
		record.Expires = r.Expires
		return nil
	}
	if r.DryRun {
		record, err := m.Get(ctx, id)
		if err == nil {
			err = change(&record)
		}
		return record, err
	}
	record, err := m.Tokens.Update(ctx, id, change)
	return record, changeError(id, err)
}

// allowed returns an error if a token must not be renewed.
func (r Renewal) allowed(record tokens.Record) error {
	id, at := record.Token.ID(), r.Expires.UTC().Format(time.RFC3339)
	switch malformed := record.ProblemText(); {
	case record.OwnsUpload():
		return ownsUpload(record, "upload the certificates again with: kubejoin certs upload")
	case malformed != "":
		return errorf(Invalid, "token %s is malformed, and renewing it does not help: %s; delete it with: kubejoin token delete %s", id, malformed, id)
	case record.Spent():
		return errorf(Spent, "token %s is spent (used by %s), so renewing it has no effect; create another token with: %s",
			id, strings.Join(record.Nodes, ", "), recreateCommand(record.Limits))
	case r.Shorten || r.Expires.IsZero():
	case record.Expires.IsZero():
		return wouldShorten("token %s never expires, and this renewal would make it expire at %s; set shorten to allow this", id, at)
	case r.Expires.Before(record.Expires):
		return wouldShorten("token %s expires at %s, and this renewal would make it expire sooner, at %s; set shorten to allow this", id, record.Expires.Format(time.RFC3339), at)
	}
	return nil
}

func wouldShorten(format string, args ...any) *Error {
	e := errorf(WouldShorten, format, args...)
	e.Field = "shorten"
	return e
}

// A Deletion says how to delete a token.
type Deletion struct {
	// UID is that of the token to delete. Delete keeps another token with the same ID. If UID is empty, it deletes any token.
	UID string
	// OnlyExpired keeps a token that has not expired.
	OnlyExpired bool
	// DryRun makes Delete delete nothing, and return the result that it would have.
	DryRun bool
}

// deleteAttempts is how often Delete retries while others change the token.
const deleteAttempts = 20

// Delete deletes a token and returns the deleted record. If the token changes meanwhile, Delete retries, but it
// does not delete a new token that was created with the same ID. The error is an [Error].
func (m *Minter) Delete(ctx context.Context, id string, d Deletion) (tokens.Record, error) {
	var first tokens.Record
	for attempt := range deleteAttempts {
		record, err := m.Get(ctx, id)
		if err != nil {
			return record, err
		}
		if attempt == 0 {
			first = record
		}
		expired := record.Expired(time.Now())
		switch {
		case record.UID != first.UID, d.UID != "" && record.UID != d.UID:
			return record, errorf(Replaced, "token %s was deleted and created again during this request; check the new token before you delete it", id)
		case d.OnlyExpired && !expired:
			return record, errorf(NotExpired, "token %s has not expired, or was renewed", id)
		case !expired && record.OwnsUpload():
			return record, ownsUpload(record, "if no control plane still joins with the upload, end it with: kubejoin certs delete")
		case d.DryRun:
			return record, nil
		}
		switch err := m.Tokens.Delete(ctx, record); {
		case err == nil, errors.Is(err, tokens.ErrNotFound):
			return record, nil
		case !errors.Is(err, tokens.ErrConflict): // after a conflict, for example because a node joined, retry
			return record, changeError(id, err)
		}
	}
	return first, StoreError(fmt.Errorf("token %s changed during each of %d attempts to delete it", id, deleteAttempts))
}

// changeError converts an error of the store, or of a check of this package, to an Error.
func changeError(id string, err error) error {
	switch own := (*Error)(nil); {
	case err == nil:
		return nil
	case errors.As(err, &own):
		return own
	case errors.Is(err, tokens.ErrNotFound):
		return errorf(NoToken, "there is no token %s; it may have expired or been deleted", id)
	}
	return StoreError(err)
}

// ownsUpload returns the Error of a change to a token that owns an upload of certificates. Such a token only decides
// when the upload expires. A renewal would keep the upload and its key for longer, and deleting the token would delete
// the upload.
func ownsUpload(record tokens.Record, instead string) *Error {
	return errorf(OwnsUpload, "token %s only decides when the Secret kube-system/kubeadm-certs expires; %s", record.Token.ID(), instead)
}

// recreateCommand returns the command that creates a token with the same limits.
func recreateCommand(l tokens.Limits) string {
	var b strings.Builder
	b.WriteString("kubejoin token create")
	if l.Replaces != (tokens.NodeRef{}) {
		b.WriteString(" --replace-node " + l.Replaces.Name)
		l.NodeNames = nil
	} else {
		b.WriteString(" --max-nodes " + strconv.Itoa(l.NodeLimit()))
	}
	for _, name := range l.NodeNames {
		if strings.Contains(name, "*") {
			name = "'" + name + "'"
		}
		b.WriteString(" --node-name " + name)
	}
	if l.Role != "" {
		b.WriteString(" --role " + l.Role)
	}
	if l.Rejoin != "" {
		b.WriteString(" --rejoin " + l.Rejoin)
	}
	if l.CertificateDuration > 0 {
		b.WriteString(" --certificate-duration " + l.CertificateDuration.String())
	}
	for _, flag := range []struct{ name, value string }{{"label", l.Node.Labels}, {"taint", l.Node.Taints}, {"ready-after", l.Node.ReadyAfter}} {
		if flag.value != "" {
			b.WriteString(" --node-" + flag.name + " " + flag.value)
		}
	}
	return b.String()
}
