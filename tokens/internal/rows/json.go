// Package rows decodes rows of JSON that may contain secrets.
package rows

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Unmarshal decodes one JSON object and refuses unknown fields. Its errors never contain a value.
func Unmarshal(v []byte, row any) error {
	d := json.NewDecoder(bytes.NewReader(v))
	d.DisallowUnknownFields()
	if err := d.Decode(row); err != nil {
		return WithoutValue(err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("unexpected data after the JSON object")
	}
	return nil
}

// WithoutValue returns an error of encoding/json without the parts that may contain a secret.
func WithoutValue(err error) error {
	var (
		syntax *json.SyntaxError
		kind   *json.UnmarshalTypeError
	)
	switch {
	case errors.As(err, &syntax):
		return fmt.Errorf("invalid JSON at byte %d", syntax.Offset)
	case errors.As(err, &kind):
		return fmt.Errorf("field %q has the wrong type", kind.Field)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("unexpected end of JSON")
	}
	return errors.New("want a JSON object with known fields only, and times in RFC 3339")
}
