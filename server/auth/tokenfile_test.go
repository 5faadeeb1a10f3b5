package auth_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/fuzzing"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/server/auth"
)

func TestParseTokenFile(t *testing.T) {
	const token = "31ada4fd-adec-460c-809a-9e56ceb75269"
	for _, test := range []struct{ name, file, err string }{
		{name: "empty", err: "no row given"},
		{name: "only a comment", file: "# operators\n", err: "no row given"},
		{name: "three columns", file: token + ",ada,1\n"},
		{name: "groups", file: token + `,ada,1,"a, b"` + "\n"},
		{name: "no groups", file: token + `,ada,1,""` + "\n"},
		{name: "empty group", file: token + `,ada,1,"a,,b"` + "\n", err: "row 1: group 2 is empty"},
		{name: "comment and blank", file: "# operators\n\n" + token + ",ada,1\n"},
		{name: "two columns", file: token + ",ada\n", err: "row 1: 2 columns given"},
		{name: "five columns", file: token + ",ada,1,a,b\n", err: "row 1: 5 columns given"},
		{name: "short token", file: "password,ada,1\n", err: "row 1: token has 8 characters"},
		{name: "token with a space", file: `"31ada4fd adec 460c 809a",ada,1` + "\n", err: "not allowed in an HTTP header"},
		{name: "token with a letter beyond ASCII", file: "31ada4fd-adec-460c-809\u00e4,ada,1\n", err: "not allowed in an HTTP header"},
		{name: "no user", file: token + ",,1\n", err: "row 1: user is empty"},
		{name: "twice", file: token + ",ada,1\n" + token + ",eve,2\n", err: "row 2: duplicate token, an earlier row has the same one"},
		{name: "open quote", file: token + `,ada,1,"a` + "\n", err: "line 1: extraneous"},
	} {
		t.Run(test.name, func(t *testing.T) {
			f, err := auth.ParseTokenFile([]byte(test.file))
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) || strings.Contains(err.Error(), token) {
					t.Fatalf("error %v, want %q and no token", err, test.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			r, _ := http.NewRequest("GET", "/", nil)
			r.Header.Set("Authorization", "bearer  "+token)
			user := must.Value(f.Authenticate(r))(t)
			if test.name == "groups" && !slices.Equal(user.Groups, []string{"a", "b"}) {
				t.Errorf("groups %q", user.Groups)
			}
		})
	}
	var zero auth.TokenFile
	r, _ := http.NewRequest("GET", "/", nil)
	r.Header.Set("Authorization", "Bearer "+token)
	if _, err := zero.Authenticate(r); err == nil {
		t.Error("the zero TokenFile authenticates a token, want an error")
	}
}

func FuzzParseTokenFile(f *testing.F) {
	f.Add([]byte("31ada4fd-adec-460c-809a-9e56ceb75269,ada,1,\"a,b\"\n"))
	f.Add([]byte("# one\n\n31ada4fd-adec-460c-809a-9e56ceb75269, ada, ,\"a\n"))
	f.Add([]byte("a,b\n\"\n"))
	f.Add([]byte(strings.Repeat("\"\n", 10_000)))
	f.Add([]byte(strings.Repeat(",", 100_000)))
	f.Fuzz(func(t *testing.T, data []byte) {
		fuzzing.RunWithinLimit(t, func() {
			file, err := auth.ParseTokenFile(data)
			if (file == nil) == (err == nil) {
				t.Fatalf("file %v, error %v", file, err)
			}
			if err != nil {
				return
			}
			for _, bearer := range []string{"", "Bearer", "Bearer ", "Bearer " + string(data), "Basic " + string(data)} {
				r := &http.Request{Header: http.Header{"Authorization": {bearer}}}
				if user, err := file.Authenticate(r); err == nil && len(strings.TrimSpace(strings.TrimPrefix(bearer, "Bearer"))) < auth.MinBearer {
					t.Errorf("credential %q authenticates %+v, want an error", bearer, user)
				}
			}
		})
	})
}
