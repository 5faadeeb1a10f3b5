//go:build race

package harness

// The program under test is built with the race detector if the tests are.
const race = true
