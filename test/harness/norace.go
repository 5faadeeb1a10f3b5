//go:build !race

package harness

const race = false
