package imagetag

import "testing"

func TestBefore(t *testing.T) {
	for image, want := range map[string]bool{
		"registry.k8s.io/kube-proxy:v1.35.4":                 true,
		"registry.k8s.io/kube-proxy:v1.36.0":                 false,
		"registry.k8s.io/kube-proxy:v1.37.2@sha256:00":       false,
		"registry.example.com:5000/kube-proxy:1.36-hardened": false,
		"registry.example.com:5000/kube-proxy":               true,
		"registry.k8s.io/kube-proxy@sha256:1.37":             true,
		"kube-proxy:latest":                                  true,
		"":                                                   true,
	} {
		if got := Before(image, "1.36"); got != want {
			t.Errorf("Before(%q) is %t, want %t", image, got, want)
		}
	}
}
