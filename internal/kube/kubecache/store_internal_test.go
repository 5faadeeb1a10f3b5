package kubecache

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// For an object of another type, the store must return an error, which the reflector logs. Catches a panic, or a
// cache that silently lacks objects.
func TestRefusesObjectsOfOtherTypes(t *testing.T) {
	s := store[*corev1.ConfigMap, string]{&Cache[*corev1.ConfigMap, string]{config: Config[*corev1.ConfigMap, string]{What: "objects"}, filled: make(chan struct{})}}
	for name, call := range map[string]func() error{
		"Add":     func() error { return s.Add(&corev1.Secret{}) },
		"Update":  func() error { return s.Update(nil) },
		"Delete":  func() error { return s.Delete(&corev1.Secret{}) },
		"Replace": func() error { return s.Replace([]any{&corev1.Secret{}}, "1") },
	} {
		if err := call(); err == nil {
			t.Errorf("%s: got no error", name)
		}
	}
	if _, filled := s.Len(); filled {
		t.Error("filled by a list of other objects")
	}
}

// Each node adds and removes groups. Catches an index that keeps empty groups.
func TestDropsEmptyGroups(t *testing.T) {
	x := index[string]{groupsOf: func(text string) []string { return []string{text} }}
	x.put(&Entry[string]{Name: "a", Value: "x"})
	x.put(&Entry[string]{Name: "a", Value: "y"})
	x.remove("a")
	if len(x.groups) > 0 || len(x.all) > 0 {
		t.Errorf("got %v, %v left", x.groups, x.all)
	}
}
