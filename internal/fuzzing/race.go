//go:build race

package fuzzing

const race = true
