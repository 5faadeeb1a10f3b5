package joinformat

import "encoding/json"

// IgnitionScript is the path of the script on a machine that boots with Ignition, until the machine has
// joined.
const IgnitionScript = "/etc/kubejoin/join.sh"

// IgnitionUnit is the systemd service that runs the script.
const IgnitionUnit = "kubejoin.service"

// All Ignition versions that support spec 3 support this version.
const ignitionVersion = "3.0.0"

// The script waits for the cluster for its default timeout. systemd 244 or later starts it again after a
// failure; older versions reject Restart= in a oneshot service. An attempt costs two requests. RestartSec=
// separates any two attempts, even if kubeadm fails at once. Exit status 2 means invalid options, which no
// retry fixes. time-sync.target is passive: a service that waits for NTP pulls it in, if it is enabled
// (systemd.special(7)).
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
	Mode     int              `json:"mode"` // Ignition requires decimal
	Contents ignitionContents `json:"contents"`
}

type ignitionContents struct {
	Compression string `json:"compression"`
	Source      string `json:"source"`
}

type ignitionSystemd struct {
	Units []ignitionService `json:"units"`
}

type ignitionService struct {
	Name     string `json:"name"`
	Enabled  bool   `json:"enabled"`
	Contents string `json:"contents"`
}

// Ignition returns an Ignition 3 config that runs [Join.Script] at boot, and again a minute after each
// failure until the machine has joined. Another config can merge it. Like cloud-config, it has at most 12 KiB.
func (j Join) Ignition() ([]byte, error) {
	content, err := j.userData()
	if err != nil {
		return nil, err
	}
	document, err := json.Marshal(ignitionConfig{
		Ignition: ignitionMeta{ignitionVersion},
		Storage: ignitionStorage{[]ignitionFile{{
			IgnitionScript, 0o700, ignitionContents{"gzip", "data:;base64," + content},
		}}},
		Systemd: ignitionSystemd{[]ignitionService{{IgnitionUnit, true, ignitionUnit}}},
	})
	return append(document, '\n'), err
}
