package operations

import (
	"cmp"
	"context"
	"crypto"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/clusterinfo/joinformat"
	"github.com/kubejoin/kubejoin/clusterinfo/mint"
	"github.com/kubejoin/kubejoin/internal/pemfile"
	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/signer/pkcs10"
	"github.com/kubejoin/kubejoin/tokens"
	"golang.org/x/crypto/ssh"
)

// MachineKey returns the key ID of a public key in any form that api.MachineSpec.Key accepts, or its words.
func MachineKey(text string) (string, error) {
	text = strings.TrimSpace(text)
	if low := strings.ToLower(text); tokens.CheckMachineKey(low) == nil {
		return low, nil
	}
	if strings.Contains(text, "PRIVATE KEY-----") {
		return "", errors.New("a private key is given, want the public key: openssl pkey -in FILE -pubout, or ssh-keygen -y -f FILE; kubejoin never needs the private key")
	}
	var der []byte
	var key crypto.PublicKey
	var err error
	switch line, _, options, _, notSSH := ssh.ParseAuthorizedKey([]byte(text)); {
	case strings.HasPrefix(text, "-----BEGIN"):
		if der, err = pemfile.One([]byte(text), pemfile.PublicKey); err == nil {
			key, err = x509.ParsePKIXPublicKey(der)
		}
	case notSSH != nil, strings.ContainsAny(text, "\r\n"), len(options) > 0: // ParseAuthorizedKey skips other lines
		err = errors.New("want a public key in PEM, one public key line of OpenSSH without options, sha256: with 64 hexadecimal digits, or the four words of a fingerprint")
	default:
		if public, ok := line.(ssh.CryptoPublicKey); ok && !strings.HasPrefix(line.Type(), "sk-") { // a hardware token for SSH cannot sign a TLS handshake
			key = public.CryptoPublicKey()
		}
		der, err = x509.MarshalPKIXPublicKey(key)
	}
	if err == nil {
		err = pkcs10.CheckKey(key, der)
	}
	if err != nil {
		return "", err
	}
	return pkcs10.IDOfKey(der), nil
}

// Machine returns the machine of a claim as the API shows it.
func Machine(c tokens.Claim) api.Machine {
	m := c.Machine
	shown := api.Machine{
		APIVersion: api.GroupVersion, Kind: api.KindMachine,
		Node: c.Node, Key: m.Key, Fingerprint: tokens.Words(m.Key), Added: m.Added, AddedBy: m.By, Expires: m.Expires, Role: m.Role, Rejoin: m.Rejoin,
		NodeLabels: tokens.SplitProperties(m.Node.Labels), NodeTaints: tokens.SplitProperties(m.Node.Taints), NodeReadyAfter: m.Node.ReadyAfter,
		Token: m.TokenID, State: machineState(m, time.Now()),
	}
	if tokens.IsWords(m.Key) {
		shown.Key, shown.Fingerprint = "", m.Key
	}
	if d := m.CertificateDuration; d > 0 {
		shown.CertificateDuration = d.String()
	}
	return shown
}

func machineState(m tokens.Machine, now time.Time) string {
	switch {
	case m.Revoked:
		return api.MachineRevoked
	case m.Cloned(now):
		return api.MachineCloned
	case m.Expired(now):
		return api.MachineExpired
	case m.TokenID != "":
		return api.MachineGotToken
	}
	return api.MachineWaiting
}

// machineOf returns the machine that a spec describes. With Replace, it does not read the Node to replace.
func machineOf(ctx context.Context, s api.MachineSpec, by string, now time.Time, permit Permit, read Readers) (tokens.Machine, error) {
	key, keyErr := MachineKey(s.Key)
	if keyErr != nil {
		keyErr = api.InvalidField("key", "%v", keyErr)
	}
	nodeErr := tokens.CheckNodeName(s.Node)
	if nodeErr == nil && tokens.IsOwnName(s.Node) {
		nodeErr = fmt.Errorf("%s given, want another name: kubejoin's own Leases are named %s or %s-…", s.Node, tokens.OwnName, tokens.OwnName)
	}
	if nodeErr != nil {
		return tokens.Machine{}, api.JoinInvalid(keyErr, api.InvalidField("node", "%v", nodeErr))
	}
	spec := api.TokenSpec{
		TTL: s.TTL, Expires: s.Expires, MaxNodes: 1, NodeNames: []string{s.Node}, CertificateDuration: s.CertificateDuration, Role: s.Role, Rejoin: s.Rejoin,
		NodeLabels: s.NodeLabels, NodeTaints: s.NodeTaints, NodeReadyAfter: s.NodeReadyAfter,
	}
	if spec.TTL == "" && spec.Expires == "" {
		spec.TTL = "0"
	}
	record, err := Record(ctx, spec, tokens.Generate(), now, func(r *tokens.Record, now time.Time) error {
		if keyErr != nil {
			return keyErr
		}
		if s.Replace {
			r.Limits.Replaces.Name = s.Node
		}
		return permit(r, now)
	}, read)
	m := tokens.MachineOf(key, by, record, now)
	m.Replace = s.Replace
	return m, err
}

// CheckMachine returns the key ID or the words of a machine. It returns the errors in its fields that need no cluster to find.
func CheckMachine(s api.MachineSpec) (key string, err error) {
	m, err := machineOf(context.Background(), s, "", time.Now(), Everything, anyReaders)
	return m.Key, err
}

// machineWriters is how many machines AddMachines writes at the same time.
const machineWriters = 16

// AddMachines adds machines with keys of their own. If one machine is invalid or not permitted, it adds none. by is the user who adds
// them. The result has an item for each machine, in the order of the request.
func (o *Operations) AddMachines(ctx context.Context, req api.AddMachines, by string, permit Permit) (list api.MachineList, err error) {
	if o.Claims == nil {
		return list, errNoClaims
	}
	by = safetext.Text(by, tokens.MaxMachineBy)
	if n := len(req.Items); n < 1 || n > api.MaxMachines {
		return list, api.InvalidField("items", "%d machines given, want 1 to %d", n, api.MaxMachines)
	}
	now, machines := time.Now(), make([]tokens.Machine, len(req.Items))
	var errs []error
	for i, s := range req.Items {
		machines[i], err = machineOf(ctx, s, by, now, permit, o.Readers)
		var invalid api.InvalidFields
		if err != nil && !errors.As(err, &invalid) {
			return list, err
		}
		for _, e := range invalid {
			errs = append(errs, api.InvalidFields{{Field: api.ItemField(i, e.Field), Detail: e.Detail}})
		}
		if slices.ContainsFunc(req.Items[:i], func(other api.MachineSpec) bool { return other.Node == s.Node }) {
			errs = append(errs, api.InvalidField(api.ItemField(i, "node"), "%s given more than once", s.Node))
		}
		if err == nil && slices.ContainsFunc(machines[:i], func(m tokens.Machine) bool { return m.HasKey(machines[i].Key) || machines[i].HasKey(m.Key) }) {
			errs = append(errs, api.InvalidField(api.ItemField(i, "key"), "given more than once"))
		}
	}
	if err := api.JoinInvalid(errs...); err != nil {
		return list, err
	}
	if err := o.checkQuota(ctx, req.Items, by); err != nil {
		return list, err
	}
	list = api.MachineList{APIVersion: api.GroupVersion, Kind: api.KindMachineList, Items: make([]api.Machine, len(machines))}
	failures := make([]error, len(machines))
	var writing sync.WaitGroup
	slots := make(chan struct{}, machineWriters)
	for i, m := range machines {
		slots <- struct{}{}
		writing.Go(func() {
			defer func() { <-slots }()
			node := req.Items[i].Node
			c, result, err := o.addMachine(ctx, req.Items[i], m, req.DryRun)
			if list.Items[i] = Machine(c); err != nil {
				failures[i], list.Items[i].Node, list.Items[i].Problem = err, node, err.Error()
			}
			list.Items[i].Result, list.Items[i].DryRun = result, req.DryRun
		})
	}
	if writing.Wait(); len(machines) == 1 {
		return list, failures[0]
	}
	return list, nil
}

// checkQuota returns an error if the user would exceed the quota of machines. Concurrent requests may exceed it.
func (o *Operations) checkQuota(ctx context.Context, items []api.MachineSpec, by string) error {
	if o.UserMachines <= 0 {
		return nil
	}
	claims, err := o.Claims.List(ctx)
	if err != nil {
		return mint.StoreError(err)
	}
	n := len(items)
	for _, c := range claims {
		switch known := slices.ContainsFunc(items, func(s api.MachineSpec) bool { return s.Node == c.Node }); {
		case c.Machine.IsZero():
		case known && c.Machine.By != by: // the request does not change it
			n--
		case !known && c.Machine.By == by:
			n++
		}
	}
	if n > o.UserMachines {
		return &tokens.Refusal{Reason: "too-many-machines", Message: fmt.Sprintf("user %q would have added %d machines, and %d are allowed (--user-tokens); delete some: kubejoin machine delete NODE", by, n, o.UserMachines)}
	}
	return nil
}

// addMachine adds one machine, unless the name has a machine.
func (o *Operations) addMachine(ctx context.Context, s api.MachineSpec, m tokens.Machine, dryRun bool) (c tokens.Claim, result string, err error) {
	node := s.Node
	for try := range changeAttempts {
		c, err = tokens.Claim{Node: node}, nil // most names have no claim; otherwise the write fails, and the next try reads the claim
		if try > 0 || dryRun {
			if c, err = o.Claims.Get(ctx, node, tokens.Live); errors.Is(err, tokens.ErrNotFound) {
				c, err = tokens.Claim{Node: node}, nil
			}
		}
		if err == nil && c.Machine.IsZero() && !s.Replace {
			err = o.checkUnused(ctx, c)
		}
		switch {
		case err != nil:
			return c, api.MachineFailed, storeError(node, err)
		case !c.Machine.IsZero() && repeats(s, m, c.Machine):
			if m.Key == c.Machine.Key || tokens.IsWords(m.Key) {
				return c, api.MachineUnchanged, nil
			}
			key := m.Key // the whole key; the claim has only its words
			m = c.Machine
			m.Key = key
		case !c.Machine.IsZero():
			what := "with other limits"
			switch {
			case c.Machine.Revoked:
				what = "whose key is revoked"
			case !c.Machine.HasKey(m.Key) && !m.HasKey(c.Machine.Key):
				what = "with another key"
			case c.Machine.Expired(m.Added):
				what = "that has expired"
			}
			return c, api.MachineFailed, &tokens.Refusal{Reason: "machine-exists", Message: "node name " + node + " has a machine " + what + "; to replace it: kubejoin machine delete " + node}
		}
		after := c.Clone()
		if after.Machine = m; dryRun {
			return after, api.MachineAdded, nil
		}
		if c, err = tokens.CommitClaim(ctx, o.Claims, c, after); !errors.Is(err, tokens.ErrConflict) && !(try == 0 && errors.Is(err, tokens.ErrExists)) {
			break
		}
	}
	if err != nil {
		return c, api.MachineFailed, storeError(node, err)
	}
	return c, api.MachineAdded, nil
}

// repeats reports whether m, the machine of s, is the same as known, and known still works. A TTL counts from when known was added.
func repeats(s api.MachineSpec, m, known tokens.Machine) bool {
	longer := m.Expires.Sub(m.Added) - known.Expires.Sub(known.Added)
	if s.Expires == "" && !m.Expires.IsZero() && !known.Expires.IsZero() && longer.Abs() <= time.Second { // Added is rounded
		m.Expires = known.Expires
	}
	return known.Same(m) && !known.Revoked && !known.Expired(m.Added)
}

// changeAttempts is how often a change of a machine is tried if others change the claim at the same time.
const changeAttempts = 20

// checkUnused returns an error if a Node or a token has the name of a claim.
func (o *Operations) checkUnused(ctx context.Context, c tokens.Claim) error {
	what := "token " + c.TokenID + " holds"
	if c.Released() {
		if o.Node == nil {
			return nil
		}
		_, err := o.Node(ctx, c.Node)
		switch {
		case errors.Is(err, tokens.ErrNotFound):
			return nil
		case err != nil:
			return &tokens.Refusal{Reason: "node-unavailable", Message: "Node " + c.Node + " cannot be read now; retry", Err: err, Retry: true}
		}
		what = "a Node has"
	}
	return &tokens.Refusal{Reason: "name-in-use", Message: fmt.Sprintf("%s the node name %s; to let the machine use this name once no Ready Node has it, add the machine with --replace", what, c.Node)}
}

// MachinesPage returns a page of the machines.
func (o *Operations) MachinesPage(ctx context.Context, page api.ListPage) (api.MachineList, error) {
	if o.Claims == nil {
		return api.MachineList{}, errNoClaims
	}
	claims, err := o.Claims.List(ctx)
	if err != nil {
		return api.MachineList{}, mint.StoreError(err)
	}
	claims = slices.DeleteFunc(claims, func(c tokens.Claim) bool { return c.Machine.IsZero() })
	claims, next, err := Page(claims, api.KindMachineList, func(c tokens.Claim) string { return c.Node }, page)
	list := api.MachineList{APIVersion: api.GroupVersion, Kind: api.KindMachineList, Items: make([]api.Machine, len(claims)), Continue: next}
	for i, c := range claims {
		list.Items[i] = Machine(c)
	}
	return list, err
}

// GetMachine returns one machine.
func (o *Operations) GetMachine(ctx context.Context, node string) (api.Machine, error) {
	c, err := o.machineClaim(ctx, node)
	if err != nil {
		return api.Machine{}, err
	}
	return Machine(c), nil
}

// machineClaim returns the claim of a machine, read live.
func (o *Operations) machineClaim(ctx context.Context, node string) (c tokens.Claim, err error) {
	if err := tokens.CheckNodeName(node); err != nil {
		return c, api.InvalidField("node", "%v", err)
	}
	if o.Claims == nil {
		return c, errNoClaims
	}
	c, err = o.Claims.Get(ctx, node, tokens.Live)
	if errors.Is(err, tokens.ErrNotFound) || err == nil && c.Machine.IsZero() {
		return c, &tokens.Refusal{Reason: "no-machine", Message: "node name " + node + " has no machine with a key of its own"}
	}
	return c, storeError(node, err)
}

// DeleteMachine deletes a machine and its last token, because another machine may have this token. Certificates stay valid.
func (o *Operations) DeleteMachine(ctx context.Context, node string, req api.DeleteMachine) (api.Machine, error) {
	var c tokens.Claim
	var err error
	for range changeAttempts {
		if c, err = o.machineClaim(ctx, node); err != nil || req.DryRun {
			break
		}
		// Delete the token first: once the machine is deleted, the token could take the name.
		if err = o.EndMachineToken(ctx, c.Machine); err != nil {
			break
		}
		after := c.Clone()
		after.Machine = tokens.Machine{}
		if _, err = tokens.CommitClaim(ctx, o.Claims, c, after); !errors.Is(err, tokens.ErrConflict) {
			break
		}
	}
	shown := Machine(c)
	shown.DryRun = req.DryRun
	if err == nil && (!c.Released() || !c.Identity.IsZero() || c.Past.Active(time.Now())) {
		shown.Warnings = []string{fmt.Sprintf("the certificates of node %[1]s stay valid, and its kubelet renews them; to see them: kubejoin issued list --node %[1]s; to lock the machine out: kubejoin revoke %[1]s", node)}
	}
	return shown, storeError(node, err)
}

// storeError returns refusals and invalid fields unchanged. It converts an error of a store.
func storeError(node string, err error) error {
	switch {
	case err == nil, errors.As(err, new(*tokens.Refusal)), errors.As(err, new(api.InvalidFields)):
		return err
	case errors.Is(err, tokens.ErrExists):
		return &tokens.Refusal{Reason: "name-in-use", Message: "an object that is not a claim has the node name " + node, Err: err}
	}
	return mint.StoreError(err)
}

// EndMachineToken deletes the last token of a machine.
func (o *Operations) EndMachineToken(ctx context.Context, m tokens.Machine) error {
	if m.TokenID == "" {
		return nil
	}
	_, err := o.Minter.Delete(ctx, m.TokenID, mint.Deletion{UID: m.TokenUID})
	if e := (*mint.Error)(nil); errors.As(err, &e) && (e.Reason == mint.NoToken || e.Reason == mint.Replaced) {
		return nil
	}
	return err
}

// MachineJoin returns a document for machines that join with their keys at req.Endpoint, and its format. It contains no secret.
func (o *Operations) MachineJoin(ctx context.Context, req api.PrintMachineJoin) (joinformat.Format, []byte, error) {
	var errs []error
	format, err := joinformat.FindFormat(cmp.Or(req.Format, api.FormatScript))
	if err == nil {
		err = format.CheckMachine()
	}
	if err != nil {
		errs = append(errs, api.InvalidField("format", "%v", err))
	}
	if req.Node != "" && tokens.CheckNodeName(req.Node) != nil {
		errs = append(errs, api.InvalidField("node", "%v", tokens.CheckNodeName(req.Node)))
	}
	if err := clusterinfo.CheckEndpoint(req.Endpoint); err != nil {
		errs = append(errs, api.InvalidField("endpoint", "%v; want the HOST:PORT of a kubejoin server", err))
	}
	if err := api.JoinInvalid(errs...); err != nil {
		return format, nil, err
	}
	join, err := o.Minter.Discovery(ctx)
	if err != nil {
		return format, nil, err
	}
	join.Endpoint, join.Machine, join.Node = req.Endpoint, true, req.Node
	body, err := format.Write(join)
	if err != nil {
		err = api.InvalidField("format", "%v", err)
	}
	return format, body, err
}
