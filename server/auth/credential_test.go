package auth_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/server/auth"
)

// Catches a credential that one client can send in many forms, so that each form has its own entry in the credential
// cache.
func TestCredentialHasOneForm(t *testing.T) {
	for header, want := range map[string]string{
		"Bearer ada-1": "bearer ada-1", "bEARER ada-1": "bearer ada-1", "Bearer    ada-1": "bearer ada-1", "Bearer ada-1  ": "bearer ada-1", "Bearer Ada-1": "bearer Ada-1",
		"Basic x": "basic x", "Bearer": "", "Bearer ": "", "": "", "ada-1": "",
	} {
		if got := auth.Credential(&http.Request{Header: http.Header{"Authorization": {header}}}); got != want {
			t.Errorf("%q: got %q, want %q", header, got, want)
		}
	}
	if got := auth.Credential(&http.Request{Header: http.Header{"Authorization": {"Bearer a", "Bearer b"}}}); got != "" {
		t.Errorf("two headers: got %q, want none", got)
	}
}

func TestHeaderOrCertificate(t *testing.T) {
	failed := errors.New("away")
	says := func(name string, err error) auth.Authenticate {
		return func(*http.Request) (auth.User, error) { return auth.User{Name: name}, err }
	}
	ada, jane := says("ada", nil), says("jane", nil)
	bad, away, none := says("", auth.ErrBadCredentials), says("", failed), says("", auth.ErrNoCredentials)
	for _, test := range []struct {
		name                string
		header, certificate auth.Authenticate
		given               []string // Authorization headers
		user                string
		err                 error
	}{
		{"header", ada, jane, []string{"Bearer x"}, "ada", nil},
		{"certificate", ada, jane, nil, "jane", nil},
		{"bad header beside a good certificate", bad, jane, []string{"Bearer x"}, "", auth.ErrBadCredentials},
		{"unknown header beside a good certificate", none, jane, []string{"Basic x"}, "", auth.ErrBadCredentials},
		{"empty header beside a good certificate", none, jane, []string{""}, "", auth.ErrBadCredentials},
		{"unjudged header beside a good certificate", away, jane, []string{"Bearer x"}, "", failed},
		{"no headers are known", nil, jane, []string{"Bearer x"}, "", auth.ErrBadCredentials},
		{"no certificates are known", ada, nil, nil, "", auth.ErrNoCredentials},
		{"bad certificate", ada, bad, nil, "", auth.ErrBadCredentials},
		{"nothing", ada, none, nil, "", auth.ErrNoCredentials},
	} {
		r := httptest.NewRequestWithContext(t.Context(), "GET", "/", nil)
		if test.given != nil {
			r.Header["Authorization"] = test.given
		}
		user, err := auth.HeaderOrCertificate(test.header, test.certificate)(r)
		if user.Name != test.user || !errors.Is(err, test.err) {
			t.Errorf("%s: %q %v, want %q %v", test.name, user.Name, err, test.user, test.err)
		}
	}
	for _, test := range []struct {
		name string
		ways []auth.Authenticate
		user string
		err  error
		not  error
	}{
		{name: "the first", ways: []auth.Authenticate{ada, jane}, user: "ada"},
		{name: "the second", ways: []auth.Authenticate{bad, none, jane}, user: "jane"},
		{name: "one that knows, after one that cannot tell", ways: []auth.Authenticate{away, jane}, user: "jane"},
		{name: "one that cannot tell outweighs one that says no", ways: []auth.Authenticate{bad, away}, err: failed, not: auth.ErrBadCredentials},
		{name: "in any order", ways: []auth.Authenticate{away, bad}, err: failed, not: auth.ErrBadCredentials},
		{name: "no", ways: []auth.Authenticate{none, bad}, err: auth.ErrBadCredentials},
		{name: "nothing", ways: []auth.Authenticate{none, none}, err: auth.ErrNoCredentials},
		{name: "nobody", err: auth.ErrNoCredentials},
	} {
		user, err := auth.AnyOf(test.ways...)(httptest.NewRequestWithContext(t.Context(), "GET", "/", nil))
		if user.Name != test.user || !errors.Is(err, test.err) || test.not != nil && errors.Is(err, test.not) {
			t.Errorf("%s: %q %v, want %q %v", test.name, user.Name, err, test.user, test.err)
		}
	}
}

func TestBearer(t *testing.T) {
	long := strings.Repeat("a", auth.MaxBearer)
	for _, test := range []struct {
		name  string
		given []string
		want  string
		err   error
	}{
		{"none", nil, "", auth.ErrNoCredentials},
		{"one", []string{"Bearer abc"}, "abc", nil},
		{"in another case, with spaces", []string{"bEARER   abc "}, "abc", nil},
		{"longest", []string{"Bearer " + long}, long, nil},
		{"too long", []string{"Bearer a" + long}, "", auth.ErrBadCredentials},
		{"empty", []string{""}, "", auth.ErrBadCredentials},
		{"scheme alone", []string{"Bearer"}, "", auth.ErrBadCredentials},
		{"another scheme", []string{"Basic abc"}, "", auth.ErrBadCredentials},
		{"two", []string{"Bearer abc", "Bearer abc"}, "", auth.ErrBadCredentials},
	} {
		r := httptest.NewRequestWithContext(t.Context(), "GET", "/", nil)
		if test.given != nil {
			r.Header["Authorization"] = test.given
		}
		if got, err := auth.Bearer(r); got != test.want || !errors.Is(err, test.err) || err != nil && strings.Contains(err.Error(), "abc") {
			t.Errorf("%s: %.20q %v, want %.20q %v", test.name, got, err, test.want, test.err)
		}
	}
}
