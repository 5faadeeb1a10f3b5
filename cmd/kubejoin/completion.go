package main

import (
	"context"
	"math"
	"regexp"
	"slices"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// completeTimeout limits how long a shell waits for the names that the cluster or server has. Scripts of tests wait longer.
var completeTimeout = 2 * time.Second

// completable matches the names that kubejoin gives to a shell. It keeps out flags, and characters with a meaning for the
// shell that a malicious server could send.
var completable = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9.:-]*$`)

// many is for commands that take any number of arguments.
const many = math.MaxInt

// A lister lists the arguments that a user may type. It skips objects that it cannot read.
type lister func(context.Context, *remote) []string

// offer completes up to most arguments, or the value of a flag, with names from the cluster or server. It offers nothing if
// there is no cluster or server, or if the response takes too long.
func (o *remoteOptions) offer(most int, list lister) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) >= most {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), completeTimeout)
		defer cancel()
		o.ownServer = o.curlrc == "" // the user has not run the command yet, so be careful with credentials
		listed := make(chan []string, 1)
		go func() { // a credential plugin of a kubeconfig ignores the end of ctx
			if r, stop, err := o.connect(ctx); err == nil {
				defer stop()
				listed <- list(ctx, r)
			} else {
				listed <- nil
			}
		}()
		var names []string
		select {
		case names = <-listed:
		case <-ctx.Done():
		}
		names = slices.DeleteFunc(names, func(name string) bool { return slices.Contains(args, name) || !completable.MatchString(name) })
		slices.Sort(names)
		return slices.Compact(names), cobra.ShellCompDirectiveNoFileComp
	}
}

// complete completes the value of a flag with fixed values.
func complete(cmd *cobra.Command, flag string, values ...string) {
	// It fails only if the flag does not exist.
	_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
}

// offerFlag completes the value of a flag.
func (o *remoteOptions) offerFlag(cmd *cobra.Command, flag string, list lister) {
	offered := o.offer(1, list)
	// It fails only if the flag does not exist.
	_ = cmd.RegisterFlagCompletionFunc(flag, func(cmd *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
		return offered(cmd, nil, typed)
	})
}

func listTokenIDs(ctx context.Context, r *remote) (ids []string) {
	list, _ := r.ListTokens(ctx)
	for _, t := range list.Items {
		ids = append(ids, t.ID)
	}
	return ids
}

func listClaimed(ctx context.Context, r *remote) (names []string) {
	list, _ := r.ListClaims(ctx)
	for _, c := range list.Items {
		names = append(names, c.Node)
	}
	return names
}

func listRevoked(ctx context.Context, r *remote) (names []string) {
	list, _ := r.ListRevocations(ctx)
	for _, e := range list.Items {
		names = append(names, revokedName(e))
	}
	return names
}

// maxCompleted limits how many Nodes are listed.
const maxCompleted = 500

// listNodes lists the names of Nodes and of claims. From a kubejoin server, it lists only the names of claims.
func listNodes(ctx context.Context, r *remote) []string {
	names := listClaimed(ctx, r)
	if r.cluster == nil {
		return names
	}
	if nodes, err := r.cluster.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{Limit: maxCompleted}); err == nil {
		for _, n := range nodes.Items {
			names = append(names, n.Name)
		}
	}
	return names
}
