package api

import "time"

// KindTurn is the kind of a Turn; its apiVersion is Version.
const KindTurn = "ControlPlaneTurn"

// TakeTurn asks for the turn to join as a control plane, renews it, or gives it back.
type TakeTurn struct {
	// Node is the node name of the machine.
	Node string `json:"node"`
	// ID distinguishes machines with the same name or token: 32 random hexadecimal digits, the same ones for each
	// request of a machine.
	ID string `json:"id"`
	// Address is the IP address that the etcd member of the machine will have. If the machine dies, kubejoin removes only a
	// learner with this address.
	Address string `json:"address,omitempty"`
}

// A Turn permits a machine to join as a control plane now.
type Turn struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`

	Node string `json:"node"`
	// Since is when the turn began; zero after it was given back.
	Since time.Time `json:"since,omitzero"`
	// RenewSeconds is how often the machine should renew its turn.
	RenewSeconds int `json:"renewSeconds,omitempty"`
}
