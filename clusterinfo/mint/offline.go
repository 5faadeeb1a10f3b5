package mint

import (
	"context"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/tokens"
)

// Offline returns a token for a cluster that does not exist yet, and how to join with it. It also returns the data of a
// cluster-info with this kubeconfig, signed with the token. It stores nothing. Minted.Join has no Token if the record
// lacks a usage.
func Offline(record tokens.Record, kubeconfig []byte) (Minted, map[string]string, error) {
	record, err := newRecord(record)
	if err != nil {
		return Minted{}, nil, err
	}
	var m Minter
	record.Created = time.Now().UTC().Truncate(time.Second)
	made := Minted{Record: record, Warnings: m.advice(context.Background(), record)}
	data := map[string]string{clusterinfo.KubeconfigKey: string(kubeconfig)}
	if !record.Signing {
		return made, data, nil
	}
	jws, err := clusterinfo.Sign(kubeconfig, record.Token)
	if err != nil {
		return Minted{}, nil, err
	}
	data[clusterinfo.SignatureKey(record.Token.ID())] = jws
	join, err := m.join(kubeconfig, record)
	if err != nil {
		return Minted{}, nil, err
	}
	if record.Authentication {
		made.Join = join
	}
	return made, data, nil
}
