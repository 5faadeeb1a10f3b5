package kubefacts_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/kubefacts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
)

func node(name string, addresses ...string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-of-" + name)}}
	for i, a := range addresses {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeAddressType(fmt.Sprint(i)), Address: a})
	}
	return n
}

func TestFactsFollowAddressesOfNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(
			node("facts-1", "198.51.100.1", "Facts-1", "facts-1.Example.com"),
			node("facts-2", "198.51.100.2", "2001:db8:0:0::2", "facts-2.example.com", "shared.example.com"),
			node("facts-3", "198.51.100.3", "shared.example.com"),
		)
		nodes := kubefacts.OpenNodes(t.Context(), client)
		synctest.Wait() // a fake watch has no earlier changes
		facts := &kubefacts.Facts{Client: client, Nodes: nodes}

		got, err := facts.Node(t.Context(), approval.Request{}, "facts-1")
		if err != nil || got.Name != "facts-1" || got.UID != "uid-of-facts-1" || !slices.Equal(got.Addresses, []string{"198.51.100.1", "Facts-1", "facts-1.Example.com"}) {
			t.Errorf("%+v, %v", got, err)
		}
		if _, err := facts.Node(t.Context(), approval.Request{}, "facts-0"); !errors.Is(err, approval.ErrNoNode) {
			t.Errorf("missing Node: got %v, want ErrNoNode", err)
		}

		asked := []string{"198.51.100.1", "198.51.100.2", "2001:DB8::2", "::ffff:198.51.100.2", "SHARED.example.com", "facts-3", "198.51.100.9", "facts-2.example.com."}
		reporters := must.Value(facts.Reporters(t.Context(), "facts-1", asked))(t)
		for _, address := range asked {
			var want []string
			switch address {
			case "198.51.100.2", "2001:DB8::2", "::ffff:198.51.100.2", "facts-2.example.com.":
				want = []string{"facts-2"}
			case "SHARED.example.com":
				want = []string{"facts-2", "facts-3"}
			case "facts-3": // its own name, which it need not report
				want = []string{"facts-3"}
			}
			if !slices.Equal(reporters[address], want) {
				t.Errorf("%s: got reporters %q, want %q", address, reporters[address], want)
			}
		}
		// Reporters must return the newly reported addresses.
		must.Value(client.CoreV1().Nodes().UpdateStatus(t.Context(), node("facts-3", "198.51.100.9"), metav1.UpdateOptions{}))(t)
		synctest.Wait()
		reporters, err = facts.Reporters(t.Context(), "facts-1", []string{"198.51.100.9", "198.51.100.3"})
		if err != nil || !slices.Equal(reporters["198.51.100.9"], []string{"facts-3"}) || len(reporters["198.51.100.3"]) > 0 {
			t.Errorf("after a change: %v, %v", reporters, err)
		}

		without := &kubefacts.Facts{Client: client}
		if _, err := without.Node(t.Context(), approval.Request{}, "facts-1"); err == nil {
			t.Error("Node without Nodes: got no error")
		}
		if _, err := without.Reporters(t.Context(), "facts-1", asked); err == nil {
			t.Error("Reporters without Nodes: got no error")
		}
		stopped, stop := context.WithCancel(context.Background())
		stop()
		unread := kubefacts.OpenNodes(stopped, client)
		if _, err := (&kubefacts.Facts{Client: client, Nodes: unread}).Reporters(stopped, "facts-1", asked); !errors.Is(err, context.Canceled) {
			t.Errorf("Nodes before the first list: got %v", err)
		}
	})
}
