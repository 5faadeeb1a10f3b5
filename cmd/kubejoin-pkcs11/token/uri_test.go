package token

import (
	"strings"
	"testing"
)

func TestParseURI(t *testing.T) {
	const query = "?module-path=/lib/p11.so&pin-source=file:/run/pin"
	got, err := ParseURI("pkcs11:token=a%20b;serial=12;object=k%3B1;id=%01%ff;type=private" + query)
	want := URI{Token: "a b", Serial: "12", Object: "k;1", ID: "\x01\xff", Module: "/lib/p11.so", PINFile: "/run/pin"}
	if err != nil || got != want {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	if got.String() != `key object="k;1" id="01ff" token="a b" serial="12"` {
		t.Errorf("got %s", got)
	}
	if got, err := ParseURI("pkcs11:object=k;token=t?pin-source=file:///run/pin&module-path=/m"); err != nil || got.PINFile != "/run/pin" {
		t.Errorf("got %+v, %v", got, err)
	}
	for text, want := range map[string]string{
		"":                "want a URI of RFC 7512",
		"file:/ca.key":    "want a URI of RFC 7512",
		"pkcs11:" + query: "token: missing",
		"pkcs11:token=t":  "object: missing",
		"pkcs11:object=k": "token: missing",
		"pkcs11:token=t;object=k;slot-id=1" + query:                               `unknown attribute "slot-id", want one of id, library-description, library-manufacturer, library-version, manufacturer, model, object, serial, token, type`,
		"pkcs11:token=t;object=k;library-version=2.x" + query:                     `library-version: "2.x" given, want a version such as 2 or 2.6`,
		"pkcs11:token=t;object=k;model=a;model=b" + query:                         "model: given twice",
		"pkcs11:token=t;object=k;type=cert" + query:                               `type: "cert" given`,
		"pkcs11:token=t;token=u;object=k" + query:                                 "token: given twice",
		"pkcs11:token=%zz;object=k" + query:                                       "token: want a value",
		"pkcs11:token=a%00;object=k" + query:                                      "token: want a value",
		"pkcs11:token=;object=k" + query:                                          "token: want a value",
		"pkcs11:token=t;object=k?pin-source=file:/run/pin":                        "module-path: want the absolute path",
		"pkcs11:token=t;object=k?module-path=p11.so&pin-source=file:/run/pin":     "module-path: want the absolute path",
		"pkcs11:token=t;object=k?module-path=/p11.so":                             "pin-source: want file:",
		"pkcs11:token=t;object=k?module-path=/p11.so&pin-source=https://h/sesame": "pin-source: want file:",
		"pkcs11:token=t;object=k?module-path=/p11.so&pin-source=%7Ccat%20sesame":  "pin-source: want file:",
		"pkcs11:token=t;object=k?module-path=/p11.so&pin-value=sesame":            "pin-value: not accepted",
		"pkcs11:token=t;object=k?pin-value=sesame&module-path=/p11.so":            "pin-value: not accepted",
		"pkcs11:token=t;object=k?module-name=p11&pin-source=file:/run/pin":        `unknown attribute "module-name"`,
	} {
		if _, err := ParseURI(text); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "sesame") {
			t.Errorf("%s: got %v, want %q and no secret", text, err, want)
		}
	}
}
