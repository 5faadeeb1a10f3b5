package main

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"os"
	"strings"

	"github.com/kubejoin/kubejoin/server/auth"
)

// Roles of people, as groups of users.
const (
	planner    = "planner"    // may do everything
	technician = "technician" // may create tokens with limits, and nothing else
)

// people maps hashes of API keys to users. Because the keys are hashed, the time of a lookup reveals nothing about them.
type people map[[sha256.Size]byte]auth.User

// readPeople reads lines of KEY NAME ROLE. Errors name the line and never a key.
func readPeople(file string) (people, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	known := people{}
	for i, line := range strings.Split(strings.TrimSpace(string(content)), "\n") {
		words := strings.Fields(line)
		if len(words) != 3 || len(words[0]) < auth.MinBearer || words[2] != planner && words[2] != technician {
			return nil, fmt.Errorf("%s: line %d: want KEY NAME ROLE, a key of at least %d characters, and role %s or %s", file, i+1, auth.MinBearer, planner, technician)
		}
		known[sha256.Sum256([]byte(words[0]))] = auth.User{Name: words[1], Groups: []string{words[2]}}
	}
	return known, nil
}

// authenticate implements auth.Authenticate with the credential of this server: an API key in a header.
func (p people) authenticate(r *http.Request) (auth.User, error) {
	key := r.Header.Get("X-Rack-Key")
	if key == "" {
		return auth.User{}, auth.ErrNoCredentials
	}
	user, known := p[sha256.Sum256([]byte(key))]
	if !known {
		return auth.User{}, auth.ErrBadCredentials
	}
	return user, nil
}

// authorize implements auth.Authorize. An unlimited token, or one with other privileges, needs further
// permissions besides "create tokens". A technician has none of these.
func authorize(_ *http.Request, u auth.User, a auth.Access) error {
	for _, role := range u.Groups {
		if role == planner || role == technician && a == (auth.Access{Verb: "create", Resource: "tokens"}) {
			return nil
		}
	}
	return fmt.Errorf("%w: user %s does not have role %s", auth.ErrForbidden, u.Name, planner)
}
