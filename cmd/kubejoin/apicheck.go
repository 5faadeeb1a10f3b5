//go:build apicheck

package main

import (
	"github.com/kubejoin/kubejoin/internal/testing/openapicheck"
	"github.com/kubejoin/kubejoin/server"
)

func init() { wrapHandler = openapicheck.Served(server.OpenAPI()) }
