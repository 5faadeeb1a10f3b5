package joinformat

import (
	"bytes"
	"fmt"
	"time"

	"github.com/kubejoin/kubejoin/tokens"
	"sigs.k8s.io/yaml"
)

// CloudConfigScript is the path of the script on a machine that boots with a cloud-config. The script is
// deleted when the machine has joined, and at the next boot.
const CloudConfigScript = "/run/kubejoin/join.sh"

// CloudConfig returns user data for cloud-init that runs [Join.Script] at the first boot, after the modules
// that install packages. Nothing restarts the script, so it waits for the cluster for a day, which is the
// default TTL of a token. The script is compressed and has no --diagnose, so that the document has at most 12
// KiB.
func (j Join) CloudConfig() ([]byte, error) {
	content, err := j.userData()
	if err != nil {
		return nil, err
	}
	document, err := yaml.Marshal(object{
		"write_files": []object{{"path": CloudConfigScript, "owner": "root:root", "permissions": "0700", "encoding": "gz+b64", "content": content}},
		"runcmd":      []string{fmt.Sprintf("sh %s --timeout %d && rm -f %[1]s", CloudConfigScript, tokens.DefaultTTL/time.Second)},
	})
	return bytes.Join([][]byte{[]byte("#cloud-config\n"), document}, nil), err
}
