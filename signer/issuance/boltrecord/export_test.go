package boltrecord

// Decode decodes a row as List does.
var Decode = decode
