//go:build !race

package test

const race = false
