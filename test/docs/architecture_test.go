package docs

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/test/harness"
)

var (
	qualified  = regexp.MustCompile("`((?:cmd|clusterinfo|internal|server|signer|tokens)(?:/[a-z0-9]+)*)\\.([A-Za-z]+(?:\\.[A-Za-z]+)?)`")
	namedDir   = regexp.MustCompile(`(?:^|[\s` + "`" + `])((?:cmd|clusterinfo|deploy|internal|server|signer|test|tokens)(?:/[a-z0-9]+)+)\b`)
	folderCell = regexp.MustCompile("(?m)^\\| (`[^|]+`) \\| ")
)

// TestArchitectureNamesWhatExists catches an old name of a function or folder in docs/architecture.md or in the table of
// folders in CONTRIBUTING.md.
func TestArchitectureNamesWhatExists(t *testing.T) {
	t.Parallel()
	page := read(t, "docs/architecture.md")
	functions := qualified.FindAllStringSubmatch(page, -1)
	if len(functions) < 10 {
		t.Errorf("%d functions found: the page has more", len(functions))
	}
	declared := map[string]map[string]bool{}
	for _, m := range functions {
		if declared[m[1]] == nil {
			declared[m[1]] = declarations(t, harness.RepositoryFile(t, m[1]))
		}
		if !declared[m[1]][m[2]] {
			t.Errorf("docs/architecture.md: package %s has no %s", m[1], m[2])
		}
	}
	var cells strings.Builder
	for _, m := range folderCell.FindAllStringSubmatch(folderMap(t), -1) {
		cells.WriteString(m[1] + "\n")
	}
	for name, text := range map[string]string{"docs/architecture.md": page, "CONTRIBUTING.md": cells.String()} {
		folders := namedDir.FindAllStringSubmatch(text, -1)
		if len(folders) < 10 {
			t.Errorf("%s: %d folders found: the page has more", name, len(folders))
		}
		for _, m := range folders {
			if info, err := os.Stat(harness.RepositoryFile(t, m[1])); err != nil || !info.IsDir() {
				t.Errorf("%s: there is no folder %s", name, m[1])
			}
		}
	}
}

// folderMap returns the section of CONTRIBUTING.md with the table of folders.
func folderMap(t *testing.T) string {
	t.Helper()
	_, section, _ := strings.Cut(read(t, "CONTRIBUTING.md"), "\n## Where things are\n")
	section, _, _ = strings.Cut(section, "\n## ")
	return section
}

// largePackage is the number of lines of code, without tests, from which on a package is large.
const largePackage = 300

// TestLargePackagesAreOnTheMap catches a large package that no page names. test/doc.go lists the packages of tests.
func TestLargePackagesAreOnTheMap(t *testing.T) {
	t.Parallel()
	text := read(t, "docs/architecture.md") + folderMap(t)
	lines, root := map[string]int{}, os.DirFS(harness.RepositoryFile(t, ""))
	err := fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && slices.Contains([]string{".git", "bin", "dist", "examples", "internal/testing", "test"}, name):
			return fs.SkipDir
		case d.IsDir(), !strings.HasSuffix(name, ".go"), strings.HasSuffix(name, "_test.go"):
			return nil
		}
		source, err := fs.ReadFile(root, name)
		lines[filepath.Dir(name)] += bytes.Count(source, []byte("\n"))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	maps.DeleteFunc(lines, func(_ string, n int) bool { return n <= largePackage })
	if len(lines) < 20 {
		t.Errorf("%d large packages found: the repository has more", len(lines))
	}
	for _, folder := range slices.Sorted(maps.Keys(lines)) {
		if named := regexp.MustCompile("(?m)(?:^|[\\s`])" + regexp.QuoteMeta(folder) + "(?:[\\s`:,]|/`|\\.[A-Za-z]|$)"); !named.MatchString(text) {
			t.Errorf("neither docs/architecture.md nor the map in CONTRIBUTING.md names %s, with %d lines", folder, lines[folder])
		}
	}
}

// declarations returns the functions and types of the package in a folder, and its methods as Type.Method.
func declarations(t *testing.T, dir string) map[string]bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no Go files in %s: %v", dir, err)
	}
	names := map[string]bool{}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range parsed.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				names[receiver(d)+d.Name.Name] = true
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					typ, ok := spec.(*ast.TypeSpec)
					if !ok {
						continue
					}
					names[typ.Name.Name] = true
					if of, ok := typ.Type.(*ast.InterfaceType); ok {
						for _, method := range of.Methods.List {
							for _, name := range method.Names {
								names[typ.Name.Name+"."+name.Name] = true
							}
						}
					}
				}
			}
		}
	}
	return names
}

// receiver returns the type of a method followed by a dot, or an empty string for a function.
func receiver(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return ""
	}
	of := f.Recv.List[0].Type
	if pointer, ok := of.(*ast.StarExpr); ok {
		of = pointer.X
	}
	name, ok := of.(*ast.Ident)
	if !ok {
		return "" // a generic type
	}
	return name.Name + "."
}
