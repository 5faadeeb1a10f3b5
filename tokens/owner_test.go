package tokens_test

import (
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/tokens"
)

func TestParseOwner(t *testing.T) {
	const uid = "4f5e5b0c-f15f-4a57-9a2e-3a5a7a8e2b6d"
	for text, want := range map[string]tokens.Owner{
		"v1/Node/worker-7/" + uid:                              {APIVersion: "v1", Kind: "Node", Name: "worker-7", UID: uid},
		"v1/Node/worker-7":                                     {APIVersion: "v1", Kind: "Node", Name: "worker-7"},
		"karpenter.sh/v1/NodeClaim/default-abc/" + uid:         {APIVersion: "karpenter.sh/v1", Kind: "NodeClaim", Name: "default-abc", UID: uid},
		"karpenter.sh/v1beta1/NodeClaim/default-abc":           {APIVersion: "karpenter.sh/v1beta1", Kind: "NodeClaim", Name: "default-abc"},
		"rbac.authorization.k8s.io/v1/ClusterRole/system:node": {APIVersion: "rbac.authorization.k8s.io/v1", Kind: "ClusterRole", Name: "system:node"},
	} {
		got, err := tokens.ParseOwner(text)
		if err != nil || got != want {
			t.Errorf("%s: got %+v, %v, want %+v", text, got, err, want)
		}
		if err := got.Check(); (err == nil) != (want.UID != "") {
			t.Errorf("%s: check: %v", text, err)
		}
		if want.UID != "" && got.String() != text {
			t.Errorf("got %s, want %s", got, text)
		}
	}
	for text, want := range map[string]string{
		"":                                     "want APIVERSION/KIND/NAME/UID",
		"v1":                                   "want APIVERSION/KIND/NAME/UID",
		"v1/Node":                              "want APIVERSION/KIND/NAME/UID",
		"karpenter.sh/v1/NodeClaim":            "want APIVERSION/KIND/NAME/UID",
		"v1/Node/a/b/c":                        "want APIVERSION/KIND/NAME/UID",
		"karpenter.sh/x/NodeClaim/a/":          `APIVERSION "karpenter.sh/x" given`,
		"/v1/Node/a/u":                         `APIVERSION "/v1" given`,
		"Karpenter/v1/Node/a/u":                `APIVERSION "Karpenter/v1" given`,
		"v1/node/a/u":                          `KIND "node" given`,
		"v1//a/u":                              `KIND "" given`,
		"v1/Node\n/a/u":                        `KIND "Node\n" given`,
		"v1/Node//u":                           `NAME "" given`,
		"v1/Node/../u":                         `NAME ".." given`,
		"v1/Node/a b/u":                        `NAME "a b" given`,
		"v1/Node/a/":                           `UID "" given`,
		"v1/Node/a/u u":                        `UID "u u" given`,
		"v1/Node/a/" + strings.Repeat("u", 65): "UID",
	} {
		if o, err := tokens.ParseOwner(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %+v, %v, want %s", text, o, err, want)
		}
	}
	if _, err := tokens.ParseOwner("v1/Node/waz2bg.0123456789abcdee/-/x"); err == nil || strings.Contains(err.Error(), "0123456789abcdee") {
		t.Errorf("got %v, want an error without the secret of a token", err)
	}
}
