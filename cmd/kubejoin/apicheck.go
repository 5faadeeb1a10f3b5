//go:build apicheck

package main

import (
	"github.com/kubejoin/kubejoin/internal/testing/openapicheck"
	"github.com/kubejoin/kubejoin/server"
)

func init() { answered = openapicheck.Served(server.OpenAPI()) }
