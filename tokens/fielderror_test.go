package tokens_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/tokens"
)

func TestFieldErrors(t *testing.T) {
	known := errors.New("known")
	err := tokens.Record{
		Token: parse(t, id+"."+secret), Description: "\n",
		Limits:  tokens.Limits{Problem: errors.Join(known, &tokens.FieldError{Field: "kubejoin.io/role", Err: known}), MaxNodes: -1, CertificateDuration: 1, NodeNames: []string{"A", "A"}},
		Expires: time.Unix(-1, 0),
	}.CheckNew()
	var fields, texts []string
	for _, e := range tokens.FieldErrors(err) {
		fields, texts = append(fields, e.Field), append(texts, e.Error())
		if e.Field != "" && e.Error() != e.Field+": "+e.Unwrap().Error() {
			t.Errorf("got error %[2]v of field %[1]s", e.Field, e)
		}
	}
	if got, want := fmt.Sprintf("%q", fields), `["description" "" "kubejoin.io/role" "max-nodes" "node-names" "node-names" "certificate-duration" "expiration"]`; got != want {
		t.Errorf("fields %s, want %s", got, want)
	}
	if strings.Join(texts, "\n") != err.Error() {
		t.Errorf("got errors\n%s\nwant\n%v", strings.Join(texts, "\n"), err)
	}
	if !errors.Is(err, known) {
		t.Error("the error does not wrap its cause")
	}
	if all := tokens.FieldErrors(nil); all != nil {
		t.Errorf("got FieldErrors(nil) = %v, want nil", all)
	}
	if all := tokens.FieldErrors(known); len(all) != 1 || all[0].Err != known || all[0].Error() != "known" {
		t.Errorf("got %v for an error without a field", all)
	}
}
