package joinformat

import (
	"encoding/base64"
	"encoding/json"
)

// IgnitionScript is where the script is on a machine that boots with Ignition, until it has joined.
const IgnitionScript = "/etc/kubejoin/join.sh"

// IgnitionUnit is the service that runs it.
const IgnitionUnit = "kubejoin.service"

// Every Ignition that reads 3.x reads this.
const ignitionVersion = "3.0.0"

// The script waits for the cluster as long as it does, and is started again by systemd 244 or later
// (before that, Restart= of a oneshot is refused): a try costs two requests, and the pause is between any
// two, also when kubeadm fails at once. Wrong options alone stay wrong. time-sync.target is passive: what
// waits for NTP brings it, where it is enabled (systemd.special(7)).
const ignitionUnit = `[Unit]
Description=Join this machine to its Kubernetes cluster
ConditionPathExists=` + IgnitionScript + `
Wants=network-online.target
After=network-online.target time-sync.target containerd.service crio.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/sh ` + IgnitionScript + `
ExecStartPost=/bin/rm -f ` + IgnitionScript + `
Restart=on-failure
RestartSec=60
RestartPreventExitStatus=2

[Install]
WantedBy=multi-user.target
`

type ignitionConfig struct {
	Ignition ignitionMeta    `json:"ignition"`
	Storage  ignitionStorage `json:"storage"`
	Systemd  ignitionSystemd `json:"systemd"`
}

type ignitionMeta struct {
	Version string `json:"version"`
}

type ignitionStorage struct {
	Files []ignitionFile `json:"files"`
}

type ignitionFile struct {
	Path     string           `json:"path"`
	Mode     int              `json:"mode"` // decimal in JSON
	Contents ignitionContents `json:"contents"`
}

type ignitionContents struct {
	Source string `json:"source"`
}

type ignitionSystemd struct {
	Units []ignitionService `json:"units"`
}

type ignitionService struct {
	Name     string `json:"name"`
	Enabled  bool   `json:"enabled"`
	Contents string `json:"contents"`
}

// Ignition is a config of Ignition 3 that runs [Join.Script] when the machine boots and each
// minute after it has failed, until it has joined. Another config can merge it.
func (j Join) Ignition() ([]byte, error) {
	script, err := j.Script()
	if err != nil {
		return nil, err
	}
	document, err := json.Marshal(ignitionConfig{
		Ignition: ignitionMeta{ignitionVersion},
		Storage: ignitionStorage{[]ignitionFile{{
			IgnitionScript, 0o700, ignitionContents{"data:;base64," + base64.StdEncoding.EncodeToString(script)},
		}}},
		Systemd: ignitionSystemd{[]ignitionService{{IgnitionUnit, true, ignitionUnit}}},
	})
	return append(document, '\n'), err
}
