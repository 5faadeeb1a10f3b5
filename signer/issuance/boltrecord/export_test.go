package boltrecord

// Decode reads a row as List does.
var Decode = decode
