package joinformat

import (
	"bytes"
	"fmt"
	"time"

	"github.com/kubejoin/kubejoin/tokens"
	"sigs.k8s.io/yaml"
)

// CloudConfigScript is where the script is on a machine that boots with a cloud-config. It is gone
// with the next boot, and at once when the machine has joined.
const CloudConfigScript = "/run/kubejoin/join.sh"

// What cloud-init reads of a document that begins with "#cloud-config".
type cloudConfig struct {
	WriteFiles []cloudFile `json:"write_files"`
	RunCmd     []string    `json:"runcmd"`
}

type cloudFile struct {
	Path        string `json:"path"`
	Owner       string `json:"owner"`
	Permissions string `json:"permissions"`
	Content     string `json:"content"`
}

// CloudConfig is user data for cloud-init that runs [Join.Script] when the machine boots for the
// first time, after the modules that install packages. Nothing runs it again, so it waits for the
// cluster for as long as a token lasts by default, a day.
func (j Join) CloudConfig() ([]byte, error) {
	script, err := j.Script()
	if err != nil {
		return nil, err
	}
	document, err := yaml.Marshal(cloudConfig{
		WriteFiles: []cloudFile{{CloudConfigScript, "root:root", "0700", string(script)}},
		RunCmd:     []string{fmt.Sprintf("sh %s --timeout %d && rm -f %[1]s", CloudConfigScript, tokens.DefaultTTL/time.Second)},
	})
	return bytes.Join([][]byte{[]byte("#cloud-config\n"), document}, nil), err
}
