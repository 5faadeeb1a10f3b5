package tokens

import "slices"

// A Rule limits tokens, also those that other programs make. It only tightens the limits of a token: all its rules apply, and
// of each limit the strictest value holds.
type Rule struct {
	// Name names the rule in refusals.
	Name string
	// Limits has only MaxNodes, NodeNames, CertificateDuration, and Rejoin, which is [RejoinDeny] or empty.
	Limits Limits
	// Worker takes [Limits.Role] away.
	Worker bool
}

// A LimitRule is a Rule with the tokens to which it applies: those that match all of its fields.
type LimitRule struct {
	Rule
	// Description is a pattern of [Record.Description], in which each * matches any characters. Empty matches all.
	Description string
	// Groups are among [Record.Groups].
	Groups []string
	// Labels are among the labels of the Secret.
	Labels map[string]string
}

// Matches reports whether the rule applies to a token whose Secret has these labels.
func (r LimitRule) Matches(t Record, labels map[string]string) bool {
	if r.Description != "" && !MatchNodeName(r.Description, t.Description) {
		return false
	}
	for key, want := range r.Labels {
		if value, found := labels[key]; !found || value != want {
			return false
		}
	}
	return !slices.ContainsFunc(r.Groups, func(g string) bool { return !slices.Contains(t.Groups, g) })
}

// Strictest returns the limits that hold: of each limit, the strictest value of the token and its rules. It has no Rules. Its
// NodeNames are those of the token, or else of the first rule with names: see [Limits.AllowsName].
func (l Limits) Strictest() Limits {
	l, _ = l.strictest()
	return l
}

// LimitedBy returns which rule sets a limit that is stricter than that of the token, by the name of the field in a
// [FieldError].
func (l Limits) LimitedBy() map[string]string {
	_, by := l.strictest()
	return by
}

func (l Limits) strictest() (Limits, map[string]string) {
	if len(l.Rules) == 0 {
		return l, nil
	}
	by := map[string]string{}
	for _, r := range l.Rules {
		if n := r.Limits.MaxNodes; n > 0 && (l.MaxNodes == 0 || n < l.MaxNodes) && l.Replaces == (NodeRef{}) {
			l.MaxNodes, by["max-nodes"] = n, r.Name
		}
		if d := r.Limits.CertificateDuration; d > 0 && (l.CertificateDuration == 0 || d < l.CertificateDuration) {
			l.CertificateDuration, by["certificate-duration"] = d, r.Name
		}
		if r.Limits.Rejoin == RejoinDeny && l.Rejoin != RejoinDeny {
			l.Rejoin, by["rejoin"] = RejoinDeny, r.Name
		}
		if r.Worker && l.Role != "" {
			l.Role, by["role"] = "", r.Name
		}
		if names := r.Limits.NodeNames; len(names) > 0 {
			if before := by["node-names"]; before != "" { // all of them apply
				by["node-names"] = before + ", " + r.Name
			} else {
				by["node-names"] = r.Name
			}
			if len(l.NodeNames) == 0 {
				l.NodeNames = names
			}
		}
	}
	l.Rules = nil
	return l, by
}

// NamesInstead returns the names that the limits allow in place of name, and the rule that does not allow it; empty if that
// is the token itself. The names are nil if name is allowed.
func (l Limits) NamesInstead(name string) (allowed []string, rule string) {
	if to := l.Replaces.Name; l.Replaces != (NodeRef{}) && name != to {
		return []string{to}, ""
	}
	for _, r := range append([]Rule{{Limits: l}}, l.Rules...) {
		names := r.Limits.NodeNames
		if len(names) > 0 && !slices.ContainsFunc(names, func(pattern string) bool { return MatchNodeName(pattern, name) }) {
			return names, r.Name
		}
	}
	return nil, ""
}

// Kept returns the limits as a claim keeps them. Of its rules, they have what applies after a node has joined.
func (l Limits) Kept() Limits {
	all := l.Rules
	l.Rules = nil
	for _, r := range all {
		after := Limits{CertificateDuration: r.Limits.CertificateDuration, Rejoin: r.Limits.Rejoin}
		if !after.IsZero() {
			l.Rules = append(l.Rules, Rule{Name: r.Name, Limits: after})
		}
	}
	return l
}

func (r Rule) equal(s Rule) bool {
	return r.Name == s.Name && r.Worker == s.Worker && r.Limits.Equal(s.Limits)
}
