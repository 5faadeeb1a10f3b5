package client

import "net/http"

// InProcess asks a handler in this process, with no network: usually Server.InProcess of package server.
func InProcess(handler http.Handler) *Client {
	return &Client{URL: "https://in-process", HTTP: &http.Client{Transport: Handler(handler)}}
}
