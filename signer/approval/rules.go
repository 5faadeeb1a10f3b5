package approval

import (
	"fmt"
	"slices"
	"strings"
)

// RuleNames are the names that [Rules] knows.
func RuleNames() []string {
	var names []string
	for _, rule := range known(ServingScope{}) {
		names = append(names, rule.Name())
	}
	return names
}

func known(scope ServingScope) []Rule {
	return []Rule{SelfNodeClient{}, NodeClient{}, KubeletServing{scope}, MaySign{}}
}

// Rules gives rules by name, in that order, the one for serving certificates with scope. A name
// that is unknown or given twice is an error, and so is what is wrong with the scope.
func Rules(names []string, scope ServingScope) ([]Rule, error) {
	if err := scope.Check(); err != nil {
		return nil, err
	}
	all := known(scope)
	rules := make([]Rule, 0, len(names))
	for i, name := range names {
		at := slices.IndexFunc(all, func(rule Rule) bool { return rule.Name() == name })
		if at < 0 {
			return nil, fmt.Errorf("rule %.100q is not known, want one of %s", name, strings.Join(RuleNames(), ", "))
		}
		if slices.Contains(names[:i], name) {
			return nil, fmt.Errorf("rule %s is given twice, want each of %s at most once", name, strings.Join(RuleNames(), ", "))
		}
		rules = append(rules, all[at])
	}
	return rules, nil
}
