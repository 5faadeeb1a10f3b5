package token

import (
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/miekg/pkcs11"
)

// A URI names a private key on a token, as defined in RFC 7512. [ParseURI] creates a URI.
type URI struct {
	// Token is the label of the token, and Serial its serial number. At least one of them is set.
	Token, Serial string
	// Further attributes that the token and the PKCS#11 library must have; empty matches any value. LibraryVersion
	// has a form such as "2" or "2.6".
	Model, Manufacturer                                     string
	LibraryManufacturer, LibraryDescription, LibraryVersion string
	// Object is the label of the key, and ID its CKA_ID. At least one of them is set.
	Object, ID string
	// Module is the path of the PKCS#11 library. PINFile is the path of the file with the PIN.
	Module, PINFile string
}

// ParseURI parses a URI such as
//
//	pkcs11:token=ca;object=kubernetes-ca?module-path=/usr/lib/softhsm/libsofthsm2.so&pin-source=file:/etc/kubejoin/pin
//
// The path has token or serial, and object or id. It may also have model, manufacturer, library-manufacturer,
// library-description and library-version, as p11tool prints them. The query has module-path and pin-source, both with
// absolute paths. All other attributes are errors. pin-value is also an error, because a PIN must not be on a command line.
// Errors contain no value of the query.
func ParseURI(text string) (URI, error) {
	var u URI
	rest, found := strings.CutPrefix(text, "pkcs11:")
	if !found {
		return u, errors.New("want a URI of RFC 7512, such as pkcs11:token=ca;object=kubernetes-ca?module-path=/PATH/LIBRARY.so&pin-source=file:/PATH/PIN")
	}
	path, query, _ := strings.Cut(rest, "?")
	kind, pinSource := "", ""
	into := map[string]*string{"token": &u.Token, "serial": &u.Serial, "object": &u.Object, "id": &u.ID, "type": &kind, "model": &u.Model, "manufacturer": &u.Manufacturer,
		"library-manufacturer": &u.LibraryManufacturer, "library-description": &u.LibraryDescription, "library-version": &u.LibraryVersion}
	if err := attributes(path, ";", into); err != nil {
		return URI{}, err
	}
	if strings.Contains("&"+query, "&pin-value=") {
		return URI{}, errors.New("pin-value: not accepted, because others can read command lines; want pin-source=file:/PATH")
	}
	if err := attributes(query, "&", map[string]*string{"module-path": &u.Module, "pin-source": &pinSource}); err != nil {
		return URI{}, err
	}
	u.PINFile = strings.TrimPrefix(strings.TrimPrefix(pinSource, "file://"), "file:")
	switch {
	case kind != "" && kind != "private":
		return URI{}, fmt.Errorf("type: %q given, want private", kind)
	case u.LibraryVersion != "" && !version.MatchString(u.LibraryVersion):
		return URI{}, fmt.Errorf("library-version: %.40q given, want a version such as 2 or 2.6", u.LibraryVersion)
	case u.Token == "" && u.Serial == "":
		return URI{}, errors.New("token: missing, want the label of the token, or serial")
	case u.Object == "" && u.ID == "":
		return URI{}, errors.New("object: missing, want the label of the key, or id")
	case !filepath.IsAbs(u.Module):
		return URI{}, errors.New("module-path: want the absolute path of the PKCS#11 library")
	case !filepath.IsAbs(u.PINFile):
		return URI{}, errors.New("pin-source: want file: and the absolute path of a file with the PIN")
	}
	return u, nil
}

// version matches a library-version.
var version = regexp.MustCompile(`^[0-9]{1,3}(\.[0-9]{1,3})?$`)

// namesToken reports whether the URI names this token.
func (u URI) namesToken(token pkcs11.TokenInfo) bool {
	return isOrAny(u.Token, token.Label) && isOrAny(u.Serial, token.SerialNumber) && isOrAny(u.Model, token.Model) && isOrAny(u.Manufacturer, token.ManufacturerID)
}

// namesLibrary reports whether the URI names this library. A library-version without a minor version means minor version 0.
func (u URI) namesLibrary(library pkcs11.Info) bool {
	wanted := u.LibraryVersion
	if wanted != "" && !strings.Contains(wanted, ".") {
		wanted += ".0"
	}
	return isOrAny(wanted, versionText(library.LibraryVersion)) && isOrAny(u.LibraryManufacturer, library.ManufacturerID) && isOrAny(u.LibraryDescription, library.LibraryDescription)
}

func versionText(v pkcs11.Version) string { return fmt.Sprintf("%d.%d", v.Major, v.Minor) }

// isOrAny reports whether value is the wanted value of an attribute. An empty wanted value matches any value.
func isOrAny(wanted, value string) bool { return wanted == "" || wanted == value }

// attributes parses the attributes of one part of a URI into their fields.
func attributes(part, separator string, into map[string]*string) error {
	for attribute := range strings.SplitSeq(part, separator) {
		if attribute == "" {
			continue
		}
		name, value, _ := strings.Cut(attribute, "=")
		field := into[name]
		if field == nil {
			return fmt.Errorf("unknown attribute %.40q, want one of %s", name, strings.Join(sortedKeys(into), ", "))
		}
		decoded, err := url.PathUnescape(value)
		if err != nil || decoded == "" || strings.ContainsRune(decoded, 0) {
			return fmt.Errorf("%s: want a value, with %% and two hexadecimal digits for other characters", name)
		}
		if *field != "" {
			return fmt.Errorf("%s: given twice", name)
		}
		*field = decoded
	}
	return nil
}

func sortedKeys(m map[string]*string) []string {
	var names []string
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// String describes the key, without the paths.
func (u URI) String() string {
	text := "key"
	for _, part := range []struct{ name, value string }{{"object", u.Object}, {"id", fmt.Sprintf("%x", u.ID)}, {"token", u.Token}, {"serial", u.Serial}} {
		if part.value != "" {
			text += fmt.Sprintf(" %s=%q", part.name, part.value)
		}
	}
	return text
}
