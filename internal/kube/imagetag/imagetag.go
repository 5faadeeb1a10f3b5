// Package imagetag reads versions in the names of container images.
package imagetag

import (
	"strings"

	"k8s.io/apimachinery/pkg/util/version"
)

// Before reports whether the tag of an image is a version older than the given one, for example "1.36". Before also returns
// true if the tag is not a version, because then the version is unknown.
func Before(image, than string) bool {
	image = image[strings.LastIndex(image, "/")+1:] // a registry may have a port
	image, _, _ = strings.Cut(image, "@")
	_, tag, _ := strings.Cut(image, ":")
	v, err := version.ParseGeneric(tag)
	return err != nil || v.LessThan(version.MustParseGeneric(than))
}
