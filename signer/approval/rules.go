package approval

import (
	"fmt"
	"slices"
	"strings"
)

// RuleNames returns the names that [Rules] accepts.
func RuleNames() []string {
	var names []string
	for _, rule := range known(KubeletServing{}) {
		names = append(names, rule.Name())
	}
	return names
}

func known(serving KubeletServing) []Rule {
	return []Rule{SelfNodeClient{}, NodeClient{}, serving, MaySign{}}
}

// Rules returns the named rules in the given order. KubeletServing gets scope. An unknown or repeated name is an
// error, and so is an invalid scope.
func Rules(names []string, scope ServingScope) ([]Rule, error) {
	serving, err := NewKubeletServing(scope)
	if err != nil {
		return nil, err
	}
	all := known(serving)
	rules := make([]Rule, 0, len(names))
	for i, name := range names {
		at := slices.IndexFunc(all, func(rule Rule) bool { return rule.Name() == name })
		if at < 0 {
			return nil, fmt.Errorf("unknown approval rule %.100q: want one of %s", name, strings.Join(RuleNames(), ", "))
		}
		if slices.Contains(names[:i], name) {
			return nil, fmt.Errorf("approval rule %s is listed twice: want each of %s at most once", name, strings.Join(RuleNames(), ", "))
		}
		rules = append(rules, all[at])
	}
	return rules, nil
}
