package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/url"
	"regexp"
	"runtime/debug"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/v1"
	"github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx/v2/common"
	"github.com/spdx/tools-golang/spdx/v2/v2_3"
)

const (
	module  = "github.com/kubejoin/kubejoin"
	license = "Apache-2.0"
	roots   = "golang.org/x/crypto/x509roots/fallback" // the module with the image's CA certificates
)

// newSBOM returns the SBOM of a binary, as SPDX 2.3 in JSON. It lists the image if there is one, kubejoin, the Go
// standard library and each module in the binary.
func newSBOM(name string, binary []byte, info *debug.BuildInfo, image v1.Image, s source) ([]byte, error) {
	sum := sha256.Sum256(binary)
	digest := hex.EncodeToString(sum[:])
	doc := &v2_3.Document{
		SPDXVersion:       v2_3.Version,
		DataLicense:       v2_3.DataLicense,
		SPDXIdentifier:    "DOCUMENT",
		DocumentName:      name,
		DocumentNamespace: "https://" + module + "/spdx/" + url.PathEscape(name) + "/" + digest,
		CreationInfo: &v2_3.CreationInfo{
			Creators: []common.Creator{{CreatorType: "Tool", Creator: module + "/deploy/image-" + s.version}},
			Created:  s.time.Format(time.RFC3339),
		},
	}
	program := goPackage(module, s.version)
	program.PackageFileName = name
	program.PackageLicenseDeclared = license
	program.PrimaryPackagePurpose = "APPLICATION"
	program.PackageChecksums = []common.Checksum{{Algorithm: common.SHA256, Value: digest}}

	if image != nil {
		hash, err := image.Digest()
		if err != nil {
			return nil, err
		}
		container := newPackage(repository, s.version, fmt.Sprintf("pkg:oci/kubejoin@%s?repository_url=%s", url.QueryEscape(hash.String()), repository))
		container.PrimaryPackagePurpose = "CONTAINER"
		container.PackageChecksums = []common.Checksum{{Algorithm: common.SHA256, Value: hash.Hex}}
		add(doc, "DOCUMENT", common.TypeRelationshipDescribe, container)
		add(doc, container.PackageSPDXIdentifier, common.TypeRelationshipContains, program)
		rootsVersion, err := versionOfRoots()
		if err != nil {
			return nil, err
		}
		add(doc, container.PackageSPDXIdentifier, common.TypeRelationshipContains, goPackage(roots, rootsVersion))
	} else {
		add(doc, "DOCUMENT", common.TypeRelationshipDescribe, program)
	}
	add(doc, program.PackageSPDXIdentifier, common.TypeRelationshipDependsOn, goPackage("stdlib", strings.TrimPrefix(info.GoVersion, "go")))
	for _, dependency := range info.Deps {
		if dependency.Replace != nil {
			dependency = dependency.Replace
		}
		add(doc, program.PackageSPDXIdentifier, common.TypeRelationshipDependsOn, goPackage(dependency.Path, dependency.Version))
	}
	var out bytes.Buffer
	err := json.Write(doc, &out, json.Indent(" "))
	return out.Bytes(), err
}

// versionOfRoots returns the version of the module with the CA certificates. The module is part of this program.
func versionOfRoots() (string, error) {
	info, _ := debug.ReadBuildInfo()
	for _, dependency := range info.Deps {
		if dependency.Path == roots {
			return dependency.Version, nil
		}
	}
	return "", fmt.Errorf("this program does not contain %s", roots)
}

// add adds a package to the document, and the relationship of the element of to this package.
func add(doc *v2_3.Document, of common.ElementID, relationship string, p *v2_3.Package) {
	doc.Packages = append(doc.Packages, p)
	doc.Relationships = append(doc.Relationships, &v2_3.Relationship{
		RefA:         common.MakeDocElementID("", string(of)),
		Relationship: relationship,
		RefB:         common.MakeDocElementID("", string(p.PackageSPDXIdentifier)),
	})
}

// goPackage returns the package of a Go module. Scanners know the standard library as module stdlib.
func goPackage(path, version string) *v2_3.Package {
	return newPackage(path, version, "pkg:golang/"+path+"@"+url.QueryEscape(version))
}

var notInID = regexp.MustCompile(`[^A-Za-z0-9.-]+`)

func newPackage(name, version, purl string) *v2_3.Package {
	return &v2_3.Package{
		PackageName:               name,
		PackageSPDXIdentifier:     common.ElementID("Package-" + notInID.ReplaceAllString(name+"-"+version, "-")),
		PackageVersion:            version,
		PackageDownloadLocation:   "NOASSERTION",
		PackageLicenseConcluded:   "NOASSERTION",
		PackageLicenseDeclared:    "NOASSERTION",
		PackageCopyrightText:      "NOASSERTION",
		PackageExternalReferences: []*v2_3.PackageExternalReference{{Category: common.CategoryPackageManager, RefType: common.TypePackageManagerPURL, Locator: purl}},
	}
}
