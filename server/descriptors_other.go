//go:build !unix

package server

func maxConnections() int { return mostConnections }
