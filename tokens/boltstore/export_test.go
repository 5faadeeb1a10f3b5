package boltstore

import "github.com/kubejoin/kubejoin/tokens"

// DecodeRow reads a row as List does.
func DecodeRow(key, value []byte) (tokens.Record, error) { return decodeRow(key, value) }
