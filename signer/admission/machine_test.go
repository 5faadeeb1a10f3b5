package admission_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer/admission"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/tokens"
)

const machineKey = "sha256:0b6e1a8f6d7d3cf9e2f7b7a54d1c9a7f0c4f1a5f1d9be55c5a3f1f6c7f8a9b01"

func (c *cluster) addMachine(node string, m tokens.Machine) {
	claim := c.claims[node]
	if claim.Node == "" {
		claim = tokens.Claim{Node: node, UID: "uid-" + c.next(), Created: time.Now()}
	}
	claim.Version, claim.Machine = c.next(), m
	c.claims[node] = claim
}

func (c *cluster) proofToken(t *testing.T, node string) tokens.Record {
	t.Helper()
	n := c.admission()
	proof, err := n.ProveMachine(t.Context(), node, machineKey, tokens.Machine{}, tokens.Record{})
	if err != nil {
		t.Fatalf("proof 1: %v", err)
	}
	r := proof.Machine.Record(node, proof.Replaces, time.Now())
	r.Created = time.Now().Add(-time.Minute)
	c.put(r)
	r = c.records[r.Token.ID()]
	must.Value(n.ProveMachine(t.Context(), node, machineKey, proof.Machine, r))(t)
	return r
}

// Catches a copy of a key that replaces a Ready Node, with a token from before the Node became Ready.
func TestMachineReplacesNoReadyNode(t *testing.T) {
	c := newCluster()
	c.node("w")
	c.addMachine("w", tokens.Machine{Key: machineKey, Replace: true, Added: time.Now().UTC().Truncate(time.Second)})
	r := c.proofToken(t, "w")
	c.ready["w"] = "period-2" // the real machine is back
	_, err := admit(t.Context(), c.admission(), firstRequest(t, bootstrapUser(r.Token), "w", nil))
	if no := approval.Refused(err); no == nil || no.Reason != admission.ReasonNodeIsReady {
		t.Errorf("got %v, want %s", err, admission.ReasonNodeIsReady)
	}
}

// Catches a Node that counts as not Ready because Nodes.Ready is nil.
func TestMachineNeedsReaderOfReady(t *testing.T) {
	c := newCluster()
	c.addMachine("w", tokens.Machine{Key: machineKey, Replace: true, Added: time.Now().UTC().Truncate(time.Second)})
	c.node("w")
	n := c.admission()
	n.Ready = nil
	if _, err := n.ProveMachine(t.Context(), "w", machineKey, tokens.Machine{}, tokens.Record{}); err == nil || approval.Refused(err) != nil {
		t.Errorf("got %v, want an error that is no refusal", err)
	}
}

// As [TestMachineReplacesNoReadyNode], but with --existing-nodes=allow: tokens then need no permission to replace a Node.
func TestMachineTakesNoReadyNodeIfExistingAreAllowed(t *testing.T) {
	c := newCluster()
	c.addMachine("w", tokens.Machine{Key: machineKey, Added: time.Now().UTC().Truncate(time.Second)})
	r := c.proofToken(t, "w")
	c.node("w")
	c.ready["w"] = "period-1"
	n := c.admission()
	n.AllowExisting = true
	_, err := admit(t.Context(), n, firstRequest(t, bootstrapUser(r.Token), "w", nil))
	if no := approval.Refused(err); no == nil || no.Reason != admission.ReasonNodeIsReady {
		t.Errorf("got %v, want %s", err, admission.ReasonNodeIsReady)
	}
}

// Catches a machine that takes over a Node of another machine, and a machine that cannot rejoin after a release of its claim: a
// released claim does not show who registered the Node.
func TestMachineReplacesOnlyItsNode(t *testing.T) {
	for name, test := range map[string]struct {
		replace, proved, joined bool
		refused                 string
	}{
		"another Node":                   {refused: admission.ReasonNodeExists},
		"another Node, since a proof":    {proved: true, refused: admission.ReasonNodeExists},
		"another Node, with replace":     {replace: true},
		"the Node that it had joined as": {proved: true, joined: true},
	} {
		c := newCluster()
		c.addMachine("w", tokens.Machine{Key: machineKey, Replace: test.replace, Added: time.Now().UTC().Truncate(time.Second)})
		if test.proved {
			r := c.proofToken(t, "w")
			if test.joined {
				must.Value(admit(t.Context(), c.admission(), firstRequest(t, bootstrapUser(r.Token), "w", nil)))(t)
				released := c.claims["w"].AfterRelease(tokens.ReleasedClaim{})
				released.Version = c.next()
				c.claims["w"] = released
			}
		}
		c.node("w")
		_, err := c.admission().ProveMachine(t.Context(), "w", machineKey, tokens.Machine{}, tokens.Record{})
		if no := approval.Refused(err); (no == nil) != (test.refused == "") || no != nil && no.Reason != test.refused {
			t.Errorf("%s: got %v, want %q", name, err, test.refused)
		}
	}
}

// Catches two delivered tokens for one machine: nothing would delete the earlier one.
func TestOneTokenOfMachineIsDelivered(t *testing.T) {
	c := newCluster()
	c.addMachine("w", tokens.Machine{Key: machineKey, Added: time.Now().UTC().Truncate(time.Second)})
	n := c.admission()
	first, second := tokens.Record{Token: tokens.Generate(), UID: "1"}, tokens.Record{Token: tokens.Generate(), UID: "2"}
	before := c.claims["w"].Machine
	got := must.Value(n.ProveMachine(t.Context(), "w", machineKey, before, first))(t)
	if _, err := n.ProveMachine(t.Context(), "w", machineKey, before, second); err == nil {
		t.Error("a proof at the same time got a token, too")
	}
	earlier := got.Machine
	earlier.TokenUID = "0" // of another token with the same ID
	if _, err := n.ProveMachine(t.Context(), "w", machineKey, earlier, second); err == nil {
		t.Error("a proof got a token, although another token with the same ID was delivered")
	}
	must.Value(n.ProveMachine(t.Context(), "w", machineKey, got.Machine, second))(t)
	other := c.claims["w"].Machine // deleted and added again meanwhile
	other.Role = tokens.RoleControlPlane
	if _, err := n.ProveMachine(t.Context(), "w", machineKey, other, first); err == nil {
		t.Error("a token with other limits than those of the machine is delivered")
	}
}

// Standalone, no Node shows that a machine has joined. Catches a copy of its key that takes over the name.
func TestStandaloneMachineProvesUntilItHasJoined(t *testing.T) {
	c := newCluster()
	n := c.admission()
	n.Node, n.Ready = nil, nil
	machine := tokens.Machine{Key: machineKey, Added: time.Now().UTC().Truncate(time.Second)}
	c.addMachine("w", machine)
	must.Value(n.ProveMachine(t.Context(), "w", machineKey, tokens.Machine{}, tokens.Record{}))(t)
	joined := c.claims["w"]
	joined.TokenID, joined.NodeUID, joined.Version = "abc123", tokens.ByCertificate, c.next()
	c.claims["w"] = joined
	_, err := n.ProveMachine(t.Context(), "w", machineKey, tokens.Machine{}, tokens.Record{})
	if no := approval.Refused(err); no == nil || no.Reason != admission.ReasonNodeExists {
		t.Errorf("got %v, want %s", err, admission.ReasonNodeExists)
	}
	joined.TokenID, joined.NodeUID, joined.Version = "", "", c.next() // after kubejoin claim release
	c.claims["w"] = joined
	must.Value(n.ProveMachine(t.Context(), "w", machineKey, tokens.Machine{}, tokens.Record{}))(t)
}

// Catches a copy that proves the key so rarely that each proof begins a new period.
func TestSlowCloneIsReported(t *testing.T) {
	m, now := tokens.Machine{Key: machineKey}, time.Now()
	for range 3 {
		m = m.Refused(now)
		now = now.Add(tokens.CloneAfter * 3)
	}
	if now = now.Add(-tokens.CloneAfter * 3); !m.Cloned(now) || m.Cloned(now.Add(time.Hour)) {
		t.Errorf("got %+v, want a clone now, and none in an hour", m)
	}
}

// Catches a token that takes the name of a machine whose Node was deleted. The test tries tokens with and without limits, before and
// after kubejoin has released the claim.
func TestNoTokenTakesNameOfMachineWithoutNode(t *testing.T) {
	for _, released := range []bool{false, true} {
		c := newCluster()
		c.addMachine("w", tokens.Machine{Key: machineKey, Added: time.Now().UTC().Truncate(time.Second)})
		own := c.proofToken(t, "w")
		c.mustAdmit(t, firstRequest(t, bootstrapUser(own.Token), "w", nil))
		c.registerNode("w")
		c.deleteNode("w")
		if claim := c.claims["w"]; released {
			claim = claim.AfterRelease(claim.PastAfterRelease(time.Now(), 0))
			claim.Version = c.next()
			c.claims["w"] = claim
		}
		c.refreshCaches()
		for _, limits := range []tokens.Limits{{}, {MaxNodes: 1}, {MaxNodes: 1, NodeNames: []string{"w"}}, {NodeNames: []string{"*"}}} {
			_, err := admit(t.Context(), c.admission(), firstRequest(t, bootstrapUser(c.createToken(limits)), "w", nil))
			if no := approval.Refused(err); no == nil || no.Reason != admission.ReasonNodeNameClaimed {
				t.Errorf("released: %t: %+v: got %v, want %s", released, limits, err, admission.ReasonNodeNameClaimed)
			}
		}
		if _, err := admit(t.Context(), c.admission(), firstRequest(t, "jane", "w", nil)); approval.Refused(err) == nil {
			t.Errorf("released: %t: a user: got %v, want a refusal", released, err)
		}
		again := c.proofToken(t, "w")
		c.mustAdmit(t, firstRequest(t, bootstrapUser(again.Token), "w", nil))
	}
}

// Catches a refusal that asks for another token, although none can take the name of a machine.
func TestRefusalForMachineAsksForNoToken(t *testing.T) {
	for name, test := range map[string]struct {
		limits tokens.Limits                 // of another token, if there are any
		change func(*cluster, tokens.Record) // of the token
		user   string
		rejoin *approval.Rejoin
		reason string
	}{
		"own token expired": {change: func(c *cluster, r tokens.Record) {
			c.editToken(r.Token.ID(), func(r *tokens.Record) { r.Expires = time.Now().Add(-time.Minute) })
		}, reason: admission.ReasonTokenExpired},
		"own token deleted":     {change: func(c *cluster, r tokens.Record) { delete(c.records, r.Token.ID()) }, reason: admission.ReasonTokenRevoked},
		"Node registered since": {change: func(c *cluster, _ tokens.Record) { c.node("w") }, reason: admission.ReasonNodeExists},
		"another token expired": {limits: tokens.Limits{MaxNodes: 1}, change: func(c *cluster, r tokens.Record) {
			c.editToken(r.Token.ID(), func(r *tokens.Record) { r.Expires = time.Now().Add(-time.Minute) })
		}, reason: admission.ReasonTokenExpired},
		"another token for another name": {limits: tokens.Limits{MaxNodes: 1, NodeNames: []string{"v"}}, reason: admission.ReasonNodeNameNotAllowed},
		"rejoin":                         {user: tokens.NodeUserPrefix + "w", rejoin: &approval.Rejoin{Key: machineKey}, reason: admission.ReasonRejoinOff},
	} {
		c := newCluster()
		c.addMachine("w", tokens.Machine{Key: machineKey, Added: time.Now().UTC().Truncate(time.Second)})
		r := c.proofToken(t, "w")
		says := "run the join script on the machine again"
		if !test.limits.IsZero() {
			r, says = c.records[c.createToken(test.limits).ID()], "kubejoin machine delete w"
		}
		if test.change != nil {
			test.change(c, r)
		}
		c.refreshCaches()
		asked := firstRequest(t, bootstrapUser(r.Token), "w", nil)
		if test.rejoin != nil {
			asked.User, asked.Groups, asked.Rejoin = test.user, []string{tokens.NodesGroup}, test.rejoin
		}
		_, err := admit(t.Context(), c.admission(), asked)
		no := approval.Refused(err)
		if no == nil || no.Reason != test.reason || strings.Contains(no.Message, "kubejoin token create") || !strings.Contains(no.Message, says) {
			t.Errorf("%s: got %v, want %s and %q", name, err, test.reason, says)
		}
	}
}

// A Node is deleted between the two reads. Catches a machine that then has to wait for somebody.
func TestMachineProvesWhileItsNodeIsDeleted(t *testing.T) {
	c := newCluster()
	c.addMachine("w", tokens.Machine{Key: machineKey, Joined: true, Added: time.Now().UTC().Truncate(time.Second)})
	c.nodes["w"] = "uid"
	n := c.admission()
	n.Ready = func(context.Context, string) (string, error) { return "", fmt.Errorf("node: %w", tokens.ErrNotFound) }
	if _, err := n.ProveMachine(t.Context(), "w", machineKey, tokens.Machine{}, tokens.Record{}); err != nil {
		t.Errorf("got %v, want a token", err)
	}
}

// Catches a machine that is known without a claim, or by another key.
func TestKnowsNoMachineWithoutItsKey(t *testing.T) {
	c := newCluster()
	c.addMachine("w", tokens.Machine{Key: machineKey, Added: time.Now().UTC().Truncate(time.Second)})
	other := "sha256:" + strings.Repeat("b", 64)
	for about, test := range map[string]struct {
		nodes     *admission.Nodes
		node, key string
		want      error
	}{
		"its key":     {c.admission(), "w", machineKey, nil},
		"another key": {c.admission(), "w", other, tokens.ErrNotFound},
		"no machine":  {c.admission(), "v", machineKey, tokens.ErrNotFound},
		"no claims":   {&admission.Nodes{}, "w", machineKey, tokens.ErrNotFound},
		"no Nodes":    {nil, "w", machineKey, tokens.ErrNotFound},
	} {
		_, err := test.nodes.ProveMachine(t.Context(), test.node, test.key, tokens.Machine{}, tokens.Record{})
		if known := test.nodes.HasMachine(t.Context(), test.node, test.key); !errors.Is(err, test.want) || !errors.Is(known, test.want) {
			t.Errorf("%s: got %v and %v, want %v", about, known, err, test.want)
		}
	}
}
