// Package fakeclient tells the fake clients of client-go from real ones. Importers test with fakes.
package fakeclient

import "k8s.io/client-go/rest"

// Is reports whether an API, for example CoreV1, is that of a fake clientset. A fake has no RESTClient: a request by it
// would panic.
func Is(api interface{ RESTClient() rest.Interface }) bool {
	c, ok := api.RESTClient().(*rest.RESTClient)
	return ok && c == nil
}
