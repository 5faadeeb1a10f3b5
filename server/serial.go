package server

import (
	"bytes"
	"encoding/base64"
	"math/big"
)

// serialOf is the serial number of the first certificate, for the log. The rest of it was looked
// at when it was signed, and nothing behind the serial number is decoded here.
func serialOf(chain []byte) string {
	_, text, _ := bytes.Cut(chain, []byte("\n"))
	line, _, _ := bytes.Cut(text, []byte("\n"))
	var first [48]byte // the serial number ends with the 35th at the latest (RFC 5280, section 4.1)
	if len(line) != base64.StdEncoding.EncodedLen(len(first)) {
		return ""
	}
	if _, err := base64.StdEncoding.Decode(first[:], line); err != nil {
		return ""
	}
	_, inside := header(first[:])
	_, tbs := header(inside)
	length, version := header(tbs)
	if length > len(version) {
		return ""
	}
	length, serial := header(version[length:])
	if length > len(serial) {
		return ""
	}
	return new(big.Int).SetBytes(serial[:length]).Text(16)
}

// header reads the length of a value in DER, and gives it with what comes behind.
func header(der []byte) (length int, rest []byte) {
	if len(der) < 2 {
		return 0, nil
	}
	length, rest = int(der[1]), der[2:]
	if length < 0x80 {
		return length, rest
	}
	n := min(length-0x80, len(rest), 4)
	length = 0
	for _, b := range rest[:n] {
		length = length<<8 | int(b)
	}
	return length, rest[n:]
}
