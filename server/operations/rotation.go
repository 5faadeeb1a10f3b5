package operations

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"

	"github.com/kubejoin/kubejoin/clusterinfo/mint"
	"github.com/kubejoin/kubejoin/internal/batch"
	"github.com/kubejoin/kubejoin/internal/pemfile"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/signer/rotation"
	"github.com/kubejoin/kubejoin/tokens"
)

// Rotations carries out requests about rotations of CAs. For an invalid field, the error is an api.InvalidFields. Other
// errors are errors of the Desk.
type Rotations struct {
	Desk *rotation.Desk
	// Cross makes the old CA sign a cross certificate for a new CA. Its error says which key is missing. If Cross is
	// nil, there is no cross certificate.
	Cross func(ca rotation.CA, fresh *x509.Certificate) (*x509.Certificate, error)

	looks batch.Queue[rotation.CA, *look]
}

// A look is the result of one observation. Concurrent requests share it, because an observation connects to each
// host of the cluster.
type look struct {
	status rotation.Status
	err    error
}

// CARotation returns the last rotation of a CA, with the current observations.
func (r *Rotations) CARotation(ctx context.Context, ca string) (api.CARotation, error) {
	got := &look{}
	err := r.looks.Do(ctx, rotation.CA(ca), got, func(ctx context.Context, waiting []*look) {
		status, err := r.Desk.Status(ctx, rotation.CA(ca))
		for _, l := range waiting {
			*l = look{status, err}
		}
	})
	if err != nil {
		return api.CARotation{}, err
	}
	return rotationShown(ca, got.status, false, got.err)
}

// PrepareCA begins the rotation of a CA.
func (r *Rotations) PrepareCA(ctx context.Context, ca string, req api.PrepareCA) (api.CARotation, error) {
	p := rotation.PrepareRequest{CA: rotation.CA(ca), DryRun: req.DryRun}
	var err error
	if req.Lifetime != "" {
		if p.Lifetime, err = api.ParseDuration(req.Lifetime); err != nil || p.Lifetime <= 0 {
			return api.CARotation{}, api.InvalidField("lifetime", "%.40q given, want a duration such as 3650d", req.Lifetime)
		}
	}
	if req.NewCA != "" {
		if p.Certificates, err = pemfile.OnlyCertificates([]byte(req.NewCA)); err != nil {
			return api.CARotation{}, api.InvalidField("newCA", "%v", err)
		}
	}
	if req.NewKey != "" {
		if p.Key, err = pemfile.Key([]byte(req.NewKey.Reveal())); err != nil {
			return api.CARotation{}, api.InvalidField("newKey", "%v", err)
		}
	}
	if !req.NoCrossSign {
		p.Cross = func(fresh *x509.Certificate) (*x509.Certificate, error) {
			if r.Cross == nil {
				return nil, errors.New("the key of the old CA is not here")
			}
			return r.Cross(p.CA, fresh)
		}
	}
	made, err := r.Desk.Prepare(ctx, p)
	shown, err := rotationShown(ca, made.Status, req.DryRun, err)
	shown.CertificateKey, shown.Warnings = api.Secret(made.CertificateKey.Reveal()), made.Warnings
	return shown, err
}

// ExpireTokens returns a function that deletes tokens, for the field ExpireTokens of a Desk.
func ExpireTokens(m *mint.Minter) func(context.Context, []string) error {
	return func(ctx context.Context, ids []string) error {
		for _, id := range ids {
			var e *tokens.Refusal
			if _, err := m.Delete(ctx, id, mint.Deletion{}); err != nil && !(errors.As(err, &e) && e.Reason == mint.NoToken) {
				return fmt.Errorf("token %s: %w", id, err)
			}
		}
		return nil
	}
}

const abortStep = "abort"

// StepCA takes a rotation to a stage, or with "abort" back by one stage.
func (r *Rotations) StepCA(ctx context.Context, ca, step string, req api.StepCA) (api.CARotation, error) {
	o := rotation.Options{DryRun: req.DryRun, LeaveBehind: req.LeaveBehind, LeaveBehindFiles: req.LeaveBehindFiles, ExpireTokens: req.ExpireTokens}
	var s rotation.Status
	var err error
	if step == abortStep {
		s, err = r.Desk.Abort(ctx, rotation.CA(ca), o)
	} else {
		s, err = r.Desk.Advance(ctx, rotation.CA(ca), rotation.Stage(step), o)
	}
	return rotationShown(ca, s, req.DryRun, err)
}

// preparedFields maps the fields of a rotation.PrepareRequest to the fields of an api.PrepareCA, where the names
// differ.
var preparedFields = map[string]string{"certificates": "newCA", "key": "newKey"}

// rotationShown returns the result of a Desk as the API shows it.
func rotationShown(ca string, s rotation.Status, dryRun bool, err error) (api.CARotation, error) {
	var invalid *tokens.FieldError
	switch {
	case errors.As(err, &invalid) && invalid.Field == "cross":
		return api.CARotation{}, api.InvalidField("noCrossSign", "the old CA cannot certify the new one: %v; set it to do without", invalid.Err)
	case errors.As(err, &invalid):
		return api.CARotation{}, api.InvalidField(cmp.Or(preparedFields[invalid.Field], invalid.Field), "%v", invalid.Err)
	case err != nil:
		return api.CARotation{}, err
	}
	return showRotation(rotation.CA(ca), s, dryRun), nil
}

// showRotation returns a rotation as the API shows it.
func showRotation(ca rotation.CA, s rotation.Status, dryRun bool) api.CARotation {
	r := s.Rotation
	shown := api.CARotation{
		APIVersion: api.GroupVersion, Kind: api.KindCARotation, CA: string(ca), Next: s.Next, Behind: Behind(s.Behind), DryRun: dryRun,
	}
	var certificates api.CACertificates
	for _, o := range s.Seen {
		shown.Observations = append(shown.Observations, observation(o))
		if o.Kind != rotation.KindCertificate {
			continue
		}
		switch o.From {
		case rotation.FromOld:
			certificates.Old++
		case rotation.FromNew:
			certificates.New++
		}
	}
	if certificates != (api.CACertificates{}) {
		shown.Certificates = &certificates
	}
	if r.ID == "" {
		return shown
	}
	shown.ID, shown.Stage, shown.Aborting, shown.Cross, shown.HasKey = r.ID, string(r.Stage), r.Aborting, string(r.Cross.PEM()), r.HasKey
	shown.Started, shown.Since, shown.Ended, shown.LeftBehind, shown.LeftFiles = r.Started, r.Since, r.Ended, r.LeftBehind, r.LeftFiles
	shown.Trusted, shown.Signs = &api.CATrust{Old: r.TrustsOld(), New: r.TrustsNew()}, "old"
	if r.SignsNew() {
		shown.Signs = "new"
	}
	shown.Old, shown.New = CAs(r.Old), CAs(r.New)
	return shown
}

// Behind returns the list of what blocks a step, as the API shows it.
func Behind(all []rotation.Behind) (shown []api.CABehind) {
	for _, b := range all {
		shown = append(shown, api.CABehind{CAObservation: observation(b.Observation), Why: b.Why})
	}
	return shown
}

func observation(o rotation.Observation) api.CAObservation {
	return api.CAObservation{
		Kind: string(o.Kind), Name: o.Name, Node: o.Node, File: o.File, Trusts: (*api.CATrust)(o.Trusts), From: string(o.From), Until: o.Until, Unseen: o.Unseen, Next: o.Next, Off: o.Off, Optional: o.Optional,
	}
}
