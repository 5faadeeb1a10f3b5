package rowstore

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/internal/rows"
)

// claim is the JSON of a claim. The key of the row is the node name.
type claim struct {
	TokenID  string   `json:"tokenID"`
	TokenUID string   `json:"tokenUID,omitempty"`
	Limits   limits   `json:"limits,omitzero"`
	Keys     []string `json:"keys,omitempty"`
	Requests []string `json:"requests,omitempty"`
	NodeUID  string   `json:"nodeUID,omitempty"`
	Waits    bool     `json:"waits,omitempty"`

	ReadyBefore string `json:"readyBefore,omitempty"`
	ReadyAgain  bool   `json:"readyAgain,omitempty"`

	Past     past            `json:"past,omitzero"`
	Identity tokens.Identity `json:"identity,omitzero"`
	Machine  tokens.Machine  `json:"machine,omitzero"`

	Created time.Time `json:"created"`
	UID     string    `json:"uid"`
}

// past is the JSON of the Past in the row of a claim.
type past struct {
	Until               time.Time `json:"until"`
	CertificateDuration int64     `json:"certificateDuration,omitempty"` // seconds
	Rejoin              string    `json:"rejoin,omitempty"`

	Node tokens.NodeProperties `json:"node,omitzero"`
}

// normalizedClaim returns c as decodeClaim will return it.
func normalizedClaim(c tokens.Claim) tokens.Claim {
	c.Created = c.Created.UTC().Truncate(time.Second)
	c.Past.Until = c.Past.Until.UTC()
	c.Identity = normalizedIdentity(c.Identity)
	c.Keys = append([]string(nil), c.Keys...)
	c.Requests = append([]string(nil), c.Requests...)
	c.Limits.NodeNames = append([]string(nil), c.Limits.NodeNames...)
	return c
}

func normalizedIdentity(i tokens.Identity) tokens.Identity {
	i.NotAfter = i.NotAfter.UTC()
	i.Credentials, i.Rejoins = append([]tokens.Credential(nil), i.Credentials...), append([]time.Time(nil), i.Rejoins...)
	for at, t := range i.Rejoins {
		i.Rejoins[at] = t.UTC()
	}
	return i
}

// encodeClaim returns the row of a claim, without its Version.
func encodeClaim(c tokens.Claim) ([]byte, error) {
	if len(c.Limits.Rules) > 0 { // a renewal would last longer than a rule allows
		return nil, &tokens.FieldError{Field: "rules", Err: fmt.Errorf("%d given, want none: only claims in Leases keep them (%w)", len(c.Limits.Rules), tokens.ErrRefused)}
	}
	v, err := json.Marshal(claim{
		TokenID:  c.TokenID,
		TokenUID: c.TokenUID,
		Limits:   encodeLimits(c.Limits),
		Keys:     c.Keys,
		Requests: c.Requests,
		NodeUID:  c.NodeUID,
		Waits:    c.Waits,

		ReadyBefore: c.ReadyBefore,
		ReadyAgain:  c.ReadyAgain,

		Past:     past{c.Past.Until, int64(c.Past.CertificateDuration / time.Second), c.Past.Rejoin, c.Past.Node},
		Identity: c.Identity,
		Machine:  c.Machine,
		Created:  c.Created,
		UID:      c.UID,
	})
	if err != nil {
		return nil, fmt.Errorf("claim %s: encode: %w", c.Node, err)
	}
	return v, nil
}

// decodeClaim decodes the row of a claim, without its Version. Its errors never contain a part of the row.
func decodeClaim(node string, v []byte) (tokens.Claim, error) {
	var w claim
	if err := rows.Unmarshal(v, &w); err != nil {
		return tokens.Claim{}, err
	}
	if w.UID == "" || w.Created.IsZero() {
		return tokens.Claim{}, errors.New("uid or created is missing")
	}
	limits, err := decodeLimits(w.Limits)
	if err != nil {
		return tokens.Claim{}, err
	}
	c := tokens.Claim{
		Node:     node,
		TokenID:  w.TokenID,
		TokenUID: w.TokenUID,
		Limits:   limits,
		Keys:     w.Keys,
		Requests: w.Requests,
		NodeUID:  w.NodeUID,
		Waits:    w.Waits,

		ReadyBefore: w.ReadyBefore,
		ReadyAgain:  w.ReadyAgain,

		Past:     tokens.ReleasedClaim{Until: w.Past.Until, CertificateDuration: time.Duration(w.Past.CertificateDuration) * time.Second, Rejoin: w.Past.Rejoin, Node: w.Past.Node},
		Identity: w.Identity,
		Machine:  w.Machine,
		Created:  w.Created,
		UID:      w.UID,
	}
	if c.Check() != nil || int64(c.Past.CertificateDuration/time.Second) != w.Past.CertificateDuration {
		return tokens.Claim{}, errors.New("invalid claim")
	}
	return c, nil
}
