package server

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/clusterinfo/joinformat"
	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/internal/web"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/auth"
	"github.com/kubejoin/kubejoin/signer/admission"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/pkcs10"
	"github.com/kubejoin/kubejoin/tokens"
)

// machineJoinPath is where a machine proves its key, and gets a JoinConfiguration.
const machineJoinPath = "/v1/machine/{node}/join"

// machineKey returns the node name and the key ID of a self-signed client certificate. The TLS handshake has proven the key, but
// not the name. Both are empty without such a certificate.
func machineKey(r *http.Request) (node, key string) {
	if r.TLS == nil || len(r.TLS.PeerCertificates) != 1 {
		return "", ""
	}
	leaf := r.TLS.PeerCertificates[0]
	node, found := strings.CutPrefix(leaf.Subject.CommonName, tokens.NodeUserPrefix)
	if !found || tokens.CheckNodeName(node) != nil || !bytes.Equal(leaf.RawIssuer, leaf.RawSubject) || pkcs10.CheckKey(leaf.PublicKey, leaf.RawSubjectPublicKeyInfo) != nil {
		return "", ""
	}
	return node, pkcs10.IDOfKey(leaf.RawSubjectPublicKeyInfo)
}

// joinMachine serves POST /v1/machine/NODE/join. To a machine that has proven its key in the TLS handshake, it returns a
// JoinConfiguration. The token in it admits one node, and expires after 15 minutes.
func (h *handler) joinMachine(r *call, _ struct{}) (web.Response, error) {
	node, key := machineKey(r.Request)
	if _, given := r.Header["Authorization"]; given || node != chi.URLParam(r.Request, "node") {
		return web.Response{}, web.NewProblem("unauthorized", "authentication required: want one self-signed client certificate with the subject O=system:nodes, CN=system:node:NODE; a proxy that ends TLS does not pass it on").CausedBy(errUnknownMachine)
	}
	r.log(slog.String("node", node), slog.String("key", key))
	nodes := h.Certificates.Authority.Nodes
	switch err := nodes.HasMachine(r.Context(), node, key); {
	case errors.Is(err, tokens.ErrNotFound):
		return web.Response{}, h.unknownMachine(r, node, key)
	case err != nil:
		return web.Response{}, web.NewProblem("store-unavailable", "the machines cannot be read now; retry").Unavailable(err)
	}
	user := auth.User{Name: tokens.NodeUserPrefix + node, Groups: []string{tokens.NodesGroup}}
	if err := charged(r, user.Name, key); err != nil {
		return web.Response{}, err
	}
	ctx, cancel := context.WithTimeout(r.Context(), certificateTimeout+h.signTimeout())
	defer cancel()
	proof, err := nodes.ProveMachine(ctx, node, key, tokens.Machine{}, tokens.Record{})
	if errors.Is(err, tokens.ErrNotFound) {
		return web.Response{}, h.unknownMachine(r, node, key)
	}
	var body []byte
	if err == nil {
		r.identify(user)
		body, err = h.machineToken(ctx, r, node, key, proof)
	}
	result := "granted"
	if no := approval.Refused(err); no != nil {
		p := web.NewProblem("machine-refused", "%s", no.Message)
		p.Reason = no.Reason
		err, result = p, no.Reason
		if cloned := proof.Machine.Cloned(h.Certificates.now()); cloned || no.Reason != admission.ReasonNodeIsReady {
			if result = no.Reason; cloned {
				result = "cloned"
			}
			if event := h.Certificates.RejoinEvent; event != nil {
				event(node, true, no.Reason, no.Message)
			}
		}
	} else if err != nil {
		result = "failed"
	}
	if result == "granted" {
		h.pending.forget(key)
	}
	h.results.machines.WithLabelValues(result).Inc()
	if p := (*web.Problem)(nil); err != nil && !errors.As(err, &p) && !errors.As(err, new(*tokens.Refusal)) {
		err = web.NewProblem("store-unavailable", "the token of the machine cannot be stored now; retry").Unavailable(err)
	}
	return web.Response{ContentType: "application/yaml", Body: body}, err
}

// machineToken creates a token for a machine, and stores it as the only one that can take the name. It returns a JoinConfiguration. A
// machine has only one token at a time, because each token needs a signature in cluster-info, whose size is limited.
func (h *handler) machineToken(ctx context.Context, r *call, node, key string, proof admission.Proof) (body []byte, err error) {
	controlPlane := proof.Machine.Role == tokens.RoleControlPlane
	if controlPlane && h.Minting.UploadCertificates == nil {
		return nil, web.NewProblem("certificates-not-uploaded", "this kubejoin uploads no certificates for control planes; start it on a control plane with --pki-dir")
	}
	made, err := h.operations.Minter.Join(ctx, proof.Machine.Record(node, proof.Replaces, h.Certificates.now()), func(ctx context.Context, join *joinformat.Join) (err error) {
		if controlPlane {
			if err := h.upload(ctx, r, join); err != nil {
				return err
			}
		}
		body, err = join.Configuration()
		return err
	})
	if err != nil {
		return nil, err
	}
	r.log(slog.String("token", made.Record.Token.ID()))
	// Delete the earlier token before the commit: afterwards, nothing would delete it.
	if err = h.operations.EndMachineToken(ctx, proof.Machine); err == nil {
		_, err = h.Certificates.Authority.Nodes.ProveMachine(ctx, node, key, proof.Machine, made.Record)
	}
	if err != nil {
		undelivered := tokens.Machine{TokenID: made.Record.Token.ID(), TokenUID: made.Record.UID}
		if err := h.operations.EndMachineToken(context.WithoutCancel(ctx), undelivered); err != nil {
			h.log.Warn("cannot delete an undelivered token of a machine", "token", undelivered.TokenID, "error", safetext.Text(err.Error(), safetext.MaxMessage))
		}
	}
	return body, err
}

// unknownMachine returns the problem of a key that no machine has, and adds the handshake to the pending machines. Unknown keys
// do not count as rejected credentials. Otherwise, machines that wait would use up the limit of their address. A key cannot be guessed.
func (h *handler) unknownMachine(r *call, node, key string) error {
	h.results.machines.WithLabelValues("unknown").Inc()
	h.pending.add(api.PendingMachine{Node: node, Key: key, Fingerprint: tokens.Words(key), From: remoteAddr(r).String()}, h.Certificates.now())
	return web.NewProblem("unauthorized", "kubejoin knows no machine %s with this key: on the cluster, run: kubejoin machine add %[1]s --key %s", node, tokens.Words(key)).CausedBy(errUnknownMachine)
}

// errUnknownMachine is the cause of a problem about a key that no machine has, or about a request without a key.
var errUnknownMachine = errors.New("unknown machine")

// addMachines adds machines with keys of their own.
func (h *handler) addMachines(r *call, req api.AddMachines) (web.Response, error) {
	checked := map[auth.Access]error{} // most machines need the same permissions
	return shown(h.operations.AddMachines(r.Context(), req, r.user.Name, func(record *tokens.Record, now time.Time) error {
		all := h.Limits.extraPermissions("machines", *record, "ttl", now)
		if record.Limits.Role != "" { // the machine gets the certificates of control planes
			all = append(all, extraPermission{auth.Access{Verb: "create", Resource: "machines/controlplane"}, "role", ""})
		}
		for _, needed := range all {
			err, found := checked[needed.access]
			if !found {
				err = h.checkExtraPermission(r, needed)
				checked[needed.access] = err
			}
			if err != nil {
				return err
			}
		}
		return nil
	}))
}

// listMachines returns all machines, or a page of them.
func (h *handler) listMachines(r *call, req api.ListPage) (web.Response, error) {
	return shown(h.operations.MachinesPage(r.Context(), req))
}

// getMachine returns one machine.
func (h *handler) getMachine(r *call, _ struct{}) (web.Response, error) {
	return shown(h.operations.GetMachine(r.Context(), chi.URLParam(r.Request, "node")))
}

// deleteMachine deletes a machine.
func (h *handler) deleteMachine(r *call, req api.DeleteMachine) (web.Response, error) {
	node := chi.URLParam(r.Request, "node")
	r.log(slog.String("node", node))
	return shown(h.operations.DeleteMachine(r.Context(), node, req))
}

// listPendingMachines returns the recent handshakes with unknown keys.
func (h *handler) listPendingMachines(*call, struct{}) (web.Response, error) {
	return web.Object(http.StatusOK, api.PendingMachineList{APIVersion: api.GroupVersion, Kind: api.KindPendingMachineList, Items: h.pending.list(h.Certificates.now())})
}

// printMachineJoin returns a document for machines that join with their keys. It contains no secret.
func (h *handler) printMachineJoin(r *call, req api.PrintMachineJoin) (web.Response, error) {
	if req.Endpoint == "" {
		if req.Endpoint = h.Minting.Advertise; req.Endpoint == "" {
			req.Endpoint, _ = clusterinfo.Endpoint("https://" + r.Host) // empty with an error
		}
	}
	format, body, err := h.operations.MachineJoin(r.Context(), req)
	if err != nil {
		return web.Response{}, err
	}
	return web.Response{ContentType: format.ContentType, Body: body}, nil
}

const (
	// maxPending is how many handshakes with unknown keys are kept, and pendingAge for how long after the last one.
	maxPending = 1000
	pendingAge = time.Hour
)

// pendingMachines has the last handshake with each unknown key, in memory. If it is full, it drops entries of the addresses that have
// the most. So a flood can hide entries.
type pendingMachines struct {
	mu    sync.Mutex
	byKey map[string]api.PendingMachine
}

func (p *pendingMachines) add(m api.PendingMachine, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	m.First, m.Last = now.UTC(), now.UTC()
	if known, found := p.byKey[m.Key]; found {
		m.First = known.First
	} else if len(p.byKey) >= maxPending {
		p.evict()
	}
	if p.byKey == nil {
		p.byKey = map[string]api.PendingMachine{}
	}
	p.byKey[m.Key] = m
}

// evict removes a tenth of the entries: the oldest ones of the addresses that have the most. It removes many at once, because it
// sorts all entries each time.
func (p *pendingMachines) evict() {
	all := p.newest()
	newer, ofAddress := map[string]int{}, map[string]int{}
	for _, m := range all {
		newer[m.Key] = ofAddress[m.From]
		ofAddress[m.From]++
	}
	slices.SortStableFunc(all, func(a, b api.PendingMachine) int { return newer[a.Key] - newer[b.Key] })
	for _, m := range all[len(all)*9/10:] {
		delete(p.byKey, m.Key)
	}
}

// newest returns the entries, the newest first.
func (p *pendingMachines) newest() []api.PendingMachine {
	all := append([]api.PendingMachine{}, slices.Collect(maps.Values(p.byKey))...)
	slices.SortFunc(all, func(a, b api.PendingMachine) int {
		return cmp.Or(b.Last.Compare(a.Last), strings.Compare(a.Key, b.Key))
	})
	return all
}

// forget removes the entry of a key that is no longer unknown.
func (p *pendingMachines) forget(key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.byKey, key)
}

// list returns the entries, the newest first.
func (p *pendingMachines) list(now time.Time) []api.PendingMachine {
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.byKey, func(_ string, m api.PendingMachine) bool { return now.Sub(m.Last) > pendingAge })
	return p.newest()
}
