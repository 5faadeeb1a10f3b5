// Package token signs with a private key on a PKCS#11 token, for example in a hardware security module. The key never
// leaves the token.
package token

import (
	"bytes"
	"crypto"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ThalesGroup/crypto11"
	"github.com/kubejoin/kubejoin/internal/pemfile"
	"github.com/miekg/pkcs11"
)

// Limits of a [Key].
const (
	// maxSessions is the maximum number of concurrent signatures. An additional session keeps the token logged in.
	maxSessions = 8
	// defaultTimeout is how long a caller waits for a signature.
	defaultTimeout = 10 * time.Second
	// reopenAfter is the minimum time between two attempts to reach the token.
	reopenAfter = time.Second
)

// ErrUnavailable means that the token cannot sign now, for example because it was removed. The caller should retry
// later. The [Key] opens the token again by itself.
var ErrUnavailable = errors.New("the token is unavailable")

// A Key is a private key on a token: RSA, or ECDSA on P-256, P-384 or P-521. It is safe for concurrent use.
type Key struct {
	uri    URI
	public crypto.PublicKey
	slots  chan struct{} // contains an entry for each call into the module in progress
	// timeout is how long a caller waits for a signature.
	timeout time.Duration

	mu      sync.Mutex
	session *session  // nil if the token is not open
	closing bool      // the last session is closing
	next    time.Time // time of the next attempt to open the token
	failure error     // error of the last attempt
	refused *[sha256.Size]byte
}

// A session is an open and logged in token.
type session struct {
	context *crypto11.Context
	crypto11.Signer
}

// Open opens the token, and finds the key. It reads the PIN from its file each time it logs in.
func Open(uri URI) (*Key, error) {
	k := &Key{uri: uri, slots: make(chan struct{}, maxSessions), timeout: defaultTimeout}
	s, err := k.open()
	if err != nil {
		return nil, err
	}
	k.session, k.public = s, s.Public()
	return k, nil
}

// Public returns the public key, even if the token is unavailable.
func (k *Key) Public() crypto.PublicKey { return k.public }

// Close logs out. It waits for calls in progress. A closed key must not be used.
func (k *Key) Close() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.session == nil {
		return nil
	}
	s := k.session
	k.session, k.closing = nil, true
	return s.context.Close()
}

// Sign signs a digest. After a failure, it closes the token, and the next call opens it again.
func (k *Key) Sign(rand io.Reader, digest []byte, opts crypto.SignerOpts) ([]byte, error) {
	type result struct {
		signature []byte
		err       error
	}
	timer := time.NewTimer(k.timeout)
	defer timer.Stop()
	select {
	case k.slots <- struct{}{}:
	case <-timer.C:
		return nil, fmt.Errorf("%s: %w: all sessions are busy", k.uri, ErrUnavailable)
	}
	done := make(chan result, 1)
	go func() { // a call into the module cannot be cancelled
		defer func() { <-k.slots }()
		signature, err := k.sign(rand, digest, opts)
		done <- result{signature, err}
	}()
	select {
	case r := <-done:
		return r.signature, r.err
	case <-timer.C:
		return nil, fmt.Errorf("%s: %w: no answer within %s", k.uri, ErrUnavailable, k.timeout)
	}
}

func (k *Key) sign(rand io.Reader, digest []byte, opts crypto.SignerOpts) ([]byte, error) {
	s, err := k.current()
	if err != nil {
		return nil, err
	}
	signature, err := s.Sign(rand, digest, opts)
	if err != nil {
		k.drop(s)
		return nil, fmt.Errorf("%s: %w: %w", k.uri, ErrUnavailable, err)
	}
	return signature, nil
}

// current returns the open session, and opens the token if there is none.
func (k *Key) current() (*session, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now()
	switch {
	case k.session != nil:
		return k.session, nil
	case k.closing:
		return nil, fmt.Errorf("%s: %w: the last session has not ended", k.uri, ErrUnavailable)
	case now.Before(k.next):
		return nil, k.failure
	}
	s, err := k.open()
	if err == nil && !k.public.(interface{ Equal(crypto.PublicKey) bool }).Equal(s.Public()) {
		_ = s.context.Close()
		err = fmt.Errorf("%s: %w: the token has another key of this name now", k.uri, ErrUnavailable)
	}
	if err != nil {
		k.next, k.failure = now.Add(reopenAfter), err
		return nil, err
	}
	k.session = s
	return s, nil
}

// drop closes a session that failed.
func (k *Key) drop(s *session) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.session != s {
		return
	}
	k.session, k.closing = nil, true
	go func() { // Close waits for the calls in progress
		_ = s.context.Close()
		k.mu.Lock()
		defer k.mu.Unlock()
		k.closing = false
	}()
}

// opening is held while a token is opened. The library has global state, and a second caller must not finalize it in the
// meantime.
var opening sync.Mutex

// open opens the token and logs in once. It never retries a PIN that the token has refused. It tries no PIN at all if
// that could be the last try before the token locks itself.
func (k *Key) open() (*session, error) {
	fail := func(err error) (*session, error) { return nil, fmt.Errorf("%s: %w: %w", k.uri, ErrUnavailable, err) }
	pin, err := readPIN(k.uri.PINFile)
	if err != nil {
		return fail(fmt.Errorf("PIN: %w", err))
	}
	sum := sha256.Sum256(pin)
	if k.refused != nil && *k.refused == sum {
		return fail(fmt.Errorf("the token refused the PIN in %s, and kubejoin does not try it again; write the right one into the file", k.uri.PINFile))
	}
	opening.Lock()
	defer opening.Unlock()
	slot, info, err := find(k.uri)
	if err != nil {
		return fail(err)
	}
	if locks(info, k.public == nil) {
		return fail(fmt.Errorf("a wrong PIN was tried before, and kubejoin tries none that could lock it: log in with the right PIN by another program, for example: pkcs11-tool --module %s --token-label LABEL --login --list-objects", k.uri.Module))
	}
	// Select the token by its slot: two tokens may have the same serial number or label, and the PIN is only for the
	// token that was found.
	context, err := crypto11.Configure(&crypto11.Config{Path: k.uri.Module, SlotNumber: &slot, Pin: string(pin), MaxSessions: maxSessions + 1, PoolWaitTimeout: defaultTimeout})
	if loginRefused(err) {
		k.refused = &sum
		return fail(fmt.Errorf("the token refused the PIN in %s: %w", k.uri.PINFile, err))
	}
	if err != nil {
		return fail(err)
	}
	keys, err := context.FindKeyPairs(optional(k.uri.ID), optional(k.uri.Object))
	if err == nil && len(keys) != 1 {
		err = fmt.Errorf("%d keys with a public key of this name, want one", len(keys))
	}
	if err != nil {
		_ = context.Close()
		return fail(err)
	}
	k.refused = nil
	return &session{context, keys[0]}, nil
}

// locks reports whether a wrong PIN could lock the token. When the program starts, locks returns true after one wrong
// PIN, because a service manager that restarts the program could use up the tries.
func locks(info pkcs11.TokenInfo, starts bool) bool {
	flags := uint(pkcs11.CKF_USER_PIN_FINAL_TRY | pkcs11.CKF_USER_PIN_LOCKED)
	if starts {
		flags |= pkcs11.CKF_USER_PIN_COUNT_LOW
	}
	return info.Flags&flags != 0
}

// loginRefused reports whether [crypto11.Configure] could not log in although the token was available. Tokens return
// different codes for a wrong PIN, so every code counts as a refused login, except those of a removed token. crypto11 has
// no type for a failed login.
func loginRefused(err error) bool {
	if err == nil || !strings.Contains(err.Error(), "failed to log into long term session") {
		return false
	}
	code := pkcs11.Error(0)
	return !errors.As(err, &code) || !slices.Contains([]pkcs11.Error{
		pkcs11.CKR_TOKEN_NOT_PRESENT, pkcs11.CKR_TOKEN_NOT_RECOGNIZED, pkcs11.CKR_DEVICE_REMOVED, pkcs11.CKR_DEVICE_ERROR,
		pkcs11.CKR_SLOT_ID_INVALID, pkcs11.CKR_SESSION_HANDLE_INVALID, pkcs11.CKR_SESSION_CLOSED, pkcs11.CKR_CRYPTOKI_NOT_INITIALIZED,
	}, code)
}

func optional(text string) []byte {
	if text == "" {
		return nil
	}
	return []byte(text)
}

// find returns the only token that the URI names, and its slot.
func find(uri URI) (slot int, info pkcs11.TokenInfo, err error) {
	module := pkcs11.New(uri.Module)
	if module == nil {
		return 0, info, fmt.Errorf("%s is no PKCS#11 library", uri.Module)
	}
	defer module.Destroy()
	switch err := module.Initialize(); {
	case err == nil:
		defer func() { _ = module.Finalize() }()
	case !errors.Is(err, pkcs11.Error(pkcs11.CKR_CRYPTOKI_ALREADY_INITIALIZED)): // another Key has initialized the library
		return 0, info, fmt.Errorf("%s: %w", uri.Module, err)
	}
	library, err := module.GetInfo()
	if err != nil {
		return 0, info, err
	}
	if !uri.namesLibrary(library) {
		return 0, info, fmt.Errorf("%s is another library: library-manufacturer=%q, library-description=%q, library-version=%s", uri.Module,
			library.ManufacturerID, library.LibraryDescription, versionText(library.LibraryVersion))
	}
	slots, err := module.GetSlotList(true)
	if err != nil {
		return 0, info, err
	}
	found := 0
	for _, id := range slots {
		one, err := module.GetTokenInfo(id)
		if err != nil {
			continue // the token was removed in the meantime
		}
		if uri.namesToken(one) {
			slot, info, found = int(id), one, found+1 //nolint:gosec // crypto11 accepts no larger slot
		}
	}
	if found != 1 {
		return 0, info, fmt.Errorf("%d of %d tokens have this name, want one", found, len(slots))
	}
	return slot, info, nil
}

// readPIN returns the PIN in a file, which must be its only line. The file must be as private as a file with a key.
func readPIN(path string) ([]byte, error) {
	content, err := pemfile.ReadPrivate(path, pemfile.Secret)
	if err != nil {
		return nil, err
	}
	pin, err := pemfile.Passphrase(content)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return bytes.Clone(pin), nil
}
