package daemon

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/kubejoin/kubejoin/server"
)

func TestOnlyTheTokenFileMakesAdmins(t *testing.T) {
	const admin, other = "admin-bearer-0123456789", "other-bearer-0123456789"
	operators, err := server.ParseTokenFile([]byte(admin + ",ada,1,kubejoin:admins\n" + other + ",vic,2,dev\n"))
	if err != nil {
		t.Fatal(err)
	}
	inGroup := server.User{Name: "jane", Groups: []string{AdminGroup}}
	for _, test := range []struct {
		name, bearer string
		user         server.User
		asked        bool // the others
	}{
		{"an admin of the file", admin, server.User{Name: "ada", Groups: []string{AdminGroup}}, false},
		{"another of the file", other, server.User{Name: "vic"}, true},
		{"a group by TokenReview", "service-account-token", inGroup, true},
		{"a group by a client certificate", "", inGroup, true},
		{"both", other, inGroup, true},
	} {
		asked := false
		authorize := adminsOr(operators, func(_ *http.Request, u server.User, _ server.Access) error {
			asked = u.Name == test.user.Name
			return server.ErrForbidden
		})
		r := httptest.NewRequestWithContext(t.Context(), "GET", "/", nil)
		if test.bearer != "" {
			r.Header.Set("Authorization", "Bearer "+test.bearer)
		}
		if err := authorize(r, test.user, server.Access{Verb: "get", Resource: "tokens"}); asked != test.asked || errors.Is(err, server.ErrForbidden) != test.asked {
			t.Errorf("%s: %v, the others asked: %v", test.name, err, asked)
		}
	}
}
