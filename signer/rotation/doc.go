// Package rotation replaces a CA of a cluster in stages, while machines continue to join. A [Rotation] is the stored
// state. Its methods say which CAs each stage trusts, which CA signs, and which [Observation] blocks the next stage.
// The package sends no requests and changes no files.
//
// A rotation goes through four stages: [Prepare], [Trust], [Switch] and [Finish]. Abort goes back through the same
// stages, one at a time. So no client ever sees a certificate from a CA that it does not trust:
//
//	stage    trusted      signs
//	prepare  old          old
//	trust    old and new  old
//	switch   old and new  new
//	finish   new          new
package rotation
