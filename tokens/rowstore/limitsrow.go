package rowstore

import (
	"errors"
	"time"

	"github.com/kubejoin/kubejoin/tokens"
)

// limits is the limits in the row of a token or a claim.
type limits struct {
	MaxNodes            int      `json:"maxNodes,omitempty"`
	NodeNames           []string `json:"nodeNames,omitempty"`
	CertificateDuration int64    `json:"certificateDuration,omitempty"` // seconds
	Replaces            *nodeRef `json:"replaces,omitempty"`
	Role                string   `json:"role,omitempty"`
	Rejoin              string   `json:"rejoin,omitempty"`
}

type nodeRef struct {
	Name string `json:"name"`
	UID  string `json:"uid"`
}

func encodeLimits(l tokens.Limits) limits {
	row := limits{
		MaxNodes:            l.MaxNodes,
		NodeNames:           l.NodeNames,
		CertificateDuration: int64(l.CertificateDuration / time.Second),
		Role:                l.Role,
		Rejoin:              l.Rejoin,
	}
	if l.Replaces != (tokens.NodeRef{}) {
		row.Replaces = &nodeRef{Name: l.Replaces.Name, UID: l.Replaces.UID}
	}
	return row
}

// decodeLimits returns an error for limits that Create would have refused.
func decodeLimits(row limits) (tokens.Limits, error) {
	l := tokens.Limits{
		MaxNodes:            row.MaxNodes,
		NodeNames:           row.NodeNames,
		CertificateDuration: time.Duration(row.CertificateDuration) * time.Second,
		Role:                row.Role,
		Rejoin:              row.Rejoin,
	}
	overflown := int64(l.CertificateDuration/time.Second) != row.CertificateDuration
	if row.Replaces != nil {
		l.Replaces = tokens.NodeRef{Name: row.Replaces.Name, UID: row.Replaces.UID}
	}
	if overflown || row.Replaces != nil && l.Replaces == (tokens.NodeRef{}) || l.Check() != nil {
		return tokens.Limits{}, errors.New("invalid limits")
	}
	return l, nil
}
