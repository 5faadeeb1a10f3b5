package datadir

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/kubejoin/kubejoin/internal/host/atomicfile"
	"github.com/kubejoin/kubejoin/internal/host/trustedpath"
	"github.com/kubejoin/kubejoin/server/api"
)

// A CurlConfig holds the server, the bearer token and the CA file in a config file for curl -K.
type CurlConfig struct {
	// Server is https://HOST:PORT; empty if the file does not name it.
	Server string
	// CAFile contains the trusted CA certificates; empty means the system's CAs.
	CAFile string
	Bearer api.Secret
}

// WriteCurlrc writes a config file for curl -K, which keeps the bearer token off the command line. The server is in a
// comment: if it were an option url, curl would request it in addition to the URL on its command line.
func (d Dir) WriteCurlrc(server, bearer string) error {
	ca, err := filepath.Abs(d.Path(Bundle))
	if err != nil {
		return err
	}
	quote := strings.NewReplacer(`\`, `\\`, `"`, `\"`)
	// Without capath, curl would also trust the system's CAs.
	content := fmt.Sprintf("# for curl -K: the cluster CA and the admin of this kubejoin\n# server = \"%s\"\ncacert = \"%s\"\ncapath = \"/dev/null\"\nheader = \"Authorization: Bearer %s\"\nsilent\nshow-error\nfail-with-body\n", server, quote.Replace(ca), quote.Replace(bearer))
	return atomicfile.Write(d.Path(Curlrc), []byte(content))
}

// ReadCurlrc reads the server, the CA path and the bearer token from a config file for curl -K. It refuses options that
// WriteCurlrc does not write, because they may change the connection, and options that are given twice. It also refuses
// a file that another user could have written, because that user would choose the server.
func ReadCurlrc(file string) (c CurlConfig, err error) {
	if err := trustedpath.Check(file); err != nil {
		return CurlConfig{}, err
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return CurlConfig{}, err
	}
	given := map[string]bool{}
	for i, line := range strings.Split(string(content), "\n") {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		name, value = strings.TrimSpace(name), strings.TrimSpace(value)
		if strings.HasPrefix(name, "#") && name != "# server" || name == "" {
			continue
		}
		if given[name] {
			return CurlConfig{}, fmt.Errorf("%s: line %d gives %s again", file, i+1, name)
		}
		given[name] = true
		if unquoted, found := strings.CutPrefix(value, `"`); found {
			value = strings.NewReplacer(`\\`, `\`, `\"`, `"`).Replace(strings.TrimSuffix(unquoted, `"`))
		}
		switch name {
		case "# server":
			c.Server = value
		case "cacert":
			if c.CAFile = value; !filepath.IsAbs(value) { // relative to the working directory, as for curl
				c.CAFile = filepath.Clean(value)
			}
		case "header":
			key, credential, _ := strings.Cut(value, ":")
			scheme, token, found := strings.Cut(strings.TrimSpace(credential), " ")
			if strings.EqualFold(strings.TrimSpace(key), "Authorization") && strings.EqualFold(scheme, "Bearer") && found {
				c.Bearer = api.Secret(strings.TrimSpace(token))
			}
		case "capath", "silent", "show-error", "fail-with-body": // of curl alone
		default:
			return CurlConfig{}, fmt.Errorf("%s: line %d has another option than cacert, capath, header, silent, show-error and fail-with-body, each followed by = if it has a value", file, i+1)
		}
	}
	if c.Bearer == "" {
		return CurlConfig{}, fmt.Errorf(`%s: want a line such as: header = "Authorization: Bearer TOKEN"`, file)
	}
	return c, nil
}
