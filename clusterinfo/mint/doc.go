// Package mint creates bootstrap tokens and the data to join with them. [Minter.Join] stores a token, waits until
// cluster-info is signed with it, and deletes it again if that fails. A [Minter] needs a store of tokens and a
// cluster-info, and no server. Programs that use kubejoin as a library begin here.
package mint
