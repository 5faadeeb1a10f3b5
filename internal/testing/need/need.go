// Package need skips a test if a program or a right is missing, with a message that test/suite recognizes.
package need

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// A Program is a program that tests run, in addition to Go, make and git.
type Program struct {
	Debian string // Debian packages that contain it
	For    string // what remains untested without it
}

// Known lists all programs that tests need.
var Known = map[string]Program{
	"bash":            {"bash", "join script in this shell, blocks of the docs"},
	"busybox":         {"busybox", "join script in this shell"},
	"certutil":        {"libnss3-tools", "CA of the page in a browser"},
	"chromium":        {"chromium fonts-wqy-zenhei", "the page at /console"},
	"cloud-init":      {"cloud-init", "user data"},
	"conntrack":       {"conntrack", "whole clusters"},
	"curl":            {"curl ca-certificates", "join script, blocks of the docs"},
	"dash":            {"dash", "join script in this shell"},
	"gawk":            {"gawk", "join script with this awk"},
	"gcc":             {"gcc libc6-dev", "data races, PKCS#11"},
	"ip":              {"iproute2", "whole clusters"},
	"iptables":        {"iptables", "whole clusters"},
	"jq":              {"jq", "blocks of the docs"},
	"mawk":            {"mawk", "join script with this awk"},
	"mksh":            {"mksh", "join script in this shell"},
	"npm":             {"npm", "the page at /console for screen readers"},
	"nsenter":         {"util-linux", "whole clusters"},
	"openssl":         {"openssl", "certificates as OpenSSL reads them, join script"},
	"original-awk":    {"original-awk", "join script with this awk"},
	"prometheus":      {"prometheus", "metrics as Prometheus reads them"},
	"prlimit":         {"util-linux", "a full disk"},
	"promtool":        {"prometheus", "alert rules and dashboard"},
	"runc":            {"runc", "whole clusters"},
	"shellcheck":      {"shellcheck", "mistakes in the join script"},
	"softhsm2-util":   {"softhsm2", "PKCS#11"},
	"strace":          {"strace", "sandbox of the systemd units"},
	"systemd-analyze": {"systemd", "systemd units"},
	"unshare":         {"util-linux", "joins of machines"},
}

// Programs skips a test without one of these programs. In CI, where $CI is set, the test fails instead.
func Programs(t testing.TB, names ...string) {
	t.Helper()
	Skip(t, Missing(names...))
}

// MissingPrograms is the environment variable in which test/suite lists programs that this machine lacks.
const MissingPrograms = "KUBEJOIN_TEST_MISSING"

// Missing is the reason to skip a test that needs these programs; empty if this machine has them.
func Missing(names ...string) string {
	var missing []string
	_ = os.Getenv(MissingPrograms) // makes Go's test cache depend on the variable, which changes once a program is installed
	for _, name := range names {
		if _, known := Known[name]; !known {
			panic("need.Known lacks the program " + name)
		}
		if _, err := exec.LookPath(name); err != nil {
			missing = append(missing, name)
		}
	}
	if missing == nil {
		return ""
	}
	return "needs " + strings.Join(missing, ", ")
}

// Root skips a test that does not run as root. In CI the test fails instead.
func Root(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		Skip(t, "needs root")
	}
}

// LeftToE2E is the reason in 'make test' to skip a test that 'make e2e' runs.
const LeftToE2E = "'make e2e' runs it"

// Long skips a test with -short, because it needs Kubernetes or etcd, or takes long. 'make e2e' runs it instead of 'make test'.
func Long(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip(LeftToE2E)
	}
}

// A skipper is a test, or a testscript.
type skipper interface {
	Skip(...any)
	Fatal(...any)
}

// Skip skips a test for a reason. Without a reason it does nothing. In CI the test fails instead.
func Skip(t skipper, reason string) {
	if h, ok := t.(testing.TB); ok {
		h.Helper()
	}
	switch {
	case reason == "":
	case os.Getenv("CI") != "":
		t.Fatal(reason + ", and in CI no test is skipped")
	default:
		t.Skip(reason)
	}
}
