// Package pki changes the files of a host for a rotation of a CA: the trusted CAs, the certificates, and the key that
// signs. [Host.Apply] brings a host from any stage to the stage of a rotation.
//
// What a file contains in a stage is a function of its original, the rotation and the certificates that were signed again,
// never of the present file (see wanted.go). So Apply is idempotent, and an abort restores the original bytes. Apply goes
// from stage to stage. Files of two neighbouring stages work together, so a crash between any two writes leaves a host
// that works, and the next Apply completes it.
package pki
