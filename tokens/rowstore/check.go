package rowstore

import (
	"errors"
	"maps"
	"slices"
)

// Check calls damaged for each row that cannot be decoded, and for each key in the index of claims that is missing or
// has no claim. scan visits the rows of a folder, which are of the same moment in all folders. revocation decodes a row
// of signer/revocation.
func Check(scan func(folder string, visit func(key string, value []byte)) error, revocation func(key string, value []byte) error, damaged func(key string, err error)) error {
	each := func(folder string, check func(key string, value []byte) error) error {
		return scan(folder, func(key string, value []byte) {
			if err := check(key[len(folder):], value); err != nil {
				damaged(key, err)
			}
		})
	}
	if err := each(tokensFolder, func(id string, value []byte) error {
		_, err := decodeRecord(id, value)
		return err
	}); err != nil {
		return err
	}
	holders := map[string]bool{} // keys that claims need
	if err := each(claimsFolder, func(node string, value []byte) error {
		c, err := decodeClaim(node, value)
		if err == nil && !c.Released() {
			holders[holderKey(c)] = true
		}
		return err
	}); err != nil {
		return err
	}
	if err := each(holdersFolder, func(key string, _ []byte) error {
		if !holders[holdersFolder+key] {
			return errors.New("the token does not hold this claim")
		}
		delete(holders, holdersFolder+key)
		return nil
	}); err != nil {
		return err
	}
	for _, key := range slices.Sorted(maps.Keys(holders)) {
		damaged(key, errors.New("missing in the index of claims"))
	}
	return each(revocationsFolder, revocation)
}
