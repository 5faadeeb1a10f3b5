// Package harness runs the tests of the whole program: it builds kubejoin, starts it beside a real cluster or standalone,
// and has the requests, waits and checks that the packages below test/ share. Package cluster runs Kubernetes itself.
package harness
