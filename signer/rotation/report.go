package rotation

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/kubejoin/kubejoin/internal/safetext"
)

// A Report is what 'kubejoin ca apply' did on a host for one CA. The host stores it as JSON in an annotation of its
// Node. A report grants no permission. A node that sends a false report harms only itself.
type Report struct {
	// ID, CA, Stage and Since identify the state of the rotation that the host applied. Since distinguishes a stage
	// from the same stage after an abort.
	ID    string    `json:"id"`
	CA    CA        `json:"ca"`
	Stage Stage     `json:"stage"`
	Since time.Time `json:"since"`
	// Files are the files that depend on the CA. More counts files that were omitted.
	Files []File `json:"files,omitempty"`
	More  int    `json:"more,omitempty"`
	// Restart are the processes that must be restarted, because they do not read a changed file again.
	Restart []string `json:"restart,omitempty"`
	// Failed says why 'kubejoin ca apply' failed. The other fields are then empty.
	Failed string `json:"failed,omitempty"`
	// Ended is true if the rotation has ended and the host no longer has a backup of its files.
	Ended bool `json:"ended,omitempty"`
}

// A File is one file of a host. Trusts and From are as in an Observation.
type File struct {
	// Name is the path below /etc/kubernetes, for example "scheduler.conf", or an absolute path.
	Name   string   `json:"name"`
	Trusts *Trusted `json:"trusts,omitempty"`
	From   From     `json:"from,omitempty"`
	// Other is true if 'kubejoin ca apply' does not change the file, and Unseen says why it could not read it.
	Other  bool   `json:"other,omitempty"`
	Unseen string `json:"unseen,omitempty"`
}

// Annotation returns the name of the annotation of a Node with the Report about a CA.
func Annotation(ca CA) string { return "kubejoin.io/ca-" + string(ca) }

// Bounds of a Report. All annotations of a Node have 256 KiB.
const (
	MaxReport  = 32 << 10
	MaxFiles   = 64
	MaxRestart = 20
)

// Encode returns a Report as JSON for [DecodeReport].
func (p Report) Encode() (string, error) {
	data, err := json.Marshal(p)
	if err != nil {
		return "", err
	}
	_, err = DecodeReport(string(data))
	return string(data), err
}

// DecodeReport reads a Report in the annotation of a Node, which the node can write. Its error is safe to show.
func DecodeReport(annotation string) (Report, error) {
	var p Report
	err := decode([]byte(annotation), MaxReport, &p)
	if err == nil && (len(p.Files) > MaxFiles || len(p.Restart) > MaxRestart) {
		err = fmt.Errorf("%d files and %d processes, want at most %d and %d", len(p.Files), len(p.Restart), MaxFiles, MaxRestart)
	}
	for _, f := range p.Files {
		if f.From != "" && f.From != FromOld && f.From != FromNew && f.From != FromOther {
			err = fmt.Errorf("a file is from %q, want %q, %q or %q", f.From, FromOld, FromNew, FromOther)
		}
	}
	if err != nil {
		return Report{}, fmt.Errorf("malformed report: %s", safetext.Text(err.Error(), safetext.MaxMessage))
	}
	return p, nil
}

// FromReport returns the observations in the report of a node. annotation is the node's Annotation; empty if it has
// none. A report about another state of the rotation shows only that the host is behind. After the end, a host is
// behind if it still has a backup.
func (r Rotation) FromReport(node, annotation string) []Observation {
	next := "on " + node + ": " + r.CA.Command("apply")
	behind := func(why string) []Observation {
		return []Observation{{Kind: KindFile, Name: "report of " + node, Node: node, Unseen: why, Next: next}}
	}
	p, err := DecodeReport(annotation)
	switch {
	case !r.InProgress() && (err != nil || p.ID != r.ID || p.Ended):
		return nil
	case !r.InProgress():
		return behind("'kubejoin ca apply' has not completed the rotation there")
	case annotation == "":
		return behind("'kubejoin ca apply' has not run there")
	case err != nil:
		return behind(err.Error())
	case p.Failed != "" && p.ID == r.ID && p.CA == r.CA:
		return behind("'kubejoin ca apply' failed there: " + safetext.Text(p.Failed, safetext.MaxMessage))
	case p.ID != r.ID || p.CA != r.CA:
		return behind("it is about another rotation")
	case p.Stage != r.Stage || !p.Since.Equal(r.Since):
		return behind("'kubejoin ca apply' has not run there in this stage")
	}
	// A host without such files has nothing to change, but the rotation must know that it was observed.
	return append([]Observation{{Kind: KindFile, Name: "report of " + node, Node: node}}, r.fromHost(node, p)...)
}

// fromHost returns the observations in a report about the current state of the rotation.
func (r Rotation) fromHost(node string, p Report) (all []Observation) {
	on := "on " + node + ": "
	for _, f := range p.Files {
		name := safetext.Text(f.Name, safetext.MaxName)
		o := Observation{
			Kind: KindFile, Name: name + " on " + node, Node: node, File: name, Trusts: f.Trusts, From: f.From,
			Unseen: safetext.Text(f.Unseen, safetext.MaxName), Next: on + r.CA.Command("apply"),
		}
		if f.Other {
			o.Next = "change it by hand, then " + o.Next + r.orLeave(node+":"+name)
		}
		all = append(all, o)
	}
	if p.More > 0 {
		all = append(all, Observation{Kind: KindFile, Name: fmt.Sprintf("%d more files on %s", p.More, node), Node: node, Unseen: "the report names only some", Next: on + r.CA.Command("apply")})
	}
	for _, name := range p.Restart {
		next := r.CA.Command("apply") + " --restart " + safetext.Quote(name) + r.orLeave(node+":"+name)
		switch name {
		case "kubelet":
			next = "systemctl restart kubelet; then " + r.CA.Command("apply")
		case "kube-apiserver", "kube-controller-manager", "kube-scheduler", "etcd":
			next = "crictl ps -a --name " + name + "   shows why; then " + r.CA.Command("apply")
		}
		all = append(all, Observation{Kind: KindProcess, Name: safetext.Text(name, safetext.MaxName) + " on " + node, Node: node, File: safetext.Text(name, safetext.MaxName), Next: on + next})
	}
	return all
}

// orLeave returns the other remedy for a file or process: to leave it behind. It returns nothing after the
// rotation has ended, because then no step waits.
func (r Rotation) orLeave(name string) string {
	if !r.InProgress() {
		return ""
	}
	return "; or if nothing needs it: " + r.CA.Command(r.Next()) + " --leave-behind-file " + safetext.Quote(name)
}

// Unfit returns the things in a host's report that do not fit the stage of the rotation: one line each, with the next
// step.
func (r Rotation) Unfit(node string, p Report) (list []string) {
	for _, o := range r.fromHost(node, p) {
		if why := r.unfit(o); why != "" && (o.File == "" || !slices.Contains(r.LeftFiles, node+":"+o.File)) {
			list = append(list, why+"; next: "+o.Next)
		}
	}
	return list
}
