package clusterinfo

import "github.com/kubejoin/kubejoin/tokens"

// ReadAnswer reads what a discovery endpoint has answered.
func ReadAnswer(body []byte, t tokens.Token) (string, error) { return readAnswer(body, t) }
