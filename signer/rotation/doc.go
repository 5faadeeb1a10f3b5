// Package rotation replaces a CA of a cluster in stages, while machines go on joining. A [Rotation] is the stored state,
// and its methods say what each stage trusts, who signs, and which [Observation] keeps the next stage from beginning. The
// package makes no request and changes no file.
//
// A rotation goes through four stages: [Prepare], [Trust], [Switch] and [Finish]. Abort goes back through the same
// stages, one at a time, so that no client ever meets a CA that it does not trust:
//
//	stage    trusted      signs
//	prepare  old          old
//	trust    old and new  old
//	switch   old and new  new
//	finish   new          new
package rotation
