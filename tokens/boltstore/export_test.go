package boltstore

import "github.com/kubejoin/kubejoin/tokens"

// DecodeRow reads a row as List does.
func DecodeRow(key, value []byte) (tokens.Record, error) { return decodeRow(key, value) }

// DecodeClaim reads a row as Claims.List does.
func DecodeClaim(key, value []byte) (tokens.Claim, error) { return decodeClaim(key, value) }
