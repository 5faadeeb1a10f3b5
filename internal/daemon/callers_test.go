package daemon

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/server/auth"
)

func TestOnlyTheTokenFileMakesAdmins(t *testing.T) {
	const admin, other = "admin-bearer-0123456789", "other-bearer-0123456789"
	operators := must.Value(auth.ParseTokenFile([]byte(admin + ",ada,1,kubejoin:admins\n" + other + ",vic,2,dev\n")))(t)
	inGroup := auth.User{Name: "jane", Groups: []string{AdminGroup}}
	for _, test := range []struct {
		name, bearer string
		user         auth.User
		asked        bool // whether the authorizer of other callers was called
	}{
		{"an admin of the file", admin, auth.User{Name: "ada", Groups: []string{AdminGroup}}, false},
		{"another of the file", other, auth.User{Name: "vic"}, true},
		{"a group by TokenReview", "service-account-token", inGroup, true},
		{"a group by a client certificate", "", inGroup, true},
		{"both", other, inGroup, true},
	} {
		asked := false
		authorize := adminsOr(operators.Authenticate, func(_ *http.Request, u auth.User, _ auth.Access) error {
			asked = u.Name == test.user.Name
			return auth.ErrForbidden
		})
		r := httptest.NewRequestWithContext(t.Context(), "GET", "/", nil)
		if test.bearer != "" {
			r.Header.Set("Authorization", "Bearer "+test.bearer)
		}
		if err := authorize(r, test.user, auth.Access{Verb: "get", Resource: "tokens"}); asked != test.asked || errors.Is(err, auth.ErrForbidden) != test.asked {
			t.Errorf("%s: %v, the others asked: %v", test.name, err, asked)
		}
	}
}
