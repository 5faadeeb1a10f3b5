package client

import "net/http"

// InProcess returns a Client that calls a handler in this process without a network, usually Server.InProcess of
// package server.
func InProcess(handler http.Handler) *Client {
	return &Client{URL: "https://in-process", HTTP: &http.Client{Transport: Handler(handler)}}
}
