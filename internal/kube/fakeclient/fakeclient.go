// Package fakeclient distinguishes the fake clients of client-go, which tests use, from real clients.
package fakeclient

import "k8s.io/client-go/rest"

// Is reports whether an API, for example CoreV1, belongs to a fake clientset. The RESTClient of a fake is nil, so a
// request with it would panic.
func Is(api interface{ RESTClient() rest.Interface }) bool {
	c, ok := api.RESTClient().(*rest.RESTClient)
	return ok && c == nil
}
