// Package harness supports tests of the whole program. It builds kubejoin, and starts it beside a real cluster or
// standalone. It also has the requests, waits and checks that the packages below test/ share. Package cluster runs
// Kubernetes itself.
package harness
