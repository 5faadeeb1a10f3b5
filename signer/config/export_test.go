package config

// Check returns why a signer does not allow a request.
var Check = (*Signer).check
