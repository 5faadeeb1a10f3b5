package operations_test

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/kubejoin/kubejoin/clusterinfo/mint"
	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/operations"
	"github.com/kubejoin/kubejoin/signer/pkcs10"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/rowstore/memdb"
	"github.com/kubejoin/kubejoin/tokens/storetest"
	"golang.org/x/crypto/ssh"
)

// The error about a machine that exists must name the cause. Catches a machine with a revoked key that can be added again.
func TestNamesWhyMachineExists(t *testing.T) {
	o := &operations.Operations{Claims: memdb.Open().Claims()}
	req := api.AddMachines{Items: []api.MachineSpec{{Node: "worker-1", Key: "lusab-babad-gutih-tugad"}}}
	add := func() (api.MachineList, error) {
		return o.AddMachines(t.Context(), req, "ada", operations.Everything)
	}
	must.Value(add())(t)
	if list, err := add(); err != nil || list.Items[0].Result != api.MachineUnchanged {
		t.Errorf("again: got %+v, %v, want %s", list, err, api.MachineUnchanged)
	}
	for want, change := range map[string]func(*tokens.Machine){
		"whose key is revoked": func(m *tokens.Machine) { m.Revoked = true },
		"with another key":     func(m *tokens.Machine) { m.Key = "zuzuz-zuzuz-zuzuz-zuzuz" },
		"with other limits":    func(m *tokens.Machine) { m.Replace = true },
		"that has expired":     func(m *tokens.Machine) { m.Expires = m.Added },
	} {
		known := must.Value(o.Claims.Get(t.Context(), "worker-1", tokens.Live))(t).Machine
		set := func(m tokens.Machine) {
			must.Value(storetest.UpdateClaim(t.Context(), o.Claims, "worker-1", func(c *tokens.Claim) error { c.Machine = m; return nil }))(t)
		}
		changed := known
		change(&changed)
		set(changed)
		refused := (*tokens.Refusal)(nil)
		if _, err := add(); !errors.As(err, &refused) || refused.Reason != "machine-exists" || !strings.Contains(refused.Message, " has a machine "+want+"; ") {
			t.Errorf("got %v, want machine-exists %s", err, want)
		}
		set(known)
	}
}

// Catches an error that asks for a token: a document for machines has none.
func TestMachineJoinNeedsDocumentWithoutToken(t *testing.T) {
	o := &operations.Operations{}
	_, _, err := o.MachineJoin(t.Context(), api.PrintMachineJoin{Format: "json", Endpoint: "join.example.com:9443"})
	if invalid := (api.InvalidFields)(nil); !errors.As(err, &invalid) || invalid[0].Field != "format" || !strings.Contains(invalid[0].Detail, "want one of cloud-config, ignition, script") {
		t.Errorf("got %v, want an error about format", err)
	}
}

// Catches a user who adds unlimited machines, and a repeated request whose machines count twice.
func TestBoundsMachinesOfOneUser(t *testing.T) {
	o := &operations.Operations{Claims: memdb.Open().Claims(), UserMachines: 3}
	add := func(by string, from, to int) error {
		var req api.AddMachines
		for i := from; i < to; i++ {
			req.Items = append(req.Items, api.MachineSpec{Node: fmt.Sprint("node-", i), Key: fmt.Sprintf("sha256:%064x", i)})
		}
		_, err := o.AddMachines(t.Context(), req, by, operations.Everything)
		return err
	}
	must.OK(t, errors.Join(add("ada", 0, 2), add("ada", 0, 3), add("ada", 1, 3), add("bob", 3, 6)))
	const like = "oidc:marion.featherstonehaugh@example.com" // stored redacted, because a part looks like a token
	must.OK(t, errors.Join(add(like, 10, 13), add("bob", 10, 13)))
	for _, by := range []string{"ada", like} {
		refused := (*tokens.Refusal)(nil)
		if err := add(by, 20, 21); !errors.As(err, &refused) || refused.Reason != "too-many-machines" {
			t.Errorf("%s: got %v, want too-many-machines", by, err)
		}
	}
}

// If a machine was added with words, and then with its whole key, only this key must work. Catches a claim that keeps only the words.
func TestBindsWholeKeyOfKnownWords(t *testing.T) {
	o := &operations.Operations{Claims: memdb.Open().Claims()}
	key, twin := "sha256:0b6e1a8f6d7d3cf9"+strings.Repeat("a", 48), "sha256:0b6e1a8f6d7d3cf9"+strings.Repeat("b", 48)
	for i, test := range []struct{ key, result, stored string }{
		{tokens.Words(key), api.MachineAdded, tokens.Words(key)},
		{key, api.MachineAdded, key},
		{key, api.MachineUnchanged, key},
		{tokens.Words(key), api.MachineUnchanged, key},
		{twin, api.MachineFailed, key},
	} {
		list, _ := o.AddMachines(t.Context(), api.AddMachines{Items: []api.MachineSpec{{Node: "w", Key: test.key}}}, "ada", operations.Everything)
		c := must.Value(o.Claims.Get(t.Context(), "w", tokens.Live))(t)
		if list.Items[0].Result != test.result || c.Machine.Key != test.stored {
			t.Errorf("%d: got %s and key %s, want %s and %s", i, list.Items[0].Result, c.Machine.Key, test.result, test.stored)
		}
	}
}

// All forms of a key must have the same key ID.
func TestMachineKey(t *testing.T) {
	e, r := must.Value(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t), must.Value(rsa.GenerateKey(rand.Reader, 2048))(t)
	for _, key := range []any{&e.PublicKey, ed25519.PublicKey(make([]byte, ed25519.PublicKeySize)), &r.PublicKey} {
		der := must.Value(x509.MarshalPKIXPublicKey(key))(t)
		id, line := pkcs10.IDOfKey(der), string(ssh.MarshalAuthorizedKey(must.Value(ssh.NewPublicKey(key))(t)))
		for _, text := range []string{strings.ToUpper(id), " " + id + "\n", string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})), line, strings.TrimSpace(line) + " root@worker-7"} {
			if got, err := operations.MachineKey(text); err != nil || got != id {
				t.Errorf("%T: %s: got %s, %v, want %s", key, text, got, err, id)
			}
		}
		// A machine has one key, and an option would have no effect.
		for _, text := range []string{"x", line + line, line + "# of worker-7", "worker-7\n" + line, `restrict,command="a b" ` + line} {
			if got, err := operations.MachineKey(text); err == nil {
				t.Errorf("%T: got %s from more than a key: %s", key, got, text)
			}
		}
	}
	short := must.Value(x509.MarshalPKIXPublicKey(&csrtest.RSA1024().PublicKey))(t)
	for want, text := range map[string]string{
		"never needs the private key": "-----BEGIN PRIVATE KEY-----",
		"want a public key in PEM":    "x",
		"2048":                        string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: short})),
		"damaged":                     "-----BEGIN PUBLIC KEY-----",
	} {
		if _, err := operations.MachineKey(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// Terminals show who added a machine. Catches control characters in the name of this user, and a name too long for a claim.
func TestMachineIsAddedByHostileUser(t *testing.T) {
	o := &operations.Operations{Claims: memdb.Open().Claims()}
	req := api.AddMachines{Items: []api.MachineSpec{{Node: "w", Key: "lusab-babad-gutih-tugad"}}}
	must.Value(o.AddMachines(t.Context(), req, "ada\x1b]0;a\x07\r\u202e"+strings.Repeat("é", 300), operations.Everything))(t)
	if got := must.Value(o.GetMachine(t.Context(), "w"))(t).AddedBy; !strings.HasPrefix(got, "ada") || len(got) > tokens.MaxMachineBy || strings.ContainsFunc(got, func(r rune) bool { return !unicode.IsPrint(r) }) {
		t.Errorf("got %q, want at most %d printable bytes", got, tokens.MaxMachineBy)
	}
}

// Catches a token that stays after its machine was deleted, and could take the name. Also catches the deletion of another token.
func TestDeleteMachineEndsItsToken(t *testing.T) {
	for name, test := range map[string]struct {
		fault      error  // of the deletion of the token
		id, uid    string // of the earlier token; the machine gets the present one during the deletion
		present    string // UID of the token that the machine has; empty: that of the token in the store
		tokensLeft int
	}{
		"its token":         {},
		"a later token":     {id: "abcdef", uid: "gone"},
		"token of a person": {present: "other", tokensLeft: 1},
		"not deleted":       {fault: errors.New("away"), tokensLeft: 1},
	} {
		db := memdb.Open()
		r := must.Value(db.Create(t.Context(), tokens.NewRecord(tokens.Generate(), time.Hour, time.Now())))(t)
		m := tokens.Machine{Key: "lusab-babad-gutih-tugad", TokenID: r.Token.ID(), TokenUID: cmp.Or(test.present, r.UID)}
		before := m
		before.TokenID, before.TokenUID = cmp.Or(test.id, m.TokenID), cmp.Or(test.uid, m.TokenUID)
		must.Value(storetest.CreateClaim(t.Context(), db.Claims(), tokens.Claim{Node: "w", Machine: before}))(t)
		claims := storetest.Before(func() (err error) {
			if before != m {
				_, err = storetest.UpdateClaim(t.Context(), db.Claims(), "w", func(c *tokens.Claim) error { c.Machine = m; return nil })
			}
			return err
		}, "Claims.Update", "Claims.Delete").Claims(db.Claims())
		store := storetest.Before(func() error { return test.fault }, "Store.Delete").Store(db)
		_, err := (&operations.Operations{Claims: claims, Minter: &mint.Minter{Tokens: store}}).DeleteMachine(t.Context(), "w", api.DeleteMachine{})
		_, kept := db.Claims().Get(t.Context(), "w", tokens.Live)
		if left := must.Value(db.List(t.Context()))(t); (err != nil) != (test.fault != nil) || (kept == nil) != (test.fault != nil) || len(left) != test.tokensLeft {
			t.Errorf("%s: got %v, %d tokens and claim %v, want %v and %d tokens", name, err, len(left), kept, test.fault, test.tokensLeft)
		}
	}
}

// unreadInfo is a cluster-info that cannot be read.
type unreadInfo struct{ mint.ClusterInfo }

func (unreadInfo) Config(context.Context) ([]byte, error) { return nil, errors.New("away") }

// Catches a machine that kubejoin adds, shows or deletes although it must refuse, and an error that does not say why.
func TestRefusesMachines(t *testing.T) {
	const key, hash = "lusab-babad-gutih-tugad", "sha256:0b6e1a8f6d7d3cf9e2f7b7a54d1c9a7f0c4f1a5f1d9be55c5a3f1f6c7f8a9b01"
	away := errors.New("away")
	add := func(items ...api.MachineSpec) func(*operations.Operations) error {
		return func(o *operations.Operations) error {
			_, err := o.AddMachines(t.Context(), api.AddMachines{Items: items}, "ada", operations.Everything)
			return err
		}
	}
	get := func(node string) func(*operations.Operations) error {
		return func(o *operations.Operations) error { _, err := o.GetMachine(t.Context(), node); return err }
	}
	remove := func(node string) func(*operations.Operations) error {
		return func(o *operations.Operations) error {
			_, err := o.DeleteMachine(t.Context(), node, api.DeleteMachine{})
			return err
		}
	}
	list := func(o *operations.Operations) error {
		_, err := o.MachinesPage(t.Context(), api.ListPage{})
		return err
	}
	join := func(req api.PrintMachineJoin) func(*operations.Operations) error {
		return func(o *operations.Operations) error { _, _, err := o.MachineJoin(t.Context(), req); return err }
	}
	works := memdb.Open().Claims()
	must.Value(storetest.CreateClaim(t.Context(), works, tokens.Claim{Node: "taken", TokenID: "abcdef", Keys: []string{"k"}}))(t)
	fails := func(methods ...string) tokens.Claims {
		return storetest.Fail(away, methods...).Claims(memdb.Open().Claims())
	}
	unreadable := func(context.Context, string) (tokens.NodeRef, error) { return tokens.NodeRef{}, away }
	for about, test := range map[string]struct {
		o    operations.Operations
		do   func(*operations.Operations) error
		want string // the field or the reason
	}{
		"add without claims":    {do: add(api.MachineSpec{Node: "w", Key: key}), want: "no-claims"},
		"list without claims":   {do: list, want: "no-claims"},
		"get without claims":    {do: get("w"), want: "no-claims"},
		"add none":              {o: operations.Operations{Claims: works}, do: add(), want: "items"},
		"key":                   {o: operations.Operations{Claims: works}, do: add(api.MachineSpec{Node: "w", Key: "x"}), want: "items[0].key"},
		"key and its words":     {o: operations.Operations{Claims: works}, do: add(api.MachineSpec{Node: "w", Key: tokens.Words(hash)}, api.MachineSpec{Node: "v", Key: hash}), want: "items[1].key"},
		"words and their key":   {o: operations.Operations{Claims: works}, do: add(api.MachineSpec{Node: "w", Key: hash}, api.MachineSpec{Node: "v", Key: tokens.Words(hash)}), want: "items[1].key"},
		"name of a token":       {o: operations.Operations{Claims: works}, do: add(api.MachineSpec{Node: "taken", Key: key}), want: "name-in-use"},
		"quota unread":          {o: operations.Operations{Claims: fails("Claims.List"), UserMachines: 1}, do: add(api.MachineSpec{Node: "w", Key: key}), want: mint.Unavailable},
		"Node unread":           {o: operations.Operations{Claims: works, Readers: operations.Readers{Node: unreadable}}, do: add(api.MachineSpec{Node: "w", Key: key}), want: "node-unavailable"},
		"not written":           {o: operations.Operations{Claims: fails("Claims.Create")}, do: add(api.MachineSpec{Node: "w", Key: key}), want: mint.Unavailable},
		"another object's name": {o: operations.Operations{Claims: storetest.Fail(tokens.ErrExists, "Claims.Create").Claims(memdb.Open().Claims())}, do: add(api.MachineSpec{Node: "w", Key: key}), want: "name-in-use"},
		"list unread":           {o: operations.Operations{Claims: fails("Claims.List")}, do: list, want: mint.Unavailable},
		"get a bad name":        {o: operations.Operations{Claims: works}, do: get("No Node"), want: "node"},
		"get no claim":          {o: operations.Operations{Claims: works}, do: get("w"), want: "no-machine"},
		"get no machine":        {o: operations.Operations{Claims: works}, do: get("taken"), want: "no-machine"},
		"get unread":            {o: operations.Operations{Claims: fails("Claims.Get")}, do: get("w"), want: mint.Unavailable},
		"delete a bad name":     {o: operations.Operations{Claims: works}, do: remove("No Node"), want: "node"},
		"delete no machine":     {o: operations.Operations{Claims: works}, do: remove("taken"), want: "no-machine"},
		"join without CA":       {o: operations.Operations{Minter: &mint.Minter{ClusterInfo: unreadInfo{}}}, do: join(api.PrintMachineJoin{Endpoint: "join.example.com:9443"}), want: mint.Failed},
		"join as a bad name":    {do: join(api.PrintMachineJoin{Node: "No Node", Endpoint: "join.example.com:9443"}), want: "node"},
		"join at no endpoint":   {do: join(api.PrintMachineJoin{Endpoint: "join"}), want: "endpoint"},
	} {
		err := test.do(&test.o)
		var invalid api.InvalidFields
		var refused *tokens.Refusal
		var minted *mint.Error
		got := ""
		switch {
		case errors.As(err, &invalid):
			got = invalid[0].Field
		case errors.As(err, &minted):
			got = minted.Reason
		case errors.As(err, &refused):
			got = refused.Reason
		}
		if got != test.want {
			t.Errorf("%s: got %q (%v), want %q", about, got, err, test.want)
		}
	}
}
