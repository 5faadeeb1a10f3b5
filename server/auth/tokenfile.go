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

// A TokenFile knows users by bearer tokens, in the form that kube-apiserver's
// --token-auth-file has: token,user,uid,"group1,group2". The zero TokenFile knows nobody.
type TokenFile struct {
	// Tokens are found by their MAC under a key of this process, so that the time a look-up
	// takes tells nothing of the tokens.
	key   [32]byte
	users map[[sha256.Size]byte]User
}

// MinBearer is the fewest characters that a bearer token may have.
const MinBearer = 16

// ParseTokenFile reads a token file. Its errors name the line and never a token.
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
	for i, row := range rows {
		// Every row is one line: nothing in it may hold a line break.
		line := i + 1
		if len(row) < 3 || len(row) > 4 {
			return nil, fmt.Errorf("row %d: %d columns given, want token,user,uid or token,user,uid,\"group1,group2\"", line, len(row))
		}
		token, user := row[0], User{Name: row[1], UID: row[2]}
		switch {
		case len(token) < MinBearer:
			return nil, fmt.Errorf("row %d: token has %d characters, want at least %d", line, len(token), MinBearer)
		case strings.ContainsFunc(token, func(c rune) bool { return c <= ' ' || c > '~' }):
			return nil, fmt.Errorf("row %d: token has characters that no HTTP header can carry", line)
		case user.Name == "":
			return nil, fmt.Errorf("row %d: user is empty", line)
		}
		if len(row) == 4 {
			for g := range strings.SplitSeq(row[3], ",") {
				if g = strings.TrimSpace(g); g != "" {
					user.Groups = append(user.Groups, g)
				}
			}
		}
		mac := f.mac(token)
		if _, twice := f.users[mac]; twice {
			return nil, fmt.Errorf("row %d: this token stands in an earlier row already", line)
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

// Authenticate is an [Authenticate] by the file's tokens.
func (f *TokenFile) Authenticate(r *http.Request) (User, error) {
	token, err := Bearer(r)
	if err != nil {
		return User{}, err
	}
	user, known := f.users[f.mac(token)]
	if !known {
		return User{}, fmt.Errorf("%w: no token of the token file", ErrBadCredentials)
	}
	return user, nil
}
