package clusterinfo_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/tokens"
)

func ExampleSign() {
	// Programs use tokens.Generate. This token is public.
	token, err := tokens.New("k4f2pz", "3mz8q0c1v7x5b2n9")
	if err != nil {
		log.Fatal(err)
	}
	kubeconfig := []byte("apiVersion: v1\nkind: Config\n")
	jws, err := clusterinfo.Sign(kubeconfig, token)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(clusterinfo.SignatureKey(token.ID()), jws)
	fmt.Println(clusterinfo.Verify(kubeconfig, jws, token))
	err = clusterinfo.Verify(append(kubeconfig, '\n'), jws, token)
	fmt.Println(errors.Is(err, clusterinfo.ErrSignature))
	// Output:
	// jws-kubeconfig-k4f2pz eyJhbGciOiJIUzI1NiIsImtpZCI6Ims0ZjJweiJ9..4H7plNPV0WEaweRyLDdPiTxh-pXgfiodsGYMVwCpSt8
	// <nil>
	// true
}

// A Document is computed from the current records. Next returns when to compute it again.
func ExampleDocument_Update() {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	var records []tokens.Record
	for _, t := range []struct {
		id, secret string
		ttl        time.Duration
	}{{"k4f2pz", "3mz8q0c1v7x5b2n9", time.Hour}, {"w7h1ds", "0p5r4t8y2k6j3g1f", 24 * time.Hour}} {
		token, err := tokens.New(t.id, t.secret)
		if err != nil {
			log.Fatal(err)
		}
		records = append(records, tokens.Record{Token: token, Expires: now.Add(t.ttl), Signing: true})
	}
	kubeconfig := []byte("apiVersion: v1\nkind: Config\n")
	var document clusterinfo.Document
	for range 3 {
		var err error
		if document, err = document.Update(kubeconfig, records, now); err != nil {
			log.Fatal(err)
		}
		fmt.Println(now.Format(time.DateTime), slices.Sorted(maps.Keys(document.Data())))
		now = document.Next()
	}
	// Output:
	// 2026-03-01 12:00:00 [jws-kubeconfig-k4f2pz jws-kubeconfig-w7h1ds kubeconfig]
	// 2026-03-01 13:00:00 [jws-kubeconfig-w7h1ds kubeconfig]
	// 2026-03-02 12:00:00 [kubeconfig]
}

// The discovery of a machine before it joins. All values come from the join command.
func ExampleDiscover() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	token, err := tokens.Parse(os.Getenv("JOIN_TOKEN"))
	if err != nil {
		log.Fatal(err)
	}
	pins := []string{"sha256:0f4c1ba8f6b3e6f3a1d6a4f1c0e4b2d9a7c5e8f0b1d2c3a4958677869504a3b2"}
	found, err := clusterinfo.Discover(ctx, "10.0.0.1:6443", token, pins)
	if errors.Is(err, clusterinfo.ErrUntrusted) {
		log.Fatalf("somebody else answers at this address: %v", err)
	}
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("API server %s with %d CAs\n", found.Server, len(found.CAs))
}
