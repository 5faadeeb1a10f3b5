package auth

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/csv"
	"errors"
	"fmt"
	"net/http"
	"strings"
)

// A TokenFile authenticates bearer tokens that a file lists. The file has the format of kube-apiserver's
// --token-auth-file: token,user,uid,"group1,group2". The zero TokenFile accepts no token.
type TokenFile struct {
	// The map is keyed by the HMAC of the token under a key of this process. So the time of a lookup reveals
	// nothing about the tokens.
	key   [32]byte
	users map[[sha256.Size]byte]User
}

// MinBearer is the minimum length of a bearer token, in characters.
const MinBearer = 16

// ParseTokenFile parses a token file. Its errors name the line or row and never contain a token.
func ParseTokenFile(data []byte) (*TokenFile, error) {
	f := &TokenFile{users: map[[sha256.Size]byte]User{}}
	_, _ = rand.Read(f.key[:]) // documented never to fail
	r := csv.NewReader(bytes.NewReader(data))
	r.FieldsPerRecord = -1
	r.TrimLeadingSpace = true
	r.Comment = '#'
	rows, err := r.ReadAll()
	if err != nil {
		var at *csv.ParseError
		if errors.As(err, &at) {
			return nil, fmt.Errorf("line %d: %w", at.Line, at.Err)
		}
		return nil, err
	}
	if len(rows) == 0 { // for example after a write to a full disk
		return nil, errors.New("no row given, want at least one: token,user,uid")
	}
	for i, row := range rows {
		// Rows are counted from 1, without comments and empty lines.
		line := i + 1
		if len(row) < 3 || len(row) > 4 {
			return nil, fmt.Errorf("row %d: %d columns given, want token,user,uid or token,user,uid,\"group1,group2\"", line, len(row))
		}
		token, user := row[0], User{Name: row[1], UID: row[2]}
		switch {
		case len(token) < MinBearer:
			return nil, fmt.Errorf("row %d: token has %d characters, want at least %d", line, len(token), MinBearer)
		case strings.ContainsFunc(token, func(c rune) bool { return c <= ' ' || c > '~' }):
			return nil, fmt.Errorf("row %d: token has characters that are not allowed in an HTTP header", line)
		case user.Name == "":
			return nil, fmt.Errorf("row %d: user is empty", line)
		}
		if len(row) == 4 {
			if user.Groups = strings.Split(row[3], ","); row[3] == "" {
				user.Groups = nil
			}
			for i, g := range user.Groups {
				if user.Groups[i] = strings.TrimSpace(g); user.Groups[i] == "" {
					return nil, fmt.Errorf("row %d: group %d is empty", line, i+1)
				}
			}
		}
		mac := f.mac(token)
		if _, twice := f.users[mac]; twice {
			return nil, fmt.Errorf("row %d: duplicate token, an earlier row has the same one", line)
		}
		f.users[mac] = user
	}
	return f, nil
}

func (f *TokenFile) mac(token string) (sum [sha256.Size]byte) {
	m := hmac.New(sha256.New, f.key[:])
	m.Write([]byte(token))
	m.Sum(sum[:0])
	return sum
}

// Authenticate is an [Authenticate] that accepts the tokens of the file.
func (f *TokenFile) Authenticate(r *http.Request) (User, error) {
	token, err := Bearer(r)
	if err != nil {
		return User{}, err
	}
	user, known := f.users[f.mac(token)]
	if !known {
		return User{}, fmt.Errorf("%w: the token file does not list this token", ErrBadCredentials)
	}
	return user, nil
}
