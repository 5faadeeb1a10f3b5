package config

var (
	// Check returns why a signer does not allow a request.
	Check = (*Signer).check
	// KeyPolicy returns the policy of valid keys.
	KeyPolicy = Keys.policy
)
