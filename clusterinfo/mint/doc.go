// Package mint creates bootstrap tokens and the data to join with them. A [Minter] stores a token, waits until
// cluster-info is signed with it, and deletes it again if no machine could join with it. It is the front door of the
// library: it needs a store of tokens and a cluster-info, and no server.
package mint
