//go:build race

package harness

// If the tests are built with the race detector, so is the program under test.
const race = true
