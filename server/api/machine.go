package api

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Kinds of objects about machines.
const (
	KindMachine            = "Machine"
	KindMachineList        = "MachineList"
	KindPendingMachineList = "PendingMachineList"
)

// MaxMachines is the maximum number of machines in an [AddMachines].
const MaxMachines = 100

// A MachineSpec describes a machine that may join with a key of its own.
type MachineSpec struct {
	// Node is the node name.
	Node string `json:"node"`
	// Key is the public key in PEM, a public key line of OpenSSH, "sha256:" and the SHA-256 of the SubjectPublicKeyInfo in
	// hexadecimal digits, or the four words of its fingerprint.
	Key string `json:"key"`
	// Replace allows a name that a Node or a token has. The machine can join once no Ready Node has this name.
	Replace bool `json:"replace,omitempty"`

	// TTL and Expires limit how long the machine can prove its key, as in TokenSpec. If both are empty, the machine never expires.
	TTL     string `json:"ttl,omitempty"`
	Expires string `json:"expires,omitempty"`
	// The other fields are as in TokenSpec.
	CertificateDuration string   `json:"certificateDuration,omitempty"`
	Role                string   `json:"role,omitempty"`
	Rejoin              string   `json:"rejoin,omitempty"`
	NodeLabels          []string `json:"nodeLabels,omitempty"`
	NodeTaints          []string `json:"nodeTaints,omitempty"`
	NodeReadyAfter      string   `json:"nodeReadyAfter,omitempty"`
}

// ItemField returns the name of a field of an item in a request. An empty field means the item.
func ItemField(item int, field string) string {
	if field != "" {
		field = "." + field
	}
	return fmt.Sprintf("items[%d]%s", item, field)
}

// Item splits a problem whose field [ItemField] has made, into the index of the item and the problem of its field.
func (p FieldProblem) Item() (item int, field FieldProblem, ok bool) {
	number, rest, ok := strings.Cut(strings.TrimPrefix(p.Field, "items["), "]")
	item, err := strconv.Atoi(number)
	p.Field = strings.TrimPrefix(rest, ".")
	return item, p, ok && err == nil
}

// maxItems is the maximum size of the items of an [AddMachines], in bytes. It leaves room in the largest body.
const maxItems = 60 << 10

// SplitMachines splits machines into the items of several [AddMachines] that a server accepts.
func SplitMachines(all []MachineSpec) (parts [][]MachineSpec) {
	from, size := 0, 0
	for to, s := range all {
		body, _ := json.Marshal(s) // never fails for strings
		if to-from == MaxMachines || to > from && size+len(body) >= maxItems {
			parts = append(parts, all[from:to])
			from, size = to, 0
		}
		size += len(body) + 1
	}
	if len(all) > 0 {
		parts = append(parts, all[from:])
	}
	return parts
}

// AddMachines adds machines. It can be repeated: it does not change machines that were added before.
type AddMachines struct {
	// Items are 1 to MaxMachines machines.
	Items  []MachineSpec `json:"items"`
	DryRun bool          `json:"dryRun,omitempty"`
}

// Values of Machine.Result.
const (
	MachineAdded     = "added"
	MachineUnchanged = "unchanged"
	MachineFailed    = "failed"
)

// Values of Machine.State.
const (
	// MachineWaiting: the machine has no token yet.
	MachineWaiting = "waiting"
	// MachineGotToken: the machine has proven its key, and got a token.
	MachineGotToken = "got-token"
	MachineExpired  = "expired"
	// MachineRevoked: the node is revoked, and so is the key.
	MachineRevoked = "revoked"
	// MachineCloned: another machine proves the key of a Node that is Ready.
	MachineCloned = "cloned"
)

// A Machine is a machine that may join with a key of its own.
type Machine struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`

	Node string `json:"node"`
	// Key is "sha256:" and the SHA-256 of the public key. If the machine was added with words, Key is empty until the machine has
	// proven its key.
	Key string `json:"key,omitempty"`
	// Fingerprint has the first 64 bits of Key as four words.
	Fingerprint string    `json:"fingerprint"`
	Added       time.Time `json:"added,omitzero"`
	AddedBy     string    `json:"addedBy,omitempty"`
	// Expires is zero, and omitted, if the machine never expires.
	Expires time.Time `json:"expires,omitzero"`

	CertificateDuration string   `json:"certificateDuration,omitempty"`
	Role                string   `json:"role,omitempty"`
	Rejoin              string   `json:"rejoin,omitempty"`
	NodeLabels          []string `json:"nodeLabels,omitempty"`
	NodeTaints          []string `json:"nodeTaints,omitempty"`
	NodeReadyAfter      string   `json:"nodeReadyAfter,omitempty"`

	// Token is the ID of the last token that the machine got; empty if there was none.
	Token string `json:"token,omitempty"`
	// State is one of the constants.
	State string `json:"state"`

	// Result says what AddMachines did, and Problem why it failed.
	Result   string   `json:"result,omitempty"`
	Problem  string   `json:"problem,omitempty"`
	DryRun   bool     `json:"dryRun,omitempty"`
	Warnings []string `json:"warnings,omitempty"`
}

// A MachineList has all machines or one page of them, sorted by node name, or the results of AddMachines in the order of its items.
type MachineList struct {
	APIVersion string    `json:"apiVersion"`
	Kind       string    `json:"kind"`
	Items      []Machine `json:"items"`
	// Continue is the ListPage.Continue of the next page; empty on the last page.
	Continue string `json:"continue,omitempty"`
}

// DeleteMachine deletes a machine.
type DeleteMachine struct {
	DryRun bool `json:"dryRun,omitempty"`
}

// A PendingMachine is a handshake with a key that no machine has. A stranger can choose each field but From.
type PendingMachine struct {
	Node        string    `json:"node"`
	Fingerprint string    `json:"fingerprint"`
	Key         string    `json:"key"`
	From        string    `json:"from"`
	First       time.Time `json:"first"`
	Last        time.Time `json:"last"`
}

// A PendingMachineList has the last handshakes of one replica with unknown keys, the newest first.
type PendingMachineList struct {
	APIVersion string           `json:"apiVersion"`
	Kind       string           `json:"kind"`
	Items      []PendingMachine `json:"items"`
}

// PrintMachineJoin returns a document for machines that join with their keys.
type PrintMachineJoin struct {
	// Node is the node name; empty means the host name of each machine.
	Node string `json:"node,omitempty"`
	// Endpoint is the HOST:PORT of the kubejoin server at which machines prove their keys; empty means the server of this request.
	Endpoint string `json:"endpoint,omitempty"`
	// Format is script, cloud-config or ignition; empty means script.
	Format string `json:"format,omitempty"`
}
