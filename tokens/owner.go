package tokens

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/kubejoin/kubejoin/internal/dnsname"
)

// OwnerForm is the text form of an [Owner].
const OwnerForm = "APIVERSION/KIND/NAME/UID"

// An Owner is a cluster-scoped object that owns the Secret of a token. When the object is deleted, or has another UID,
// Kubernetes deletes the token. The zero Owner means that the token has no owner.
type Owner struct{ APIVersion, Kind, Name, UID string }

var (
	apiVersion    = regexp.MustCompile(`\Av[0-9]+((alpha|beta)[0-9]+)?\z`)
	kindPattern   = regexp.MustCompile(`\A[A-Z][A-Za-z0-9]{0,62}\z`)
	uidPattern    = regexp.MustCompile(`\A[A-Za-z0-9-]{1,64}\z`)
	objectPattern = regexp.MustCompile(`\A[A-Za-z0-9][A-Za-z0-9:._@-]{0,252}\z`)
)

// ParseOwner reads an owner in the form of [OwnerForm], for example karpenter.sh/v1/NodeClaim/default-abc/UID. The UID can
// be missing: then the Owner is not valid until it has one. Its errors name the part.
func ParseOwner(s string) (Owner, error) {
	version, rest, _ := strings.Cut(s, "/")
	if !apiVersion.MatchString(version) { // of a named group
		var name string
		name, rest, _ = strings.Cut(rest, "/")
		version += "/" + name
	}
	parts := append(strings.Split(rest, "/"), "")
	if len(parts) != 3 && len(parts) != 4 {
		return Owner{}, fmt.Errorf("%.300q given, want %s", Redact(s), OwnerForm)
	}
	o := Owner{version, parts[0], parts[1], parts[2]}
	checked := o
	if len(parts) == 3 {
		checked.UID = "-"
	}
	return o, checked.Check()
}

// String returns the text of an owner.
func (o Owner) String() string {
	return strings.Join([]string{o.APIVersion, o.Kind, o.Name, o.UID}, "/")
}

// Check returns an error that names the first invalid part.
func (o Owner) Check() error {
	group, version, found := strings.Cut(o.APIVersion, "/")
	if !found {
		group, version = "core", o.APIVersion
	}
	wrong := func(part, given, want string) error {
		return fmt.Errorf("%s %.300q given, want %s, as in %s", part, Redact(given), want, OwnerForm)
	}
	switch {
	case !dnsname.IsSubdomain(group) || !apiVersion.MatchString(version):
		return wrong("APIVERSION", o.APIVersion, "a version such as v1 or karpenter.sh/v1")
	case !kindPattern.MatchString(o.Kind):
		return wrong("KIND", o.Kind, "a kind such as Node")
	case !objectPattern.MatchString(o.Name):
		return wrong("NAME", o.Name, "the name of an object")
	case !uidPattern.MatchString(o.UID):
		return wrong("UID", o.UID, "the metadata.uid of the object")
	}
	return nil
}
